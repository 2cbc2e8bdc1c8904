"""Blocks of attention: kernels against the eager oracle, the merge, and the kernels' traps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hexisolve.runtime.attention import (
    BlockMask,
    HeadMap,
    Merge,
    block_backward,
    block_forward,
    eager_backward,
    eager_forward,
)

FULL, CAUSAL = BlockMask("full"), BlockMask("causal")
HEAD_MAPS = [
    HeadMap((0, 0, 1, 1), 2),
    HeadMap((0, 0, 1), 2),
    HeadMap((0, 1, 1, 2), 3),
    HeadMap((0,), 1),
]
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 4e-2}


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def whole_attention(q: Tensor, k: Tensor, v: Tensor, heads: HeadMap, hidden: Tensor) -> Tensor:
    """Plain softmax attention under autograd."""
    k, v = (x[:, list(heads.kv_of_q)] for x in (k, v))
    scores = torch.einsum("lnh,snh->nls", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("nls,snh->lnh", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", HEAD_MAPS, ids=lambda heads: str(heads.kv_of_q))
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "mask"),
    [(5, 7, FULL), (1, 9, FULL), (40, 70, FULL), (6, 6, CAUSAL), (1, 1, CAUSAL), (50, 50, CAUSAL)],
)
def test_kernel_equals_eager_block(
    num_queries: int, num_keys: int, mask: BlockMask, heads: HeadMap, dtype: torch.dtype
) -> None:
    num_q = len(heads.kv_of_q)
    q = draw(0, num_queries, num_q, 4, dtype=dtype)
    k = draw(1, num_keys, heads.num_kv_heads, 4, dtype=dtype)
    v = draw(2, num_keys, heads.num_kv_heads, 4, dtype=dtype)
    dout = draw(3, num_queries, num_q, 4, dtype=dtype)
    out, lse = block_forward(q, k, v, heads, mask)
    expected_out, expected_lse = eager_forward(q, k, v, heads, mask)
    # As if other blocks had been merged in: the backward must accept a lse that is not its own.
    merged_lse = torch.logaddexp(expected_lse, torch.zeros_like(expected_lse))
    gradients = block_backward(dout, q, k, v, expected_out, merged_lse, heads, mask)
    expected = eager_backward(dout, q, k, v, expected_out, merged_lse, heads, mask)
    pairs = zip((out, lse, *gradients), (expected_out, expected_lse, *expected), strict=True)
    for found, wanted in pairs:
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("window", [None, 1, 3, 8])
def test_merged_blocks_are_whole_attention(window: int | None) -> None:
    """Causal attention of 16 tokens cut in blocks of queries and keys, forward and backward."""
    heads, cuts = HeadMap((0, 0, 1), 2), [0, 3, 4, 10, 16]
    q, k, v = draw(0, 16, 3, 2), draw(1, 16, 2, 2), draw(2, 16, 2, 2)
    dout = draw(3, 16, 3, 2)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    hidden = BlockMask("window", 0, window or 99).hidden(16, 16, q.device)
    assert hidden is not None
    expected_out = whole_attention(*leaves, heads, hidden)
    expected = torch.autograd.grad(expected_out, leaves, dout)

    segments = list(pairwise(cuts))
    pairs = [(a, b) for a in segments for b in segments if b[0] <= a[0]]

    def mask(query: tuple[int, int], key: tuple[int, int]) -> BlockMask:
        if window is not None:
            return BlockMask("window", query[0] - key[0], window)
        return CAUSAL if query == key else FULL

    merge = Merge(16, 3, 2, q)
    for query, key in pairs:
        rows, keys = slice(*query), slice(*key)
        merge.add(query[0], *block_forward(q[rows], k[keys], v[keys], heads, mask(query, key)))
    assert (merge.out_LNH - expected_out).abs().max() < 1e-13
    totals = [torch.zeros_like(x) for x in (q, k, v)]
    for query, key in pairs:
        rows, keys = slice(*query), slice(*key)
        parts = block_backward(
            dout[rows], q[rows], k[keys], v[keys], merge.out_LNH[rows], merge.lse_LN[rows],
            heads, mask(query, key),
        )  # fmt: skip
        for total, part, place in zip(totals, parts, (rows, keys, keys), strict=True):
            total[place] += part
    for found, wanted in zip(totals, expected, strict=True):
        assert (found - wanted).abs().max() < 1e-13


@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, 3), (3, 0), (0, 0)])
def test_empty_queries_or_keys_do_not_reach_the_kernel(num_queries: int, num_keys: int) -> None:
    heads = HeadMap((0, 0), 1)
    q, k = draw(0, num_queries, 2, 4), draw(1, num_keys, 1, 4)
    out, lse = block_forward(q, k, k, heads, FULL)
    assert out.shape == q.shape
    assert not out.any()
    assert bool((lse == -torch.inf).all())
    gradients = block_backward(q, q, k, k, out, lse, heads, FULL)
    assert [x.shape for x in gradients] == [q.shape, k.shape, k.shape]


def test_row_without_keys_changes_nothing_when_merged() -> None:
    """A window that ends before the key block: lse is -inf, not 0."""
    heads = HeadMap((0,), 1)
    q, k, v = draw(0, 4, 1, 2), draw(1, 4, 1, 2), draw(2, 4, 1, 2)
    merge = Merge(4, 1, 2, q)
    unseen = BlockMask("window", 10, 3)
    merge.add(0, *block_forward(q, k, v, heads, unseen))
    assert not merge.out_LNH.any()
    merge.add(0, *block_forward(q, k, v, heads, CAUSAL))
    merge.add(0, *block_forward(q, k, v, heads, unseen))
    expected, _ = eager_forward(q, k, v, heads, CAUSAL)
    assert (merge.out_LNH - expected).abs().max() < 1e-14
    assert not bool(merge.out_LNH.isnan().any())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("num_queries", "num_keys", "mask"), [(64, 96, FULL), (70, 70, CAUSAL), (1, 5, FULL)]
)
def test_cuda_kernels_equal_eager_block(
    num_queries: int, num_keys: int, mask: BlockMask, dtype: torch.dtype
) -> None:
    heads = HeadMap((0, 0, 1, 1), 2)
    q, dout = (draw(s, num_queries, 4, 64, dtype=dtype).cuda() for s in (0, 3))
    k, v = (draw(s, num_keys, 2, 64, dtype=dtype).cuda() for s in (1, 2))
    out, lse = block_forward(q, k, v, heads, mask)
    expected_out, expected_lse = eager_forward(q, k, v, heads, mask)
    gradients = block_backward(dout, q, k, v, out, lse, heads, mask)
    expected = eager_backward(dout, q, k, v, out, lse, heads, mask)
    pairs = zip((out, lse, *gradients), (expected_out, expected_lse, *expected), strict=True)
    for found, wanted in pairs:
        assert (found - wanted).abs().max() <= TOLERANCE[dtype]
