"""Every inside of a stage on a few devices: the exact part of the plan space (docs/plan-space.md).

Only for small numbers: the count grows with factorials of the devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations, product
from math import comb, perm

from hexisolve.plan.plan import HeadGroup, Rank

Ring = tuple[HeadGroup, ...]
Heads = tuple[tuple[int, int], ...]


def count_insides(num_devices: int, num_blocks: int, num_heads: int) -> int:
    """How many rings `insides` yields.

    >>> count_insides(2, 1, 1), len(list(insides(("a", "b"), 1, 1, 1)))
    (8, 8)
    """
    rings = [1]
    for size in range(1, num_devices + 1):
        rings.append(
            sum(
                comb(size, first) * _count_head_ranges(num_heads, first) * rings[size - first]
                for first in range(1, size + 1)
            )
        )
    return rings[num_devices] * comb(num_blocks + num_devices - 1, num_devices - 1)


def _count_head_ranges(num_heads: int, num_ranks: int) -> int:
    """How many `_head_ranges` there are: busy ranks in order, and where their heads are cut."""
    return sum(
        perm(num_ranks, busy) * comb(num_heads - 1, busy - 1) for busy in range(1, num_ranks + 1)
    )


def insides(
    devices: Sequence[str], num_blocks: int, block_tokens: int, num_heads: int
) -> Iterator[Ring]:
    """Rings with every grouping, ring order, token split and head range.

    Ranks inside a group come in one order only; `rank_orders` gives the others, which cost the
    same but for what crosses a stage boundary.
    """
    for grouping in _ordered_groupings(tuple(devices)):
        sizes = [len(group) for group in grouping]
        splits = [_head_ranges(num_heads, size) for size in sizes]
        for blocks in compositions(num_blocks, len(devices)):
            for heads in product(*splits):
                ring, position = [], 0
                for group, ranges in zip(grouping, heads, strict=True):
                    ranks = []
                    for device, own in zip(group, ranges, strict=True):
                        ranks.append(Rank(device, blocks[position] * block_tokens, own))
                        position += 1
                    ring.append(HeadGroup(tuple(ranks)))
                yield tuple(ring)


def rank_orders(ring: Ring) -> Iterator[Ring]:
    """The ring with the ranks of every group in every order."""
    for orders in product(*(permutations(group.ranks) for group in ring)):
        yield tuple(HeadGroup(order) for order in orders)


@lru_cache(maxsize=256)
def compositions(total: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """Every way to write `total` as an ordered sum of `parts` numbers of at least 0.

    >>> compositions(1, 2)
    ((0, 1), (1, 0))
    """
    if parts == 1:
        return ((total,),)
    return tuple(
        (first, *rest)
        for first in range(total + 1)
        for rest in compositions(total - first, parts - 1)
    )


def _ordered_groupings(devices: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Ordered set partitions, the devices of a group in the given order."""
    if not devices:
        yield ()
        return
    num_devices = len(devices)
    for mask in range(1, 2**num_devices):
        group = tuple(d for idx, d in enumerate(devices) if mask >> idx & 1)
        rest = tuple(d for idx, d in enumerate(devices) if not mask >> idx & 1)
        for others in _ordered_groupings(rest):
            yield (group, *others)


@lru_cache(maxsize=256)
def _head_ranges(num_heads: int, num_ranks: int) -> tuple[Heads, ...]:
    """Contiguous head ranges for the ranks of a group, in any order, empty ones as (0, 0)."""
    found: dict[Heads, None] = {}
    for counts in compositions(num_heads, num_ranks):
        for order in permutations(range(num_ranks)):
            ranges = [(0, 0)] * num_ranks
            first = 0
            for idx in order:
                if counts[idx]:
                    ranges[idx] = (first, first + counts[idx])
                    first += counts[idx]
            found[tuple(ranges)] = None
    return tuple(found)
