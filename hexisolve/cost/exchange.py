"""Bytes that attention moves: all-to-all, ring, stage boundary (equations 4, 5 and 8).

Sizes are numbers of bytes as floats: shares of a context with a prefix need not be whole.
"""

from __future__ import annotations

from hexisolve.data.model_spec import AttentionSpec

_LSE_BYTES = 4


def kv_head_range(q_heads: tuple[int, int], num_q_heads: int, num_kv_heads: int) -> tuple[int, int]:
    """Half-open range of the KV heads that a range of query heads reads.

    >>> kv_head_range((3, 7), 8, 4), kv_head_range((2, 2), 8, 4)
    ((1, 4), (1, 1))
    """
    first, stop = q_heads
    per_kv = max(num_q_heads // max(num_kv_heads, 1), 1)
    if stop <= first:
        return first // per_kv, first // per_kv
    return first // per_kv, (stop - 1) // per_kv + 1


def tokens_to_heads_bytes(
    num_tokens: int, num_q_heads: int, num_kv_heads: int, attention: AttentionSpec, e: int
) -> int:
    """``s_r (h_q a_qk + k_q (a_qk + a_v)) e``: q, k, v of rank r's tokens for rank q's heads.

    Parameters
    ----------
    num_tokens
        s_r of the sender.
    num_q_heads, num_kv_heads
        h_q and k_q of the receiver.
    attention
        Head widths of the layer.
    e
        Bytes per element.
    """
    widths = attention.qk_head_dim + attention.v_head_dim
    return num_tokens * (num_q_heads * attention.qk_head_dim + num_kv_heads * widths) * e


def heads_to_tokens_bytes(
    num_tokens: int, num_q_heads: int, attention: AttentionSpec, e: int
) -> int:
    """``s_q h_r a_v e``: attention output of rank r's heads for rank q's tokens."""
    return num_tokens * num_q_heads * attention.v_head_dim * e


def visiting_tokens(num_tokens: int, prefix_tokens: int, own_tokens: int) -> float:
    """``(C + s)(1 - sigma)``: tokens of one slice's context that a group does not own.

    The earlier slices were cut in the same shares, so the group owns sigma of the prefix too.
    """
    return (prefix_tokens + num_tokens) * (num_tokens - own_tokens) / num_tokens


def kv_width(num_kv_heads: float, attention: AttentionSpec) -> float:
    """Elements of K and V per token; an MLA layer carries its latent where that is less."""
    width = num_kv_heads * (attention.qk_head_dim + attention.v_head_dim)
    if attention.kv_latent_dim is not None and num_kv_heads:
        return min(width, attention.kv_latent_dim)
    return width


def ring_kv_forward_bytes(visiting: float, width: float, e: int) -> float:
    """``(C + s)(1 - sigma_n) k_r (a_qk + a_v) e`` into a rank of group n."""
    return visiting * width * e


def ring_kv_backward_bytes(
    visiting: float, visiting_before: float, width: float, e: int, e_acc: int
) -> float:
    """K, V again, and dK, dV on their way home.

    ``(C + s) k_r (a_qk + a_v) ((1 - sigma_n) e + (1 - sigma_{n-1}) e_acc)``.
    """
    return (visiting * e + visiting_before * e_acc) * width


def ring_q_forward_bytes(
    visiting: float, visiting_before: float, num_q_heads: int, attention: AttentionSpec,
    e: int, e_acc: int,
) -> float:  # fmt: skip
    """Queries in, output and lse on their way home.

    ``s (1 - sigma_n) h_r a_qk e + s (1 - sigma_{n-1}) h_r (a_v e_acc + 4)``; no prefix in it.
    """
    queries = visiting * attention.qk_head_dim * e
    returning = visiting_before * (attention.v_head_dim * e_acc + _LSE_BYTES)
    return num_q_heads * (queries + returning)


def ring_q_backward_bytes(
    visiting: float, visiting_before: float, num_q_heads: int, attention: AttentionSpec,
    e: int, e_acc: int,
) -> float:  # fmt: skip
    """q, dO, lse and delta in, dQ on its way home.

    ``s (1 - sigma_n) h_r (a_qk e + a_v e + 8) + s (1 - sigma_{n-1}) h_r a_qk e_acc``.
    """
    widths = attention.qk_head_dim + attention.v_head_dim
    visitors = visiting * (widths * e + 2 * _LSE_BYTES)
    returning = visiting_before * attention.qk_head_dim * e_acc
    return num_q_heads * (visitors + returning)


def boundary_bytes(num_tokens: int, hidden_size: int, e: int) -> int:
    """Hidden states (or their gradients) of tokens that change their owner: ``s D e``."""
    return num_tokens * hidden_size * e
