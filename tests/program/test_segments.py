"""Pairs of intervals cover exactly the (query, key) combinations that attention has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexisolve.plan.plan import Slice
from hexisolve.program.segments import area, attention_pairs, segments_of

PIECE = st.tuples(st.integers(0, 2), st.integers(0, 14), st.integers(1, 8))
PIECES = st.lists(PIECE, max_size=5).map(
    lambda items: [Slice(seq, start, start + size) for seq, start, size in items]
)


def tokens(pieces):  # type: ignore[no-untyped-def]
    return [(p.sequence, i) for p in pieces for i in range(p.start, p.stop)]


def seen(pairs):  # type: ignore[no-untyped-def]
    """Every (query row, key row) the pairs cover, as often as they do."""
    found = []
    for pair in pairs:
        for i, q_row in enumerate(range(*pair.q_rows)):
            for j, k_row in enumerate(range(*pair.k_rows)):
                if (
                    pair.kind == "full"
                    or (pair.kind == "causal" and j <= i)
                    or (pair.kind == "window" and 0 <= pair.offset + i - j < pair.window)
                ):
                    found.append((q_row, k_row))
    return sorted(found)


@given(PIECES, PIECES, st.booleans(), st.none() | st.integers(1, 12))
def test_pairs_are_exact(queries, keys, causal, window):  # type: ignore[no-untyped-def]
    window = window if causal else None
    pairs = attention_pairs(
        segments_of(queries), segments_of(keys), causal=causal, window=window, block=3
    )
    wanted = sorted(
        (q_row, k_row)
        for q_row, (q_seq, i) in enumerate(tokens(queries))
        for k_row, (k_seq, j) in enumerate(tokens(keys))
        if q_seq == k_seq
        and (not causal or j <= i)
        and (window is None or i - j < window)
    )  # fmt: skip
    assert seen(pairs) == wanted
    assert area(pairs) == len(wanted)
    assert all(pair.block == 3 for pair in pairs)


@given(PIECES)
def test_causal_pairs_hold_the_same_tokens_on_both_sides(pieces):  # type: ignore[no-untyped-def]
    own = segments_of(pieces)
    flat = tokens(pieces)
    for pair in attention_pairs(own, own):
        if pair.kind == "causal":
            assert flat[slice(*pair.q_rows)] == flat[slice(*pair.k_rows)]


def test_touching_pieces_join_and_empty_ones_vanish() -> None:
    joined = segments_of([Slice(0, 0, 4), Slice(0, 4, 4), Slice(0, 4, 9), Slice(1, 9, 10)])
    assert [(s.sequence, s.start, s.stop, s.row) for s in joined] == [(0, 0, 9, 0), (1, 9, 10, 9)]


def test_front_and_back_queries_share_one_kernel_call() -> None:
    """Zig-zag queries that both come after the keys are adjacent rows: one rectangle."""
    queries = segments_of([Slice(0, 10, 20), Slice(0, 80, 90)])
    keys = segments_of([Slice(0, 0, 10)])
    (pair,) = attention_pairs(queries, keys)
    assert (pair.q_rows, pair.k_rows, pair.kind) == ((0, 20), (0, 10), "full")


def test_window_of_cost_model() -> None:
    """Cost min(position + 1, window)."""
    own = segments_of([Slice(0, 0, 100)])
    pairs = attention_pairs(own, own, window=7)
    assert area(pairs) == sum(min(i + 1, 7) for i in range(100))


def test_window_reaches_across_a_shard_edge() -> None:
    queries, keys = segments_of([Slice(0, 50, 60)]), segments_of([Slice(0, 40, 50)])
    assert area(attention_pairs(queries, keys, window=4)) == 3 + 2 + 1
    assert attention_pairs(segments_of([Slice(0, 53, 60)]), keys, window=4) == ()
