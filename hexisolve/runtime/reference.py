"""The truth: a Llama-family model on one process in plain torch autograd.

Written apart from the segments on purpose: no rotation tables, norm, attention or loss code is
shared with them, only weights and sizes. One sequence at a time with a dense mask and an eager
softmax, so packed documents cannot see each other by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hexisolve.runtime.architecture import EMBEDDING, FINAL_NORM, Architecture
from hexisolve.runtime.rope import inverse_frequencies

Weights = Mapping[str, Tensor]


def reference_logits(
    architecture: Architecture, weights: Weights, tokens_S: Tensor, *, is_causal: bool = True
) -> Tensor:
    """Logits (S, V) of one sequence."""
    num_tokens = tokens_S.numel()
    x_SD = weights[EMBEDDING][tokens_S]
    turns = _turns(architecture, num_tokens, x_SD.device)
    position = torch.arange(num_tokens, device=x_SD.device)
    distance = position[:, None] - position[None, :]
    for layer_idx, window in enumerate(architecture.windows):
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if is_causal:
            hidden |= distance < 0
        if window is not None:
            hidden |= distance >= window
        x_SD = _layer(architecture, weights, f"model.layers.{layer_idx}.", x_SD, turns, hidden)
    normed = _norm(x_SD, weights[FINAL_NORM], architecture.norm_eps)
    return normed @ weights[architecture.head_weight].T


def reference_loss(
    architecture: Architecture,
    weights: Weights,
    tokens: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    is_causal: bool = True,
) -> Tensor:
    """Mean cross entropy over all supervised tokens (target >= 0) of all sequences."""
    total = torch.zeros((), dtype=next(iter(weights.values())).dtype)
    supervised = 0
    for tokens_S, targets_S in zip(tokens, targets, strict=True):
        logits = reference_logits(architecture, weights, tokens_S, is_causal=is_causal)
        counted = torch.nonzero(targets_S >= 0).flatten()
        chosen = logits[counted].gather(1, targets_S[counted][:, None])[:, 0]
        total = total + (logits[counted].logsumexp(-1) - chosen).sum()
        supervised += counted.numel()
    return total / max(supervised, 1)


def reference_gradients(
    architecture: Architecture,
    weights: Weights,
    tokens: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    is_causal: bool = True,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and the gradient of every parameter, sequence by sequence to bound memory."""
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    supervised = max(sum(int((targets_S >= 0).sum()) for targets_S in targets), 1)
    gradients = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    loss = 0.0
    for tokens_S, targets_S in zip(tokens, targets, strict=True):
        counted = int((targets_S >= 0).sum())
        if not counted:
            continue
        part = reference_loss(
            architecture, leaves, [tokens_S], [targets_S], is_causal=is_causal
        ) * (counted / supervised)
        loss += float(part.detach())
        for name, gradient in zip(
            leaves, torch.autograd.grad(part, list(leaves.values())), strict=True
        ):
            gradients[name] += gradient
    return loss, gradients


def _turns(architecture: Architecture, num_tokens: int, device: torch.device) -> Tensor:
    """Rotation of every position as complex numbers of length 1, shape (S, 1, H / 2)."""
    frequencies = inverse_frequencies(architecture.rope, architecture.head_dim).to(device)
    angles = torch.arange(num_tokens, dtype=torch.float64, device=device)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)[:, None, :]


def _rotated(x_SNH: Tensor, turns: Tensor) -> Tensor:
    half = x_SNH.shape[-1] // 2
    real, imaginary = x_SNH[..., :half], x_SNH[..., half:]
    cos, sin = turns.real.to(x_SNH.dtype), turns.imag.to(x_SNH.dtype)
    return torch.cat((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * weight.to(wide.dtype)).to(x.dtype)


def _affine(weights: Weights, name: str, x: Tensor) -> Tensor:
    product = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return product if bias is None else product + bias


def _layer(
    architecture: Architecture, weights: Weights, prefix: str,
    x_SD: Tensor, turns: Tensor, hidden: Tensor,
) -> Tensor:  # fmt: skip
    eps = architecture.norm_eps
    normed = _norm(x_SD, weights[f"{prefix}input_layernorm.weight"], eps)
    q_SNH, k_SKH, v_SKH = (
        _affine(weights, f"{prefix}self_attn.{name}_proj", normed).view(
            x_SD.shape[0], -1, architecture.head_dim
        )
        for name in ("q", "k", "v")
    )
    if architecture.qk_norm:
        q_SNH = _norm(q_SNH, weights[f"{prefix}self_attn.q_norm.weight"], eps)
        k_SKH = _norm(k_SKH, weights[f"{prefix}self_attn.k_norm.weight"], eps)
    q_SNH, k_SKH = _rotated(q_SNH, turns), _rotated(k_SKH, turns)
    heads_per_kv = architecture.num_q_heads // architecture.num_kv_heads
    k_SNH = k_SKH.repeat_interleave(heads_per_kv, dim=1)
    v_SNH = v_SKH.repeat_interleave(heads_per_kv, dim=1)
    scores = torch.einsum("snh,tnh->nst", q_SNH, k_SNH) * architecture.head_dim**-0.5
    scores = scores.masked_fill(hidden, float("-inf"))
    attended = torch.einsum("nst,tnh->snh", scores.softmax(-1), v_SNH).flatten(-2)
    x_SD = x_SD + _affine(weights, f"{prefix}self_attn.o_proj", attended)
    normed = _norm(x_SD, weights[f"{prefix}post_attention_layernorm.weight"], eps)
    gate = _affine(weights, f"{prefix}mlp.gate_proj", normed)
    up = _affine(weights, f"{prefix}mlp.up_proj", normed)
    return x_SD + _affine(weights, f"{prefix}mlp.down_proj", gate * gate.sigmoid() * up)
