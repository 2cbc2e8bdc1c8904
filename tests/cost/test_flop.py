"""FLOP and pairs against counting one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexisolve.cost import flop

sizes = st.integers(0, 60)


@given(sizes, sizes)
def test_causal_pairs_count_every_earlier_key(num_tokens, prefix):  # type: ignore[no-untyped-def]
    counted = sum(position + 1 for position in range(prefix, prefix + num_tokens))
    assert flop.causal_pairs(num_tokens, prefix) == counted


@given(sizes, sizes, st.integers(1, 80))
def test_window_pairs_count_the_last_keys(num_tokens, prefix, window):  # type: ignore[no-untyped-def]
    counted = sum(min(position + 1, window) for position in range(prefix, prefix + num_tokens))
    assert flop.window_pairs(num_tokens, prefix, window) == counted


@given(sizes, sizes, st.one_of(st.none(), st.integers(1, 80)))
def test_query_pairs_add_up_over_any_cut(start, size, window):  # type: ignore[no-untyped-def]
    stop = start + size
    cut = (start + stop) // 2
    whole = flop.query_pairs(start, stop, stop, window)
    parts = flop.query_pairs(start, cut, stop, window) + flop.query_pairs(cut, stop, stop, window)
    assert whole == parts


def test_full_attention_pairs_every_query_with_the_document():  # type: ignore[no-untyped-def]
    assert flop.query_pairs(10, 30, 50, None, is_causal=False) == 20 * 50


def test_backward_is_2_5_times_forward_when_widths_are_equal():  # type: ignore[no-untyped-def]
    forward = flop.attention_forward_flop(64, 64, 3, 1000)
    assert flop.attention_backward_flop(64, 64, 3, 1000) == 2.5 * forward
    # MLA: 192 and 128 are not equal.
    assert flop.attention_backward_flop(192, 128, 1, 1) == 2 * (3 * 192 + 2 * 128)


def test_dense_work_is_two_flop_per_weight_and_token():  # type: ignore[no-untyped-def]
    assert flop.dense_forward_flop(36864, 1000) == 73_728_000
    assert flop.head_forward_flop(64, 32, 10) == 2 * 64 * 32 * 10
    assert flop.post_matmul_parameters(64, 4, 16, 24576) == 4096 + 24576
