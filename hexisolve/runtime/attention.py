"""Attention of one block of queries on one block of keys, forward and backward, and the merge.

A block is (query segment, key segment). Its mask is *full*, *causal* (identical segments only) or
*window*: no mask tensors outside this module. Forward returns (out, lse), with
``lse = log sum exp(scores)`` per query and head; partial results merge into the exact whole.
Backward is called per block with the *merged* out and lse, so its parts sum to the exact gradient.

Kernels, chosen by device and dtype: on CPU `aten._scaled_dot_product_flash_attention_for_cpu`; on
CUDA flash for 16-bit, memory-efficient for float32; the eager block for the rest and as oracle.
Shape suffixes: L queries, S keys, N query heads, K KV heads, H head width.
Source: FlashAttention-2 (arXiv 2307.08691), section 2; the ring merge of arXiv 2310.01889.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

aten = torch.ops.aten
NEG_INF = float("-inf")


@dataclass(frozen=True)
class BlockMask:
    """Which keys of a block its queries may see.

    Parameters
    ----------
    kind
        ``full``, ``causal`` or ``window``.
    offset
        Position of the first query minus position of the first key (``window`` only).
    window_tokens
        Keys a query may see, itself included (``window`` only).
    """

    kind: Literal["full", "causal", "window"]
    offset: int = 0
    window_tokens: int = 0

    def hidden(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Boolean (L, S), True where the key is not seen; None when all are."""
        if self.kind == "full":
            return None
        distance = (
            torch.arange(num_queries, device=device)[:, None]
            - torch.arange(num_keys, device=device)[None, :]
            + self.offset
        )
        if self.kind == "causal":
            return distance < 0
        return (distance < 0) | (distance >= self.window_tokens)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which partial results are merged: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class HeadMap:
    """Local KV head that every local query head reads, and how to hand both to a kernel.

    Kernels understand grouped heads only when every KV head serves the same number of query
    heads, in order; other maps repeat the KV heads and sum their gradients.
    """

    def __init__(self, kv_of_q: Sequence[int], num_kv_heads: int) -> None:
        self.kv_of_q = tuple(kv_of_q)
        self.num_kv_heads = num_kv_heads
        per_kv = len(self.kv_of_q) // num_kv_heads if num_kv_heads else 0
        self.is_regular = self.kv_of_q == tuple(
            head for head in range(num_kv_heads) for _ in range(per_kv)
        )

    def expand(self, x_SKH: Tensor) -> Tensor:
        """KV heads repeated once per query head, (S, N, H)."""
        index = torch.tensor(self.kv_of_q, dtype=torch.long, device=x_SKH.device)
        return x_SKH.index_select(1, index)

    def collapse(self, gradient_SNH: Tensor) -> Tensor:
        """Gradients of repeated heads summed per KV head, (S, K, H)."""
        index = torch.tensor(self.kv_of_q, dtype=torch.long, device=gradient_SNH.device)
        total = gradient_SNH.new_zeros(
            gradient_SNH.shape[0], self.num_kv_heads, gradient_SNH.shape[2]
        )
        return total.index_add_(1, index, gradient_SNH)


def block_forward(
    q_LNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, heads: HeadMap, mask: BlockMask
) -> tuple[Tensor, Tensor]:
    """(out_LNH, lse_LN) of one block; lse in the wide dtype, -inf for rows that see no key."""
    if not q_LNH.numel() or not k_SKH.numel():
        # Kernels divide by the sizes: an empty query or key ends the process (SIGFPE).
        wide = wide_dtype(q_LNH.dtype)
        return (
            torch.zeros_like(q_LNH),
            torch.full(q_LNH.shape[:2], NEG_INF, dtype=wide, device=q_LNH.device),
        )
    kernel = _kernel(q_LNH, mask)
    if kernel == "eager":
        return eager_forward(q_LNH, k_SKH, v_SKH, heads, mask)
    if not heads.is_regular or kernel == "efficient":
        k_SKH, v_SKH = heads.expand(k_SKH), heads.expand(v_SKH)
    out_LNH, lse_LN = _kernel_forward(kernel, q_LNH, k_SKH, v_SKH, mask.kind == "causal")
    return out_LNH, lse_LN.to(wide_dtype(q_LNH.dtype))


