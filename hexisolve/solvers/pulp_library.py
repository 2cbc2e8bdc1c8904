"""PuLP as a reader of linear models: CBC, HiGHS, and Gurobi, CPLEX or Xpress where installed.

PuLP says "Optimal" at a time limit, so only `sol_status` counts. It has no portable bound: HiGHS is
asked for its own, CBC's stands in its log, and a solver that proves optimality within a gap has
thereby proved its value less that gap; in every other case there is none.

Runs in a process of its own (`hexisolve.solvers.isolated`): highspy and the HiGHS inside OR-Tools
end in a segmentation fault when they meet.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import LinearSolution, Termination, checked_solution
from hexisolve.solvers.scaled_model import ScaledModel, scaled_model

logger = logging.getLogger(__name__)

PULP_NAMES: Mapping[str, tuple[str, ...]] = {
    "cbc": ("PULP_CBC_CMD", "COIN_CMD"),
    "highs": ("HiGHS",),
    "gurobi": ("GUROBI", "GUROBI_CMD"),
    "cplex": ("CPLEX_PY", "CPLEX_CMD"),
    "xpress": ("XPRESS_PY", "XPRESS"),
}
"""PuLP's names for a backend, the first that is available counts."""

_LOG = "solver.log"
_LEAST_S = 0.01
_HANDING_OVER = 2.0  # of the time to build a problem: writing its file, or adding row by row
_IMPROVEMENT = 1e-5  # CBC looks for solutions that are better by at least this
_PRINTED = 1e-3  # digits of the bound in CBC's log
_ROUNDING = 1e-6  # of a bound that was computed in floating point


def solve_with_pulp(
    model: LinearModel,
    *,
    solver: str,
    time_limit_s: float,
    relative_gap: float = 0.0,
    seed: int = 0,
    start: Sequence[float] | None = None,
) -> LinearSolution:
    """Minimise a linear model with one thread of a solver that PuLP calls.

    Writes its files into the present folder.

    Parameters
    ----------
    model
        Any linear model.
    solver
        A key of `PULP_NAMES`.
    time_limit_s
        Seconds of wall clock.
    relative_gap
        Stop when bound and objective differ by no more than this share.
    seed
        Of the search, for CBC and HiGHS.
    start
        Values of a known solution: what comes back is never worse.

    Raises
    ------
    BackendUnavailableError
        When PuLP finds no such solver.
    BackendError
        When the solver fails, or what it calls optimal breaks the model.
    """
    begun = time.monotonic()
    scaled = scaled_model(model)
    problem, variables = _problem(scaled.model)
    # PuLP hands the problem over inside of the call that the limit is for.
    built_s = time.monotonic() - begun
    time_limit_s -= (1.0 + _HANDING_OVER) * built_s
    begun = time.monotonic()
    is_trusted = True
    try:
        _call(solver, problem, time_limit_s, relative_gap, seed)
    except BackendError:
        left_s = begun + time_limit_s - time.monotonic()
        if solver != "cbc" or left_s <= 0:
            raise
        # It crashes on some infeasible models; with preprocessing it says so.
        is_trusted = False
        _call(solver, problem, left_s, relative_gap, seed, preprocess="on")
    in_time = solver == "highs" or time.monotonic() - begun < max(time_limit_s, _LEAST_S)
    solution = _read_back(scaled, solver, problem, variables, is_trusted and in_time)
    proved = _proved_bound(scaled, solver, problem, solution, relative_gap) if is_trusted else None
    return checked_solution(model, replace(solution, bound=proved), solver, start)


def _library() -> Any:
    try:
        import pulp
    except ImportError as error:
        raise BackendUnavailableError("pulp is not installed: pip install pulp") from error
    return pulp


def _native_solver(
    solver: str, time_limit_s: float, relative_gap: float, seed: int, preprocess: str
) -> Any:
    pulp = _library()
    options: dict[str, Any] = {"msg": False, "timeLimit": time_limit_s, "gapRel": relative_gap}
    if solver == "cbc":
        # Its integer preprocessing calls feasible models infeasible, and worse solutions optimal.
        seeded = f"randomCbcSeed {seed % (2**31 - 2) + 1}"
        options |= {"options": [f"preprocess {preprocess}", seeded], "logPath": _LOG}
    elif solver == "highs":
        options |= {"threads": 1, "random_seed": seed}
    for name in PULP_NAMES[solver]:
        if name in pulp.listSolvers():
            native = pulp.getSolver(name, **options)
            if native.available():
                # PuLP takes a command line apart at spaces: no folder in the names of its files.
                native.tmpDir = ""
                return native
    raise BackendUnavailableError(f"PuLP finds no {solver}")


