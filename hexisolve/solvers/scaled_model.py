"""A linear model in units that suit libraries with absolute tolerances, and the way back.

Libraries of floating point stop at *absolute* distances: 1e-6 for a row, 1e-5 for CBC's next
solution. Step times are milliseconds on one cluster and hours on another, so reals are counted in
steps of a power of two (exact in floating point) of which the largest takes about 1,000, and an
objective of small coefficients is multiplied alike; rows of bytes are divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hexisolve.formulation.linear_model import LinearModel, Row, Variable

_STEPS = 1024.0


@dataclass(frozen=True)
class ScaledModel:
    """The model a library sees, and what its numbers mean.

    Parameters
    ----------
    model
        Same variables and rows in the same order.
    unit
        Value of one step of a real variable.
    objective_unit
        Value of one step of the objective.
    """

    model: LinearModel
    unit: float
    objective_unit: float

    def values(self, native: Sequence[float]) -> tuple[float, ...]:
        """A library's values in the units of the user's model."""
        return tuple(
            value if variable.is_integer else value * self.unit
            for value, variable in zip(native, self.model.variables, strict=True)
        )

    def native_values(self, values: Sequence[float]) -> tuple[float, ...]:
        """The user's values in the units of the library."""
        return tuple(
            value if variable.is_integer else value / self.unit
            for value, variable in zip(values, self.model.variables, strict=True)
        )


def scaled_model(model: LinearModel) -> ScaledModel:
    """The same model in steps: reals divided by the unit, rows and objective brought near 1,000."""
    reals = [variable for variable in model.variables if not variable.is_integer]
    ranges = [abs(b) for v in reals for b in (v.lower, v.upper) if b and math.isfinite(b)]
    unit = _power_of_two(max(ranges) / _STEPS) if ranges else 1.0
    rows = [_row(model, row, unit) for row in model.rows]
    variables = [_variable(variable, unit) for variable in model.variables]
    objective, in_steps = _terms(model, model.objective, unit)
    largest = max((abs(factor) for factor in objective.values()), default=1.0)
    more = 1.0 if in_steps else max(_power_of_two(_STEPS / (largest or 1.0)), 1.0)
    return ScaledModel(
        LinearModel(
            model.name, variables, rows, {index: f * more for index, f in objective.items()}
        ),
        unit,
        (unit if in_steps else 1.0) / more,
    )


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number))


def _variable(variable: Variable, unit: float) -> Variable:
    if variable.is_integer:
        return variable
    return replace(variable, lower=variable.lower / unit, upper=variable.upper / unit)


def _terms(
    model: LinearModel, terms: dict[int, float], unit: float
) -> tuple[dict[int, float], bool]:
    """Terms divided by the unit when they hold a real."""
    if all(model.variables[index].is_integer for index in terms):
        return dict(terms), False
    return {
        index: factor / unit if model.variables[index].is_integer else factor
        for index, factor in terms.items()
    }, True


def _row(model: LinearModel, row: Row, unit: float) -> Row:
    """The row in steps, its largest coefficient between 1 and about 1,000: bytes are far beyond."""
    terms, in_steps = _terms(model, dict(row.terms), unit)
    largest = max(map(abs, terms.values()), default=1.0)
    step = _power_of_two(max(largest / _STEPS, 1.0) if largest >= 1.0 else largest)
    right = row.right / unit if in_steps else row.right
    return replace(row, terms={index: f / step for index, f in terms.items()}, right=right / step)