def block_backward(
    dout_LNH: Tensor, q_LNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, out_LNH: Tensor, lse_LN: Tensor,
    heads: HeadMap, mask: BlockMask,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dq_LNH, dk_SKH, dv_SKH) of one block, given the out and lse of *all* its queries' keys."""
    if not q_LNH.numel() or not k_SKH.numel():
        return torch.zeros_like(q_LNH), torch.zeros_like(k_SKH), torch.zeros_like(v_SKH)
    kernel = _kernel(q_LNH, mask)
    if kernel == "eager":
        return eager_backward(dout_LNH, q_LNH, k_SKH, v_SKH, out_LNH, lse_LN, heads, mask)
    expands = not heads.is_regular or kernel == "efficient"
    if expands:
        k_SKH, v_SKH = heads.expand(k_SKH), heads.expand(v_SKH)
    dq_LNH, dk, dv = _kernel_backward(
        kernel, dout_LNH, q_LNH, k_SKH, v_SKH, out_LNH, lse_LN, mask.kind == "causal"
    )
    if expands:
        dk, dv = heads.collapse(dk), heads.collapse(dv)
    return dq_LNH, dk, dv


class Merge:
    """Running merge of block results for a run of queries: exact softmax over all their keys."""

    def __init__(self, num_queries: int, num_heads: int, head_dim: int, like: Tensor) -> None:
        wide = wide_dtype(like.dtype)
        self.out_LNH = like.new_zeros((num_queries, num_heads, head_dim), dtype=wide)
        self.lse_LN = like.new_full((num_queries, num_heads), NEG_INF, dtype=wide)

    def add(self, first: int, out_LNH: Tensor, lse_LN: Tensor) -> None:
        """Merge a block whose first query is number `first`."""
        rows = slice(first, first + out_LNH.shape[0])
        old_out, old_lse = self.out_LNH[rows], self.lse_LN[rows]
        new_lse = torch.logaddexp(old_lse, lse_LN)
        self.out_LNH[rows] = old_out * _ratio(old_lse, new_lse) + out_LNH * _ratio(lse_LN, new_lse)
        self.lse_LN[rows] = new_lse


def _ratio(part_LN: Tensor, whole_LN: Tensor) -> Tensor:
    """``exp(part - whole)`` with 0 for parts without keys, shape (L, N, 1)."""
    ratio = torch.where(part_LN == NEG_INF, 0.0, (part_LN - whole_LN).exp())
    return ratio[..., None]


def eager_forward(
    q_LNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, heads: HeadMap, mask: BlockMask
) -> tuple[Tensor, Tensor]:
    """The block in plain tensor operations: oracle, window masks, and float64 on CUDA."""
    scores = _eager_scores(q_LNH, heads.expand(k_SKH), mask)
    lse_NL = scores.logsumexp(-1)
    weights = (scores - lse_NL.masked_fill(lse_NL == NEG_INF, 0.0)[..., None]).exp()
    v_SNH = heads.expand(v_SKH).to(weights.dtype)
    out_LNH = torch.einsum("nls,snh->lnh", weights, v_SNH).to(q_LNH.dtype)
    return out_LNH, lse_NL.transpose(0, 1)


