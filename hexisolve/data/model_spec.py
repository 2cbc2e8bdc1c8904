"""A decoder-only language model as the placement sees it: its layers, one by one.

Symbols of the cost model: D `hidden_size`, H `num_q_heads`, K `num_kv_heads`, a_qk
`qk_head_dim`, a_v `v_head_dim`, W_l `parameters`, P_l `matmul_parameters` (the weights every
token is multiplied with).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

AttentionKind = Literal["full", "sliding", "chunked", "none"]


@dataclass(frozen=True)
class AttentionSpec:
    """The attention of one layer.

    Parameters
    ----------
    kind
        ``full`` sees every earlier token, ``sliding`` the last `window_tokens` of them, ``chunked``
        those of its own chunk of `window_tokens`, ``none`` nothing (then both widths are 0).
    num_q_heads, num_kv_heads
        Query heads H and key-value heads K; ``H // K`` query heads read one KV head.
    qk_head_dim, v_head_dim
        Widths a_qk of queries and keys, a_v of values (they differ for MLA).
    parameters
        All parameters: projections, biases, norms and sinks inside the attention.
    matmul_parameters
        Those that are multiplied with every token (projection matrices only).
    window_tokens
        Keys a query may see, itself included; None for full attention.
    kv_latent_dim
        Width of the compressed K, V (MLA latent plus shared RoPE part); None otherwise.
    q_latent_dim
        Width of the compressed queries (MLA); None otherwise.
    """

    kind: AttentionKind
    num_q_heads: int
    num_kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    parameters: int
    matmul_parameters: int
    window_tokens: int | None = None
    kv_latent_dim: int | None = None
    q_latent_dim: int | None = None

    def kv_head_of(self, q_head: int) -> int:
        """Find the KV head that query head `q_head` reads."""
        return q_head // (self.num_q_heads // self.num_kv_heads)


@dataclass(frozen=True)
class MlpSpec:
    """The feed-forward part of one layer.

    Parameters
    ----------
    kind
        ``dense`` or ``moe``.
    intermediate_size
        Inner width of the dense MLP or of one routed expert.
    parameters
        All parameters: every expert, router, shared experts, biases.
    active_parameters
        Those one token uses (all of them when dense).
    matmul_parameters
        The matrices among the active ones: what costs FLOP.
    num_matrices
        Matrices of the MLP or of one expert: 3 when gated (gate, up, down), else 2.
    num_experts, num_active_experts, num_shared_experts
        Routed experts, those chosen per token, and always-on experts; 0 when dense.
    """

    kind: Literal["dense", "moe"]
    intermediate_size: int
    parameters: int
    active_parameters: int
    matmul_parameters: int
    num_matrices: int = 3
    num_experts: int = 0
    num_active_experts: int = 0
    num_shared_experts: int = 0


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: attention, MLP and the norms around them."""

    attention: AttentionSpec
    mlp: MlpSpec
    norm_parameters: int

    @property
    def parameters(self) -> int:
        """W_l: all parameters of the layer."""
        return self.attention.parameters + self.mlp.parameters + self.norm_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters one token uses: all but the experts it does not visit."""
        return self.attention.parameters + self.mlp.active_parameters + self.norm_parameters

    @property
    def matmul_parameters(self) -> int:
        """P_l: weights one token is multiplied with (matrices, active experts only)."""
        return self.attention.matmul_parameters + self.mlp.matmul_parameters


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model, read from a Hugging Face ``config.json``.

    Parameters
    ----------
    name
        Name for people: the file's stem or the bundled name.
    family
        ``model_type`` of the (nested) text config.
    hidden_size
        D.
    vocab_size
        V, as the embedding table has it.
    layers
        One entry per decoder layer, in order.
    tied_embeddings
        Whether the head reads the embedding table.
    embedding_parameters
        Everything before the first layer: token and position tables, embedding norms, and
        projections in and out that are not the head (OPT, Gemma-style extras).
    head_parameters
        The output projection (V x D, plus its bias); 0 when tied and without bias.
    final_norm_parameters
        The norm before the head.
    config
        The config as the user wrote it (the whole file, unchanged).
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool
    embedding_parameters: int
    head_parameters: int
    final_norm_parameters: int
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers)

    @cached_property
    def parameters(self) -> int:
        """All parameters, equal to those of the `transformers` model; tied tables count once."""
        return sum(layer.parameters for layer in self.layers) + self._outer_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters one token uses."""
        return sum(layer.active_parameters for layer in self.layers) + self._outer_parameters

    @property
    def _outer_parameters(self) -> int:
        return self.embedding_parameters + self.head_parameters + self.final_norm_parameters

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any], name: str = "") -> ModelSpec:
        """Read a Hugging Face config: a path, or the parsed mapping.

        Raises
        ------
        InstanceError
            When a dimension is missing or the architecture cannot be placed; names the field,
            the keys searched and the way out.
        """
        from hexisolve.data.families import read_config

        return read_config(source, name)


def llama_like(
    name: str,
    hidden_size: int,
    num_layers: int,
    num_q_heads: int,
    num_kv_heads: int,
    intermediate_size: int,
    vocab_size: int,
    head_dim: int | None = None,
    tied_embeddings: bool = False,
) -> ModelSpec:
    """Make a Llama of any size, with a config like one read from a file.

    Raises
    ------
    InstanceError
        When the sizes do not fit together.

    Examples
    --------
    >>> llama_like("tiny", 64, 2, 4, 2, 128, 256).layers[0].matmul_parameters
    36864
    """
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_q_heads,
        "num_key_value_heads": num_kv_heads,
        "intermediate_size": intermediate_size,
        "vocab_size": vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied_embeddings,
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    return ModelSpec.from_config(config, name)


def to_summary(model: ModelSpec) -> dict[str, Any]:
    """Summarise what was understood, as JSON: sizes, counts and every layer.

    Heads and widths at the top are those of the first layer; `layers` has each layer's own.
    """
    first = model.layers[0].attention
    return {
        "name": model.name,
        "family": model.family,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_q_heads": first.num_q_heads,
        "num_kv_heads": first.num_kv_heads,
        "head_dim": first.qk_head_dim,
        "vocab_size": model.vocab_size,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "tied_embeddings": model.tied_embeddings,
        "layers": [
            {"index": index, **_layer_summary(layer)} for index, layer in enumerate(model.layers)
        ],
    }


def _layer_summary(layer: LayerSpec) -> dict[str, Any]:
    attention, mlp = layer.attention, layer.mlp
    return {
        "attention": attention.kind,
        "num_q_heads": attention.num_q_heads,
        "num_kv_heads": attention.num_kv_heads,
        "qk_head_dim": attention.qk_head_dim,
        "v_head_dim": attention.v_head_dim,
        "window_tokens": attention.window_tokens,
        "kv_latent_dim": attention.kv_latent_dim,
        "mlp": mlp.kind,
        "intermediate_size": mlp.intermediate_size,
        "num_experts": mlp.num_experts,
        "num_active_experts": mlp.num_active_experts,
        "num_shared_experts": mlp.num_shared_experts,
        "parameters": layer.parameters,
        "active_parameters": layer.active_parameters,
        "matmul_parameters": layer.matmul_parameters,
    }
