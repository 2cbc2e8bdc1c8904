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
from hexisolve.runtime.stage import Layer

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
def test_the_formula_is_what_autograd_saves(dtype, e):  # type: ignore[no-untyped-def]
    assert measured(dtype) == formula(e)
