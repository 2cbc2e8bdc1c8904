"""Unit classes that can be exchanged as a whole, and what that saves.

Two hosts of one kind are classes of their own, because their units share a port. Exchanging the
two classes maps every column to one of equal price; such classes are *twins*. States that differ
by an exchange of twins have the same future, so only one of them is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hexisolve.formulation.pipeline_table import Choice, Configuration, IntArray, PipelineTable


class Twins:
    """Groups of twin classes of a table.

    Attributes
    ----------
    groups
        Positions of classes that are twins of one another; groups of one are left out.
    price_ids
        Per column, a number that equal prices share.
    """

    def __init__(self, table: PipelineTable) -> None:
        self.table = table
        prices: dict[bytes, int] = {}
        self.price_ids = np.array(
            [
                prices.setdefault(
                    table.time_s[:, column].tobytes()
                    + table.total_s[:, column].tobytes()
                    + table.forward_s[:, column].tobytes()
                    + table.backward_s[:, column].tobytes()
                    + table.finish_s[column].tobytes()
                    + table.entry_s[column].tobytes(),
                    len(prices),
                )
                for column in range(table.num_columns)
            ],
            dtype=np.int64,
        )
        self.groups = self._groups()

    def _groups(self) -> tuple[tuple[int, ...], ...]:
        table = self.table
        columns = sorted(zip(self.price_ids.tolist(), table.units.tolist(), strict=True))
        groups: list[list[int]] = []
        for place, count in enumerate(table.available):
            for group in groups:
                first = group[0]
                if table.available[first] == count and self._is_symmetric(columns, first, place):
                    group.append(place)
                    break
            else:
                groups.append([place])
        return tuple(tuple(group) for group in groups if len(group) > 1)

    def _is_symmetric(self, columns: list[tuple[int, list[int]]], one: int, other: int) -> bool:
        swapped = []
        for price, units in columns:
            moved = list(units)
            moved[one], moved[other] = units[other], units[one]
            swapped.append((price, moved))
        return sorted(swapped) == columns

    def canonical(self, usage: IntArray) -> IntArray:
        """Usages with the counts of twins in falling order, ``[state, class]``."""
        result = usage.copy()
        for group in self.groups:
            own = list(group)
            result[:, own] = -np.sort(-usage[:, own], axis=1)
        return result

    def assign(self, configuration: Configuration) -> Configuration:
        """Choose among columns of equal price so that no class is used twice over."""
        table = self.table
        kinds = self.canonical(table.units)
        options: list[list[int]] = []
        for choice in configuration:
            same = (kinds == kinds[choice.column]).all(axis=1)
            same &= self.price_ids == self.price_ids[choice.column]
            options.append(np.flatnonzero(same).tolist())
        for columns in self._fitting(options, (0,) * len(table.available)):
            return tuple(
                Choice(column, choice.first_layer, choice.num_layers)
                for column, choice in zip(columns, configuration, strict=True)
            )
        raise AssertionError("a path over classes of twins has no assignment")

    def _fitting(
        self, options: Sequence[Sequence[int]], used: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        if not options:
            yield ()
            return
        for column in options[0]:
            units = self.table.units[column].tolist()
            together = tuple(a + b for a, b in zip(used, units, strict=True))
            if all(a <= b for a, b in zip(together, self.table.available, strict=True)):
                for rest in self._fitting(options[1:], together):
                    yield (column, *rest)
