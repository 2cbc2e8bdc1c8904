"""The virtual executor: all ranks of a plan in one process, under rendezvous semantics.

Nothing is buffered: a transfer happens when both ends are posted, not before. Operations of one
channel start in list order at each of its ranks, the next one when the one before is complete;
the messages of one START group run together. So lists that deadlock on a network without
buffers (NCCL) deadlock here, and the report says where every rank stands.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hexisolve.errors import RuntimeMismatchError
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.corpus import Batch
from hexisolve.runtime.interpreter import Interpreter, Requests, RunSettings
from hexisolve.runtime.requests import (
    AllGather,
    AllToAll,
    Collective,
    Complete,
    Message,
    Post,
    Request,
    Sum,
    ranges,
)

MAX_REPORTED_RANKS = 8


@dataclass(eq=False)
class _Operation:
    """What one rank has posted on one channel and not completed: messages, or a collective."""

    messages: list[Message] = field(default_factory=list)
    collective: Collective | None = None

    @property
    def is_complete(self) -> bool:
        return not self.messages and self.collective is None


class RendezvousNetwork:
    """Channels between ranks of one process; completes what both (or all) ends have posted."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], deque[_Operation]] = {}
        self._handles: dict[tuple[int, str], list[_Operation]] = {}

    def post(self, rank: int, request: Post) -> None:
        """Post a START group; its messages on different channels go their own ways."""
        by_channel: dict[str, list[Message]] = {}
        for message in request.messages:
            by_channel.setdefault(message.channel, []).append(message)
        operations = {
            channel: _Operation(messages=messages) for channel, messages in by_channel.items()
        }
        self._handles[rank, request.handle] = list(operations.values())
        for channel, operation in operations.items():
            self._enqueue(channel, rank, operation)
            self._advance(channel, rank)

    def join(self, rank: int, request: Collective) -> _Operation:
        """Take part in a collective; the operation tells when it is complete."""
        operation = _Operation(collective=request)
        self._enqueue(request.channel, rank, operation)
        self._advance(request.channel, rank)
        return operation

    def is_complete(self, rank: int, handle: str) -> bool:
        """Whether every message of the rank's group is complete."""
        return all(operation.is_complete for operation in self._handles[rank, handle])

    def forget(self, rank: int, handle: str) -> None:
        """The rank has waited for the group."""
        del self._handles[rank, handle]

    def head(self, channel: str, rank: int) -> _Operation | None:
        """The operation a rank is in on a channel."""
        queue = self._queues.get((channel, rank))
        return queue[0] if queue else None

    def describe(self, rank: int, waits_for: str) -> str:
        """What a rank waits for, in words."""
        open_messages = [
            f"{'send to' if message.is_send else 'receive from'} rank {message.peer} "
            f"on {message.channel}"
            for operation in self._handles.get((rank, waits_for), [])
            for message in operation.messages
        ]
        return f"rank {rank}: {waits_for}" + (
            f" ({', '.join(open_messages)})" if open_messages else ""
        )

    def leftovers(self) -> list[str]:
        """Channels with operations nobody completed."""
        return sorted({channel for (channel, _), queue in self._queues.items() if queue})

    def _enqueue(self, channel: str, rank: int, operation: _Operation) -> None:
        self._queues.setdefault((channel, rank), deque()).append(operation)

    def _advance(self, channel: str, rank: int) -> None:
        """Complete what an operation that has just come to a head makes possible.

        Two ends (or all members) meet when the last of them comes to the head of its queue, so
        only ranks with a new head need a look.
        """
        fresh = [rank]
        while fresh:
            rank = fresh.pop()
            operation = self.head(channel, rank)
            if operation is None:
                continue
            if operation.collective is not None:
                fresh += self._try_collective(channel, operation.collective)
            else:
                fresh += self._try_messages(channel, rank, operation)

    def _try_messages(self, channel: str, rank: int, operation: _Operation) -> list[int]:
        """Match messages of a group with those of its peers' current groups; ranks that moved."""
        moved = []
        for message in tuple(operation.messages):
            other = self.head(channel, message.peer)
            if other is None or other is operation:
                continue
            partner = next(
                (
                    candidate
                    for candidate in other.messages
                    if candidate.peer == rank and candidate.is_send != message.is_send
                ),
                None,
            )
            if partner is None:
                continue
            _copy(rank, message, partner)
            operation.messages.remove(message)
            other.messages.remove(partner)
            if other.is_complete:
                moved.append(self._drop_head(channel, message.peer))
        if operation.is_complete:
            moved.append(self._drop_head(channel, rank))
        return moved

    def _try_collective(self, channel: str, request: Collective) -> list[int]:
        """Run a collective once every member stands in it; ranks that moved."""
        joined = []
        for member in request.members:
            operation = self.head(channel, member)
            if operation is None or operation.collective is None:
                return []
            joined.append(operation)
        run_collective([operation.collective for operation in joined if operation.collective])
        for operation in joined:
            operation.collective = None
        return [self._drop_head(channel, member) for member in request.members]

    def _drop_head(self, channel: str, rank: int) -> int:
        self._queues[channel, rank].popleft()
        return rank


def _copy(rank: int, message: Message, partner: Message) -> None:
    send, receive = (message, partner) if message.is_send else (partner, message)
    if send.payload.shape != receive.payload.shape or send.payload.dtype != receive.payload.dtype:
        raise RuntimeMismatchError(
            f"between ranks {rank} and {message.peer} on {message.channel}: "
            f"{send.payload.numel()} elements of {send.payload.dtype} are sent, "
            f"{receive.payload.numel()} of {receive.payload.dtype} expected"
        )
    receive.payload.copy_(send.payload)


