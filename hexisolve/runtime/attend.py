"""The attention instructions on a rank's buffers, and the payloads of its exchanges."""

from __future__ import annotations

import torch
from torch import Tensor

from hexisolve.errors import RuntimeMismatchError
from hexisolve.program.instructions import (
    AttnBackwardBlock,
    AttnBackwardOpen,
    AttnBlock,
    AttnOpen,
    AttnPair,
    Exchange,
    Interval,
)
from hexisolve.runtime.attention import (
    BlockMask,
    HeadMap,
    Merge,
    block_backward,
    block_forward,
    wide_dtype,
)
from hexisolve.runtime.buffers import KvPair, LayerBuffers
from hexisolve.runtime.payload import pack, unpack
from hexisolve.runtime.requests import ranges


def _mask(pair: AttnPair) -> BlockMask:
    return BlockMask(pair.kind, pair.offset, pair.window)


def _keys(buffers: LayerBuffers, pair: AttnPair) -> KvPair:
    if pair.block >= 0:
        return buffers.block("kv_block", pair.block)
    return buffers.tensor("k"), buffers.tensor("v")


def _heads(buffers: LayerBuffers) -> HeadMap:
    if buffers.heads is None:
        raise RuntimeMismatchError("an attention block comes before its attention is opened")
    return buffers.heads


def attention_open(buffers: LayerBuffers, opened: AttnOpen) -> None:
    """ATTN_OPEN."""
    q_LNH = buffers.tensor("q")
    buffers.open_heads(opened)
    buffers.merge = Merge(opened.num_rows, q_LNH.shape[1], q_LNH.shape[2], q_LNH)


def attention_block(buffers: LayerBuffers, block: AttnBlock) -> None:
    """ATTN_BLOCK: every pair, merged into the running result."""
    q_LNH, heads, merge = buffers.tensor("q"), _heads(buffers), buffers.merge
    if merge is None:
        raise RuntimeMismatchError("an attention block comes before its attention is opened")
    if not q_LNH.shape[1]:
        return
    for pair in block.pairs:
        k_SKH, v_SKH = _keys(buffers, pair)
        rows, keys = slice(*pair.q_rows), slice(*pair.k_rows)
        out_LNH, lse_LN = block_forward(q_LNH[rows], k_SKH[keys], v_SKH[keys], heads, _mask(pair))
        merge.add(pair.q_rows[0], out_LNH, lse_LN)


def attention_close(buffers: LayerBuffers) -> None:
    """ATTN_CLOSE: the merged output in the activation dtype, and its lse."""
    assert buffers.merge is not None
    buffers.tensors["out"] = buffers.merge.out_LNH.to(buffers.tensor("q").dtype)
    buffers.tensors["lse"] = buffers.merge.lse_LN
    buffers.merge = None


def attention_backward_open(buffers: LayerBuffers, opened: AttnBackwardOpen) -> None:
    """ATTN_B_OPEN: accumulators in the wide dtype; delta is formed inside the kernels."""
    buffers.open_heads(opened)
    for name in ("q", "k", "v"):
        tensor = buffers.tensor(name)
        if f"d_{name}" not in buffers.tensors:
            buffers.tensors[f"d_{name}"] = torch.zeros_like(
                tensor, dtype=wide_dtype(tensor.dtype), memory_format=torch.contiguous_format
            )


def attention_backward_block(buffers: LayerBuffers, block: AttnBackwardBlock) -> None:
    """ATTN_B_BLOCK: every pair, with the merged out and lse."""
    q_LNH, heads = buffers.tensor("q"), _heads(buffers)
    out_LNH, lse_LN = buffers.tensor("out"), buffers.tensor("lse")
    dout_LNH, dq_LNH = buffers.tensor("d_out"), buffers.tensor("d_q")
    for pair in block.pairs:
        dk_SKH, dv_SKH = _key_gradients(buffers, pair)
        if not q_LNH.shape[1]:
            continue
        k_SKH, v_SKH = _keys(buffers, pair)
        rows, keys = slice(*pair.q_rows), slice(*pair.k_rows)
        dq, dk, dv = block_backward(
            dout_LNH[rows], q_LNH[rows], k_SKH[keys], v_SKH[keys],
            out_LNH[rows], lse_LN[rows], heads, _mask(pair),
        )  # fmt: skip
        dq_LNH[rows] += dq
        dk_SKH[keys] += dk
        dv_SKH[keys] += dv


def _key_gradients(buffers: LayerBuffers, pair: AttnPair) -> KvPair:
    if pair.block < 0:
        return buffers.tensor("d_k"), buffers.tensor("d_v")
    return gradient_block(buffers, pair.block)


