"""Which layers see everything, which only a window; and the layers that cannot be placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hexisolve.data.families.reader import ConfigReader
from hexisolve.data.model_spec import AttentionKind


@dataclass(frozen=True)
class Reach:
    """How far back the attention of one layer sees."""

    kind: AttentionKind
    window_tokens: int | None = None


FULL = Reach("full")
ReachRule = Callable[[ConfigReader, int], tuple[Reach, ...]]
"""Reads the reach of every layer: (reader, number of layers) -> one entry per layer."""

KIND_OF_LAYER_TYPE: dict[str, AttentionKind] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
}
WINDOW_KEY: dict[AttentionKind, str] = {
    "sliding": "sliding_window",
    "chunked": "attention_chunk_size",
}


def full_reach(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """Full attention everywhere, unless ``layer_types`` says otherwise."""
    return _from_layer_types(reader, num_layers) or (FULL,) * num_layers


def one_window(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """``sliding_window`` for every layer; null or absent means full attention."""
    listed = _from_layer_types(reader, num_layers)
    window = reader.optional_size("sliding_window")
    return listed or (FULL if window is None else Reach("sliding", window),) * num_layers


def mistral_window(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """As `one_window`, but Mistral's own window is 4,096 when the key is absent (not null)."""
    if "sliding_window" in reader.config or "layer_types" in reader.config:
        return one_window(reader, num_layers)
    reader.note("sliding_window", "is absent: 4096 assumed, as in transformers; null for none")
    return (Reach("sliding", 4096),) * num_layers


def one_window_if_used(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """``sliding_window`` for every layer when ``use_sliding_window`` (Qwen3-MoE)."""
    if not reader.flag("use_sliding_window", False):
        return full_reach(reader, num_layers)
    return _from_layer_types(reader, num_layers) or (_window(reader, "sliding"),) * num_layers


def upper_layers_windowed(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """Qwen: layers from ``max_window_layers`` on slide when ``use_sliding_window``."""
    if not reader.flag("use_sliding_window", False):
        return full_reach(reader, num_layers)
    listed = _from_layer_types(reader, num_layers)
    if listed:
        return listed
    first = reader.size("max_window_layers", minimum=0)
    window = _window(reader, "sliding")
    return tuple(window if layer >= first else FULL for layer in range(num_layers))


def lower_even_layers_windowed(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """Qwen2-MoE: every other layer below ``max_window_layers`` slides, if windows are used."""
    if not reader.flag("use_sliding_window", False):
        return full_reach(reader, num_layers)
    listed = _from_layer_types(reader, num_layers)
    if listed:
        return listed
    end = reader.size("max_window_layers", minimum=0)
    window = _window(reader, "sliding")
    return tuple(window if layer % 2 == 0 and layer < end else FULL for layer in range(num_layers))


def every_nth_full(family_pattern: int) -> ReachRule:
    """Every n-th layer sees everything, those between slide (``sliding_window_pattern``)."""

    def rule(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
        listed = _from_layer_types(reader, num_layers)
        if listed:
            return listed
        pattern = reader.optional_size("sliding_window_pattern")
        pattern = family_pattern if pattern is None else pattern
        if not pattern:
            return (FULL,) * num_layers
        window = _window(reader, "sliding")
        return tuple(window if (layer + 1) % pattern else FULL for layer in range(num_layers))

    return rule


def chunked_unless_nope(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...]:
    """Llama 4: layers with RoPE attend inside chunks, those without see everything."""
    listed = _from_layer_types(reader, num_layers)
    if listed:
        return listed
    with_rope = reader.per_layer("no_rope_layers", num_layers) or None
    if with_rope is None:
        interval = reader.optional_size("no_rope_layer_interval") or 4
        with_rope = [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if "attention_chunk_size" in reader.config and reader.config["attention_chunk_size"] is None:
        return (FULL,) * num_layers
    chunk = _window(reader, "chunked")
    return tuple(chunk if rope else FULL for rope in with_rope)


def _window(reader: ConfigReader, kind: AttentionKind) -> Reach:
    if kind == "chunked":
        reader.note(
            WINDOW_KEY[kind],
            "limits attention to chunks: priced as a window of that width, an upper estimate",
        )
    return Reach(kind, reader.size(WINDOW_KEY[kind]))


def _from_layer_types(reader: ConfigReader, num_layers: int) -> tuple[Reach, ...] | None:
    names = reader.per_layer("layer_types", num_layers)
    if names is None:
        return None
    # As text, because an entry may be anything a JSON list can hold.
    names = [str(name) for name in names]
    unknown = [(layer, name) for layer, name in enumerate(names) if name not in KIND_OF_LAYER_TYPE]
    for name in dict.fromkeys(name for _, name in unknown):
        layers = [layer for layer, other in unknown if other == name]
        shown = ", ".join(str(layer) for layer in layers[:8]) + (", ..." if layers[8:] else "")
        reader.report(
            "layer_types",
            name,
            f"layers {shown} cannot be cut along the sequence (only attention layers can)",
            f"use a model whose layers are all of {', '.join(KIND_OF_LAYER_TYPE)}",
        )
    if unknown:
        return None
    kinds = [KIND_OF_LAYER_TYPE[name] for name in names]
    reaches = {kind: FULL if kind == "full" else _window(reader, kind) for kind in set(kinds)}
    return tuple(reaches[kind] for kind in kinds)
