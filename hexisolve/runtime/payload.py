"""Payloads of transfers and exchanges: which elements go into a message, in which order.

The order is that of the docstrings of `hexisolve.program.instructions`, seen from both ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hexisolve.program.instructions import Interval


def take_rows(tensor: Tensor, rows: Sequence[Interval]) -> Tensor:
    """Rows of the intervals, concatenated; a view when there is one interval."""
    if len(rows) == 1:
        return tensor[rows[0][0] : rows[0][1]]
    if not rows:
        return tensor[:0]
    return torch.cat([tensor[start:stop] for start, stop in rows])


def put_rows(tensor: Tensor, rows: Sequence[Interval], values: Tensor, *, adds: bool) -> None:
    """Write (or add) consecutive rows of `values` to the intervals."""
    first = 0
    for start, stop in rows:
        part = values[first : first + stop - start]
        if adds:
            tensor[start:stop] += part
        else:
            tensor[start:stop] = part
        first += stop - start


def pack(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The parts flattened one after another, a fresh contiguous tensor of `dtype`."""
    return torch.cat([part.reshape(-1).to(dtype) for part in parts])


def unpack(payload: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Inverse of `pack`: views of the payload in the given shapes."""
    views, first = [], 0
    for shape in shapes:
        size = 1
        for extent in shape:
            size *= extent
        views.append(payload[first : first + size].view(shape))
        first += size
    return views


def local_heads(heads: Interval, own: Interval) -> slice:
    """Place of the global head interval `heads` in a buffer that holds `own`."""
    return slice(heads[0] - own[0], heads[1] - own[0])


def num_rows(rows: Sequence[Interval]) -> int:
    """Rows in all intervals."""
    return sum(stop - start for start, stop in rows)
