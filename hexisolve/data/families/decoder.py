"""Llama-like decoders: one reader, and the traits that set each family apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hexisolve.data.families.layer_kinds import Reach, ReachRule, full_reach
from hexisolve.data.families.parts import dense_mlp, gqa_attention
from hexisolve.data.families.reader import MAX_LAYERS, ConfigReader
from hexisolve.data.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec

Switch = bool | tuple[str, bool]
"""A fact of the family, or the key that decides it with the family's own default."""


@dataclass(frozen=True)
class Traits:
    """What sets one Llama-like family apart; every default is Llama's own.

    Parameters
    ----------
    tied
        Whether embedding and head are one table when ``tie_word_embeddings`` is absent.
    kv_heads
        Without a key for KV heads: ``all`` gives every query head its own; ``required`` is an
        error, because `transformers` would put a number of some other model there.
    head_dim
        Without ``head_dim``: ``derived`` is hidden size / heads; ``required`` is an error.
    qkv_bias, o_bias, mlp_bias, head_bias
        Biases of the projections.
    qk_norm
        Norm of queries and keys: one vector per ``head`` width, or one over all ``heads``.
    qk_norm_if
        Whether that norm is there.
    qk_norm_bias
        Whether that norm has a bias.
    norms_per_layer, norm_vectors
        Norms of width D in a layer; vectors per norm (1 weight; 2 weight and bias; 0 neither).
    parallel_if
        Whether attention and MLP share one norm instead of `norms_per_layer`.
    sinks
        One learned sink per query head (gpt-oss).
    gated
        Three MLP matrices (gate, up, down) instead of two.
    reach
        Reads which layers slide.
    attention
        Reads the attention of every layer; None for `read_gqa`.
    mlp
        Reads the MLP of every layer; None for one dense MLP everywhere.
    """

    tied: bool = False
    kv_heads: Literal["all", "required"] = "all"
    head_dim: Literal["derived", "required"] = "derived"
    qkv_bias: Switch = ("attention_bias", False)
    o_bias: Switch = ("attention_bias", False)
    mlp_bias: Switch = ("mlp_bias", False)
    head_bias: Switch = False
    qk_norm: Literal["head", "heads"] | None = None
    qk_norm_if: Switch = True
    qk_norm_bias: bool = False
    norms_per_layer: int = 2
    norm_vectors: int = 1
    parallel_if: Switch = False
    sinks: bool = False
    gated: bool = True
    reach: ReachRule = full_reach
    attention: AttentionRule | None = None
    mlp: MlpRule | None = None


AttentionRule = Callable[[ConfigReader, Traits, int, tuple[Reach, ...]], tuple[AttentionSpec, ...]]
"""(reader, traits, hidden size, reach per layer) -> attention per layer."""
MlpRule = Callable[[ConfigReader, Traits, int, int], tuple[MlpSpec, ...]]
"""(reader, traits, hidden size, number of layers) -> MLP per layer."""


def read_decoder(reader: ConfigReader, traits: Traits) -> ModelSpec:
    """Read a Llama-like decoder.

    Sizes that are missing count as 0 here; `ConfigReader.finish` refuses them afterwards.
    """
    hidden = reader.size("hidden_size")
    vocab = reader.size("vocab_size")
    num_layers = reader.size("num_hidden_layers", maximum=MAX_LAYERS)
    reach = traits.reach(reader, num_layers)
    attention = (traits.attention or read_gqa)(reader, traits, hidden, reach)
    mlps = (traits.mlp or read_dense)(reader, traits, hidden, num_layers)
    norm = traits.norm_vectors * hidden
    norms = 1 if switch(reader, traits.parallel_if) else traits.norms_per_layer
    tied = reader.tied(traits.tied)
    return ModelSpec(
        name=reader.name,
        family=reader.family,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=tuple(
            LayerSpec(one, mlp, norms * norm) for one, mlp in zip(attention, mlps, strict=False)
        ),
        tied_embeddings=tied,
        embedding_parameters=vocab * hidden,
        head_parameters=(0 if tied else vocab * hidden) + vocab * switch(reader, traits.head_bias),
        final_norm_parameters=norm,
    )


def switch(reader: ConfigReader, value: Switch) -> bool:
    """Decide a switch for this config."""
    return value if isinstance(value, bool) else reader.flag(*value)


def read_heads(reader: ConfigReader, traits: Traits, hidden: int) -> tuple[int, int, int]:
    """Query heads H, KV heads K and head width a; zeros where a problem was reported."""
    q_heads = reader.size("num_attention_heads")
    kv_heads = reader.optional_size("num_key_value_heads")
    if kv_heads is None:
        kv_heads = q_heads if traits.kv_heads == "all" else reader.size("num_key_value_heads")
    return (
        q_heads,
        check_groups(reader, q_heads, kv_heads),
        read_head_dim(reader, traits.head_dim == "required", hidden, q_heads),
    )


def check_groups(reader: ConfigReader, q_heads: int, kv_heads: int) -> int:
    """`kv_heads`, after reporting when the query heads cannot be shared among them evenly."""
    if q_heads and kv_heads and q_heads % kv_heads:
        reader.report(
            reader.find("num_key_value_heads")[0],
            kv_heads,
            f"does not divide the {q_heads} query heads",
            f"give a divisor of {q_heads}",
        )
    return kv_heads


def read_head_dim(reader: ConfigReader, required: bool, hidden: int, q_heads: int) -> int:
    """Head width: the explicit key always wins over hidden size / heads."""
    head_dim = reader.optional_size("head_dim")
    if head_dim is not None:
        return head_dim
    if required:
        return reader.size(
            "head_dim", remedy="add head_dim: in this family it is not hidden_size / heads"
        )
    if hidden and q_heads and hidden % q_heads:
        reader.report(
            reader.find("hidden_size")[0],
            hidden,
            f"is not divisible by the {q_heads} heads, and there is no head_dim",
            "add head_dim, or correct one of the two",
        )
        return 0
    return hidden // q_heads if q_heads else 0


def read_gqa(
    reader: ConfigReader, traits: Traits, hidden: int, reach: tuple[Reach, ...]
) -> tuple[AttentionSpec, ...]:
    """Grouped-query attention of the same shape in every layer."""
    q_heads, kv_heads, head_dim = read_heads(reader, traits, hidden)
    norm = 0
    if traits.qk_norm and switch(reader, traits.qk_norm_if):
        heads = 2 if traits.qk_norm == "head" else q_heads + kv_heads
        norm = heads * head_dim * (2 if traits.qk_norm_bias else 1)
    qkv_bias, o_bias = switch(reader, traits.qkv_bias), switch(reader, traits.o_bias)
    return tuple(
        gqa_attention(
            hidden,
            q_heads,
            kv_heads,
            head_dim,
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            extra_parameters=norm + q_heads * traits.sinks,
            kind=one.kind,
            window_tokens=one.window_tokens,
        )
        for one in reach
    )


def read_dense(
    reader: ConfigReader, traits: Traits, hidden: int, num_layers: int
) -> tuple[MlpSpec, ...]:
    """Read one dense MLP for every layer."""
    inner = reader.size("intermediate_size")
    return (dense_of(reader, traits, hidden, inner),) * num_layers


def dense_of(reader: ConfigReader, traits: Traits, hidden: int, inner: int) -> MlpSpec:
    """Build a dense MLP with the family's gate and biases."""
    bias = switch(reader, traits.mlp_bias)
    return dense_mlp(hidden, inner, gated=traits.gated, up_bias=bias, down_bias=bias)
