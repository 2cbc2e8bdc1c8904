"""A small linear model that no solver owns: named integer variables, named rows, bounds.

Adapters in `hexisolve.solvers` read it; `LinearModel.broken_rows` checks what they bring back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Sense = Literal["<=", ">=", "=="]


@dataclass(frozen=True)
class Variable:
    """A variable of a model; made by `LinearModel.add_variable`.

    Parameters
    ----------
    index
        Its position in the model: values are read through it, never by order of names.
    name
        Name for people and LP text.
    lower, upper
        Bounds, both finite.
    is_integer
        Whether only whole values count.
    """

    index: int
    name: str
    lower: float
    upper: float
    is_integer: bool = True


@dataclass(frozen=True)
class Row:
    """``sum coefficient x variable  (<=, >=, ==)  right``; `terms` maps variable index to it."""

    name: str
    terms: Mapping[int, float]
    sense: Sense
    right: float

    def activity(self, values: Sequence[float]) -> float:
        """Value of the left-hand side."""
        return sum(factor * values[index] for index, factor in self.terms.items())

    def violation(self, values: Sequence[float]) -> float:
        """By how much the row is broken; 0 when it holds."""
        excess = self.activity(values) - self.right
        if self.sense == "<=":
            return max(excess, 0.0)
        return max(-excess, 0.0) if self.sense == ">=" else abs(excess)


@dataclass
class LinearModel:
    """Minimise ``sum objective x variable`` subject to the rows.

    The one object of the package that is built up step by step; nothing changes it afterwards.
    """

    name: str
    variables: list[Variable] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: dict[int, float] = field(default_factory=dict)

    def add_variable(
        self, name: str, lower: float, upper: float, is_integer: bool = True
    ) -> Variable:
        """Add a variable between finite bounds."""
        variable = Variable(len(self.variables), name, lower, upper, is_integer)
        self.variables.append(variable)
        return variable

    def add_row(
        self, name: str, terms: Iterable[tuple[Variable, float]], sense: Sense, right: float
    ) -> None:
        """Add a row; coefficients of a variable given twice add up."""
        merged: dict[int, float] = {}
        for variable, factor in terms:
            merged[variable.index] = merged.get(variable.index, 0.0) + factor
        self.rows.append(Row(name, {k: v for k, v in merged.items() if v}, sense, right))

    def minimise(self, terms: Iterable[tuple[Variable, float]]) -> None:
        """Set the objective."""
        self.objective = {variable.index: factor for variable, factor in terms}

    def objective_value(self, values: Sequence[float]) -> float:
        """The objective at `values`."""
        return sum(factor * values[index] for index, factor in self.objective.items())

    def broken_rows(self, values: Sequence[float], tolerance: float = 1e-6) -> list[str]:
        """Names of rows and bounds that `values` break by more than `tolerance`.

        Relative to the size of a row's terms.
        """
        broken = []
        for variable in self.variables:
            value = values[variable.index]
            slack = tolerance * max(1.0, abs(variable.lower), abs(variable.upper))
            fraction = abs(value - round(value)) if variable.is_integer else 0.0
            if not variable.lower - slack <= value <= variable.upper + slack or fraction > 1e-6:
                broken.append(variable.name)
        for row in self.rows:
            size = max((abs(f * values[i]) for i, f in row.terms.items()), default=0.0)
            if row.violation(values) > tolerance * max(1.0, size, abs(row.right)):
                broken.append(row.name)
        return broken

    def to_text(self) -> str:
        """The model as people read it: objective, rows, bounds, one per line."""
        names = [variable.name for variable in self.variables]

        def side(terms: Mapping[int, float]) -> str:
            return " + ".join(f"{factor:g} {names[index]}" for index, factor in terms.items())

        lines = [f"minimise {side(self.objective)}", "subject to"]
        lines += [f"  {r.name}: {side(r.terms)} {r.sense} {r.right:g}" for r in self.rows]
        lines.append("with")
        for v in self.variables:
            kind = "integer" if v.is_integer else "real"
            lines.append(f"  {v.lower:g} <= {v.name} <= {v.upper:g} {kind}")
        return "\n".join(lines) + "\n"


def without_integers(model: LinearModel) -> LinearModel:
    """The linear relaxation: the same rows and bounds, every value counts."""
    variables = [replace(variable, is_integer=False) for variable in model.variables]
    return replace(model, name=f"{model.name}, relaxed", variables=variables)
