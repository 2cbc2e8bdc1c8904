"""OR-Tools CP-SAT as a reader of linear models.

CP-SAT counts in integers: it is handed the model that `hexisolve.solvers.whole_model` makes, and
what comes back is held against the exact rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import LinearSolution, Termination, checked_solution
from hexisolve.solvers.whole_model import whole_model
from hexisolve.solvers.whole_solution import exact_solution

logger = logging.getLogger(__name__)


def solve_with_cp_sat(
    model: LinearModel,
    *,
    time_limit_s: float,
    relative_gap: float = 0.0,
    seed: int = 0,
    start: Sequence[float] | None = None,
) -> LinearSolution:
    """Minimise a linear model with one worker.

    Parameters
    ----------
    model
        Bounds must be finite, coefficients of real variables whole.
    time_limit_s
        Seconds of wall clock.
    relative_gap
        Stop when bound and objective differ by no more than this share.
    seed
        Of the search: the same seed gives the same answer when no limit is met.
    start
        Values of a known solution: what comes back is never worse.

    Raises
    ------
    BackendUnavailableError
        When ortools is not installed.
    BackendError
        When the model leaves the range of the library, or the library answers with values that
        break the model.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise BackendUnavailableError("ortools is not installed: pip install ortools") from error
    begun = time.monotonic()
    whole = whole_model(model)
    native = cp_model.CpModel()
    variables = [
        native.new_int_var(int(variable.lower), int(variable.upper), variable.name)
        for variable in whole.model.variables
    ]
    for row in whole.model.rows:
        left = _sum(row.terms, variables)
        right = int(row.right)
        if row.sense == "<=":
            native.add(left <= right)
        elif row.sense == ">=":
            native.add(left >= right)
        else:
            native.add(left == right)
    native.minimize(_sum(whole.model.objective, variables))
    if start is not None:
        for value, variable in zip(whole.native_values(start), variables, strict=True):
            native.add_hint(variable, value)
    solver = cp_model.CpSolver()
    left_s = begun + time_limit_s - time.monotonic()
    solver.parameters.max_time_in_seconds = max(left_s, 0.01)
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = relative_gap
    status = int(solver.solve(native))
    name = solver.status_name(cp_model.CpSolverStatus(status))
    logger.debug("CP-SAT: %s after %.2f s", name, solver.wall_time)
    if status == cp_model.MODEL_INVALID:
        raise BackendError("CP-SAT refuses the model", name)
    termination = Termination(name.lower())
    has_values = termination in (Termination.OPTIMAL, Termination.FEASIBLE)
    values = [solver.value(variable) for variable in variables] if has_values else None
    bound = solver.best_objective_bound
    solution = exact_solution(whole, termination, values, bound, relative_gap)
    return checked_solution(model, solution, "CP-SAT", start)


def _sum(terms: Mapping[int, float], variables: list[Any]) -> Any:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum(
        [variables[index] for index in terms], [int(factor) for factor in terms.values()]
    )