def run_collective(joined: Sequence[Collective]) -> None:
    """Carry out one collective from the requests of all its members, in member order."""
    first = joined[0]
    if any(type(other) is not type(first) for other in joined):
        raise RuntimeMismatchError(f"different collectives meet on channel {first.channel}")
    if isinstance(first, AllToAll):
        _all_to_all([request for request in joined if isinstance(request, AllToAll)])
    elif isinstance(first, Sum):
        _sum([request for request in joined if isinstance(request, Sum)])
    else:
        _all_gather([request for request in joined if isinstance(request, AllGather)])


def _all_to_all(joined: Sequence[AllToAll]) -> None:
    for receiver_idx, receiver in enumerate(joined):
        places = ranges(receiver.receive_elements)
        for sender_idx, sender in enumerate(joined):
            part = sender.send[ranges(sender.send_elements)[receiver_idx]]
            place = receiver.receive[places[sender_idx]]
            if part.shape != place.shape or part.dtype != place.dtype:
                raise RuntimeMismatchError(
                    f"all-to-all on {receiver.channel}: rank {sender.members[sender_idx]} sends "
                    f"{part.numel()} elements of {part.dtype}, rank "
                    f"{receiver.members[receiver_idx]} expects {place.numel()} of {place.dtype}"
                )
            place.copy_(part)


def _sum(joined: Sequence[Sum]) -> None:
    total = joined[0].tensor.clone()
    for request in joined[1:]:
        total += request.tensor
    for member_idx, request in enumerate(joined):
        if request.op == "all_reduce":
            request.tensor.copy_(total)
        else:
            own = ranges(request.counts)[member_idx]
            request.tensor[own] = total[own]


def _all_gather(joined: Sequence[AllGather]) -> None:
    shares: list[Tensor] = [
        request.tensor[ranges(request.counts)[member_idx]].clone()
        for member_idx, request in enumerate(joined)
    ]
    for request in joined:
        for place, share in zip(ranges(request.counts), shares, strict=True):
            request.tensor[place] = share


def run_virtual(streams: Sequence[Requests], *, rank_order_seed: int | None = None) -> None:
    """Run the generators of all ranks until each is finished.

    Parameters
    ----------
    rank_order_seed
        Ranks that can go on are taken lowest first, or in random order with this seed; the
        result must not depend on it.

    Raises
    ------
    RuntimeMismatchError
        On a deadlock (with what every rank waits for), on messages that do not fit together,
        and when a rank leaves something unfinished.
    """
    network = RendezvousNetwork()
    pick = random.Random(rank_order_seed)
    waits: dict[int, tuple[str, _Operation | None]] = {}
    ready = list(range(len(streams)))
    unfinished = set(ready)
    while unfinished:
        if not ready:
            ready = _woken(network, waits)
            if not ready:
                raise RuntimeMismatchError(_deadlock(network, waits))
        rank = ready.pop(0 if rank_order_seed is None else pick.randrange(len(ready)))
        waits.pop(rank, None)
        wait = _run_until_blocked(network, rank, streams[rank])
        if wait is None:
            unfinished.discard(rank)
        else:
            waits[rank] = wait
    if network.leftovers():
        raise RuntimeMismatchError(
            f"all ranks finished, yet channels {', '.join(network.leftovers())} are not empty"
        )


def _run_until_blocked(
    network: RendezvousNetwork, rank: int, stream: Iterable[Request]
) -> tuple[str, _Operation | None] | None:
    """Run one rank; what it waits for, or None at its end."""
    for request in stream:
        if isinstance(request, Post):
            network.post(rank, request)
        elif isinstance(request, Complete):
            if not network.is_complete(rank, request.handle):
                return request.handle, None
            network.forget(rank, request.handle)
        else:
            operation = network.join(rank, request)
            if not operation.is_complete:
                return f"{type(request).__name__} on {request.channel}", operation
    return None


def _woken(
    network: RendezvousNetwork, waits: dict[int, tuple[str, _Operation | None]]
) -> list[int]:
    """Ranks whose wait is over."""
    woken = []
    for rank, (handle, operation) in waits.items():
        if operation is not None:
            if operation.is_complete:
                woken.append(rank)
        elif network.is_complete(rank, handle):
            network.forget(rank, handle)
            woken.append(rank)
    return sorted(woken)


def _deadlock(network: RendezvousNetwork, waits: dict[int, tuple[str, _Operation | None]]) -> str:
    lines = [
        network.describe(rank, handle)
        for rank, (handle, _) in sorted(waits.items())[:MAX_REPORTED_RANKS]
    ]
    if len(waits) > MAX_REPORTED_RANKS:
        lines.append(f"and {len(waits) - MAX_REPORTED_RANKS} more")
    return "deadlock, every rank waits:\n  " + "\n  ".join(lines)


class VirtualRun:
    """All ranks of a plan in this process, across steps."""

    def __init__(
        self, programs: Programs, settings: RunSettings, *, rank_order_seed: int | None = None
    ) -> None:
        self.ranks = [Interpreter(programs, program.rank, settings) for program in programs.ranks]
        self._rank_order_seed = rank_order_seed

    def step(self, batch: Batch) -> float:
        """One optimizer step; the global mean loss."""
        run_virtual(
            [rank.run_step(batch) for rank in self.ranks],
            rank_order_seed=self._rank_order_seed,
        )
        return self.ranks[0].loss
