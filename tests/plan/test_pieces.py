"""The published rounding rule: which tokens of a chunk each rank owns."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plan_examples import stage_of

from hexisolve.cost.flop import causal_pairs
from hexisolve.plan.pieces import _pieces_by_rule, split_tokens, stage_pieces
from hexisolve.plan.plan import Chunk, Slice
from hexisolve.plan.tokens import StageTokens

weights = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=5)
lengths = st.lists(st.integers(1, 300), min_size=1, max_size=6)


def chunk_of(sizes, prefix=0):  # type: ignore[no-untyped-def]
    parts = [Slice(idx, 0, size) for idx, size in enumerate(sizes)]
    parts[0] = Slice(0, prefix, prefix + sizes[0])
    return Chunk(tuple(parts))


def laid(groups, chunk):  # type: ignore[no-untyped-def]
    ranks = [
        [(f"d{g}.{r}", tokens, (0, 0)) for r, tokens in enumerate(group)]
        for g, group in enumerate(groups)
    ]
    return stage_pieces(stage_of((0, 1), *ranks), chunk)


def tokens_of(pieces):  # type: ignore[no-untyped-def]
    return [
        (p.sequence, position)
        for group in pieces
        for own in group
        for p in own
        for position in range(p.start, p.stop)
    ]


@given(weights, lengths, st.integers(0, 40))
def test_pieces_partition_the_chunk(groups, sizes, prefix):  # type: ignore[no-untyped-def]
    assume(sum(map(sum, groups)))
    chunk = chunk_of(sizes, prefix)
    pieces = laid(groups, chunk)
    expected = [(p.sequence, pos) for p in chunk.slices for pos in range(p.start, p.stop)]
    assert sorted(tokens_of(pieces)) == expected
    assert all(part.num_tokens > 0 for group in pieces for own in group for part in own)


@given(weights, lengths)
def test_counts_are_the_largest_remainder(groups, sizes):  # type: ignore[no-untyped-def]
    flat = [weight for group in groups for weight in group]
    assume(sum(flat))
    counts = [
        sum(part.num_tokens for part in own) for group in laid(groups, chunk_of(sizes))
        for own in group
    ]  # fmt: skip
    assert counts == list(split_tokens(sum(sizes), flat))
    for count, weight in zip(counts, flat, strict=True):
        assert abs(count - sum(sizes) * weight / sum(flat)) < 1


@given(weights, st.integers(2, 400), st.integers(0, 500))
def test_even_groups_have_exactly_their_share_of_the_pairs(groups, length, prefix):  # type: ignore[no-untyped-def]
    assume(sum(map(sum, groups)))
    chunk = chunk_of([length], prefix)
    tokens = StageTokens(chunk.slices, laid(groups, chunk))
    pairs = tokens.pairs(None, True)
    assert sum(pairs) == causal_pairs(length, prefix)
    for size, found in zip(tokens.group_tokens, pairs, strict=True):
        exact = size * prefix + size * (length + 1) / 2
        if size % 2 == 0:
            assert found == exact
        else:
            assert abs(found - exact) <= length


@given(weights, lengths)
def test_the_rule_is_deterministic(groups, sizes):  # type: ignore[no-untyped-def]
    assume(sum(map(sum, groups)))
    chunk = chunk_of(sizes)
    first = laid(groups, chunk)
    _pieces_by_rule.cache_clear()
    assert laid(groups, chunk) == first


def test_whole_documents_go_to_one_group_while_there_is_room():  # type: ignore[no-untyped-def]
    pieces = laid([[500], [500]], chunk_of([300, 300, 200, 200]))
    assert [{p.sequence for own in group for p in own} for group in pieces] == [{0, 2}, {1, 3}]


def test_only_the_document_that_straddles_is_cut():  # type: ignore[no-untyped-def]
    pieces = laid([[400], [400]], chunk_of([300, 200, 300]))
    owners = [{p.sequence for own in group for p in own} for group in pieces]
    assert owners == [{0, 1}, {1, 2}]


def test_48_documents_of_1k_are_not_all_cut():  # type: ignore[no-untyped-def]
    pieces = laid([[1]] * 7, chunk_of([1024] * 48))
    owners: dict[int, set[int]] = {}
    for group_idx, group in enumerate(pieces):
        for own in group:
            for part in own:
                owners.setdefault(part.sequence, set()).add(group_idx)
    assert sum(len(groups) > 1 for groups in owners.values()) <= 7


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_every_token_counts_once_at_every_length(degree):  # type: ignore[no-untyped-def]
    """Case 8: for every length 1..64 and degree 2, 3, 4, in one group and in a ring."""
    for length in (*range(1, 65), 2999):
        expected = [(0, position) for position in range(length)]
        for groups in ([[1] * degree], [[1]] * degree):
            assert sorted(tokens_of(laid(groups, chunk_of([length])))) == expected


def test_explicit_pieces_win():  # type: ignore[no-untyped-def]
    given_pieces = (((Slice(0, 0, 9),), (Slice(0, 9, 10),)),)
    chunk = Chunk((Slice(0, 0, 10),), given_pieces)
    stage = stage_of((0, 1), [("d0", 1, (0, 2))], [("d1", 1, (0, 2))])
    assert stage_pieces(stage, chunk) == (((Slice(0, 0, 9),),), ((Slice(0, 9, 10),),))


def test_weights_that_are_all_zero_are_refused():  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="not all 0"):
        split_tokens(5, [0, 0])
