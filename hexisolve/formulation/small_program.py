"""Small linear programs over reals, solved by the hundred, and bounds that trust no solver.

A solver is passed in as an `Optimise`; what it claims is used only through the multipliers of the
rows: any multipliers give a valid bound (`proved_bound`), good ones a sharp one. Rounding inside
the solver can therefore cost sharpness, never truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.formulation.pipeline_table import FloatArray, IntArray

Terms = Iterable[tuple[int, float]]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SmallProgram:
    """Minimise ``cost x`` with ``rows x >= right`` (some rows equal), ``low <= x <= high``.

    Parameters
    ----------
    cost
        ``[variable]``.
    starts, columns, row_of, values
        Rows in compressed form: row k holds entries ``starts[k]`` to ``starts[k + 1] - 1``; of
        every entry its column, row and value. Programs of the same rows share the first three.
    right
        ``[row]``.
    is_equal
        ``[row]``.
    low, high
        ``[variable]``, all finite.
    """

    cost: FloatArray
    starts: IntArray
    columns: IntArray
    row_of: IntArray
    values: FloatArray
    right: FloatArray
    is_equal: BoolArray
    low: FloatArray
    high: FloatArray


class Multipliers(NamedTuple):
    """What a solver brings back.

    Parameters
    ----------
    point
        ``[variable]`` where it says the optimum is; None when it says there is none.
    rows
        ``[row]`` multipliers of the rows: of the optimum, or a proof that the rows contradict each
        other (in either direction).
    """

    point: FloatArray | None
    rows: FloatArray


Optimise = Callable[[SmallProgram], Multipliers]


def proved_bound(program: SmallProgram, multipliers: FloatArray, cost: FloatArray) -> float:
    """Least of ``cost x`` by weak duality: ``y right + sum_j min of (cost - y rows)_j x_j``.

    Source: Neumaier and Shcherbina, Safe bounds in linear and mixed-integer linear programming,
    2004.
    """
    weights = np.where(program.is_equal, multipliers, np.maximum(multipliers, 0.0))
    spread = weights[program.row_of] * program.values
    reduced = cost - np.bincount(program.columns, spread, len(cost))
    ends = np.where(reduced > 0, program.low, program.high)
    return float(weights @ program.right + reduced @ ends)


def least(program: SmallProgram, optimise: Optimise) -> tuple[float, FloatArray | None]:
    """A proved lower bound, infinite where the rows contradict each other; and a point near it."""
    answer = optimise(program)
    if answer.point is not None:
        return proved_bound(program, answer.rows, program.cost), answer.point
    nothing = np.zeros(len(program.cost))
    for ray in (answer.rows, -answer.rows):
        if proved_bound(program, ray, nothing) > 1e-12:
            return np.inf, None
    return -np.inf, None


class Rows:
    """Rows of a program while it is written down."""

    def __init__(self) -> None:
        self._starts, self._columns, self._values = [0], list[int](), list[float]()
        self._right, self._is_equal = list[float](), list[bool]()
        self._arrays: (
            tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, BoolArray] | None
        ) = None

    def __len__(self) -> int:
        return len(self._right)

    def add(self, terms: Terms, least: float = 0.0, is_equal: bool = False) -> None:
        """``sum of coefficient x variable >= least``, or equal to it."""
        self._arrays = None
        columns, values = zip(*terms, strict=True)
        if len(set(columns)) < len(columns):
            merged: dict[int, float] = {}
            for variable, coefficient in zip(columns, values, strict=True):
                merged[variable] = merged.get(variable, 0.0) + coefficient
            columns, values = tuple(merged), tuple(merged.values())
        self._columns += columns
        self._values += values
        self._starts.append(len(self._columns))
        self._right.append(least)
        self._is_equal.append(is_equal)

    def program(self, cost: FloatArray, low: FloatArray, high: FloatArray) -> SmallProgram:
        """The rows with a cost and limits of the variables."""
        if self._arrays is None:
            values, starts = np.array(self._values, dtype=float), np.array(self._starts)
            row_of = np.repeat(np.arange(len(self)), np.diff(starts))
            # In units of the largest coefficient: HiGHS is told not to scale.
            sizes = np.maximum.reduceat(np.abs(values), starts[:-1])
            sizes = np.where(sizes > 0, sizes, 1.0)
            self._arrays = (
                starts.astype(np.int32),
                np.array(self._columns, dtype=np.int32),
                row_of,
                values / sizes[row_of],
                np.array(self._right, dtype=float) / sizes,
                np.array(self._is_equal),
            )
        return SmallProgram(cost, *self._arrays, low, high)
