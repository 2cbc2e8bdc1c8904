"""The modules of one pipeline stage and its local segments: EMBED, PRE, POST, LOSS.

A segment is everything between two instructions that communicate. It is an ordinary
differentiable function of its inputs; `hexisolve.runtime.segments` runs it on detached leaves.
Names in `state_dict` are those of Hugging Face, so checkpoints load unchanged.
Shape suffixes: L local tokens, N query heads, K KV heads, H head width, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.attention import wide_dtype
from hexisolve.runtime.rope import rotate


class _RmsNorm(torch.autograd.Function):
    """RMSNorm that saves its input and one number per row, like the fused CUDA kernel.

    `functional.rms_norm` is composite on CPU: it would also save float32 copies of input and
    output, three times what the cost model counts.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x rstd weight`` with ``rstd = 1 / sqrt(mean(x^2) + eps)``, in float32 or wider."""
        wide = x.to(wide_dtype(x.dtype))
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (wide * rstd * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor, None]:
        """``dx = rstd (g - n mean(g n))``, ``n = x rstd``, ``g = dy weight``."""
        x, weight, rstd = ctx.saved_tensors
        normed = x.to(rstd.dtype) * rstd
        wide = d_output.to(rstd.dtype)
        scaled = wide * weight
        d_x = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
        d_weight = (wide * normed).reshape(-1, x.shape[-1]).sum(0)
        return d_x.to(x.dtype), d_weight.to(weight.dtype), None


class Norm(nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``x / rms(x) * weight``."""
        if x.device.type == "cuda":
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        normed: Tensor = _RmsNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class Attention(nn.Module):
    """The projections around attention; the attention itself is a sequence of instructions."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        width, head_dim = architecture.hidden_size, architecture.head_dim
        q_width = architecture.num_q_heads * head_dim
        kv_width = architecture.num_kv_heads * head_dim
        qkv_bias = architecture.qkv_bias
        self.q_proj = nn.Linear(width, q_width, bias=qkv_bias, dtype=dtype)
        self.k_proj = nn.Linear(width, kv_width, bias=qkv_bias, dtype=dtype)
        self.v_proj = nn.Linear(width, kv_width, bias=qkv_bias, dtype=dtype)
        self.o_proj = nn.Linear(q_width, width, bias=architecture.out_bias, dtype=dtype)
        self.q_norm: Norm | None = None
        self.k_norm: Norm | None = None
        if architecture.qk_norm:
            self.q_norm = Norm(head_dim, architecture.norm_eps, dtype)
            self.k_norm = Norm(head_dim, architecture.norm_eps, dtype)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        width, inner = architecture.hidden_size, architecture.intermediate_size
        bias = architecture.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias, dtype=dtype)
        self.up_proj = nn.Linear(width, inner, bias=bias, dtype=dtype)
        self.down_proj = nn.Linear(inner, width, bias=bias, dtype=dtype)

    def forward(self, x_LD: Tensor) -> Tensor:
        """``down(silu(gate(x)) * up(x))``."""
        gated: Tensor = functional.silu(self.gate_proj(x_LD)) * self.up_proj(x_LD)
        output: Tensor = self.down_proj(gated)
        return output


class Layer(nn.Module):
    """One decoder layer, cut into the segments before and after attention."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        self.input_layernorm = Norm(architecture.hidden_size, architecture.norm_eps, dtype)
        self.self_attn = Attention(architecture, dtype)
        self.post_attention_layernorm = Norm(architecture.hidden_size, architecture.norm_eps, dtype)
        self.mlp = Mlp(architecture, dtype)

    def pre(self, x_LD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """PRE: norm, projections and rotation; (q_LNH, k_LKH, v_LKH)."""
        attention = self.self_attn
        normed_LD = self.input_layernorm(x_LD)
        q_LNH = attention.q_proj(normed_LD).unflatten(-1, (-1, self.head_dim))
        k_LKH = attention.k_proj(normed_LD).unflatten(-1, (-1, self.head_dim))
        v_LKH = attention.v_proj(normed_LD).unflatten(-1, (-1, self.head_dim))
        if attention.q_norm is not None and attention.k_norm is not None:
            q_LNH, k_LKH = attention.q_norm(q_LNH), attention.k_norm(k_LKH)
        return rotate(q_LNH, cos, sin), rotate(k_LKH, cos, sin), v_LKH

    def post(self, attended_LNH: Tensor, x_LD: Tensor) -> Tensor:
        """POST: output projection, residual, norm, MLP, residual."""
        hidden_LD: Tensor = x_LD + self.self_attn.o_proj(attended_LNH.flatten(-2))
        output_LD: Tensor = hidden_LD + self.mlp(self.post_attention_layernorm(hidden_LD))
        return output_LD

    def pre_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters PRE uses."""
        attention = self.self_attn
        modules = [self.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj]
        modules += [norm for norm in (attention.q_norm, attention.k_norm) if norm is not None]
        return tuple(parameter for module in modules for parameter in module.parameters())

    def post_parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters POST uses."""
        modules = (self.self_attn.o_proj, self.post_attention_layernorm, self.mlp)
        return tuple(parameter for module in modules for parameter in module.parameters())


class Backbone(nn.Module):
    """What Hugging Face keeps under ``model.``: table, layers by global number, last norm."""

    def __init__(
        self, architecture: Architecture, layers: range, dtype: torch.dtype,
        *, is_first: bool, is_last: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed_tokens: nn.Embedding | None = None
        if is_first or (is_last and architecture.tied_embeddings):
            self.embed_tokens = nn.Embedding(
                architecture.vocab_size, architecture.hidden_size, dtype=dtype
            )
        self.layers = nn.ModuleDict({str(idx): Layer(architecture, dtype) for idx in layers})
        self.norm: Norm | None = None
        if is_last:
            self.norm = Norm(architecture.hidden_size, architecture.norm_eps, dtype)


class StageModule(nn.Module):
    """All modules of one stage.

    Parameters
    ----------
    layers
        Global numbers of its layers.
    is_first, is_last
        Whether it has the embedding and the head.
    """

    def __init__(
        self, architecture: Architecture, layers: range, dtype: torch.dtype,
        *, is_first: bool, is_last: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model = Backbone(architecture, layers, dtype, is_first=is_first, is_last=is_last)
        self.lm_head: nn.Linear | None = None
        if is_last and not architecture.tied_embeddings:
            self.lm_head = nn.Linear(
                architecture.hidden_size, architecture.vocab_size, bias=False, dtype=dtype
            )
        self.shapes = architecture.shapes(layers, is_first=is_first, is_last=is_last)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in by global name; every parameter of the stage must be there."""
        named = dict(self.named_parameters())
        for name in self.shapes:
            named[name].copy_(weights[name])

    def layer(self, layer_idx: int) -> Layer:
        """The layer with this global number."""
        layer = self.model.layers[str(layer_idx)]
        assert isinstance(layer, Layer)
        return layer

    def embed(self, tokens_L: Tensor) -> Tensor:
        """EMBED: rows of the table."""
        assert self.model.embed_tokens is not None
        hidden_LD: Tensor = self.model.embed_tokens(tokens_L)
        return hidden_LD

    def head_parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        """(final norm, head matrix) of the last stage."""
        assert self.model.norm is not None
        head = self.lm_head if self.lm_head is not None else self.model.embed_tokens
        assert head is not None
        assert isinstance(head.weight, nn.Parameter)
        return self.model.norm.weight, head.weight

    def loss_sum(self, hidden_LD: Tensor, targets_L: Tensor) -> Tensor:
        """LOSS of one tile: sum of cross entropy over supervised tokens (target >= 0)."""
        assert self.model.norm is not None
        _, head = self.head_parameters()
        logits = functional.linear(self.model.norm(hidden_LD), head)
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return functional.cross_entropy(logits, targets_L, ignore_index=-100, reduction="sum")
