"""Blocks: the KV of a ring cut in parts of about one size, and where each part has to go.

A block is a mirrored pair of front and back tokens of one document. It visits, in ring order from
its origin, the groups that hold later queries of that document (its *chain*); documents that lie
in one group do not travel. Cost equation 5 (docs/cost-model.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hexisolve.plan.pieces import Pieces
from hexisolve.program.instructions import AttnPair, Interval
from hexisolve.program.segments import Segment, attention_pairs, segments_of


@dataclass(frozen=True)
class Block:
    """The unit of transfer.

    Parameters
    ----------
    number
        Unique in the ring of one chunk shape.
    rows
        Row intervals in its origin's group order, concatenated.
    chain
        Groups it visits, its origin first.
    """

    number: int
    rows: tuple[Interval, ...]
    chain: tuple[int, ...]

    @cached_property
    def num_rows(self) -> int:
        """Tokens of the block."""
        return sum(stop - start for start, stop in self.rows)

    def after(self, group: int) -> int | None:
        """Find the group it goes to from `group`; None when `group` is the last."""
        position = self.chain.index(group) + 1
        return self.chain[position] if position < len(self.chain) else None


@dataclass(frozen=True)
class RingWork:
    """The blocks of one ring in one chunk shape, and who computes what.

    Parameters
    ----------
    blocks
        All blocks that travel.
    own
        ``[group]`` -> work on its own keys, in portions of about a block.
    arriving
        ``[group][block number]`` -> pairs of its queries with that block.
    """

    blocks: tuple[Block, ...]
    own: tuple[tuple[tuple[AttnPair, ...], ...], ...]
    arriving: tuple[dict[int, tuple[AttnPair, ...]], ...]

    @property
    def is_deep(self) -> bool:
        """Every group that sends has two blocks or more: one can be posted while one moves."""
        counts: dict[int, int] = {}
        for block in self.blocks:
            counts[block.chain[0]] = counts.get(block.chain[0], 0) + 1
        return bool(counts) and min(counts.values()) >= 2


def ring_work(
    group_pieces: Sequence[Pieces], *, causal: bool, window: int | None, ring_blocks: int
) -> RingWork:
    """Cut the KV of a ring into blocks and find the chain of each.

    Parameters
    ----------
    group_pieces
        ``[group]`` -> its tokens in group order; empty groups take no part.
    ring_blocks
        Number of blocks aimed at for the whole ring.
    """
    held = [segments_of(pieces) for pieces in group_pieces]
    by_sequence: list[dict[int, tuple[Segment, ...]]] = []
    for segments in held:
        sequences = dict.fromkeys(segment.sequence for segment in segments)
        by_sequence.append(
            {seq: tuple(s for s in segments if s.sequence == seq) for seq in sequences}
        )
    shared = {
        (group, sequence)
        for group, own in enumerate(by_sequence)
        for sequence in own
        if any(sequence in other for idx, other in enumerate(by_sequence) if idx != group)
    }
    travelling = sum(s.num_rows for group, seq in shared for s in by_sequence[group][seq])
    target = max(1, -(-travelling // ring_blocks))

    blocks: list[Block] = []
    own_work: list[tuple[tuple[AttnPair, ...], ...]] = []
    arriving: list[dict[int, tuple[AttnPair, ...]]] = [{} for _ in group_pieces]
    num_groups = len(group_pieces)
    for group, own in enumerate(by_sequence):
        work = []
        for sequence, segments in own.items():
            is_shared = (group, sequence) in shared
            cuts = _cut(segments, target) if is_shared else (segments,)
            for part in cuts:
                work.append(attention_pairs(segments, part, causal=causal, window=window))
                if not is_shared:
                    continue
                number = len(blocks)
                keys = _packed(part)
                chain = [group]
                for other in ((group + hop) % num_groups for hop in range(1, num_groups)):
                    pairs = attention_pairs(
                        by_sequence[other].get(sequence, ()),
                        keys,
                        causal=causal,
                        window=window,
                        block=number,
                    )
                    if pairs:
                        chain.append(other)
                        arriving[other][number] = pairs
                if len(chain) > 1:
                    blocks.append(Block(number, tuple(s.rows for s in part), tuple(chain)))
        own_work.append(tuple(work))
    return RingWork(tuple(blocks), tuple(own_work), tuple(arriving))


def _packed(part: Sequence[Segment]) -> tuple[Segment, ...]:
    """Take the same tokens with rows counted inside the block."""
    packed, row = [], 0
    for segment in part:
        packed.append(Segment(segment.sequence, segment.start, segment.stop, row))
        row += segment.num_rows
    return tuple(packed)


def _cut(segments: tuple[Segment, ...], target: int) -> tuple[tuple[Segment, ...], ...]:
    """Mirrored pairs of about `target` tokens: equal parts from the front and from the back.

    All blocks of a group then mean the same work to every group, also those of the innermost
    group, whose front and back touch.
    """
    num_tokens = sum(segment.num_rows for segment in segments)
    num_front = (num_tokens + 1) // 2
    num_back = num_tokens - num_front
    num_parts = max(1, min(round(num_tokens / target), num_front))
    edges = [
        (num_front * idx // num_parts, num_tokens - num_back * idx // num_parts)
        for idx in range(num_parts + 1)
    ]
    return tuple(
        (*_span(segments, left, next_left), *_span(segments, next_right, right))
        for (left, right), (next_left, next_right) in pairwise(edges)
    )


def _span(segments: tuple[Segment, ...], first: int, stop: int) -> Iterator[Segment]:
    """Take the tokens ``first..stop`` of `segments`, counted from the first of them."""
    passed = 0
    for segment in segments:
        low = max(first - passed, 0)
        high = min(stop - passed, segment.num_rows)
        if low < high:
            yield segment.cut(segment.start + low, segment.start + high)
        passed += segment.num_rows
