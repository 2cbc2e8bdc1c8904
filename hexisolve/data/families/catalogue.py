"""Which reader understands which ``model_type``; and why some types cannot be placed."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hexisolve.data.families.classic import (
    read_bloom,
    read_chatglm,
    read_falcon,
    read_gpt2,
    read_gpt_bigcode,
    read_gpt_neox,
    read_opt,
)
from hexisolve.data.families.decoder import read_decoder
from hexisolve.data.families.layer_kinds import KIND_OF_LAYER_TYPE
from hexisolve.data.families.nas import read_block_configs
from hexisolve.data.families.reader import ConfigReader
from hexisolve.data.families.traits_table import LLAMA_LIKE
from hexisolve.data.model_spec import ModelSpec
from hexisolve.errors import InstanceError

FamilyReader = Callable[[ConfigReader], ModelSpec]

OTHERS: dict[str, FamilyReader] = {
    "gpt2": read_gpt2,
    "gpt_neox": read_gpt_neox,
    "gpt_bigcode": read_gpt_bigcode,
    "falcon": read_falcon,
    "RefinedWeb": read_falcon,
    "RefinedWebModel": read_falcon,
    "bloom": read_bloom,
    "opt": read_opt,
    "chatglm": read_chatglm,
    "nemotron-nas": read_block_configs,
}
"""Families with a reader of their own."""

TEXT_TYPE_OF: dict[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "llava": "llama",
}
"""Type of the language model inside a multimodal config that does not name it."""

RECURRENT = frozenset(
    {
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "hymba",
        "jamba",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "mamba",
        "mamba2",
        "minimax",
        "nemotron_h",
        "olmo_hybrid",
        "plamo2",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
    }
)
"""Types with state-space, linear-attention or convolution layers."""

NOT_CAUSAL_KEYS = ("is_encoder_decoder", "add_cross_attention", "use_bidirectional_attention")


def find_family(reader: ConfigReader) -> FamilyReader:
    """Find the reader of this config's family.

    Raises
    ------
    InstanceError
        When the type is missing, unknown, or cannot be placed; says which and what to do.
    """
    family = reader.family = _model_type(reader)
    _refuse_not_causal(reader)
    if reader.config.get("block_configs") is not None:
        return read_block_configs
    if family in LLAMA_LIKE:
        return functools.partial(read_decoder, traits=LLAMA_LIKE[family])
    if family in OTHERS:
        return OTHERS[family]
    if family in RECURRENT:
        reader.report(
            "model_type",
            family,
            f"has {_recurrent_layers(reader)} layers, which cannot be cut along the sequence",
            "use a model whose layers are all attention layers",
        )
    elif family:
        known = ", ".join(sorted({*LLAMA_LIKE, *OTHERS}))
        reader.report(
            "model_type",
            family,
            "is an architecture hexisolve does not know",
            f"if its layers are those of a known type, write that type; known: {known}",
        )
    raise InstanceError(reader.problems)


def _refuse_not_causal(reader: ConfigReader) -> None:
    for key in NOT_CAUSAL_KEYS:
        if reader.config.get(key) is True:
            reader.report(key, True, "is not a causal decoder", "use a decoder-only language model")


def _recurrent_layers(reader: ConfigReader) -> str:
    for key in ("layer_types", "layers_block_type"):
        names = reader.sequence(key)
        if names:
            others = {str(name) for name in names} - KIND_OF_LAYER_TYPE.keys()
            return ", ".join(sorted(others)) or "recurrent"
    return "state-space, linear-attention or convolution"


def _model_type(reader: ConfigReader) -> str:
    own, outer = reader.config.get("model_type"), reader.outer.get("model_type")
    if isinstance(own, str) and own:
        return TEXT_TYPE_OF.get(own, own)
    if own is not None:
        reader.report("model_type", own, "must be a text", 'write "llama", for example')
        return ""
    if isinstance(outer, str) and outer:
        return TEXT_TYPE_OF.get(outer, outer)
    by_architecture = {_plain(name): name for name in (*LLAMA_LIKE, *OTHERS)}
    for architecture in reader.sequence("architectures") or ():
        family = by_architecture.get(_plain(str(architecture)))
        if family:
            return family
    reader.report(
        "model_type",
        None,
        "missing (searched: model_type, architectures)",
        'add the family, "model_type": "llama" for example',
    )
    return ""


def _plain(name: str) -> str:
    # LlamaForCausalLM and llama, DeepseekV3ForCausalLM and deepseek_v3: one spelling for both.
    for suffix in ("ForCausalLM", "LMHeadModel"):
        name = name.removesuffix(suffix)
    return name.replace("_", "").lower()