def gradient_block(buffers: LayerBuffers, block: int) -> KvPair:
    """``dkv_block[block]``, zeros on first use, of the shape of the K and V it belongs to."""
    place = ("dkv_block", block)
    if place not in buffers.blocks:
        k_SKH, v_SKH = buffers.block("kv_block", block)
        wide = wide_dtype(k_SKH.dtype)
        buffers.blocks[place] = (
            torch.zeros_like(k_SKH, dtype=wide), torch.zeros_like(v_SKH, dtype=wide)
        )  # fmt: skip
    return buffers.blocks[place]


def exchange_send(buffers: LayerBuffers, exchange: Exchange, dtype: torch.dtype) -> Tensor:
    """What this rank sends, member after member, flat."""
    parts: list[Tensor] = []
    rows = ranges(exchange.rows)
    for member_idx, (q_heads, kv_heads) in enumerate(
        zip(exchange.q_heads, exchange.kv_heads, strict=True)
    ):
        if exchange.kind == "qkv":
            parts += [
                buffers.tensor(f"{name}_tokens")[:, slice(*heads)]
                for name, heads in (("q", q_heads), ("k", kv_heads), ("v", kv_heads))
            ]
        elif exchange.kind == "out":
            parts.append(buffers.tensor("out")[rows[member_idx]])
        elif exchange.kind == "d_out":
            parts.append(buffers.tensor("d_attn_tokens")[:, slice(*q_heads)])
        else:
            parts += [buffers.tensor(f"d_{name}")[rows[member_idx]] for name in ("q", "k", "v")]
    return pack(parts, dtype)


def exchange_store(
    buffers: LayerBuffers, exchange: Exchange, received: Tensor,
    num_q_heads: int, num_kv_heads: int, head_dim: int,
) -> None:  # fmt: skip
    """Put what all members sent (flat, member after member) where it belongs."""
    own_rows = exchange.rows[exchange.member_idx]
    own_q = _width(exchange.q_heads[exchange.member_idx])
    own_kv = _width(exchange.kv_heads[exchange.member_idx])
    if exchange.kind == "qkv":
        shapes = [
            (count, width, head_dim) for count in exchange.rows for width in (own_q, own_kv, own_kv)
        ]
        parts = unpack(received, shapes)
        for offset, name in enumerate(("q", "k", "v")):
            buffers.tensors[name] = torch.cat(parts[offset::3])
            buffers.tensors.pop(f"{name}_tokens", None)
    elif exchange.kind == "d_out":
        parts = unpack(received, [(count, own_q, head_dim) for count in exchange.rows])
        buffers.tensors["d_out"] = torch.cat(parts)
        del buffers.tensors["d_attn_tokens"]
    elif exchange.kind == "out":
        widths = [_width(heads) for heads in exchange.q_heads]
        parts = unpack(received, [(own_rows, width, head_dim) for width in widths])
        whole = received.new_zeros(own_rows, num_q_heads, head_dim)
        for heads, part in zip(exchange.q_heads, parts, strict=True):
            whole[:, slice(*heads)] = part
        buffers.tensors["attn_tokens"] = whole
    else:
        _store_token_gradients(buffers, exchange, received, num_q_heads, num_kv_heads, head_dim)


def _store_token_gradients(
    buffers: LayerBuffers, exchange: Exchange, received: Tensor,
    num_q_heads: int, num_kv_heads: int, head_dim: int,
) -> None:  # fmt: skip
    own_rows = exchange.rows[exchange.member_idx]
    shapes = [
        (own_rows, _width(heads), head_dim)
        for q_heads, kv_heads in zip(exchange.q_heads, exchange.kv_heads, strict=True)
        for heads in (q_heads, kv_heads, kv_heads)
    ]
    parts = unpack(received, shapes)
    wide = wide_dtype(received.dtype)
    for offset, (name, head_count, intervals) in enumerate(
        (
            ("q", num_q_heads, exchange.q_heads),
            ("k", num_kv_heads, exchange.kv_heads),
            ("v", num_kv_heads, exchange.kv_heads),
        )
    ):
        total = received.new_zeros(own_rows, head_count, head_dim, dtype=wide)
        # KV heads that several members hold arrive as partial sums.
        for heads, part in zip(intervals, parts[offset::3], strict=True):
            total[:, slice(*heads)] += part
        buffers.tensors[f"d_{name}_tokens"] = total.to(received.dtype)
        del buffers.tensors[f"d_{name}"]


def _width(heads: Interval) -> int:
    return heads[1] - heads[0]
