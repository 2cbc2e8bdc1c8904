"""GPT-2, GPT-NeoX, GPT-BigCode, Falcon, BLOOM, OPT and ChatGLM: the older shapes."""

from __future__ import annotations

import dataclasses

from hexisolve.data.families.decoder import check_groups, read_head_dim
from hexisolve.data.families.layer_kinds import full_reach
from hexisolve.data.families.parts import dense_mlp, gqa_attention
from hexisolve.data.families.reader import MAX_LAYERS, ConfigReader
from hexisolve.data.model_spec import LayerSpec, MlpSpec, ModelSpec


def read_gpt2(reader: ConfigReader) -> ModelSpec:
    """GPT-2: learned positions, biases everywhere, MLP of 4 D unless ``n_inner``."""
    hidden = reader.size("hidden_size")
    return _uniform(
        reader,
        hidden,
        kv_heads=None,
        mlp=_biased_mlp(hidden, reader.optional_size("intermediate_size") or 4 * hidden),
        tied=True,
        before_layers=reader.size("max_position_embeddings") * hidden,
    )


def read_gpt_bigcode(reader: ConfigReader) -> ModelSpec:
    """GPT-BigCode: GPT-2 with one KV head when ``multi_query`` (its default)."""
    hidden = reader.size("hidden_size")
    return _uniform(
        reader,
        hidden,
        kv_heads=1 if reader.flag("multi_query", True) else None,
        mlp=_biased_mlp(hidden, reader.optional_size("intermediate_size") or 4 * hidden),
        tied=True,
        before_layers=reader.size("max_position_embeddings") * hidden,
    )


def read_gpt_neox(reader: ConfigReader) -> ModelSpec:
    """GPT-NeoX: rotary positions, biases everywhere but in the head."""
    hidden = reader.size("hidden_size")
    return _uniform(
        reader,
        hidden,
        kv_heads=None,
        attention_bias=reader.flag("attention_bias", True),
        mlp=_biased_mlp(hidden, reader.size("intermediate_size")),
        tied=False,
    )


def read_bloom(reader: ConfigReader) -> ModelSpec:
    """BLOOM: ALiBi positions, a norm after the embedding, MLP of 4 D."""
    hidden = reader.size("hidden_size")
    return _uniform(
        reader,
        hidden,
        kv_heads=None,
        mlp=_biased_mlp(hidden, 4 * hidden),
        tied=True,
        before_layers=2 * hidden,
    )


def read_falcon(reader: ConfigReader) -> ModelSpec:
    """Falcon: one KV head (7B) or several (new decoder architecture), parallel layers."""
    hidden = reader.size("hidden_size")
    bias = reader.flag("bias", False)
    grouped = reader.flag("new_decoder_architecture", False)
    if grouped:
        # transformers falls back to one KV head per query head here.
        kv_heads = reader.optional_size("num_key_value_heads")
    else:
        kv_heads = 1 if reader.flag("multi_query", True) else None
    parallel = reader.flag("parallel_attn", True)
    norms = reader.optional_size("num_ln_in_parallel_attn") or (2 if grouped else 1)
    inner = reader.optional_size("intermediate_size") or 4 * hidden
    return _uniform(
        reader,
        hidden,
        kv_heads=kv_heads,
        attention_bias=bias,
        mlp=dense_mlp(hidden, inner, gated=False, up_bias=bias, down_bias=bias),
        norms_per_layer=norms if parallel else 2,
        tied=True,
    )


def read_opt(reader: ConfigReader) -> ModelSpec:
    """OPT: positions offset by 2, embeddings of a width of their own for some sizes."""
    hidden = reader.size("hidden_size")
    bias = reader.flag("enable_bias", True)
    vectors = 2 if reader.flag("layer_norm_elementwise_affine", True) else 0
    norm_first = reader.flag("do_layer_norm_before", True)
    has_final_norm = norm_first and not reader.flag("_remove_final_layer_norm", False)
    width = reader.optional_size("word_embed_proj_dim")
    width = hidden if width is None else width
    inner = reader.size("intermediate_size")
    return _uniform(
        reader,
        hidden,
        kv_heads=None,
        attention_bias=bias,
        mlp=dense_mlp(hidden, inner, gated=False, up_bias=bias, down_bias=bias),
        norm_vectors=vectors,
        final_norm=has_final_norm,
        tied=True,
        embedding_width=width,
        before_layers=(reader.size("max_position_embeddings") + 2) * hidden
        + (2 * hidden * width if width != hidden else 0),
    )


def read_chatglm(reader: ConfigReader) -> ModelSpec:
    """ChatGLM2, ChatGLM3 and GLM-4 with remote code: RMS norms, gated MLP, grouped KV heads."""
    hidden = reader.size("hidden_size")
    bias = reader.flag("add_bias_linear", False)
    grouped = reader.flag("multi_query_attention", False)
    inner = reader.size("ffn_hidden_size")
    return _uniform(
        reader,
        hidden,
        kv_heads=reader.size("multi_query_group_num") if grouped else None,
        attention_bias=bias or reader.flag("add_qkv_bias", False),
        output_bias=bias,
        mlp=dense_mlp(hidden, inner, gated=True, up_bias=bias, down_bias=bias),
        norm_vectors=1 if reader.flag("rmsnorm", True) else 2,
        final_norm=reader.flag("post_layer_norm", True),
        tied=False,
        vocab_key="padded_vocab_size",
    )


def _biased_mlp(hidden: int, inner: int) -> MlpSpec:
    return dense_mlp(hidden, inner, gated=False, up_bias=True, down_bias=True)


def _uniform(
    reader: ConfigReader,
    hidden: int,
    *,
    kv_heads: int | None,
    mlp: MlpSpec,
    tied: bool,
    attention_bias: bool = True,
    output_bias: bool | None = None,
    norms_per_layer: int = 2,
    norm_vectors: int = 2,
    final_norm: bool = True,
    embedding_width: int | None = None,
    before_layers: int = 0,
    vocab_key: str = "vocab_size",
) -> ModelSpec:
    """Equal layers; `kv_heads` None for one per query head, `tied` the family's default."""
    q_heads = reader.size("num_attention_heads")
    num_layers = reader.size("num_hidden_layers", maximum=MAX_LAYERS)
    head_dim = read_head_dim(reader, False, hidden, q_heads)
    attention = gqa_attention(
        hidden,
        q_heads,
        q_heads if kv_heads is None else check_groups(reader, q_heads, kv_heads),
        head_dim,
        qkv_bias=attention_bias,
        o_bias=attention_bias if output_bias is None else output_bias,
    )
    norm = norm_vectors * hidden
    layer = LayerSpec(attention, mlp, norms_per_layer * norm)
    vocab = reader.size(vocab_key)
    table = vocab * (hidden if embedding_width is None else embedding_width)
    is_tied = reader.tied(tied)
    return ModelSpec(
        name=reader.name,
        family=reader.family,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=tuple(
            dataclasses.replace(
                layer,
                attention=dataclasses.replace(
                    attention, kind=one.kind, window_tokens=one.window_tokens
                ),
            )
            for one in full_reach(reader, num_layers)
        ),
        tied_embeddings=is_tied,
        embedding_parameters=table + before_layers,
        head_parameters=0 if is_tied else table,
        final_norm_parameters=norm * final_norm,
    )
