"""Play the communication of programs under rendezvous semantics, without any buffering.

* A transfer completes only when both of its ends are *active*.
* The transfers of one START become active together, on each channel once all earlier STARTs and
  collectives of that rank on that channel are complete.
* The k-th send from a to b on a channel meets the k-th receive of b from a.
* A collective completes when all members of its channel have reached it.

An enabled transfer stays enabled until it happens and prevents no other: the outcome does not
depend on the order in which ranks run, so one order proves all (docs/programs.md).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hexisolve.program.instructions import (
    Exchange,
    Gather,
    Instruction,
    Norm,
    Reduce,
    Start,
    Transfer,
    Wait,
)

Context: TypeAlias = tuple[int, int]
"""(chunk, layer) an instruction runs for."""


@dataclass(frozen=True, slots=True)
class Together:
    """All ranks of a stage run one proved template (for some layers of a chunk): one collective."""

    channel: str
    what: str


PlayedInstruction: TypeAlias = Start | Wait | Exchange | Gather | Reduce | Norm | Together
Line: TypeAlias = tuple[int, Context, PlayedInstruction]
"""(position in the program, context, instruction)."""

COMMUNICATING = (Start, Wait, Exchange, Gather, Reduce, Norm)


def communicating(
    instructions: Iterable[tuple[Instruction, int, int]],
) -> list[Line]:
    """Keep what communicates of ``(instruction, chunk, layer)``, with its position."""
    return [
        (position, (chunk, layer), instruction)
        for position, (instruction, chunk, layer) in enumerate(instructions)
        if isinstance(instruction, COMMUNICATING)
        and not (
            isinstance(instruction, Exchange | Gather | Reduce | Norm) and _is_local(instruction)
        )
    ]


def _is_local(instruction: Exchange | Gather | Reduce | Norm) -> bool:
    return not instruction.channel and len(instruction.members) == 1


@dataclass(slots=True, eq=False)
class _Group:
    """What one rank posted at once on one channel: transfers of a START, or a collective."""

    rank: int
    channel: str
    line: Line
    transfers: tuple[Transfer, ...]
    open_transfers: int
    handle: _Handle | None


@dataclass(slots=True, eq=False)
class _Handle:
    """A START that is not complete."""

    line: Line
    open_transfers: int


@dataclass
class Outcome:
    """What happened.

    Parameters
    ----------
    problems
        In words; empty when everything met and finished.
    num_transfers, num_collectives
        Pairs of transfers and collectives that completed.
    """

    problems: list[str] = field(default_factory=list)
    num_transfers: int = 0
    num_collectives: int = 0


class Rendezvous:
    """One play of the communication of some ranks.

    Parameters
    ----------
    lines
        What each rank does.
    channels
        Members of every channel.
    where
        Words put before every problem (the template, for example).
    """

    def __init__(
        self,
        lines: Mapping[int, Sequence[Line]],
        channels: Mapping[str, Sequence[int]],
        where: str = "",
    ) -> None:
        self._lines = lines
        self._channels = channels
        self._where = f"{where}: " if where else ""
        self._next = dict.fromkeys(lines, 0)
        self._queues: dict[tuple[int, str], deque[_Group]] = defaultdict(deque)
        self._ends: dict[tuple[str, int, int, bool], deque[tuple[Transfer, _Group]]] = defaultdict(
            deque
        )
        self._gathered: dict[str, dict[int, _Group]] = defaultdict(dict)
        self._handles: dict[int, dict[str, _Handle]] = {rank: {} for rank in lines}
        self._blocked: dict[int, _Group | _Handle] = {}
        self._runnable = deque(lines)
        self._outcome = Outcome()

    def play(self) -> Outcome:
        """Run until nothing moves any more."""
        while self._runnable:
            self._run(self._runnable.popleft())
        for rank, lines in self._lines.items():
            if self._next[rank] < len(lines):
                self._report_blocked(rank)
            else:
                for name, handle in self._handles[rank].items():
                    self._problem(rank, handle.line, f"START {name!r} is never waited for")
        return self._outcome

    def _problem(self, rank: int, line: Line, message: str) -> None:
        position, (chunk, layer), _ = line
        context = "".join(
            (f" chunk {chunk}" if chunk >= 0 else "", f" layer {layer}" if layer >= 0 else "")
        )
        self._outcome.problems.append(
            f"{self._where}rank {rank} instruction {position}{context}: {message}"
        )

    def _run(self, rank: int) -> None:
        lines = self._lines[rank]
        while self._next[rank] < len(lines):
            line = lines[self._next[rank]]
            instruction = line[2]
            if isinstance(instruction, Start):
                self._start(rank, line, instruction)
            elif isinstance(instruction, Wait):
                handle = self._handles[rank].get(instruction.handle)
                if handle is None:
                    self._problem(rank, line, f"WAIT for {instruction.handle!r}, not started")
                elif handle.open_transfers:
                    self._blocked[rank] = handle
                    return
                else:
                    del self._handles[rank][instruction.handle]
            elif self._is_member(rank, line, instruction.channel):
                # The rank goes on when the collective completes.
                group = _Group(rank, instruction.channel, line, (), 1, None)
                self._blocked[rank] = group
                self._post(group)
                return
            self._next[rank] += 1

    def _is_member(self, rank: int, line: Line, channel: str) -> bool:
        if rank in self._channels.get(channel, ()):
            return True
        self._problem(rank, line, f"uses channel {channel!r}, which it is no member of")
        return False

    def _start(self, rank: int, line: Line, start: Start) -> None:
        if start.handle in self._handles[rank]:
            self._problem(rank, line, f"START {start.handle!r} while one of that name is open")
        if not start.transfers:
            self._problem(rank, line, f"START {start.handle!r} has no transfers")
        by_channel: dict[str, list[Transfer]] = {}
        for transfer in start.transfers:
            if transfer.peer == rank or transfer.peer not in self._channels.get(
                transfer.channel, ()
            ):
                self._problem(
                    rank,
                    line,
                    f"{_words(transfer)}: that rank is not another member of the channel",
                )
            if transfer.num_elements < 1:
                self._problem(rank, line, f"{_words(transfer)} is empty")
            if self._is_member(rank, line, transfer.channel):
                by_channel.setdefault(transfer.channel, []).append(transfer)
        handle = _Handle(line, sum(len(transfers) for transfers in by_channel.values()))
        self._handles[rank][start.handle] = handle
        for channel, transfers in by_channel.items():
            self._post(_Group(rank, channel, line, tuple(transfers), len(transfers), handle))

    def _post(self, group: _Group) -> None:
        queue = self._queues[(group.rank, group.channel)]
        queue.append(group)
        if len(queue) == 1:
            self._activate(group)

    def _activate(self, group: _Group) -> None:
        """`group` is the oldest open one of its rank on its channel: its parts may meet."""
        if group.handle is None:
            arrived = self._gathered[group.channel]
            arrived[group.rank] = group
            if len(arrived) == len(self._channels[group.channel]):
                self._collective(group.channel)
            return
        for transfer in group.transfers:
            ends = (group.rank, transfer.peer) if transfer.is_send else (transfer.peer, group.rank)
            waiting = self._ends[(transfer.channel, *ends, not transfer.is_send)]
            if waiting:
                self._meet(transfer, group, *waiting.popleft())
            else:
                self._ends[(transfer.channel, *ends, transfer.is_send)].append((transfer, group))

    def _meet(self, one: Transfer, group: _Group, other: Transfer, other_group: _Group) -> None:
        send, receive = (one, other) if one.is_send else (other, one)
        differences = _differences(send, receive)
        if group.line[1] != other_group.line[1]:
            differences.append(
                f"(chunk, layer) {group.line[1]} here and {other_group.line[1]} there"
            )
        if differences:
            self._problem(
                group.rank,
                group.line,
                f"{_words(one)} meets one of rank {other_group.rank} instruction "
                f"{other_group.line[0]} with {', '.join(differences)}",
            )
        self._outcome.num_transfers += 1
        for side in (other_group, group):
            side.open_transfers -= 1
            handle = side.handle
            assert handle is not None
            handle.open_transfers -= 1
            if not handle.open_transfers and self._blocked.get(side.rank) is handle:
                del self._blocked[side.rank]
                self._runnable.append(side.rank)
            if not side.open_transfers:
                self._finish(side)

    def _finish(self, group: _Group) -> None:
        queue = self._queues[(group.rank, group.channel)]
        assert queue[0] is group
        queue.popleft()
        if queue:
            self._activate(queue[0])

    def _collective(self, channel: str) -> None:
        arrived = self._gathered.pop(channel)
        members = self._channels[channel]
        groups = [arrived[rank] for rank in members]
        for message in collective_differences(
            members, [(group.line[1], group.line[2]) for group in groups]
        ):
            self._problem(groups[0].rank, groups[0].line, f"collective on {channel}: {message}")
        self._outcome.num_collectives += not isinstance(groups[0].line[2], Together)
        for group in groups:
            del self._blocked[group.rank]
            self._next[group.rank] += 1
            self._runnable.append(group.rank)
        for group in groups:
            self._finish(group)

    def _report_blocked(self, rank: int) -> None:
        blocked = self._blocked[rank]
        line = self._lines[rank][self._next[rank]]
        if isinstance(blocked, _Group):
            arrived = self._gathered.get(blocked.channel, {})
            if rank in arrived:
                missing = [peer for peer in self._channels[blocked.channel] if peer not in arrived]
                self._problem(
                    rank,
                    line,
                    f"{_name(line[2])} on {blocked.channel} waits forever for ranks {missing}",
                )
            else:
                self._problem(
                    rank,
                    line,
                    f"{_name(line[2])} on {blocked.channel} waits forever behind an earlier START",
                )
            return
        open_ends = [
            _words(transfer)
            for queue in self._ends.values()
            for transfer, group in queue
            if group.handle is blocked
        ]
        reason = (
            f"{'; '.join(open_ends[:4])} never met by the other end"
            if open_ends
            else "its transfers never start, behind an earlier START of the same channel"
        )
        self._problem(rank, line, f"{_name(line[2])} waits forever: {reason}")


def _name(instruction: PlayedInstruction) -> str:
    if isinstance(instruction, Together):
        return instruction.what
    text = type(instruction).__name__.upper()
    return f"{text} {instruction.handle!r}" if isinstance(instruction, Wait) else text


def _words(transfer: Transfer) -> str:
    way = "send to" if transfer.is_send else "receive from"
    return (
        f"{way} rank {transfer.peer} on {transfer.channel} of {transfer.num_elements} "
        f"{transfer.dtype} elements ({transfer.buffer})"
    )


_PAYLOAD = {
    "kv_own": "kv",
    "kv_block": "kv",
    "dkv_own": "dkv",
    "dkv_block": "dkv",
    "hidden": "hidden",
    "d_hidden": "d_hidden",
    "gradient": "gradient",
}


def _differences(send: Transfer, receive: Transfer) -> list[str]:
    """In what the two ends of a transfer disagree."""
    compared = (
        ("elements", send.num_elements, receive.num_elements),
        ("dtype", send.dtype, receive.dtype),
        ("payload", _PAYLOAD[send.buffer], _PAYLOAD[receive.buffer]),
        ("heads", send.heads, receive.heads),
        ("block", send.block, receive.block),
        ("unit", send.unit, receive.unit),
    )
    return [
        f"{what} {ours} sent and {theirs} expected"
        for what, ours, theirs in compared
        if ours != theirs
    ]


def collective_differences(
    members: Sequence[int], calls: Sequence[tuple[Context, PlayedInstruction]]
) -> list[str]:
    """In what the members of a collective disagree; `calls` in the order of `members`."""
    found = []
    first_context, first = calls[0]
    for rank, (context, call) in zip(members, calls, strict=True):
        if type(call) is not type(first) or context != first_context:
            found.append(
                f"rank {rank} is at {_name(call)} for {context}, "
                f"rank {members[0]} at {_name(first)} for {first_context}"
            )
        elif isinstance(call, Together | Start | Wait):
            if call != first:
                found.append(f"rank {rank} runs {_name(call)}, rank {members[0]} {_name(first)}")
        elif call.members != tuple(members):
            found.append(f"rank {rank} names members {call.members}, the channel {tuple(members)}")
        elif not isinstance(call, Exchange | Norm) and call != first:
            found.append(f"rank {rank} has {call}, rank {members[0]} {first}")
    exchanges = [call for _, call in calls if isinstance(call, Exchange)]
    if found or len(exchanges) < len(calls):
        return found
    return _exchange_differences(members, exchanges)


def _exchange_differences(members: Sequence[int], calls: Sequence[Exchange]) -> list[str]:
    """Check an all-to-all: kinds, places, and splits that are each other's transpose."""
    found = []
    for idx, (rank, call) in enumerate(zip(members, calls, strict=True)):
        same = (call.kind, call.dtype, call.rows, call.q_heads, call.kv_heads)
        first = calls[0]
        if same != (first.kind, first.dtype, first.rows, first.q_heads, first.kv_heads):
            found.append(f"rank {rank} and rank {members[0]} differ in kind, dtype, rows or heads")
        if call.member_idx != idx:
            found.append(f"rank {rank} calls itself member {call.member_idx}, it is {idx}")
        if not len(call.send_elements) == len(call.receive_elements) == len(members):
            found.append(f"rank {rank} has not one part per member")
    if found:
        return found
    return [
        f"rank {sender} sends {call.send_elements[to]} elements to rank {receiver}, "
        f"which expects {calls[to].receive_elements[idx]}"
        for idx, (sender, call) in enumerate(zip(members, calls, strict=True))
        for to, receiver in enumerate(members)
        if call.send_elements[to] != calls[to].receive_elements[idx]
    ]
