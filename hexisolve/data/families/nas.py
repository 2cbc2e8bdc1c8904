"""``block_configs``: models whose layers were chosen one by one (Nemotron, DeciLM)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexisolve.data.families.decoder import check_groups, read_head_dim
from hexisolve.data.families.parts import dense_mlp, gqa_attention, no_attention
from hexisolve.data.families.reader import MAX_LAYERS, ConfigReader
from hexisolve.data.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec

FFN_MULTIPLE = 256
"""DeciLM rounds the width given by ``ffn_mult`` up to a multiple of this."""


def read_block_configs(reader: ConfigReader) -> ModelSpec:
    """Llama layers whose KV heads and MLP widths differ, and that may lack either part."""
    hidden = reader.size("hidden_size")
    vocab = reader.size("vocab_size")
    num_layers = reader.size("num_hidden_layers", maximum=MAX_LAYERS)
    q_heads = reader.size("num_attention_heads")
    head_dim = read_head_dim(reader, False, hidden, q_heads)
    blocks = reader.per_layer("block_configs", num_layers)
    if blocks is None and not reader.problems:
        reader.size("block_configs")
    bias, mlp_bias = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    layers = []
    for index, block in enumerate(blocks or ()):
        attention_block = _part(reader, index, block, "attention")
        mlp_block = _part(reader, index, block, "ffn")
        attention = _attention(attention_block, hidden, q_heads, head_dim, bias)
        mlp = _mlp(mlp_block, hidden, mlp_bias)
        # A part that is left out takes its norm with it.
        num_norms = sum(not part.flag("no_op", False) for part in (attention_block, mlp_block))
        layers.append(LayerSpec(attention, mlp, num_norms * hidden))
        reader.problems += attention_block.problems + mlp_block.problems
    tied = reader.tied(False)
    return ModelSpec(
        name=reader.name,
        family=reader.family,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=tuple(layers),
        tied_embeddings=tied,
        embedding_parameters=vocab * hidden,
        head_parameters=0 if tied else vocab * hidden,
        final_norm_parameters=hidden,
    )


def _part(reader: ConfigReader, index: int, block: Any, key: str) -> ConfigReader:
    """Make a reader for one part of one block, with the block's place in its messages."""
    path = reader.field(f"block_configs[{index}].{key}")
    part = block.get(key) if isinstance(block, Mapping) else None
    result = ConfigReader(part if isinstance(part, Mapping) else {}, reader.name, reader.file, path)
    if not isinstance(part, Mapping):
        reader.report(f"block_configs[{index}].{key}", part, "missing or not a JSON object")
        result = ConfigReader({"no_op": True}, reader.name, reader.file, path)
    return result


def _attention(
    part: ConfigReader, hidden: int, q_heads: int, head_dim: int, bias: bool
) -> AttentionSpec:
    if part.flag("no_op", False):
        return no_attention(q_heads)
    if part.flag("replace_with_linear", False):
        return no_attention(q_heads, matmul_parameters=hidden * hidden)
    kv_heads = part.optional_size("num_key_value_heads")
    if kv_heads is None:
        group = part.size("n_heads_in_group")
        if group and q_heads % group:
            part.report("n_heads_in_group", group, f"does not divide the {q_heads} query heads")
        kv_heads = q_heads // group if group else 0
    check_groups(part, q_heads, kv_heads)
    return gqa_attention(hidden, q_heads, kv_heads, head_dim, qkv_bias=bias, o_bias=bias)


def _mlp(part: ConfigReader, hidden: int, bias: bool) -> MlpSpec:
    if part.flag("no_op", False):
        return MlpSpec("dense", 0, 0, 0, 0, 0)
    if part.flag("replace_with_linear", False):
        return MlpSpec("dense", 0, hidden * hidden, hidden * hidden, hidden * hidden, 1)
    inner = part.optional_size("intermediate_size")
    if inner is None:
        inner = round_up(int(2 * part.number("ffn_mult") * hidden / 3), FFN_MULTIPLE)
    return dense_mlp(hidden, inner, gated=True, up_bias=bias, down_bias=bias)


def round_up(value: int, multiple: int) -> int:
    """Round up to a multiple of `multiple`."""
    return -(-value // multiple) * multiple
