"""Bytes a rank holds (equations 9-11 of docs/cost-model.md), one small function per item.

What autograd saves is checked byte for byte against a saved-tensors hook on the reference layer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hexisolve.data.constants import CostConstants
from hexisolve.data.model_spec import LayerSpec, MlpSpec

Policy = Literal["none", "mlp", "layer", "full"]
_FP32_BYTES = 4


class RankShare(NamedTuple):
    """What one rank has of a chunk.

    Parameters
    ----------
    tokens
        s_r: tokens it owns outside attention.
    group_tokens
        S_g: tokens of its head group.
    q_heads, kv_heads
        h_r query heads and k_r KV heads it computes.
    """

    tokens: int
    group_tokens: int
    q_heads: int
    kv_heads: int


def states_bytes(
    parameters: int, share: float, zero: int, gradients: str, e: int, cost: CostConstants
) -> float:
    """Weights, gradients and optimizer state: ``2 + 4 + 12`` bytes per parameter (bf16).

    ZeRO-1 shards the 12; ZeRO-3 shards all, but keeps gradients whole when they are reduced once
    a step.
    """
    weights = e * (share if zero == 3 else 1.0)
    is_sharded = zero == 3 and gradients == "chunk"
    kept_gradients = cost.gradient_bytes * (share if is_sharded else 1.0)
    optimizer = cost.optimizer_bytes * (1.0 if zero == 0 else share)
    return parameters * (weights + kept_gradients + optimizer)


def statistic_bytes(e: int) -> int:
    """Bytes of an rstd or an lse: fp32, or wider where the elements are."""
    return max(_FP32_BYTES, e)


def layer_input_bytes(share: RankShare, hidden_size: int, e: int) -> int:
    """``s_r D e``: the residual stream at the layer's entry."""
    return share.tokens * hidden_size * e


def pre_kept_bytes(share: RankShare, layer: LayerSpec, hidden_size: int, e: int) -> int:
    """PRE: the normed input of the q, k, v projections, and the norm's rstd (fp32 or wider).

    The norm's input is the layer input, counted there; RoPE saves only the shared tables. MLA
    keeps its latents before and after their norms. The norm keeps input and rstd only, as the
    fused kernel of GPUs does and the runtime's own on a CPU.
    """
    attention = layer.attention
    latent = 2 * ((attention.q_latent_dim or 0) + (attention.kv_latent_dim or 0))
    return share.tokens * ((hidden_size + latent) * e + statistic_bytes(e))


def queries_kept_bytes(share: RankShare, layer: LayerSpec, e: int) -> int:
    """Queries in head layout: ``S_g h_r a_qk e``."""
    return share.group_tokens * share.q_heads * layer.attention.qk_head_dim * e


def kv_kept_bytes(share: RankShare, layer: LayerSpec, e: int) -> int:
    """K and V in head layout: ``S_g k_r (a_qk + a_v) e``."""
    widths = layer.attention.qk_head_dim + layer.attention.v_head_dim
    return share.group_tokens * share.kv_heads * widths * e


def attention_output_kept_bytes(share: RankShare, layer: LayerSpec, e: int) -> int:
    """Attention output and lse in head layout: ``S_g h_r (a_v e + 4)``."""
    per_head = layer.attention.v_head_dim * e + statistic_bytes(e)
    return share.group_tokens * share.q_heads * per_head


def output_projection_input_bytes(share: RankShare, layer: LayerSpec, e: int) -> int:
    """Attention output of the own tokens, all heads: ``s_r H a_v e``; POST starts from it."""
    attention = layer.attention
    return share.tokens * attention.num_q_heads * attention.v_head_dim * e


def post_kept_bytes(share: RankShare, layer: LayerSpec, hidden_size: int, e: int) -> int:
    """POST: input of the output projection, residual, rstd, normed input, and the MLP's inside."""
    inside = (2 * hidden_size + _mlp_kept_width(layer.mlp, hidden_size)) * e + statistic_bytes(e)
    return output_projection_input_bytes(share, layer, e) + share.tokens * inside


