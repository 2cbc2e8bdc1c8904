"""Stage boundaries: hidden states move from each sender's tokens to the receivers that own them.

Both sides may cut the chunk as they like; every overlap of intervals is one message, its size
known (cost equation 8, docs/cost-model.md). Sends are posted as soon as the data exists and waited
for only when the other stage must have received them; receives are posted in the order the
*sender* produces, one operation ahead, so that a chunk arrives while the one before it is computed.
So a boundary blocks only where the schedule itself does (docs/programs.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hexisolve.plan.pieces import Pieces, StagePieces
from hexisolve.program.instructions import Interval, Start, Transfer, TransferBuffer, Wait
from hexisolve.program.rank_program import Do
from hexisolve.program.segments import Segment, segments_of

RowMap = dict[tuple[int, int], tuple[tuple[Interval, ...], tuple[Interval, ...]]]
"""(earlier-stage rank, later-stage rank) -> rows at each, in the same token order."""


def overlaps(
    before: StagePieces, first_before: int, after: StagePieces, first_after: int
) -> RowMap:
    """Who shares which tokens across a boundary.

    Parameters
    ----------
    before, after
        Pieces of the earlier and the later stage for one chunk.
    first_before, first_after
        Numbers of the stages' first ranks.
    """
    left = _by_token(before, first_before)
    right = _by_token(after, first_after)
    rows: dict[tuple[int, int], tuple[list[Interval], list[Interval]]] = {}
    left_idx = right_idx = 0
    while left_idx < len(left) and right_idx < len(right):
        left_rank, ours = left[left_idx]
        right_rank, theirs = right[right_idx]
        start = max((ours.sequence, ours.start), (theirs.sequence, theirs.start))
        stop = min((ours.sequence, ours.stop), (theirs.sequence, theirs.stop))
        if start < stop and start[0] == stop[0]:
            pair = rows.setdefault((left_rank, right_rank), ([], []))
            pair[0].append(ours.cut(start[1], stop[1]).rows)
            pair[1].append(theirs.cut(start[1], stop[1]).rows)
        if (ours.sequence, ours.stop) <= (theirs.sequence, theirs.stop):
            left_idx += 1
        else:
            right_idx += 1
    return {pair: (tuple(ours), tuple(theirs)) for pair, (ours, theirs) in rows.items()}


def _by_token(pieces: StagePieces, first_rank: int) -> list[tuple[int, Segment]]:
    ranks: list[Pieces] = [own for group in pieces for own in group]
    held = [
        (rank, segment)
        for rank, own in enumerate(ranks, first_rank)
        for segment in segments_of(own)
    ]
    return sorted(held, key=lambda pair: (pair[1].sequence, pair[1].start))


@dataclass
class BoundaryWriter:
    """Writes the boundary instructions of one rank through one pipeline.

    Parameters
    ----------
    rank
        Global number.
    stage_idx
        Its stage.
    schedules
        ``[stage]`` -> operations as (kind, chunk).
    rows
        ``[chunk][boundary]`` -> who shares what; boundary p lies between stages p and p + 1.
    width
        D.
    channels
        ``[boundary][direction]`` -> process group.
    first_chunk
        Number of the pipeline's first chunk among those of the replica.
    """

    rank: int
    stage_idx: int
    schedules: Sequence[Sequence[tuple[str, int]]]
    rows: Sequence[Sequence[RowMap]]
    width: int
    channels: Sequence[tuple[str, str]]
    first_chunk: int
    _posted: dict[str, int] = field(default_factory=lambda: {"F": 0, "B": 0})
    _unfinished: list[tuple[str, int]] = field(default_factory=list)

    def receive(self, kind: str, chunk: int) -> Iterator[Do]:
        """Begin an operation: wait for its input, post the receives of the next one.

        F gets hidden states from the stage before, B gradients from the one after, if there is one.
        """
        other = self._source(kind)
        if other is not None:
            yield from self._expect(kind, chunk)
            if self._transfers(kind, chunk, is_send=False):
                number = chunk + self.first_chunk
                yield Do(number, Wait(f"receive {kind}{number}"))
            # What the other stage ran before this operation, it has received.
            position = {op: idx for idx, op in enumerate(self.schedules[other])}
            reply = "B" if kind == "F" else "F"
            finished = [
                (op, number)
                for op, number in self._unfinished
                if op == reply and position[(op, number)] < position[(kind, chunk)]
            ]
            yield from self._finish(finished)
        own = self.schedules[self.stage_idx]
        following = own[own.index((kind, chunk)) + 1 :][:1]
        for next_kind, next_chunk in following:
            yield from self._expect(next_kind, next_chunk)

    def _source(self, kind: str) -> int | None:
        """The stage that an operation's input comes from."""
        other = self.stage_idx + (-1 if kind == "F" else 1)
        return other if 0 <= other < len(self.schedules) else None

    def _expect(self, kind: str, chunk: int) -> Iterator[Do]:
        """Post the receives of an operation and of all that the sender produces before it."""
        other = self._source(kind)
        if other is None:
            return
        order = [number for op, number in self.schedules[other] if op == kind]
        needed = order.index(chunk) + 1
        for number in order[self._posted[kind] : needed]:
            yield from self._start(kind, number, is_send=False)
        self._posted[kind] = max(self._posted[kind], needed)

    def send(self, kind: str, chunk: int) -> Iterator[Do]:
        """After F: hidden states to the stage after; after B: gradients to the one before."""
        for item in self._start(kind, chunk, is_send=True):
            self._unfinished.append((kind, chunk))
            yield item

    def finish(self) -> Iterator[Do]:
        """Wait for all sends that are left."""
        yield from self._finish(list(self._unfinished))

    def _finish(self, operations: Sequence[tuple[str, int]]) -> Iterator[Do]:
        for operation in operations:
            self._unfinished.remove(operation)
            number = operation[1] + self.first_chunk
            yield Do(number, Wait(f"send {operation[0]}{number}"))

    def _start(self, kind: str, chunk: int, *, is_send: bool) -> Iterator[Do]:
        transfers = self._transfers(kind, chunk, is_send=is_send)
        if transfers:
            number = chunk + self.first_chunk
            handle = f"{'send' if is_send else 'receive'} {kind}{number}"
            yield Do(number, Start(handle, transfers))

    def _transfers(self, kind: str, chunk: int, *, is_send: bool) -> tuple[Transfer, ...]:
        boundary = self.stage_idx - 1 if is_send == (kind == "B") else self.stage_idx
        own_side = 1 if boundary < self.stage_idx else 0
        buffer: TransferBuffer = "hidden" if kind == "F" else "d_hidden"
        return tuple(
            Transfer(
                channel=self.channels[boundary][kind == "B"],
                peer=pair[1 - own_side],
                is_send=is_send,
                buffer=buffer,
                num_elements=sum(stop - start for start, stop in sides[own_side]) * self.width,
                dtype="activation",
                rows=sides[own_side],
            )
            for pair, sides in sorted(self.rows[chunk][boundary].items())
            if pair[own_side] == self.rank
        )
