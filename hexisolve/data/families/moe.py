"""Mixtures of experts: which layers have them, and how large they are."""

from __future__ import annotations

from hexisolve.data.families.decoder import MlpRule, Traits, dense_of, read_dense
from hexisolve.data.families.parts import moe_mlp
from hexisolve.data.families.reader import ConfigReader
from hexisolve.data.model_spec import MlpSpec


def experts_everywhere(*, biased: bool = False) -> MlpRule:
    """Experts of width ``intermediate_size`` in every layer (Mixtral, gpt-oss)."""

    def rule(
        reader: ConfigReader, traits: Traits, hidden: int, num_layers: int
    ) -> tuple[MlpSpec, ...]:
        inner = reader.size("intermediate_size")
        num_experts, num_active = read_experts(reader)
        mlp = moe_mlp(
            hidden, inner, num_experts, num_active, expert_bias=biased, router_bias=biased
        )
        return (mlp,) * num_layers

    return rule


def qwen_moe(*, shared: bool) -> MlpRule:
    """Experts every ``decoder_sparse_step`` layers but not in ``mlp_only_layers``.

    With `shared`, one expert of its own width runs for every token behind a D x 1 gate.
    """

    def rule(
        reader: ConfigReader, traits: Traits, hidden: int, num_layers: int
    ) -> tuple[MlpSpec, ...]:
        num_experts, num_active = read_experts(reader)
        step = reader.size("decoder_sparse_step")
        dense_layers = set(_layer_indices(reader, "mlp_only_layers", num_layers) or ())
        is_moe = [
            layer not in dense_layers and step > 0 and (layer + 1) % step == 0
            for layer in range(num_layers)
        ]
        inner = reader.size("moe_intermediate_size")
        shared_inner = reader.size("shared_expert_intermediate_size") if shared else 0
        experts = moe_mlp(
            hidden,
            inner,
            num_experts,
            num_active,
            num_shared=int(shared),
            shared_inner=shared_inner,
            shared_extra=hidden if shared else 0,
        )
        return _mixed(reader, traits, hidden, is_moe, experts)

    return rule


def deepseek_moe(
    reader: ConfigReader, traits: Traits, hidden: int, num_layers: int
) -> tuple[MlpSpec, ...]:
    """Dense for ``first_k_dense_replace`` layers, then routed and shared experts.

    ``moe_layer_freq`` keeps experts in every n-th of the remaining layers, or lists them.
    """
    num_experts, num_active = read_experts(reader)
    inner = reader.size("moe_intermediate_size")
    num_shared = reader.size("n_shared_experts", minimum=0) if _counts_shared(reader) else 0
    first = reader.size("first_k_dense_replace", minimum=0)
    if isinstance(reader.config.get("moe_layer_freq"), list):
        listed = reader.per_layer("moe_layer_freq", num_layers) or [0] * num_layers
        is_moe = [layer >= first and bool(listed[layer]) for layer in range(num_layers)]
    else:
        every = reader.optional_size("moe_layer_freq") or 1
        is_moe = [layer >= first and layer % every == 0 for layer in range(num_layers)]
    experts = moe_mlp(
        hidden,
        inner,
        num_experts,
        num_active,
        num_shared=num_shared,
        shared_inner=num_shared * inner,
    )
    return _mixed(reader, traits, hidden, is_moe, experts)


def llama4_moe(
    reader: ConfigReader, traits: Traits, hidden: int, num_layers: int
) -> tuple[MlpSpec, ...]:
    """Experts in ``moe_layers`` or every ``interleave_moe_layer_step`` layers, one shared.

    Dense layers have the width ``intermediate_size_mlp``.
    """
    num_experts, num_active = read_experts(reader)
    inner = reader.size("intermediate_size")
    listed = _layer_indices(reader, "moe_layers", num_layers)
    if listed is None:
        step = reader.size("interleave_moe_layer_step")
        listed = list(range(step - 1, num_layers, step)) if step else []
    is_moe = [layer in set(listed) for layer in range(num_layers)]
    experts = moe_mlp(hidden, inner, num_experts, num_active, num_shared=1, shared_inner=inner)
    return _mixed(reader, traits, hidden, is_moe, experts, "intermediate_size_mlp")


def minicpm_mlp(
    reader: ConfigReader, traits: Traits, hidden: int, num_layers: int
) -> tuple[MlpSpec, ...]:
    """MiniCPM: experts everywhere when ``num_experts`` is given, dense otherwise."""
    if not reader.config.get("num_experts"):
        return read_dense(reader, traits, hidden, num_layers)
    return experts_everywhere()(reader, traits, hidden, num_layers)


def read_experts(reader: ConfigReader) -> tuple[int, int]:
    """Experts, and how many of them one token visits."""
    num_experts = reader.size("num_experts")
    num_active = reader.size("num_experts_per_tok")
    if num_experts and num_active > num_experts:
        reader.report(
            reader.find("num_experts_per_tok")[0],
            num_active,
            f"is more than the {num_experts} experts",
            f"give at most {num_experts}",
        )
    return num_experts, num_active


def _counts_shared(reader: ConfigReader) -> bool:
    # null is the way to write "no shared experts"; an absent key is a missing dimension.
    key = "n_shared_experts"
    return key not in reader.config or reader.config[key] is not None


def _mixed(
    reader: ConfigReader,
    traits: Traits,
    hidden: int,
    is_moe: list[bool],
    experts: MlpSpec,
    dense_key: str = "intermediate_size",
) -> tuple[MlpSpec, ...]:
    # The dense width is asked for only where some layer uses it.
    if all(is_moe):
        return (experts,) * len(is_moe)
    dense = dense_of(reader, traits, hidden, reader.size(dense_key))
    return tuple(experts if moe else dense for moe in is_moe)


def _layer_indices(reader: ConfigReader, name: str, num_layers: int) -> list[int] | None:
    values = reader.sequence(name)
    if values is None:
        return None
    bad = [v for v in values if not isinstance(v, int) or not 0 <= v < max(num_layers, 1)]
    if bad and num_layers:
        reader.report(
            name, bad, f"are not layers of this model (0 to {num_layers - 1})", "remove them"
        )
    return [value for value in values if isinstance(value, int)]
