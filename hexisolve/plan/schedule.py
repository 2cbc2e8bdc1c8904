"""Orders of operations in a pipeline."""

from __future__ import annotations


def one_f_one_b(
    num_stages: int, num_chunks: int, num_split: int = 1
) -> tuple[tuple[str, ...], ...]:
    """1F1B: stage p (from 0) warms up with ``P - 1 - p + num_split - 1`` forwards.

    Then one forward and one backward in turn, so that ``min(n, P - p + num_split - 1)`` chunks
    are in flight at most.

    Source: InfiniPipe (arXiv 2509.21275), section on schedules; `num_split` is the largest number
    of slices of one sequence (1: whole sequences).

    >>> one_f_one_b(2, 2)
    (('F0', 'F1', 'B0', 'B1'), ('F0', 'B0', 'F1', 'B1'))
    """
    rows = []
    for stage_idx in range(num_stages):
        warmup = min(num_chunks, num_stages - 1 - stage_idx + num_split - 1)
        row = [f"F{idx}" for idx in range(warmup)]
        for idx in range(num_chunks):
            if warmup + idx < num_chunks:
                row.append(f"F{warmup + idx}")
            row.append(f"B{idx}")
        rows.append(tuple(row))
    return tuple(rows)


def parse_operation(text: str) -> tuple[str, int]:
    """``"F12"`` as ``("F", 12)``; raises ValueError for anything else."""
    kind, number = text[:1], text[1:]
    if kind not in ("F", "B") or not number.isascii() or not number.isdigit():
        raise ValueError(f"{text!r} is no operation; write F0, B0, ...")
    return kind, int(number)
