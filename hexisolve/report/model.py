"""A model as a person wants to see it: its sizes and its layers, like layers joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hexisolve.report.tables import count, make_table, ranges

if TYPE_CHECKING:
    from rich.table import Table

    from hexisolve.data.model_spec import LayerSpec, ModelSpec


def model_document(model: ModelSpec) -> dict[str, Any]:
    """JSON form: sizes, counts and every layer."""
    from hexisolve.data.model_spec import to_summary

    return to_summary(model)


def model_tables(model: ModelSpec) -> list[Table]:
    """Sizes, then the layers grouped by their shape."""
    head = "tied to the embedding" if model.tied_embeddings else f"{model.head_parameters:,}"
    sizes = make_table(f"model {model.name} ({model.family})", ["", ">"])
    sizes.show_header = False
    for name, value in (
        ("parameters", f"{model.parameters:,}"),
        ("active for one token", f"{model.active_parameters:,}"),
        ("layers", str(model.num_layers)),
        ("hidden size", str(model.hidden_size)),
        ("vocabulary", f"{model.vocab_size:,}"),
        ("embedding", f"{model.embedding_parameters:,}"),
        ("head", head),
    ):
        sizes.add_row(name, value)
    return [sizes, _layers(model)]


def _layers(model: ModelSpec) -> Table:
    table = make_table(
        "layers", ["index~", "attention~", "query heads>", "KV heads>", "width>", "MLP~",
                   "parameters>", "active>"],
    )  # fmt: skip
    shapes: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(model.layers):
        shapes.setdefault(layer, []).append(index)
    for layer, indices in shapes.items():
        attention, mlp = layer.attention, layer.mlp
        kind: str = attention.kind
        if attention.window_tokens is not None:
            kind += f" {attention.window_tokens:,}"
        if attention.kv_latent_dim is not None:
            kind += f", latent {attention.kv_latent_dim}"
        width = f"{attention.qk_head_dim}"
        if attention.v_head_dim != attention.qk_head_dim:
            width += f"/{attention.v_head_dim}"
        experts = f", {mlp.num_active_experts} of {mlp.num_experts}" if mlp.num_experts else ""
        experts += f" + {mlp.num_shared_experts} shared" if mlp.num_shared_experts else ""
        table.add_row(
            ranges(indices), kind, str(attention.num_q_heads), str(attention.num_kv_heads), width,
            f"{mlp.kind} {mlp.intermediate_size:,}{experts}",
            count(layer.parameters), count(layer.active_parameters),
        )  # fmt: skip
    return table
