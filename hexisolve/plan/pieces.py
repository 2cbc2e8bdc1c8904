"""Which tokens of a chunk each rank owns: the one published rounding rule.

1. Token targets of the ranks: largest remainder of ``chunk tokens x tokens_r / sum tokens``
   (ties to the lower rank). A group's target S_g is the sum over its ranks.
2. Documents, longest first (ties in chunk order), go whole to the group with most room left
   (ties to the earlier group) while one has room; those that fit nowhere are cut afterwards,
   again longest first, taking all the room of the roomiest group, then of the next.
3. A cut document is laid zig-zag over its groups, those with an even number of its tokens first,
   else in ring order: each owns one piece of the front and the mirrored piece of the back, so its
   causal pairs are exactly ``S_g C + S_g (s + 1) / 2`` for even S_g, whatever the sizes. Odd groups
   take their odd token from front and back in turn.
4. A group's tokens, in (chunk order, position) order, are dealt to its ranks consecutively.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from hexisolve.plan.plan import Chunk, Slice, Stage

Pieces = tuple[Slice, ...]
StagePieces = tuple[tuple[Pieces, ...], ...]


def split_tokens(num_tokens: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Largest-remainder split of `num_tokens` in proportion to `weights` (sum above 0).

    >>> split_tokens(7, [1, 1, 0])
    (4, 3, 0)
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"token weights must be >= 0 and not all 0, got {list(weights)}")
    counts = [num_tokens * weight // total for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda idx: (-(num_tokens * weights[idx] % total), idx)
    )
    for idx in by_remainder[: num_tokens - sum(counts)]:
        counts[idx] += 1
    return tuple(counts)


def stage_pieces(stage: Stage, chunk: Chunk, stage_idx: int = 0) -> StagePieces:
    """Pieces of every rank, ``[group][rank] -> slices`` in the order the rank stores them.

    Explicit pieces of the chunk (`Chunk.pieces`) win over the rule.
    """
    sizes = tuple(len(group.ranks) for group in stage.ring)
    if chunk.pieces is not None:
        given = chunk.pieces[stage_idx]
        starts = (0, *accumulate(sizes))
        return tuple(
            given[start : start + size] for start, size in zip(starts, sizes, strict=False)
        )
    weights = tuple(tuple(rank.tokens for rank in group.ranks) for group in stage.ring)
    return _pieces_by_rule(weights, chunk.slices)


@lru_cache(maxsize=4096)
def _pieces_by_rule(weights: tuple[tuple[int, ...], ...], slices: tuple[Slice, ...]) -> StagePieces:
    num_tokens = sum(part.num_tokens for part in slices)
    flat = iter(split_tokens(num_tokens, [w for group in weights for w in group]))
    targets = tuple(tuple(next(flat) for _ in group) for group in weights)
    group_pieces = _group_pieces([sum(group) for group in targets], slices)
    return tuple(_deal(pieces, group) for pieces, group in zip(group_pieces, targets, strict=True))


def _group_pieces(targets: list[int], slices: tuple[Slice, ...]) -> list[list[Slice]]:
    """Rules 2 and 3: the pieces of every group, in (chunk order, position) order."""
    room = list(targets)
    owned: list[list[tuple[int, Slice]]] = [[] for _ in targets]
    straddling = []
    longest_first = sorted(range(len(slices)), key=lambda idx: (-slices[idx].num_tokens, idx))
    for idx in longest_first:
        group = max(range(len(room)), key=lambda g: (room[g], -g))
        if room[group] >= slices[idx].num_tokens:
            room[group] -= slices[idx].num_tokens
            owned[group].append((idx, slices[idx]))
        else:
            straddling.append(idx)
    for idx in straddling:
        taken = [0] * len(room)
        missing = slices[idx].num_tokens
        while missing:
            group = max(range(len(room)), key=lambda g: (room[g], -g))
            taken[group] = min(room[group], missing)
            room[group] -= taken[group]
            missing -= taken[group]
        for group, part in _zigzag(slices[idx], taken):
            owned[group].append((idx, part))
    return [
        [part for _, part in sorted(pieces, key=lambda pair: (pair[0], pair[1].start))]
        for pieces in owned
    ]


def _zigzag(whole: Slice, sizes: Sequence[int]) -> list[tuple[int, Slice]]:
    """Rule 3: (group, piece) pairs that cover `whole`, empty pieces left out."""
    pieces = []
    front, back, odd_to_front = whole.start, whole.stop, True
    for group in sorted(range(len(sizes)), key=lambda group: sizes[group] % 2):
        size = sizes[group]
        num_front = size // 2
        if size % 2:
            num_front += odd_to_front
            odd_to_front = not odd_to_front
        num_back = size - num_front
        if front + num_front == back - num_back and size:
            # The innermost group: its two pieces touch and are one.
            pieces.append((group, Slice(whole.sequence, front, back)))
        else:
            if num_front:
                pieces.append((group, Slice(whole.sequence, front, front + num_front)))
            if num_back:
                pieces.append((group, Slice(whole.sequence, back - num_back, back)))
        front += num_front
        back -= num_back
    return pieces


def _deal(pieces: list[Slice], targets: Sequence[int]) -> tuple[Pieces, ...]:
    """Rule 4: consecutive tokens of the group's list, `targets` of them to each rank."""
    dealt: list[Pieces] = []
    queue = list(reversed(pieces))
    for target in targets:
        own: list[Slice] = []
        missing = target
        while missing:
            part = queue.pop()
            taken = min(part.num_tokens, missing)
            own.append(Slice(part.sequence, part.start, part.start + taken))
            if taken < part.num_tokens:
                queue.append(Slice(part.sequence, part.start + taken, part.stop))
            missing -= taken
        dealt.append(tuple(own))
    return tuple(dealt)