def eager_backward(
    dout_LNH: Tensor, q_LNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, out_LNH: Tensor, lse_LN: Tensor,
    heads: HeadMap, mask: BlockMask,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Backward of `eager_forward`: ``dS = P (dP - delta)``, ``delta = sum(dout * out)``."""
    k_SNH, v_SNH = heads.expand(k_SKH), heads.expand(v_SKH)
    scores = _eager_scores(q_LNH, k_SNH, mask)
    weights = (scores - lse_LN.to(scores.dtype).transpose(0, 1)[..., None]).exp()
    wide_dout = dout_LNH.to(scores.dtype)
    delta_NL1 = (wide_dout * out_LNH.to(scores.dtype)).sum(-1).transpose(0, 1)[..., None]
    dweights = torch.einsum("lnh,snh->nls", wide_dout, v_SNH.to(scores.dtype))
    dscores = weights * (dweights - delta_NL1) / math.sqrt(q_LNH.shape[-1])
    dq_LNH = torch.einsum("nls,snh->lnh", dscores, k_SNH.to(scores.dtype))
    dk_SNH = torch.einsum("nls,lnh->snh", dscores, q_LNH.to(scores.dtype))
    dv_SNH = torch.einsum("nls,lnh->snh", weights, wide_dout)
    return (
        dq_LNH.to(q_LNH.dtype),
        heads.collapse(dk_SNH).to(k_SKH.dtype),
        heads.collapse(dv_SNH).to(v_SKH.dtype),
    )


def _eager_scores(q_LNH: Tensor, k_SNH: Tensor, mask: BlockMask) -> Tensor:
    wide = wide_dtype(q_LNH.dtype)
    scores = torch.einsum("lnh,snh->nls", q_LNH.to(wide), k_SNH.to(wide))
    scores *= 1 / math.sqrt(q_LNH.shape[-1])
    hidden = mask.hidden(q_LNH.shape[0], k_SNH.shape[0], q_LNH.device)
    return scores if hidden is None else scores.masked_fill(hidden, NEG_INF)


Kernel = Literal["cpu", "flash", "efficient", "eager"]


def _kernel(q_LNH: Tensor, mask: BlockMask) -> Kernel:
    if mask.kind == "window":
        return "eager"
    if q_LNH.device.type == "cpu":
        return "cpu"
    if q_LNH.device.type == "cuda":
        if q_LNH.dtype in (torch.bfloat16, torch.float16):
            return "flash"
        # The memory-efficient kernel wants head widths of whole 16-byte lines.
        if q_LNH.dtype == torch.float32 and q_LNH.shape[-1] % 4 == 0:
            return "efficient"
    return "eager"


def _kernel_forward(
    kernel: Kernel, q_LNH: Tensor, k_SNH: Tensor, v_SNH: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    if kernel == "flash":
        out_1LNH, lse_1NL, *_ = aten._flash_attention_forward(
            q_LNH[None], k_SNH[None], v_SNH[None], None, None, q_LNH.shape[0], k_SNH.shape[0],
            0.0, is_causal, False,
        )  # fmt: skip
        return out_1LNH[0], lse_1NL[0].transpose(0, 1)
    q, k, v = (_heads_first(x) for x in (q_LNH, k_SNH, v_SNH))
    if kernel == "efficient":
        out_1NLH, lse_1NL, _, _ = aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, is_causal
        )
        # The kernel pads the rows of its lse to whole warps.
        return _tokens_first(out_1NLH), lse_1NL[0, :, : q_LNH.shape[0]].transpose(0, 1)
    out_1NLH, lse_1NL = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)
    return _tokens_first(out_1NLH), lse_1NL[0].transpose(0, 1)


def _kernel_backward(
    kernel: Kernel, dout_LNH: Tensor, q_LNH: Tensor, k_SNH: Tensor, v_SNH: Tensor,
    out_LNH: Tensor, lse_LN: Tensor, is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dout_LNH, out_LNH = dout_LNH.to(q_LNH.dtype), out_LNH.to(q_LNH.dtype)
    lse_1NL = lse_LN.transpose(0, 1)[None].contiguous()
    if kernel == "flash":
        # No dropout: the random state is asked for and not read.
        unused = torch.zeros(2, dtype=torch.uint64, device=q_LNH.device)
        dq, dk, dv = aten._flash_attention_backward(
            dout_LNH[None].contiguous(), q_LNH[None], k_SNH[None], v_SNH[None], out_LNH[None],
            lse_1NL, None, None, q_LNH.shape[0], k_SNH.shape[0], 0.0, is_causal, unused, unused,
        )  # fmt: skip
        return dq[0], dk[0], dv[0]
    dout, q, k, v, out = (_heads_first(x) for x in (dout_LNH, q_LNH, k_SNH, v_SNH, out_LNH))
    if kernel == "efficient":
        unused = torch.zeros((), dtype=torch.int64, device=q_LNH.device)
        padding = -q_LNH.shape[0] % 32
        padded_lse = torch.nn.functional.pad(lse_1NL, (0, padding))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            dout, q, k, v, None, out, padded_lse, unused, unused, 0.0,
            [True, True, True, False], is_causal,
        )  # fmt: skip
    else:
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse_1NL, 0.0, is_causal
        )
    return _tokens_first(dq), _tokens_first(dk), _tokens_first(dv)


def _heads_first(x_LNH: Tensor) -> Tensor:
    return x_LNH.transpose(0, 1)[None]


def _tokens_first(x_1NLH: Tensor) -> Tensor:
    return x_1NLH[0].transpose(0, 1)
