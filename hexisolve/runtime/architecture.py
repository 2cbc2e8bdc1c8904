"""What the runtime needs to know of a Llama-family model, read from its spec and config.

Families Llama, Mistral, Qwen2 and Qwen3 (dense) share one decoder block: RMSNorm, rotary
positions, grouped-query attention, SwiGLU. Any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hexisolve.data.model_spec import ModelSpec
from hexisolve.errors import UnsupportedPlanError

SUPPORTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_QKV_BIAS_FAMILIES = ("qwen2",)
_QK_NORM_FAMILIES = ("qwen3",)

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class RopeScaling:
    """Rotary positions: base and, for ``linear`` and ``llama3``, how they are stretched."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_tokens: int = 8192


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of a Llama-family decoder.

    Parameters
    ----------
    windows
        Per layer, the keys a query may see (itself included); None for full attention.
    qkv_bias, out_bias, mlp_bias
        Whether q/k/v, the output projection and the MLP carry biases.
    qk_norm
        Whether queries and keys are normalised per head (Qwen3).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    norm_eps: float
    rope: RopeScaling
    tied_embeddings: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    initializer_range: float = 0.02

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.windows)

    @classmethod
    def of(cls, model: ModelSpec) -> Architecture:
        """Read a spec.

        Raises
        ------
        UnsupportedPlanError
            When the runtime has no code for the family or for a part of it; names the part.
        """
        config = _text_config(model.config)
        reasons = [*_unsupported(model, config)]
        if reasons:
            raise UnsupportedPlanError(
                f"the runtime cannot run {model.name}: " + "; ".join(reasons)
            )
        attention = model.layers[0].attention
        bias = bool(config.get("attention_bias", False))
        return cls(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            intermediate_size=model.layers[0].mlp.intermediate_size,
            num_q_heads=attention.num_q_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.qk_head_dim,
            windows=tuple(layer.attention.window_tokens for layer in model.layers),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope(config),
            tied_embeddings=model.tied_embeddings,
            qkv_bias=bias or model.family in _QKV_BIAS_FAMILIES,
            out_bias=bias and model.family in ("llama", "qwen3"),
            mlp_bias=bool(config.get("mlp_bias", False)) and model.family == "llama",
            qk_norm=model.family in _QK_NORM_FAMILIES,
            initializer_range=float(config.get("initializer_range", 0.02)),
        )

    def layer_shapes(self, layer_idx: int) -> dict[str, tuple[int, ...]]:
        """Global name -> shape of the parameters of one layer, in a fixed order."""
        width, inner = self.hidden_size, self.intermediate_size
        q_width = self.num_q_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        prefix = f"model.layers.{layer_idx}."
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (width,)}
        for name, rows in (("q", q_width), ("k", kv_width), ("v", kv_width)):
            shapes[f"self_attn.{name}_proj.weight"] = (rows, width)
            if self.qkv_bias:
                shapes[f"self_attn.{name}_proj.bias"] = (rows,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_dim,)
            shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        shapes["self_attn.o_proj.weight"] = (width, q_width)
        if self.out_bias:
            shapes["self_attn.o_proj.bias"] = (width,)
        shapes["post_attention_layernorm.weight"] = (width,)
        for name, shape in (
            ("gate_proj", (inner, width)),
            ("up_proj", (inner, width)),
            ("down_proj", (width, inner)),
        ):
            shapes[f"mlp.{name}.weight"] = shape
            if self.mlp_bias:
                shapes[f"mlp.{name}.bias"] = shape[:1]
        return {prefix + name: shape for name, shape in shapes.items()}

    def shapes(
        self, layers: Iterable[int], *, is_first: bool = True, is_last: bool = True
    ) -> dict[str, tuple[int, ...]]:
        """Global name -> shape of the parameters of a stage, in the order of a flat buffer.

        Tied embeddings have one name; the first and the last stage each hold a copy.
        """
        table = (self.vocab_size, self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {}
        if is_first or (is_last and self.tied_embeddings):
            shapes[EMBEDDING] = table
        for layer_idx in layers:
            shapes |= self.layer_shapes(layer_idx)
        if is_last:
            shapes[FINAL_NORM] = (self.hidden_size,)
            if not self.tied_embeddings:
                shapes[HEAD] = table
        return shapes

    @property
    def head_weight(self) -> str:
        """Global name of the matrix of the output projection."""
        return EMBEDDING if self.tied_embeddings else HEAD


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _unsupported(model: ModelSpec, config: Mapping[str, Any]) -> Iterable[str]:
    if model.family not in SUPPORTED_FAMILIES:
        yield (
            f"family {model.family!r} is priced but not executed "
            f"(executed: {', '.join(SUPPORTED_FAMILIES)})"
        )
        return
    first = model.layers[0]
    if any(layer.mlp.kind != "dense" for layer in model.layers):
        yield "mixture-of-experts layers are not executed"
    if first.attention.qk_head_dim != first.attention.v_head_dim:
        yield "queries and values of different head width are not executed"
    if first.attention.qk_head_dim % 2:
        yield f"rotary positions need an even head width, not {first.attention.qk_head_dim}"
    sizes = {
        (layer.attention.num_q_heads, layer.attention.num_kv_heads, layer.attention.qk_head_dim,
         layer.mlp.intermediate_size)
        for layer in model.layers
    }  # fmt: skip
    if len(sizes) > 1:
        yield "layers of different sizes are not executed"
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        yield f"activation {config['hidden_act']!r} is not executed (only silu)"
    kind = _rope_kind(_rope_document(config))
    if kind not in ("default", "linear", "llama3"):
        yield f"rope scaling {kind!r} is not executed (only default, linear, llama3)"


def _rope_document(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rope settings under their old (`rope_scaling`) or new (`rope_parameters`) key."""
    for key in ("rope_parameters", "rope_scaling"):
        document = config.get(key)
        if isinstance(document, Mapping):
            return document
    return {}


def _rope_kind(document: Mapping[str, Any]) -> str:
    return str(document.get("rope_type", document.get("type", "default")))


def _rope(config: Mapping[str, Any]) -> RopeScaling:
    document = _rope_document(config)
    theta = float(document.get("rope_theta", config.get("rope_theta", 10000.0)))
    return RopeScaling(
        theta=theta,
        kind=_rope_kind(document),
        factor=float(document.get("factor", 1.0)),
        low_freq_factor=float(document.get("low_freq_factor", 1.0)),
        high_freq_factor=float(document.get("high_freq_factor", 4.0)),
        original_tokens=int(
            document.get(
                "original_max_position_embeddings", config.get("max_position_embeddings", 8192)
            )
        ),
    )
