"""Values of options: what is taken, and what is refused with an example of what to write."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from hexisolve.commands.arguments import (
    cost_override,
    file_name,
    file_path,
    positive_seconds,
    read_lengths,
    relative_gap,
    seed_number,
    whole_number,
    zero_modes,
)
from hexisolve.errors import InstanceError

Reader = Callable[[str], object]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole_number, "65536", 65536),
        (whole_number, "65_536", 65536),
        (positive_seconds, "0.5", 0.5),
        (positive_seconds, "1e7", 1e7),
        (seed_number, "0", 0),
        (seed_number, "2147483647", 2**31 - 1),
        (relative_gap, "0", 0.0),
        (relative_gap, "0.01", 0.01),
        (zero_modes, "0", (0,)),
        (zero_modes, "3, 1,3", (3, 1)),
        (cost_override, "link_efficiency=0.9", ("link_efficiency", 0.9)),
        (cost_override, "reserve_bytes=1024", ("reserve_bytes", 1024)),
        (file_name, "plan.json", "plan.json"),
        (file_path, "a b/plan.json", Path("a b/plan.json")),
    ],
)
def test_values_that_are_taken(read: Reader, text: str, value: object) -> None:
    found = read(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((whole_number, text) for text in ("", "0", "-1", "1.5", "1e3", "many", "inf")),
        *((positive_seconds, text) for text in ("", "0", "-1", "nan", "inf", "1e8", "10 s")),
        *((seed_number, text) for text in ("", "-1", "2147483648", "1.0")),
        *((relative_gap, text) for text in ("", "1", "-0.1", "nan", "1 %")),
        *((zero_modes, text) for text in ("", "2", "0,", "0;1", "all")),
        *((cost_override, text) for text in ("", "=1", "a", "a=", "a=b", "a=true", "a=[1]")),
        *((file_name, text) for text in ("", " ")),
        (file_path, ""),
    ],
)
def test_values_that_are_refused(read: Reader, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        read(text)
    assert str(refusal.value)


def test_lengths_in_every_usual_form(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("[512, 64]\n# a comment\n7 8,9 # three\n\n1000\n")
    assert read_lengths(path) == (512, 64, 7, 8, 9, 1000)


def test_every_line_that_is_no_length_is_told(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("512\n0\n-3 4\n1.5\n1234567890123\n")
    with pytest.raises(InstanceError) as refusal:
        read_lengths(path)
    assert [(problem.field, problem.value) for problem in refusal.value.problems] == [
        ("line 2", "0"), ("line 3", "-3"), ("line 4", "1.5"), ("line 5", "1234567890123")
    ]  # fmt: skip


def test_lengths_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InstanceError, match="cannot be read"):
        read_lengths(path)
    with pytest.raises(InstanceError, match="does not exist"):
        read_lengths(tmp_path / "missing")


def test_a_file_of_something_else_is_told_in_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "prose"
    path.write_text("these are no lengths\n" * 1000)
    with pytest.raises(InstanceError) as refusal:
        read_lengths(path)
    *shown, last = refusal.value.problems
    assert len(shown) == 12
    assert "3988 more" in last.message
