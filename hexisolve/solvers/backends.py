"""Every solver of linear models by name: which are installed, and one way to ask any of them.

`solve_linear` runs a backend in a process of its own (CP-SAT on small models in ours) and judges
what it says: values are held against the exact rows, "infeasible" from a library whose word is not
enough is confirmed by a second one, "unbounded" by a point that satisfies the rows.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

from hexisolve.errors import BackendError, BackendUnavailableError, InstanceError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.cp_sat import solve_with_cp_sat
from hexisolve.solvers.isolated import run_isolated
from hexisolve.solvers.linear_solution import LinearSolution, Termination, checked_solution
from hexisolve.solvers.math_opt import MATH_OPT_NAMES, solve_with_math_opt
from hexisolve.solvers.model_documents import model_document, solution_from_document
from hexisolve.solvers.pulp_library import PULP_NAMES, solve_with_pulp

logger = logging.getLogger(__name__)

_SECOND_OPINIONS = ("highs", "mathopt-gscip", "cp-sat")


@dataclass(frozen=True)
class Backend:
    """A solver of linear models.

    Parameters
    ----------
    name
        What users write.
    solve_here
        The adapter, in the present process.
    modules
        Python modules it needs.
    programs
        Modules or programs of which it needs one; none when empty.
    remedy
        How to install it.
    most_here
        Models of up to so many variables are solved in our process, larger ones in one of its own.
    is_trusted
        Whether its word "infeasible" is enough.
    """

    name: str
    solve_here: Callable[..., LinearSolution]
    modules: tuple[str, ...]
    remedy: str
    programs: tuple[str, ...] = ()
    most_here: int = 0
    is_trusted: bool = True

    @property
    def is_available(self) -> bool:
        """Whether what it needs is installed; nothing is imported to find out."""
        if any(find_spec(module) is None for module in self.modules):
            return False
        return not self.programs or any(
            find_spec(name) is not None or shutil.which(name) is not None for name in self.programs
        )


def _pulp(name: str, remedy: str, *programs: str, **options: bool) -> Backend:
    assert name in PULP_NAMES
    adapter = partial(solve_with_pulp, solver=name)
    return Backend(name, adapter, ("pulp",), remedy, programs, **options)


def _math_opt(name: str) -> Backend:
    assert name in MATH_OPT_NAMES
    return Backend(
        name, partial(solve_with_math_opt, solver=name), ("ortools",), "pip install ortools"
    )


BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        # Small programs take less time than a process to start; on large ones CP-SAT's presolve
        # was seen to pass its limit by more than 5 s.
        Backend("cp-sat", solve_with_cp_sat, ("ortools",), "pip install ortools", most_here=2_000),
        _pulp("cbc", "pip install pulp", is_trusted=False),
        _pulp("highs", "pip install pulp highspy", "highspy"),
        _math_opt("mathopt-gscip"),
        _math_opt("mathopt-cp-sat"),
        _math_opt("mathopt-highs"),
        _pulp(
            "gurobi", "install Gurobi and its gurobipy, and pulp", "gurobipy", "gurobi_cl",
            is_trusted=False,
        ),
        _pulp(
            "cplex", "install CPLEX and its Python module, and pulp", "cplex", is_trusted=False
        ),
        _pulp(
            "xpress", "install Xpress and its Python module, and pulp", "xpress", "optimizer",
            is_trusted=False,
        ),
    )
}  # fmt: skip
"""Every backend by name."""


def available_backends() -> tuple[str, ...]:
    """Names of the backends whose libraries or programs are installed, in the order of `BACKENDS`.

    Whether a commercial solver finds its licence shows only when it is asked.
    """
    return tuple(name for name, backend in BACKENDS.items() if backend.is_available)


def require_backend(name: str) -> Backend:
    """The backend of a name.

    Raises
    ------
    InstanceError
        When there is no such name.
    BackendUnavailableError
        When it is not installed; says what to install.
    """
    backend = BACKENDS.get(name)
    if backend is None:
        raise InstanceError.single(
            "backend", name, "is unknown", f"use one of {', '.join(BACKENDS)}"
        )
    if not backend.is_available:
        raise BackendUnavailableError(
            f"the backend {name!r} is not installed: {backend.remedy};"
            f" installed are {', '.join(available_backends())}"
        )
    return backend


def solve_linear(
    model: LinearModel,
    backend: str = "highs",
    *,
    time_limit_s: float,
    relative_gap: float = 0.0,
    seed: int = 0,
    start: Sequence[float] | None = None,
) -> LinearSolution:
    """Minimise a linear model with one thread of the backend of a name.

    Parameters
    ----------
    model
        Any linear model; CP-SAT needs finite bounds.
    backend
        A key of `BACKENDS`.
    time_limit_s
        Seconds of wall clock; a backend in a process of its own is ended 5 s after it.
    relative_gap
        Stop when bound and objective differ by no more than this share.
    seed
        Of the search, where the library takes one.
    start
        Values of a known solution: what comes back is never worse.

    Raises
    ------
    InstanceError
        When there is no such backend.
    BackendUnavailableError
        When it is not installed.
    BackendError
        When the library fails or contradicts itself or the model.
    """
    require_backend(backend)
    deadline = time.monotonic() + time_limit_s
    if any(not row.terms and row.violation(()) > 0 for row in model.rows):
        return LinearSolution(Termination.INFEASIBLE, None, None)
    ask = partial(_ask, deadline=deadline, relative_gap=relative_gap, seed=seed, start=start)
    solution = ask(model, backend)
    if solution.termination is Termination.INFEASIBLE and not BACKENDS[backend].is_trusted:
        return _second_opinion(model, backend, deadline, ask)
    if solution.termination is Termination.UNBOUNDED:
        return _no_minimum(model, backend, deadline, ask)
    return solution


def _ask(
    model: LinearModel,
    backend: str,
    *,
    deadline: float,
    relative_gap: float,
    seed: int,
    start: Sequence[float] | None,
) -> LinearSolution:
    left_s = max(deadline - time.monotonic(), 0.0)
    if len(model.variables) <= BACKENDS[backend].most_here:
        solution: LinearSolution = BACKENDS[backend].solve_here(
            model, time_limit_s=left_s, relative_gap=relative_gap, seed=seed, start=start
        )
        return solution
    request = {
        "backend": backend,
        "model": model_document(model),
        "relative_gap": relative_gap,
        "seed": seed,
        "start": None if start is None else list(start),
    }
    answer = run_isolated("solve", request, left_s)
    if answer is None:
        nothing = LinearSolution(Termination.UNKNOWN, None, None)
        return checked_solution(model, nothing, backend, start)
    return solution_from_document(answer)


def _second_opinion(
    model: LinearModel, backend: str, deadline: float, ask: Callable[..., LinearSolution]
) -> LinearSolution:
    """What another backend says of a model that `backend` calls infeasible."""
    unknown = LinearSolution(Termination.UNKNOWN, None, None)
    others = [name for name in _SECOND_OPINIONS if name != backend and BACKENDS[name].is_available]
    if not others or time.monotonic() >= deadline:
        return unknown
    solution = ask(model, others[0])
    if solution.values is not None:
        logger.warning("%s calls a model infeasible that %s solves", backend, others[0])
    elif solution.termination is Termination.UNBOUNDED:
        return _no_minimum(model, others[0], deadline, ask)
    return solution


def _no_minimum(
    model: LinearModel, backend: str, deadline: float, ask: Callable[..., LinearSolution]
) -> LinearSolution:
    """What "unbounded" means: libraries say it, or leave it open, before they know a solution."""
    if time.monotonic() >= deadline:
        return LinearSolution(Termination.UNKNOWN, None, None)
    anywhere = ask(replace(model, objective={}), backend)
    if anywhere.termination is Termination.INFEASIBLE:
        return anywhere
    if anywhere.values is None:
        return LinearSolution(Termination.UNKNOWN, None, None)
    if all(abs(v.lower) < float("inf") > abs(v.upper) for v in model.variables):
        raise BackendError(f"{backend} calls a model unbounded whose variables all have bounds")
    return LinearSolution(Termination.UNBOUNDED, None, None)
