"""OR-Tools CP-SAT as a reader of linear models.

CP-SAT counts in integers, and presolve keeps activities in 32 bits (or-tools issue 5293), so real
variables are counted in one unit chosen such that ``sum |coefficient| x range < 2^31`` in every
row. Rounding always *relaxes* a row, so the bound needs no correction but one unit for the
objective; what comes back is checked against the exact rows within that rounding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel, Row, Variable
from hexisolve.solvers.linear_solution import LinearSolution, Termination

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

logger = logging.getLogger(__name__)

_MAX_ACTIVITY = 2**31 - 1
_MAX_BOUND = 2**31 - 1


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
        Coefficients of real variables must be whole.
    time_limit_s
        Seconds of wall clock.
    relative_gap
        Stop when bound and objective differ by no more than this share.
    seed
        Of the search: the same seed gives the same answer when no limit is met.
    start
        Values of a known solution.

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
    unit = _unit(model)
    native = cp_model.CpModel()
    variables = [_native_variable(native, variable, unit) for variable in model.variables]
    for row in model.rows:
        _add_row(native, model, row, variables, unit)
    objective = _whole_terms(model, model.objective, unit, math.floor)
    native.minimize(_sum(objective, variables))
    for value, variable, ours in zip(start or (), variables, model.variables, strict=False):
        native.add_hint(variable, _scaled(value, ours, unit, math.ceil))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = relative_gap
    status = solver.solve(native)
    return _read_back(model, solver, int(status), variables, unit)


def _unit(model: LinearModel) -> float:
    """Seconds (or whatever reals measure) per integer step; 1 in a purely integral model."""
    reals = {v.index for v in model.variables if not v.is_integer}
    unit = 0.0
    rows: list[Mapping[int, float]] = [row.terms for row in model.rows]
    for terms in [*rows, model.objective]:
        if reals.isdisjoint(terms):
            continue
        size = sum(
            abs(f) * (model.variables[i].upper - model.variables[i].lower) for i, f in terms.items()
        )
        unit = max(unit, size / (_MAX_ACTIVITY // 2))
    return unit or 1.0


def _scaled(value: float, variable: Variable, unit: float, rounding: Any) -> int:
    return round(value) if variable.is_integer else int(rounding(value / unit))


def _native_variable(native: cp_model.CpModel, variable: Variable, unit: float) -> Any:
    lower = _scaled(variable.lower, variable, unit, math.floor)
    upper = _scaled(variable.upper, variable, unit, math.ceil)
    if max(abs(lower), abs(upper)) > _MAX_BOUND:
        raise BackendError(
            f"variable {variable.name!r} ranges over {variable.lower:g} to {variable.upper:g}: more"
            f" than the {_MAX_BOUND} steps CP-SAT counts safely; give it narrower bounds"
        )
    return native.new_int_var(lower, upper, variable.name)


def _whole_terms(
    model: LinearModel, terms: Mapping[int, float], unit: float, rounding: Any
) -> list[tuple[int, int]]:
    """Terms in whole units, every coefficient of an integer variable rounded one way."""
    has_real = any(not model.variables[index].is_integer for index in terms)
    whole = []
    for index, factor in terms.items():
        if model.variables[index].is_integer and has_real:
            rounded = int(rounding(factor / unit))
        elif factor == round(factor):
            rounded = round(factor)
        else:
            raise BackendError(
                f"variable {model.variables[index].name!r} has the coefficient {factor:g}, CP-SAT"
                " needs a whole one there"
            )
        whole.append((index, rounded))
    return whole


def _sum(terms: list[tuple[int, int]], variables: list[Any]) -> Any:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum(
        [variables[index] for index, _ in terms], [factor for _, factor in terms]
    )


def _add_row(
    native: cp_model.CpModel, model: LinearModel, row: Row, variables: list[Any], unit: float
) -> None:
    has_real = any(not model.variables[index].is_integer for index in row.terms)
    scale = unit if has_real else 1.0
    if has_real and any(model.variables[i].lower < 0 for i in row.terms):
        raise BackendError(f"row {row.name!r} joins reals with a variable that can be negative")
    if row.sense in ("<=", "=="):
        left = _sum(_whole_terms(model, row.terms, unit, math.floor), variables)
        # Real variables are rounded up to whole units, at most one unit each.
        slack = sum(
            abs(f) for i, f in row.terms.items() if not model.variables[i].is_integer and f > 0
        )
        native.add(left <= math.ceil(row.right / scale) + math.ceil(slack))
    if row.sense in (">=", "=="):
        left = _sum(_whole_terms(model, row.terms, unit, math.ceil), variables)
        slack = sum(
            abs(f) for i, f in row.terms.items() if not model.variables[i].is_integer and f < 0
        )
        native.add(left >= math.floor(row.right / scale) - math.ceil(slack))


def _read_back(
    model: LinearModel, solver: cp_model.CpSolver, status: int, variables: list[Any], unit: float
) -> LinearSolution:
    from ortools.sat.python import cp_model

    name = solver.status_name(cp_model.CpSolverStatus(status))
    logger.debug("CP-SAT: %s after %.2f s", name, solver.wall_time)
    if status == cp_model.MODEL_INVALID:
        raise BackendError("CP-SAT refuses the model", name)
    if status == cp_model.INFEASIBLE:
        return LinearSolution(Termination.INFEASIBLE, None, None)
    bound = (solver.best_objective_bound - 1) * _objective_scale(model, unit)
    if status == cp_model.UNKNOWN:
        return LinearSolution(Termination.UNKNOWN, None, bound)
    values = tuple(
        float(solver.value(native)) * (1.0 if variable.is_integer else unit)
        for native, variable in zip(variables, model.variables, strict=True)
    )
    _check(model, values, unit, name)
    proved = status == cp_model.OPTIMAL
    return LinearSolution(Termination.OPTIMAL if proved else Termination.FEASIBLE, values, bound)


def _objective_scale(model: LinearModel, unit: float) -> float:
    return unit if any(not model.variables[index].is_integer for index in model.objective) else 1.0


def _check(model: LinearModel, values: Sequence[float], unit: float, status: str) -> None:
    """No row may be broken by more than its rounding: one unit per non-zero term."""
    for row in model.rows:
        used = sum(1 for index in row.terms if values[index])
        if row.violation(values) > unit * (used + 3) + 1e-9 * abs(row.right):
            raise BackendError(f"CP-SAT's values break row {row.name!r}", status)
