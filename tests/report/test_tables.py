"""Helpers of the tables."""

from __future__ import annotations

import pytest

from hexisolve.report.tables import count, make_table, percent, ranges


@pytest.mark.parametrize(
    ("indices", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1, 7, 8], "0-1, 5, 7-8")],
)
def test_ranges(indices: list[int], text: str) -> None:
    assert ranges(indices) == text


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7"), (1_500, "1.5 K"), (13_015_864_320, "13 B"), (4e12, "4 T")]
)
def test_count(number: float, text: str) -> None:
    assert count(number) == text


def test_percent() -> None:
    assert percent(0.1234) == "12.3 %"


def test_columns_marked_with_an_arrow_are_right_aligned() -> None:
    table = make_table("t", ["name", "size>"])
    assert [(column.header, column.justify) for column in table.columns] == [
        ("name", "left"),
        ("size", "right"),
    ]
