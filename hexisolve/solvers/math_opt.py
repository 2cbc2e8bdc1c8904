"""MathOpt of OR-Tools as a reader of linear models: SCIP, CP-SAT and HiGHS by one interface.

Runs in a process of its own (`hexisolve.solvers.isolated`): the HiGHS inside OR-Tools prints to the
standard output, and it does not bear another HiGHS beside it.
"""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import LinearSolution, Termination, checked_solution
from hexisolve.solvers.scaled_model import scaled_model
from hexisolve.solvers.whole_model import MAX_ACTIVITY, whole_model
from hexisolve.solvers.whole_solution import exact_solution

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

logger = logging.getLogger(__name__)

MATH_OPT_NAMES: Mapping[str, str] = {
    "mathopt-gscip": "GSCIP",
    "mathopt-cp-sat": "CP_SAT",
    "mathopt-highs": "HIGHS",
}
"""MathOpt's names for a backend."""

_LEAST_S = 0.01
_ROUNDING = 1e-6  # of a bound that was computed in floating point
_TERMINATIONS = {
    "OPTIMAL": Termination.OPTIMAL,
    "FEASIBLE": Termination.FEASIBLE,
    "INFEASIBLE": Termination.INFEASIBLE,
    "UNBOUNDED": Termination.UNBOUNDED,
    "INFEASIBLE_OR_UNBOUNDED": Termination.UNBOUNDED,
    "NO_SOLUTION_FOUND": Termination.UNKNOWN,
}


def solve_with_math_opt(
    model: LinearModel,
    *,
    solver: str,
    time_limit_s: float,
    relative_gap: float = 0.0,
    seed: int = 0,
    start: Sequence[float] | None = None,
) -> LinearSolution:
    """Minimise a linear model with one thread of a solver that MathOpt calls.

    Parameters
    ----------
    model
        Any linear model; for CP-SAT one that can be counted in whole numbers.
    solver
        A key of `MATH_OPT_NAMES`.
    time_limit_s
        Seconds of wall clock.
    relative_gap
        Stop when bound and objective differ by no more than this share.
    seed
        Of the search; HiGHS takes none here.
    start
        Values of a known solution: what comes back is never worse.

    Raises
    ------
    BackendUnavailableError
        When ortools is not installed.
    BackendError
        When the solver fails, or what it calls optimal breaks the model.
    """
    try:
        from ortools.math_opt.python import mathopt
    except ImportError as error:
        raise BackendUnavailableError("ortools is not installed: pip install ortools") from error
    begun = time.monotonic()
    native_name = MATH_OPT_NAMES[solver]
    whole = whole_model(model) if native_name == "CP_SAT" else None
    scaled = scaled_model(model)
    native_model = scaled.model if whole is None else whole.model
    hint: Sequence[float] | None = None
    if start is not None:
        hint = (scaled if whole is None else whole).native_values(start)
    problem, variables = _problem(native_model)
    left_s = begun + time_limit_s - time.monotonic()
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=max(left_s, _LEAST_S)),
        relative_gap_tolerance=relative_gap,
    )
    if native_name != "HIGHS":  # refuses both
        parameters.threads = 1
        parameters.random_seed = seed
    if whole is not None:
        # Beyond 1e7, the default, ranges of variables are cut off and "infeasible" may be wrong.
        parameters.cp_sat.mip_max_bound = float(MAX_ACTIVITY)
    hints = mathopt.ModelSolveParameters()
    if hint is not None:
        together = dict(zip(variables, map(float, hint), strict=True))
        hints.solution_hints.append(mathopt.SolutionHint(variable_values=together))
    kind = getattr(mathopt.SolverType, native_name)
    try:
        result = mathopt.solve(problem, kind, params=parameters, model_params=hints)
    except (RuntimeError, ValueError, AttributeError) as error:
        # AttributeError: MathOpt 9.15 stumbles over some errors of HiGHS that it translates.
        raise BackendError(f"{solver} failed", str(error)) from error
    termination = _termination(solver, result)
    values = None
    if result.has_primal_feasible_solution():
        values = [float(value) for value in result.variable_values(variables)]
    native_bound = float(result.termination.objective_bounds.dual_bound)
    if whole is not None:
        solution = exact_solution(whole, termination, values, native_bound, relative_gap)
    else:
        bound = None
        if math.isfinite(native_bound):
            native_bound -= _ROUNDING * max(1.0, abs(native_bound))
            bound = native_bound * scaled.objective_unit
        found = None if values is None else scaled.values(values)
        solution = LinearSolution(termination, found, bound)
    return checked_solution(model, solution, solver, start)


def _termination(solver: str, result: mathopt.SolveResult) -> Termination:
    reason = result.termination.reason.name
    logger.debug("%s: %s %s", solver, reason, result.termination.detail)
    if reason not in _TERMINATIONS:
        raise BackendError(f"{solver} failed: {result.termination.detail}", reason)
    return _TERMINATIONS[reason]


def _problem(model: LinearModel) -> tuple[mathopt.Model, list[Any]]:
    """The model, by its protocol buffer: adding coefficients one by one takes seconds."""
    from ortools.math_opt import model_pb2
    from ortools.math_opt.python import mathopt

    document = model_pb2.ModelProto(name=model.name)
    variables = document.variables
    for variable in model.variables:
        variables.ids.append(variable.index)
        variables.lower_bounds.append(variable.lower)
        variables.upper_bounds.append(variable.upper)
        variables.integers.append(variable.is_integer)
    objective = document.objective.linear_coefficients
    for index, factor in sorted(model.objective.items()):
        if factor:
            objective.ids.append(index)
            objective.values.append(factor)
    matrix = document.linear_constraint_matrix
    for number, row in enumerate(model.rows):
        document.linear_constraints.ids.append(number)
        document.linear_constraints.lower_bounds.append(
            -math.inf if row.sense == "<=" else row.right
        )
        document.linear_constraints.upper_bounds.append(
            math.inf if row.sense == ">=" else row.right
        )
        for index, factor in sorted(row.terms.items()):
            if factor:
                matrix.row_ids.append(number)
                matrix.column_ids.append(index)
                matrix.coefficients.append(factor)
    problem = mathopt.Model.from_model_proto(document)
    return problem, [problem.get_variable(v.index) for v in model.variables]
