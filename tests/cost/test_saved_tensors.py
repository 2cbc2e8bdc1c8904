"""The activation formula, byte for byte, against what autograd saves in the reference layer."""

from __future__ import annotations

import pytest
import torch

from hexisolve.cost.memory import (
    RankShare,
    layer_input_bytes,
    post_kept_bytes,
    pre_kept_bytes,
)
from hexisolve.data.model_spec import ModelSpec
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.rope import rotation_tables
from hexisolve.runtime.stage import Layer, Norm

NUM_TOKENS = 37
MODEL = ModelSpec.from_config(
    {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
        "num_hidden_layers": 1, "vocab_size": 32, "tie_word_embeddings": False,
        "hidden_act": "silu",
    },
    "reference",
)  # fmt: skip
SHARE = RankShare(NUM_TOKENS, NUM_TOKENS, 6, 3)
DTYPES = [(torch.bfloat16, 2), (torch.float32, 4), (torch.float64, 8)]


class FusedNorm(torch.autograd.Function):
    """RMSNorm that keeps what the fused GPU kernel keeps: its input and rstd."""

    @staticmethod
    def forward(ctx, x, weight, eps):  # type: ignore[no-untyped-def]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        return (wide * rstd).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        raise AssertionError("the test runs no backward")


def kept(segment, parameters, shared):  # type: ignore[no-untyped-def]
    """Bytes that autograd saves in a segment, every storage once, parameters left out."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (*parameters, *shared)}
    storages = {}

    def pack(tensor):  # type: ignore[no-untyped-def]
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage  # holding it keeps its address its own
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = segment()
    assert outputs is not None
    return sum(storage.nbytes() for storage in storages.values())


def measured(dtype):  # type: ignore[no-untyped-def]
    """(PRE with the layer input, POST) in bytes."""
    architecture = Architecture.of(MODEL)
    layer = Layer(architecture, dtype)
    tables = rotation_tables(architecture.rope, 16, torch.arange(NUM_TOKENS), dtype)
    x = torch.randn(NUM_TOKENS, 64, dtype=dtype, requires_grad=True)
    attended = torch.randn(NUM_TOKENS, 6, 16, dtype=dtype, requires_grad=True)
    parameters = tuple(layer.parameters())
    return (
        kept(lambda: layer.pre(x, *tables), parameters, tables),
        kept(lambda: layer.post(attended, x), parameters, tables),
    )


def formula(e):  # type: ignore[no-untyped-def]
    block = MODEL.layers[0]
    return (
        layer_input_bytes(SHARE, 64, e) + pre_kept_bytes(SHARE, block, 64, e),
        post_kept_bytes(SHARE, block, 64, e),
    )


@pytest.mark.parametrize(("dtype", "e"), DTYPES)
def test_the_formula_is_what_autograd_saves_with_the_fused_norm(dtype, e, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(Norm, "forward", lambda self, x: FusedNorm.apply(x, self.weight, self.eps))
    assert measured(dtype) == formula(e)


@pytest.mark.parametrize(("dtype", "e"), DTYPES)
def test_the_composed_norm_of_cpus_keeps_a_known_amount_more(dtype, e):  # type: ignore[no-untyped-def]
    """Torch 2.13 on CPU: the input widened (where it is narrow) and the normed input, per norm."""
    wide = max(4, e) * 64 * NUM_TOKENS
    # Where the input is widened, autograd keeps the wide copy in place of the input itself.
    extra = 2 * wide - e * 64 * NUM_TOKENS if e < 4 else wide
    pre, post = formula(e)
    assert measured(dtype) == (pre + extra, post + extra)
