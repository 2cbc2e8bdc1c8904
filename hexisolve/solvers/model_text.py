"""MPS and LP text of a linear model, in the words that every reader knows.

Written here because the libraries lose digits (OR-Tools writes 6, PuLP 13, HiGHS 15), and because
CBC reads HiGHS's short section names as variables and solves the relaxation without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hexisolve.formulation.linear_model import LinearModel, Variable

_OBJECTIVE = "objective"
_LONGEST = 60
_WORDS = {
    "free", "inf", "infinity", "st", "s", "subject", "such", "bound", "bounds", "bin", "binary",
    "binaries", "gen", "general", "generals", "int", "integer", "integers", "min", "minimum",
    "minimize", "max", "maximum", "maximize", "semi", "sos", "end", "rhs", "marker", "nan",
}  # fmt: skip
_TERMS_PER_LINE = 6
_MPS_SENSES = {"<=": "L", ">=": "G", "==": "E"}


def mps_text(model: LinearModel) -> str:
    """The model in free MPS; every bound is written, since readers differ in their defaults."""
    names = plain_names(variable.name for variable in model.variables)
    rows = plain_names([_OBJECTIVE, *(row.name for row in model.rows)])[1:]
    columns: list[list[tuple[str, float]]] = [[] for _ in names]
    for index, factor in model.objective.items():
        columns[index].append((_OBJECTIVE, factor))
    for name, row in zip(rows, model.rows, strict=True):
        for index, factor in row.terms.items():
            columns[index].append((name, factor))
    lines = ["NAME model", "ROWS", f" N {_OBJECTIVE}"]
    lines += [f" {_MPS_SENSES[r.sense]} {name}" for name, r in zip(rows, model.rows, strict=True)]
    lines.append("COLUMNS")
    is_integer = False
    for number, variable in enumerate(model.variables):
        if variable.is_integer != is_integer:
            is_integer = variable.is_integer
            lines.append(f" MARKER{number} 'MARKER' '{'INTORG' if is_integer else 'INTEND'}'")
        for name, factor in columns[number] or [(_OBJECTIVE, 0.0)]:
            lines.append(f" {names[number]} {name} {_digits(factor)}")
    if is_integer:
        lines.append(" MARKER 'MARKER' 'INTEND'")
    lines.append("RHS")
    for name, row in zip(rows, model.rows, strict=True):
        lines.append(f" RHS {name} {_digits(row.right)}")
    lines.append("BOUNDS")
    for name, variable in zip(names, model.variables, strict=True):
        lines += [f" {kind} BOUND {name}{value}" for kind, value in _mps_bounds(variable)]
    return "\n".join([*lines, "ENDATA", ""])


def lp_text(model: LinearModel) -> str:
    """The model in the LP format of CPLEX; every variable stands in the objective."""
    names = plain_names(variable.name for variable in model.variables)
    rows = plain_names([_OBJECTIVE, *(row.name for row in model.rows)])[1:]
    costs = {index: model.objective.get(index, 0.0) for index in range(len(names))}
    lines = ["Minimize", f" {_OBJECTIVE}:", *_sum(costs, names), "Subject To"]
    for name, row in zip(rows, model.rows, strict=True):
        terms = row.terms or {0: 0.0}
        sense = "=" if row.sense == "==" else row.sense
        lines += [f" {name}:", *_sum(terms, names), f"   {sense} {_digits(row.right)}"]
    lines.append("Bounds")
    for name, variable in zip(names, model.variables, strict=True):
        lower, upper = _bound(variable.lower), _bound(variable.upper)
        lines.append(f" {lower} <= {name} <= {upper}")
    integers = [name for name, v in zip(names, model.variables, strict=True) if v.is_integer]
    if integers:
        lines += ["Generals", *(f" {name}" for name in integers)]
    return "\n".join([*lines, "End", ""])


def plain_names(names: Iterable[str]) -> list[str]:
    """Names that both formats take: letters, digits and underscores, none twice.

    >>> plain_names(["x[0,1]", "x(0 1)", "e7"])
    ['x_0_1', 'x_0_1_1', 'v_e7']
    """
    plain: dict[str, None] = {}
    for name in names:
        own = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST]
        # An e may begin a number, and a few words are those of the formats.
        if not re.match(r"[A-DF-Za-df-z]", own) or own.lower() in _WORDS:
            own = f"v_{own}".rstrip("_")
        number, one = 0, own
        while one in plain:
            number += 1
            one = f"{own}_{number}"
        plain[one] = None
    return list(plain)


def _digits(number: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(float(number)).removesuffix(".0")


def _bound(number: float) -> str:
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return _digits(number)


def _mps_bounds(variable: Variable) -> Iterator[tuple[str, str]]:
    lower, upper = variable.lower, variable.upper
    yield ("LO", f" {_digits(lower)}") if math.isfinite(lower) else ("MI", "")
    yield ("UP", f" {_digits(upper)}") if math.isfinite(upper) else ("PL", "")


def _sum(terms: Mapping[int, float], names: Sequence[str]) -> Iterator[str]:
    """Signed terms, a few per line: some readers end a line at 255 characters."""
    words = [
        f"{'-' if math.copysign(1.0, f) < 0 else '+'} {_digits(abs(f))} {names[i]}"
        for i, f in terms.items()
    ]
    for first in range(0, len(words), _TERMS_PER_LINE):
        yield f"   {' '.join(words[first : first + _TERMS_PER_LINE])}"
