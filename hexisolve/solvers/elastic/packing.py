"""Whole short sequences into chunks: best fit under a cap on seconds and a cap on tokens.

Tail slices are the first buckets (hybrid chunks), the rest opens buckets of its own (batched
chunks). Source: InfiniPipe (arXiv 2509.21275), algorithm 1.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

_MOST_WALKED = 8


def best_fit(
    loads: Sequence[float],
    tokens: Sequence[int],
    buckets: Sequence[tuple[float, int]],
    cap: float,
    cap_tokens: int,
) -> list[list[int]]:
    """Put every item into the fullest bucket that still has room for it.

    Of the buckets with room in seconds the fullest few are asked for room in tokens, then the
    emptiest; when all refuse, a new one opens.

    Parameters
    ----------
    loads, tokens
        Seconds and tokens of every item, heaviest first.
    buckets
        Seconds and tokens that are in the first buckets already.
    cap, cap_tokens
        Most of a bucket; an item larger than that has a bucket to itself.

    Returns
    -------
    Items of every bucket: the given ones first (some empty), then new ones in order of opening.

    >>> best_fit([3.0, 2.0, 2.0], [3, 2, 2], [(1.0, 1)], 4.0, 10)
    [[0], [1, 2]]
    """
    contents: list[list[int]] = [[] for _ in buckets]
    # Room left, most crowded bucket first; a bucket's number breaks ties.
    room = sorted((cap - load, idx) for idx, (load, _) in enumerate(buckets))
    tokens_left = [cap_tokens - count for _, count in buckets]
    smallest = min(tokens, default=0)
    for item, (load, count) in enumerate(zip(loads, tokens, strict=True)):
        place = bisect_left(room, (load, -1))
        walked = 0
        while place < len(room) and tokens_left[room[place][1]] < count:
            # Buckets that are close to their token cap are few, unless everything is.
            walked += 1
            place = place + 1 if walked < _MOST_WALKED else max(place + 1, len(room) - 1)
        if place < len(room):
            left, bucket = room.pop(place)
        else:
            left, bucket = cap, len(contents)
            contents.append([])
            tokens_left.append(cap_tokens)
        contents[bucket].append(item)
        tokens_left[bucket] -= count
        if tokens_left[bucket] >= smallest:
            insort(room, (left - load, bucket))
    return contents
