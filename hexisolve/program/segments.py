"""Which (query rows, key rows) see each other: intervals of documents instead of masks.

A shard is an ordered list of intervals of sequences. Any query interval against any key interval
is, after cutting at their ends, exactly *full*, *causal* or nothing (docs/programs.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hexisolve.plan.plan import Slice
from hexisolve.program.instructions import AttnPair, Interval


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens ``start..stop`` of a sequence, stored from row `row` on."""

    sequence: int
    start: int
    stop: int
    row: int

    @property
    def num_rows(self) -> int:
        """Tokens in the segment."""
        return self.stop - self.start

    @property
    def rows(self) -> Interval:
        """Its row interval."""
        return self.row, self.row + self.num_rows

    def cut(self, start: int, stop: int) -> Segment:
        """Take the part of tokens ``start..stop``."""
        return Segment(self.sequence, start, stop, self.row + start - self.start)


def segments_of(pieces: Iterable[Slice]) -> tuple[Segment, ...]:
    """Segments of pieces stored one after another; pieces that continue each other are joined."""
    joined: list[Segment] = []
    row = 0
    for piece in pieces:
        if not piece.num_tokens:
            continue
        last = joined[-1] if joined else None
        if last and last.sequence == piece.sequence and last.stop == piece.start:
            joined[-1] = Segment(last.sequence, last.start, piece.stop, last.row)
        else:
            joined.append(Segment(piece.sequence, piece.start, piece.stop, row))
        row += piece.num_tokens
    return tuple(joined)


def attention_pairs(
    queries: Sequence[Segment],
    keys: Sequence[Segment],
    *,
    causal: bool = True,
    window: int | None = None,
    block: int = -1,
) -> tuple[AttnPair, ...]:
    """Every rectangle of rows in which some query sees some key.

    Parameters
    ----------
    queries, keys
        Segments with their rows in the query buffer and in the key buffer.
    causal
        A query sees keys up to its own position; else all of its sequence.
    window
        Sliding window in tokens, itself included; None for none.
    block
        Written into the pairs.
    """
    pairs: list[AttnPair] = []
    for key in keys:
        found = (
            pair
            for query in queries
            if query.sequence == key.sequence
            for pair in _segment_pairs(query, key, causal, window, block)
        )
        for pair in found:
            last = pairs[-1] if pairs else None
            if last and _continues(last, pair):
                pairs[-1] = AttnPair(block, (last.q_rows[0], pair.q_rows[1]), pair.k_rows, "full")
            else:
                pairs.append(pair)
    return tuple(pairs)


def _continues(last: AttnPair, pair: AttnPair) -> bool:
    """Two full rectangles over the same keys whose query rows touch are one."""
    return (
        last.kind == pair.kind == "full"
        and last.k_rows == pair.k_rows
        and last.q_rows[1] == pair.q_rows[0]
    )


def _segment_pairs(
    query: Segment, key: Segment, causal: bool, window: int | None, block: int
) -> Iterator[AttnPair]:
    if not causal:
        yield from _rectangle(query, key, window, block)
        return
    inside_start, inside_stop = max(query.start, key.start), min(query.stop, key.stop)
    if inside_start < inside_stop:
        inside = query.cut(inside_start, inside_stop)
        if key.start < inside_start:
            yield from _rectangle(inside, key.cut(key.start, inside_start), window, block)
        triangle = key.cut(inside_start, inside_stop)
        if window is not None and triangle.num_rows > window:
            yield AttnPair(block, inside.rows, triangle.rows, "window", 0, window)
        else:
            yield AttnPair(block, inside.rows, triangle.rows, "causal")
    if query.stop > key.stop:
        yield from _rectangle(query.cut(max(query.start, key.stop), query.stop), key, window, block)


def _rectangle(query: Segment, key: Segment, window: int | None, block: int) -> Iterator[AttnPair]:
    """All queries after all keys (or attention without order): full, window or nothing."""
    offset = query.start - key.start
    if window is None or query.stop - 1 - key.start < window:
        yield AttnPair(block, query.rows, key.rows, "full")
    elif query.start - (key.stop - 1) < window:
        yield AttnPair(block, query.rows, key.rows, "window", offset, window)


def area(pairs: Iterable[AttnPair]) -> int:
    """(query, key) combinations that are computed and count: the exact pairs of cost equation 2."""
    total = 0
    for pair in pairs:
        num_q = pair.q_rows[1] - pair.q_rows[0]
        num_k = pair.k_rows[1] - pair.k_rows[0]
        if pair.kind == "full":
            total += num_q * num_k
        elif pair.kind == "causal":
            total += num_q * (num_q + 1) // 2
        else:
            total += sum(
                max(0, min(num_k, pair.offset + i + 1) - max(0, pair.offset + i + 1 - pair.window))
                for i in range(num_q)
            )
    return total
