"""What a whole-number solution says about the exact model: best reals, and a bound.

Reals that were counted in steps are chosen again, by a linear program of the reals alone, so that
the exact rows hold. The bound is lower than the value by the steps at least; where that is more
than `RESOLUTION`, the solution is called feasible, not optimal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hexisolve.errors import BackendError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.linear_solution import LinearSolution, Termination, least_objective
from hexisolve.solvers.scaled_model import scaled_model
from hexisolve.solvers.whole_model import WholeModel

RESOLUTION = 1e-4
"""Share of the objective that counting in steps may leave open when all is proved."""

_NOTHING = 1e-12


def exact_solution(
    whole: WholeModel,
    termination: Termination,
    native: Sequence[float] | None,
    native_bound: float,
    relative_gap: float,
) -> LinearSolution:
    """The solution of the exact model that whole values stand for.

    Parameters
    ----------
    whole
        What the library was handed.
    termination
        What it claims.
    native, native_bound
        Its values and its bound, in steps.
    relative_gap
        Up to which it was asked to search.
    """
    if termination in (Termination.INFEASIBLE, Termination.UNBOUNDED):
        return LinearSolution(termination, None, None)
    bound = None
    if math.isfinite(native_bound):
        bound = max(whole.bound(native_bound), least_objective(whole.exact))
    if native is None:
        return LinearSolution(Termination.UNKNOWN, None, bound)
    values = best_reals(whole.exact, whole.values(native))
    if values is None:
        # Whole numbers that hold in the rounded rows only; the bound is one all the same.
        return LinearSolution(Termination.UNKNOWN, None, bound)
    value = whole.exact.objective_value(values)
    open_share = max(relative_gap, RESOLUTION) * abs(value) + _NOTHING
    if termination is Termination.OPTIMAL and (bound is None or value - bound > open_share):
        termination = Termination.FEASIBLE
    return LinearSolution(termination, values, bound)


def best_reals(model: LinearModel, values: Sequence[float]) -> tuple[float, ...] | None:
    """The least objective with the integers of `values`; None when no reals go with them.

    Raises
    ------
    BackendError
        When the linear program of the reals cannot be solved.
    """
    if all(variable.is_integer for variable in model.variables):
        return tuple(values)
    from ortools.linear_solver.python import model_builder

    scaled = scaled_model(model)
    fixed = scaled.native_values(values)
    problem: Any = model_builder.Model()  # type: ignore[no-untyped-call]
    reals = {
        v.index: problem.new_num_var(v.lower, v.upper, None)
        for v in scaled.model.variables
        if not v.is_integer
    }
    for row in scaled.model.rows:
        terms = [(reals[index], f) for index, f in row.terms.items() if index in reals]
        if not terms:
            continue
        right = row.right - sum(f * fixed[i] for i, f in row.terms.items() if i not in reals)
        least = -math.inf if row.sense == "<=" else right
        most = math.inf if row.sense == ">=" else right
        problem.add_linear_constraint(sum(f * variable for variable, f in terms), least, most)
    costs = [f * reals[index] for index, f in scaled.model.objective.items() if index in reals]
    problem.minimize(sum(costs) if costs else 0.0)
    solver = model_builder.Solver("glop")
    status = solver.solve(problem)
    if status == model_builder.SolveStatus.INFEASIBLE:
        return None
    if status != model_builder.SolveStatus.OPTIMAL:
        raise BackendError("the reals of a solution are not found", status.name)
    best = [
        float(solver.value(reals[index])) if index in reals else value
        for index, value in enumerate(fixed)
    ]
    return scaled.values(best)
