"""What a rank asks of its executor: the only ways in which an interpreter leaves its process.

The interpreter yields these; an executor fills the receive tensors and resumes it. Tensors are
flat and contiguous, sizes come from the program, so an executor never looks inside a payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Message:
    """One end of a point-to-point transfer."""

    channel: str
    peer: int
    is_send: bool
    payload: Tensor


@dataclass(frozen=True, eq=False)
class Post:
    """Post all messages of a START group and go on at once."""

    handle: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, eq=False)
class Complete:
    """Resume when every message of the group is complete."""

    handle: str


@dataclass(frozen=True, eq=False)
class AllToAll:
    """Uneven all-to-all; `send` and `receive` are cut by the element counts, members in order."""

    channel: str
    members: tuple[int, ...]
    send: Tensor
    send_elements: tuple[int, ...]
    receive: Tensor
    receive_elements: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sum:
    """Sum `tensor` over the members.

    ``all_reduce`` leaves the whole sum in `tensor`, ``reduce_scatter`` only the own range
    (member i owns `counts[i]` consecutive elements; the rest keeps local values).
    """

    channel: str
    members: tuple[int, ...]
    op: Literal["all_reduce", "reduce_scatter"]
    tensor: Tensor
    counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AllGather:
    """Fill `tensor` from every member's own range (`counts` as in `Sum`)."""

    channel: str
    members: tuple[int, ...]
    tensor: Tensor
    counts: tuple[int, ...]


Collective: TypeAlias = AllToAll | Sum | AllGather
Request: TypeAlias = Post | Complete | Collective


def ranges(counts: tuple[int, ...]) -> list[slice]:
    """Consecutive slices of the given sizes."""
    found, start = [], 0
    for count in counts:
        found.append(slice(start, start + count))
        start += count
    return found
