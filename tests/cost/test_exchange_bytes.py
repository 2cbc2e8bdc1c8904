"""Bytes of attention's exchanges and of weight collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexisolve.cost import collectives, exchange
from hexisolve.cost.layer_time import chain_s, layer_s
from hexisolve.data.model_spec import AttentionSpec

GQA = AttentionSpec("full", 8, 2, 16, 12, 1000, 900)
MLA = AttentionSpec("full", 16, 16, 192, 128, 1000, 900, kv_latent_dim=576)


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_kv_heads_are_those_the_queries_read(num_kv, group_size, data):  # type: ignore[no-untyped-def]
    """Case 4: the query-to-KV map is explicit; no rank has query heads and no KV head."""
    num_q = num_kv * group_size
    start = data.draw(st.integers(0, num_q))
    stop = data.draw(st.integers(start, num_q))
    read = {head // group_size for head in range(start, stop)}
    first, last = exchange.kv_head_range((start, stop), num_q, num_kv)
    assert set(range(first, last)) == read


def test_all_to_all_bytes():  # type: ignore[no-untyped-def]
    assert exchange.tokens_to_heads_bytes(10, 3, 2, GQA, 2) == 10 * (3 * 16 + 2 * 28) * 2
    assert exchange.heads_to_tokens_bytes(10, 3, GQA, 2) == 10 * 3 * 12 * 2


def test_visiting_tokens_are_the_context_less_the_own_share():  # type: ignore[no-untyped-def]
    assert exchange.visiting_tokens(1000, 0, 700) == 300
    assert exchange.visiting_tokens(1000, 500, 700) == pytest.approx(1500 * 0.3)


def test_kv_ring_bytes():  # type: ignore[no-untyped-def]
    width = exchange.kv_width(2, GQA)
    assert width == 56
    assert exchange.ring_kv_forward_bytes(300, width, 2) == 300 * 56 * 2
    assert exchange.ring_kv_backward_bytes(300, 700, width, 2, 4) == 56 * (300 * 2 + 700 * 4)


def test_mla_carries_its_latent_where_that_is_less():  # type: ignore[no-untyped-def]
    assert exchange.kv_width(1, MLA) == 320
    assert exchange.kv_width(4, MLA) == 576
    assert exchange.kv_width(0, MLA) == 0


def test_q_ring_bytes():  # type: ignore[no-untyped-def]
    forward = exchange.ring_q_forward_bytes(300, 700, 3, GQA, 2, 4)
    assert forward == 300 * 3 * 16 * 2 + 700 * 3 * (12 * 4 + 4)
    backward = exchange.ring_q_backward_bytes(300, 700, 3, GQA, 2, 4)
    assert backward == 300 * 3 * (16 * 2 + 12 * 2 + 8) + 700 * 3 * 16 * 4


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9).filter(any))
def test_collectives_move_every_share_to_everyone_else(weights):  # type: ignore[no-untyped-def]
    shares = collectives.shares_of(weights)
    assert sum(shares) == pytest.approx(1.0)
    received = [collectives.gather_bytes(share, 1000, 2) for share in shares]
    assert sum(received) == pytest.approx((len(weights) - 1) * 1000 * 2)
    traffic = collectives.ring_traffic([f"d{idx}" for idx in range(len(weights))], received)
    expected = sum(received) if len(weights) > 1 else 0.0
    assert sum(traffic.values()) == pytest.approx(expected)


def test_an_all_reduce_is_a_reduce_scatter_and_a_gather():  # type: ignore[no-untyped-def]
    both = collectives.reduce_scatter_bytes(0.25, 1000) + collectives.gather_bytes(0.25, 1000, 4)
    assert collectives.all_reduce_bytes(4, 1000) == both


def test_a_ring_receives_from_the_rank_before():  # type: ignore[no-untyped-def]
    traffic = collectives.ring_traffic(["a", "b", "c"], [1.0, 2.0, 0.0])
    assert traffic == {("c", "a"): 1.0, ("a", "b"): 2.0}


def test_a_group_counts_with_its_own_sum():  # type: ignore[no-untyped-def]
    """Not the sum of two maxima: dense 2 and attention 3 belong to different groups."""
    assert layer_s([2.0, 1.0], 0.0, [1.0, 3.0], 0.0) == 4.0


def test_the_ring_hides_under_attention_only():  # type: ignore[no-untyped-def]
    assert layer_s([1.0], 0.5, [2.0], 1.9) == 3.5
    assert layer_s([1.0], 0.5, [2.0], 2.5) == 4.0


def test_gathers_hide_under_the_layer_before():  # type: ignore[no-untyped-def]
    assert chain_s([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [0.0] * 3) == 7.0
    assert chain_s([1.0, 1.0], [3.0, 3.0], [0.0] * 2) == 7.0
    assert chain_s([1.0, 1.0], [0.5, 0.5], [2.0, 2.0]) == 0.5 + 1.0 + 2.0 + 2.0
    assert chain_s([], [], []) == 0.0
