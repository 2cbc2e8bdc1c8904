"""FLOP of a layer's parts (equations 1-3 and 7 of docs/cost-model.md); a multiply-add is 2 FLOP."""

from __future__ import annotations


def dense_forward_flop(matmul_parameters: int, num_tokens: int) -> int:
    """``2 P_l s_r``: every token is multiplied with every (active) matrix; backward is twice that.

    Parameters
    ----------
    matmul_parameters
        P_l: weights one token is multiplied with.
    num_tokens
        s_r: tokens of the rank.
    """
    return 2 * matmul_parameters * num_tokens


def post_matmul_parameters(
    hidden_size: int, num_q_heads: int, v_head_dim: int, mlp_matmul_parameters: int
) -> int:
    """The part of P_l that runs after attention: output projection ``H a_v D`` and MLP."""
    return num_q_heads * v_head_dim * hidden_size + mlp_matmul_parameters


def causal_pairs(num_tokens: int, prefix_tokens: int = 0) -> int:
    """``s C + s (s + 1) / 2``: query-key pairs of `num_tokens` queries after C earlier tokens.

    >>> causal_pairs(1000), causal_pairs(500, 1500)
    (500500, 875250)
    """
    return num_tokens * prefix_tokens + num_tokens * (num_tokens + 1) // 2


def window_pairs(num_tokens: int, prefix_tokens: int, window_tokens: int) -> int:
    """Pairs when each query sees ``min(position + 1, w)`` keys.

    >>> window_pairs(4, 0, 2), window_pairs(2, 5, 4)
    (7, 8)
    """
    growing = min(max(window_tokens - prefix_tokens, 0), num_tokens)
    return causal_pairs(growing, prefix_tokens) + (num_tokens - growing) * window_tokens


def query_pairs(
    start: int, stop: int, length: int, window_tokens: int | None = None, is_causal: bool = True
) -> int:
    """Exact pairs of the queries ``start..stop`` of a document of `length` tokens.

    Full (not causal) attention pairs every query with the whole document; a window then counts
    the keys of the last `window_tokens` positions only where attention is causal.
    """
    num_tokens = stop - start
    if not is_causal:
        return num_tokens * length
    if window_tokens is None:
        return num_tokens * start + num_tokens * (num_tokens + 1) // 2
    return window_pairs(num_tokens, start, window_tokens)


def attention_forward_flop(qk_head_dim: int, v_head_dim: int, num_heads: int, pairs: int) -> int:
    """``2 (a_qk + a_v) h_r x pairs``."""
    return 2 * (qk_head_dim + v_head_dim) * num_heads * pairs


def attention_backward_flop(qk_head_dim: int, v_head_dim: int, num_heads: int, pairs: int) -> int:
    """``2 (3 a_qk + 2 a_v) h_r x pairs``: scores are recomputed.

    Source: FlashAttention-2 (arXiv 2307.08691): five products against two, 2.5 x forward when the
    widths are equal.
    """
    return 2 * (3 * qk_head_dim + 2 * v_head_dim) * num_heads * pairs


def head_forward_flop(hidden_size: int, vocab_size: int, num_tokens: int) -> int:
    """``2 D V`` per token: the output projection; backward is twice that."""
    return 2 * hidden_size * vocab_size * num_tokens