def _problem(model: LinearModel) -> tuple[Any, list[Any]]:
    pulp = _library()
    problem = pulp.LpProblem("model", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(
            f"x{variable.index}",
            _finite(variable.lower),
            _finite(variable.upper),
            pulp.LpInteger if variable.is_integer else pulp.LpContinuous,
        )
        for variable in model.variables
    ]
    senses = {"<=": pulp.LpConstraintLE, ">=": pulp.LpConstraintGE, "==": pulp.LpConstraintEQ}

    def side(terms: Mapping[int, float]) -> Any:
        return pulp.LpAffineExpression([(variables[i], f) for i, f in terms.items()])

    problem.setObjective(side(model.objective))
    for number, row in enumerate(model.rows):
        if row.terms:
            constraint = pulp.LpConstraint(side(row.terms), senses[row.sense], rhs=row.right)
            problem.addConstraint(constraint, f"r{number}")
    return problem, variables


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _call(
    solver: str,
    problem: Any,
    time_limit_s: float,
    relative_gap: float,
    seed: int,
    preprocess: str = "off",
) -> None:
    native = _native_solver(
        solver, max(time_limit_s, _LEAST_S), relative_gap, seed, preprocess=preprocess
    )
    pulp = _library()
    try:
        problem.solve(native)
    except pulp.PulpError as error:
        raise BackendError(f"{solver} failed: {_log_text()[-500:]}", str(error)) from error


def _log_text() -> str:
    log = Path(_LOG)
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _read_back(
    scaled: ScaledModel, solver: str, problem: Any, variables: list[Any], is_proof: bool
) -> LinearSolution:
    """What PuLP says, without a bound."""
    pulp = _library()
    logger.debug("%s: status %s, solution %s", solver, problem.status, problem.sol_status)
    if problem.status == pulp.LpStatusInfeasible:
        # PuLP has one word for "infeasible" and for "infeasible or unbounded".
        either = solver == "highs" and "OrInfeasible" in str(problem.solverModel.getModelStatus())
        return LinearSolution(
            Termination.UNBOUNDED if either else Termination.INFEASIBLE, None, None
        )
    if problem.status == pulp.LpStatusUnbounded:
        return LinearSolution(Termination.UNBOUNDED, None, None)
    termination = {
        pulp.LpSolutionOptimal: Termination.OPTIMAL,
        pulp.LpSolutionIntegerFeasible: Termination.FEASIBLE,
    }.get(problem.sol_status, Termination.UNKNOWN)
    if termination is Termination.UNKNOWN:
        return LinearSolution(termination, None, None)
    if termination is Termination.OPTIMAL and not is_proof:
        termination = Termination.FEASIBLE
    native = [
        variable.varValue if variable.varValue is not None else _nearest_zero(ours)
        for variable, ours in zip(variables, scaled.model.variables, strict=True)
    ]
    return LinearSolution(termination, scaled.values(native), None)


def _proved_bound(
    scaled: ScaledModel, solver: str, problem: Any, solution: LinearSolution, relative_gap: float
) -> float | None:
    """The best bound that the solver told, or proved by calling its solution optimal."""
    known = [_told_bound(solver, problem)]
    if solution.termination is Termination.OPTIMAL and solution.values is not None:
        value = scaled.model.objective_value(scaled.native_values(solution.values))
        known.append(value - relative_gap * abs(value) / (1.0 - relative_gap) - _IMPROVEMENT)
    bounds = [bound for bound in known if bound is not None]
    if not bounds:
        return None
    bound = max(bounds)
    return (bound - _ROUNDING * max(1.0, abs(bound))) * scaled.objective_unit


def _nearest_zero(variable: Any) -> float:
    """A value for a variable that stands in no row."""
    return float(min(max(0.0, variable.lower), variable.upper))


def _told_bound(solver: str, problem: Any) -> float | None:
    """The bound a solver gives besides what PuLP reads, where it is known to be one."""
    if solver == "highs" and problem.isMIP():
        bound = float(problem.solverModel.getInfo().mip_dual_bound)
        return bound if math.isfinite(bound) else None
    if solver == "cbc":
        found = re.search(r"^Lower bound:\s+(-?[\d.]+)\s*$", _log_text(), re.MULTILINE)
        return float(found[1]) - _PRINTED if found else None
    return None
