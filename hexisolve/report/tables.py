"""Small helpers that every table shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def make_table(title: str, columns: Sequence[str], caption: str = "") -> Table:
    """Give an empty table: a column ending in ``>`` is right-aligned, one in ``~`` may wrap."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", caption=caption or None,
        caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for column in columns:
        may_wrap = column.endswith("~")
        table.add_column(
            column.rstrip(">~"),
            justify="right" if column.endswith(">") else "left",
            overflow="fold" if may_wrap else "ellipsis",
            no_wrap=not may_wrap,
        )
    return table


def ranges(indices: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2, 5``.

    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def count(number: float) -> str:
    """``13015864320`` as ``13.0 B``, as people write parameters and tokens."""
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(number) >= factor:
            return f"{number / factor:.3g} {letter}"
    return f"{number:g}"


def percent(share: float) -> str:
    """``0.1234`` as ``12.3 %``."""
    return f"{100 * share:.1f} %"
