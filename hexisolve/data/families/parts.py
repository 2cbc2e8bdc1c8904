"""How many parameters each part of a decoder layer has; pure functions of its sizes."""

from __future__ import annotations

from hexisolve.data.model_spec import AttentionKind, AttentionSpec, MlpSpec


def gqa_attention(
    hidden: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    extra_parameters: int = 0,
    kind: AttentionKind = "full",
    window_tokens: int | None = None,
) -> AttentionSpec:
    """Attention with H query and K KV heads of one width.

    Matrices: ``D (H + 2 K) a + H a D``; `extra_parameters` are q/k norms, sinks and the like.
    """
    qkv_width = (q_heads + 2 * kv_heads) * head_dim
    matrices = hidden * qkv_width + q_heads * head_dim * hidden
    biases = qkv_width * qkv_bias + hidden * o_bias
    return AttentionSpec(
        kind=kind,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        qk_head_dim=head_dim,
        v_head_dim=head_dim,
        parameters=matrices + biases + extra_parameters,
        matmul_parameters=matrices,
        window_tokens=window_tokens,
    )


def no_attention(q_heads: int, matmul_parameters: int = 0) -> AttentionSpec:
    """Describe a layer without attention: heads of width 0, so that nothing is computed or sent."""
    return AttentionSpec("none", q_heads, q_heads, 0, 0, matmul_parameters, matmul_parameters)


def dense_mlp(hidden: int, inner: int, *, gated: bool, up_bias: bool, down_bias: bool) -> MlpSpec:
    """Dense MLP: ``3 D F`` parameters when gated, else ``2 D F``, and biases."""
    num_up = 2 if gated else 1
    matrices = (num_up + 1) * hidden * inner
    parameters = matrices + num_up * inner * up_bias + hidden * down_bias
    return MlpSpec("dense", inner, parameters, parameters, matrices, num_up + 1)


def moe_mlp(
    hidden: int,
    inner: int,
    num_experts: int,
    num_active: int,
    *,
    num_shared: int = 0,
    shared_inner: int = 0,
    expert_bias: bool = False,
    router_bias: bool = False,
    router_extra: int = 0,
    shared_extra: int = 0,
) -> MlpSpec:
    """Gated experts with a router; shared experts run for every token.

    Parameters
    ----------
    inner
        Inner width of one routed expert.
    num_shared, shared_inner
        How many shared experts there are, and the inner width of all of them together.
    expert_bias, router_bias
        Whether experts and router have biases.
    router_extra
        Further parameters of the router (a score correction, for example).
    shared_extra
        Further *matrix* parameters of the shared part (Qwen2-MoE gates it by a D x 1 matrix).
    """
    expert_matrices = 3 * hidden * inner
    expert = expert_matrices + (2 * inner + hidden) * expert_bias
    router_matrix = hidden * num_experts
    router = router_matrix + num_experts * router_bias + router_extra
    shared = 3 * hidden * shared_inner + shared_extra
    return MlpSpec(
        kind="moe",
        intermediate_size=inner,
        parameters=num_experts * expert + router + shared,
        active_parameters=num_active * expert + router + shared,
        matmul_parameters=num_active * expert_matrices + router_matrix + shared,
        num_matrices=3,
        num_experts=num_experts,
        num_active_experts=num_active,
        num_shared_experts=num_shared,
    )
