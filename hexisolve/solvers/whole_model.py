"""A linear model in whole numbers below 2^31, for libraries that count in integers.

CP-SAT's presolve keeps activities in 32 bits (or-tools issue 5293: above that it reports worse
solutions as optimal), so every row is counted in steps such that ``sum |coefficient| x range``
stays below 2^31. Rounding always *relaxes* a row and lowers the objective: what is infeasible or a
bound here is so for the exact model, and what comes back is held against the exact rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hexisolve.errors import BackendError
from hexisolve.formulation.linear_model import LinearModel, Row, Variable

MAX_ACTIVITY = 2**31 - 1
_NEAR = 1e-9  # of a right-hand side that was meant to be whole
Rounding = Callable[[float], int]


@dataclass(frozen=True)
class WholeModel:
    """The relaxed model of whole numbers, and what its numbers mean.

    Parameters
    ----------
    model
        Same variables in the same order, all integer; an equation that had to be rounded is two
        rows.
    exact
        The model it stands for.
    unit
        Value of one step of a real variable; 0 when there is no real in a row or the objective.
    objective_unit
        Value of one step of the objective.
    objective_slack
        Steps by which rounding may have raised the least objective.
    """

    model: LinearModel
    exact: LinearModel
    unit: float
    objective_unit: float
    objective_slack: float

    def values(self, native: Sequence[float]) -> tuple[float, ...]:
        """Values of the exact model from whole ones."""
        step = self.unit or 1.0
        return tuple(
            float(value) * (1.0 if variable.is_integer else step)
            for value, variable in zip(native, self.exact.variables, strict=True)
        )

    def native_values(self, values: Sequence[float]) -> tuple[int, ...]:
        """Whole values from those of the exact model; reals go up."""
        step = self.unit or 1.0
        return tuple(
            round(value) if variable.is_integer else math.ceil(value / step)
            for value, variable in zip(values, self.exact.variables, strict=True)
        )

    def bound(self, native: float) -> float:
        """A bound on the exact objective from one on the whole objective."""
        return (native - self.objective_slack) * self.objective_unit


def whole_model(model: LinearModel) -> WholeModel:
    """Count a model in whole numbers.

    Raises
    ------
    BackendError
        Naming the variable whose range cannot be counted, or the real whose coefficient is not
        whole.
    """
    for variable in model.variables:
        if not (math.isfinite(variable.lower) and math.isfinite(variable.upper)):
            raise BackendError(
                f"variable {variable.name!r} has no finite bounds, CP-SAT needs them"
            )
    unit = _unit(model)
    whole = LinearModel(
        model.name, [_variable(variable, unit or 1.0) for variable in model.variables]
    )
    for row in model.rows:
        whole.rows.extend(_rows(model, row, unit))
    step = _step(model, model.objective, unit)
    whole.objective = _terms(model, model.objective, step, math.floor)
    slack = _rounding_slack(model, model.objective, step)
    if step == unit:
        slack += sum(f for i, f in model.objective.items() if _is_real(model, i) and f > 0)
    return WholeModel(whole, model, unit, step or 1.0, slack)


def _is_real(model: LinearModel, index: int) -> bool:
    return not model.variables[index].is_integer


def _size(model: LinearModel, terms: Mapping[int, float]) -> float:
    """Sum of |coefficient| x range."""
    size = 0.0
    for index, factor in terms.items():
        lower, upper = model.variables[index].lower, model.variables[index].upper
        size += abs(factor) * max(upper - lower, abs(lower), abs(upper))
    return size


def _unit(model: LinearModel) -> float:
    """Seconds (or whatever reals measure) per step; 0 in a purely integral model."""
    sides = [*(row.terms for row in model.rows), model.objective]
    sizes = [
        _size(model, terms) for terms in sides if any(_is_real(model, index) for index in terms)
    ]
    return max(sizes, default=0.0) / (MAX_ACTIVITY // 2)


def _step(model: LinearModel, terms: Mapping[int, float], unit: float) -> float:
    """What one step of a row is worth: 0 when it is exact as it stands."""
    if any(_is_real(model, index) for index in terms):
        return unit
    size = _size(model, terms)
    is_exact = all(factor == round(factor) for factor in terms.values())
    return 0.0 if is_exact and size <= MAX_ACTIVITY else size / (MAX_ACTIVITY // 2) or 1.0


def _variable(variable: Variable, unit: float) -> Variable:
    step = 1.0 if variable.is_integer else unit
    lower, upper = math.floor(variable.lower / step), math.ceil(variable.upper / step)
    if max(abs(lower), abs(upper)) > MAX_ACTIVITY:
        raise BackendError(
            f"variable {variable.name!r} ranges over {variable.lower:g} to {variable.upper:g}: more"
            f" than the {MAX_ACTIVITY} steps CP-SAT counts safely; give it narrower bounds"
        )
    return Variable(variable.index, variable.name, lower, upper)


def _terms(
    model: LinearModel, terms: Mapping[int, float], step: float, rounding: Rounding
) -> dict[int, float]:
    """Coefficients in steps, those of integer variables rounded one way."""
    whole = {}
    for index, factor in terms.items():
        if step and model.variables[index].is_integer:
            whole[index] = float(rounding(factor / step))
        elif factor == round(factor):
            whole[index] = factor
        else:
            raise BackendError(
                f"variable {model.variables[index].name!r} has the coefficient {factor:g}, CP-SAT"
                " needs a whole one there"
            )
    return whole


def _rounding_slack(model: LinearModel, terms: Mapping[int, float], step: float) -> float:
    """Steps that a rounded coefficient adds where its variable can be negative."""
    if not step:
        return 0.0
    return sum(max(-model.variables[i].lower, 0.0) for i in terms if not _is_real(model, i))


def _rows(model: LinearModel, row: Row, unit: float) -> Iterator[Row]:
    step = _step(model, row.terms, unit)
    if not step:
        # Activities are whole, so a fraction of the right-hand side says nothing.
        near = _NEAR * max(1.0, abs(row.right))
        most, least = math.floor(row.right + near), math.ceil(row.right - near)
        if row.sense == "==" and most == least:
            yield Row(row.name, dict(row.terms), "==", float(most))
            return
        if row.sense in ("<=", "=="):
            yield Row(row.name, dict(row.terms), "<=", float(most))
        if row.sense in (">=", "=="):
            yield Row(row.name, dict(row.terms), ">=", float(least))
        return
    slack = _rounding_slack(model, row.terms, step)
    # Real variables are rounded up to whole steps, at most one step each.
    ups = [f for i, f in row.terms.items() if _is_real(model, i)]
    if row.sense in ("<=", "=="):
        right = math.ceil(row.right / step) + math.ceil(slack + sum(f for f in ups if f > 0))
        yield Row(row.name, _terms(model, row.terms, step, math.floor), "<=", float(right))
    if row.sense in (">=", "=="):
        right = math.floor(row.right / step) - math.ceil(slack - sum(f for f in ups if f < 0))
        yield Row(row.name, _terms(model, row.terms, step, math.ceil), ">=", float(right))