def _inner_width(mlp: MlpSpec, hidden_size: int) -> int:
    """Inner width a token meets: one MLP, or all its active experts together."""
    if mlp.kind == "dense":
        return mlp.intermediate_size
    return -(-mlp.matmul_parameters // (mlp.num_matrices * hidden_size))


def _mlp_kept_width(mlp: MlpSpec, hidden_size: int) -> int:
    """Elements per token: gate, up, silu(gate) and product; before and after without a gate."""
    num_inner = 4 if mlp.num_matrices == 3 else 2
    routed = mlp.num_active_experts * hidden_size if mlp.kind == "moe" else 0
    return num_inner * _inner_width(mlp, hidden_size) + routed


def kept_bytes(policy: Policy, share: RankShare, layer: LayerSpec, hidden_size: int, e: int) -> int:
    """Activations of one layer and chunk between its forward and its backward.

    ``full`` keeps the layer input; ``layer`` adds attention output and lse; ``mlp`` all of PRE and
    attention, its output in both layouts; ``none`` everything.
    """
    kept = layer_input_bytes(share, hidden_size, e)
    if policy == "full":
        return kept
    kept += attention_output_kept_bytes(share, layer, e)
    if policy == "layer":
        return kept
    kept += pre_kept_bytes(share, layer, hidden_size, e) + queries_kept_bytes(share, layer, e)
    kept += kv_kept_bytes(share, layer, e)
    if policy == "mlp":
        return kept + output_projection_input_bytes(share, layer, e)
    return kept + post_kept_bytes(share, layer, hidden_size, e)


def backward_transient_bytes(
    policy: Policy, share: RankShare, layer: LayerSpec, hidden_size: int, e: int, e_acc: int
) -> int:
    """What one layer's backward needs on top of what is kept.

    The activations the policy dropped, made again, and the larger of the MLP's gradients
    (product and gate, up: two inner widths live at once, and the residual's) and attention's
    (dO in both layouts, and dQ, dK, dV in accumulators).
    """
    again = kept_bytes("none", share, layer, hidden_size, e)
    again -= kept_bytes(policy, share, layer, hidden_size, e)
    mlp = mlp_gradient_bytes(share, layer, hidden_size, e)
    return again + max(mlp, attention_gradient_bytes(share, layer, hidden_size, e, e_acc))


def mlp_gradient_bytes(share: RankShare, layer: LayerSpec, hidden_size: int, e: int) -> int:
    """Two inner widths of the MLP and the residual, per token."""
    return share.tokens * (2 * _inner_width(layer.mlp, hidden_size) + hidden_size) * e


def attention_gradient_bytes(
    share: RankShare, layer: LayerSpec, hidden_size: int, e: int, e_acc: int
) -> int:
    """The output's gradient in both layouts, the residual's; dQ, dK, dV in accumulators."""
    attention = layer.attention
    outputs = share.tokens * (attention.num_q_heads * attention.v_head_dim + hidden_size) * e
    outputs += share.group_tokens * share.q_heads * attention.v_head_dim * e
    widths = attention.qk_head_dim + attention.v_head_dim
    accumulated = share.q_heads * attention.qk_head_dim + share.kv_heads * widths
    return outputs + share.group_tokens * accumulated * e_acc


def prefix_gradient_bytes(
    share: RankShare, layer: LayerSpec, prefix_tokens: float, e_acc: int
) -> float:
    """dK, dV of the earlier slices of a sequence, in accumulators, per layer.

    `prefix_tokens` are those of the prefix that the rank's group owns.
    """
    widths = layer.attention.qk_head_dim + layer.attention.v_head_dim
    return prefix_tokens * share.kv_heads * widths * e_acc


def exchange_buffer_bytes(share: RankShare, layer: LayerSpec, e: int) -> int:
    """q, k, v of one all-to-all: sent in token layout, received in head layout."""
    attention = layer.attention
    widths = attention.qk_head_dim + attention.v_head_dim
    sent = attention.num_q_heads * attention.qk_head_dim + attention.num_kv_heads * widths
    received = share.q_heads * attention.qk_head_dim + share.kv_heads * widths
    return (share.tokens * sent + share.group_tokens * received) * e


def ring_buffer_bytes(
    context_tokens: int, share: RankShare, layer: LayerSpec, e: int, e_acc: int
) -> int:
    """Ring blocks on the way: two arriving and two leaving, each with its dK, dV.

    A block is ``1 / 64`` of the context (see docs/cost-model.md, ring).
    """
    block_tokens = -(-context_tokens // RING_BLOCKS)
    widths = layer.attention.qk_head_dim + layer.attention.v_head_dim
    return 4 * block_tokens * share.kv_heads * widths * (e + e_acc)


RING_BLOCKS = 64


def boundary_buffer_bytes(share: RankShare, hidden_size: int, e: int) -> int:
    """Hidden states in flight at a stage boundary: one arriving, one leaving."""
    return 2 * share.tokens * hidden_size * e


def logits_bytes(num_tokens: int, vocab_size: int, e: int, tile_tokens: int) -> int:
    """``tile V (e + 8)``: one tile of logits, its fp32 copy and gradient."""
    return min(num_tokens, tile_tokens) * vocab_size * (e + 8)


def usable_bytes(memory_bytes: int, num_peers: int, cost: CostConstants) -> int:
    """Capacity minus context and process-group buffers, times what fragmentation leaves."""
    free = memory_bytes - cost.reserve_bytes - num_peers * cost.peer_buffer_bytes
    return max(int(free * cost.usable_fraction), 0)
