"""What a solver library brings back for a linear model, checked, in our words."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from hexisolve.errors import BackendError
from hexisolve.formulation.linear_model import LinearModel, Row

logger = logging.getLogger(__name__)

INTEGRALITY = 1e-5
"""How far from a whole number a library may leave an integer variable."""
_TOLERANCE = 1e-6  # of a row with reals, of the size of its terms
_EXACT = 1e-9  # of a row of integers: only the rounding of its own coefficients


class Termination(Enum):
    """Why a library stopped."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LinearSolution:
    """Values and bound of a linear model.

    Parameters
    ----------
    termination
        Optimal, infeasible and unbounded only when proved.
    values
        One per variable, in the order of the model; None without a solution.
    bound
        Proven lower bound on the objective; None when infeasible or unbounded, and when the
        library proves none: an unknown bound is never written as 0 or infinity.
    """

    termination: Termination
    values: tuple[float, ...] | None
    bound: float | None


def checked_values(model: LinearModel, values: Sequence[float]) -> tuple[tuple[float, ...], str]:
    """Values as the model means them, and the name of what they break: '' when nothing.

    Integers become whole, reals are moved into their bounds when they are out by no more than
    the tolerance. Activities are sums of exact fractions, so no rounding of ours hides a fault.
    A row of integers must hold; a row with reals may be broken by 1e-6 of its largest term.
    """
    if len(values) != len(model.variables):
        return tuple(values), f"{len(values)} values for {len(model.variables)} variables"
    kept = []
    for variable, value in zip(model.variables, values, strict=True):
        if not math.isfinite(value):
            return tuple(values), variable.name
        own = float(round(value)) if variable.is_integer else value
        if abs(own - value) > INTEGRALITY:
            return tuple(values), variable.name
        inside = min(max(own, variable.lower), variable.upper)
        slack = 0.0 if variable.is_integer else _TOLERANCE * max(1.0, abs(inside))
        if abs(inside - own) > slack:
            return tuple(values), variable.name
        kept.append(inside)
    broken = next((row.name for row in model.rows if _is_broken(model, row, kept)), "")
    return tuple(kept), broken


def _is_broken(model: LinearModel, row: Row, values: Sequence[float]) -> bool:
    terms = [Fraction(factor) * Fraction(values[index]) for index, factor in row.terms.items()]
    right = Fraction(row.right)
    excess = sum(terms, start=Fraction(0)) - right
    if row.sense == ">=":
        excess = -excess
    elif row.sense == "==":
        excess = abs(excess)
    has_real = any(not model.variables[index].is_integer for index in row.terms)
    size = max([*map(abs, terms), abs(right), Fraction(1)])
    return excess > Fraction(_TOLERANCE if has_real else _EXACT) * size


def least_objective(model: LinearModel) -> float:
    """The objective with every variable at its better bound."""
    variables = model.variables
    return sum(
        min(factor * variables[index].lower, factor * variables[index].upper)
        for index, factor in model.objective.items()
        if factor
    )


def checked_solution(
    model: LinearModel, solution: LinearSolution, backend: str, start: Sequence[float] | None = None
) -> LinearSolution:
    """A library's answer after it was held against the model, with `start` as what is known.

    Raises
    ------
    BackendError
        When values that are called optimal break the model, when a bound lies above a solution,
        or when a model with a solution is called infeasible.
    """
    known = None
    if start is not None:
        kept, broken = checked_values(model, start)
        if broken:
            raise BackendError(f"the start breaks {broken!r}")
        known = kept
    values, bound, termination = solution.values, solution.bound, solution.termination
    if termination in (Termination.INFEASIBLE, Termination.UNBOUNDED):
        if termination is Termination.INFEASIBLE and known is not None:
            raise BackendError(f"{backend} calls a model infeasible that has a solution")
        return LinearSolution(termination, None, None)
    if values is None and termination is Termination.OPTIMAL:
        raise BackendError(f"{backend} speaks of an optimum and gives no values")
    if values is None:
        termination = Termination.UNKNOWN
    else:
        values, broken = checked_values(model, values)
        if broken and termination is Termination.OPTIMAL:
            raise BackendError(f"{backend}'s values break {broken!r}", termination.value)
        if broken:
            logger.info("%s: a solution that breaks %r is dropped", backend, broken)
            values, termination = None, Termination.UNKNOWN
    if known is not None and (
        values is None or model.objective_value(known) < model.objective_value(values)
    ):
        # Better than what is called optimal: only within its gap, which the bound tells.
        values = known
        if termination is not Termination.OPTIMAL:
            termination = Termination.FEASIBLE
    if values is not None and bound is not None:
        value = model.objective_value(values)
        if bound > value + _TOLERANCE * max(1.0, abs(value)):
            raise BackendError(
                f"{backend} reports the bound {bound:g} above the solution {value:g}"
            )
        bound = min(bound, value)
    if bound is not None:
        bound = max(bound, least_objective(model))
    return LinearSolution(termination, values, bound)
