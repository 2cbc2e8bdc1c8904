"""HiGHS as a reader of linear models: mixed-integer programs whose variables are mostly real.

CP-SAT counts in whole units and has to scale seconds; start times want a linear program underneath.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import LinearSolution, Termination

if TYPE_CHECKING:
    import highspy

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-5
# With a start and an objective that ranges over less than about 1, HiGHS 1.16 reports the start as
# optimal although it is not (test_a_start_is_not_called_optimal); objectives are scaled up.
_LEAST_RANGE = 1e4


def solve_with_highs(
    model: LinearModel,
    *,
    time_limit_s: float,
    relative_gap: float = 0.0,
    seed: int = 0,
    start: Sequence[float] | None = None,
) -> LinearSolution:
    """Minimise a linear model on one thread.

    Parameters
    ----------
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
        When highspy is not installed.
    BackendError
        When the library refuses the model, or answers with values that break it.
    """
    try:
        import highspy
    except ImportError as error:
        raise BackendUnavailableError("highspy is not installed: pip install highspy") from error
    solver = highspy.Highs()
    options = {
        "output_flag": False, "threads": 1, "random_seed": seed,
        "time_limit": max(time_limit_s, 0.01), "mip_rel_gap": relative_gap,
    }  # fmt: skip
    if not any(variable.is_integer for variable in model.variables):
        # Devex weights: 0.2-0.4 s instead of 0.2-0.6 s on the relaxed recompute programs.
        options["simplex_dual_edge_weight_strategy"] = 1
    for name, value in options.items():
        solver.setOptionValue(name, value)
    scale = _objective_scale(model)
    status = solver.passModel(_native(model, scale))
    if status == highspy.HighsStatus.kError:
        raise BackendError(f"HiGHS refuses the model {model.name!r}", str(status))
    if start is not None:
        known = highspy.HighsSolution()
        known.col_value = [float(value) for value in start]
        solver.setSolution(known)
    solver.run()
    return _read_back(model, solver, scale)


def _objective_scale(model: LinearModel) -> float:
    """A power of two that stretches the objective over a range the library copes with."""
    size = sum(
        abs(factor) * (model.variables[index].upper - model.variables[index].lower)
        for index, factor in model.objective.items()
    )
    return 2.0 ** math.ceil(math.log2(_LEAST_RANGE / size)) if 0 < size < _LEAST_RANGE else 1.0


def _native(model: LinearModel, scale: float) -> highspy.HighsLp:
    import highspy
    import numpy as np

    infinity = highspy.kHighsInf
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.variables), len(model.rows)
    cost = np.zeros(len(model.variables))
    for index, factor in model.objective.items():
        cost[index] = scale * factor
    lp.col_cost_ = cost
    lp.col_lower_ = np.array([variable.lower for variable in model.variables], dtype=np.float64)
    lp.col_upper_ = np.array([variable.upper for variable in model.variables], dtype=np.float64)
    rows = model.rows
    lp.row_lower_ = np.array([-infinity if row.sense == "<=" else row.right for row in rows])
    lp.row_upper_ = np.array([infinity if row.sense == ">=" else row.right for row in rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    sizes = [len(row.terms) for row in rows]
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([i for row in rows for i in row.terms], dtype=np.int32)
    values = [factor for row in rows for factor in row.terms.values()]
    lp.a_matrix_.value_ = np.array(values, dtype=np.float64)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[variable.is_integer] for variable in model.variables]
    return lp


def _read_back(model: LinearModel, solver: highspy.Highs, scale: float) -> LinearSolution:
    import highspy

    status = solver.getModelStatus()
    info = solver.getInfo()
    words = highspy.HighsModelStatus
    logger.debug("HiGHS on %s: %s", model.name, status)
    if status == words.kInfeasible:
        return LinearSolution(Termination.INFEASIBLE, None, None)
    if status not in (words.kOptimal, words.kTimeLimit, words.kSolutionLimit, words.kInterrupt):
        raise BackendError(f"HiGHS gives up on {model.name!r}", str(status))
    proved = status == words.kOptimal
    is_integral = any(variable.is_integer for variable in model.variables)
    if is_integral:
        bound = float(info.mip_dual_bound) / scale
    else:
        bound = float(info.objective_function_value) / scale if proved else -highspy.kHighsInf
    # A bound that was not reached yet is no number; every variable is bounded, so this one is.
    bound = max(bound, _least(model))
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return LinearSolution(Termination.UNKNOWN, None, bound)
    values = tuple(
        float(round(value)) if variable.is_integer else float(value)
        for value, variable in zip(solver.getSolution().col_value, model.variables, strict=True)
    )
    broken = model.broken_rows(values, _TOLERANCE)
    if broken:
        raise BackendError(f"HiGHS's values break {broken[0]!r}", str(status))
    return LinearSolution(Termination.OPTIMAL if proved else Termination.FEASIBLE, values, bound)


def _least(model: LinearModel) -> float:
    """The objective at the better bound of every variable."""
    return sum(
        factor * (model.variables[index].lower if factor > 0 else model.variables[index].upper)
        for index, factor in model.objective.items()
    )
