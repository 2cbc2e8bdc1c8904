"""Which reader understands which ``model_type``; and why some cannot be placed.

The facts in the tables are those of the `transformers` classes (version 5): what has a bias,
which norms there are, what an absent key means. Where a class would fall back to a number of
one particular model (``num_key_value_heads = 8``), we ask for the key instead.
"""

from __future__ import annotations

import dataclasses
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
from hexisolve.data.families.decoder import Traits, read_decoder
from hexisolve.data.families.layer_kinds import (
    chunked_unless_nope,
    every_nth_full,
    lower_even_layers_windowed,
    mistral_window,
    one_window,
    one_window_if_used,
    upper_layers_windowed,
)
from hexisolve.data.families.mla import read_mla
from hexisolve.data.families.moe import (
    deepseek_moe,
    experts_everywhere,
    llama4_moe,
    minicpm_mlp,
    qwen_moe,
)
from hexisolve.data.families.nas import read_block_configs
from hexisolve.data.families.reader import ConfigReader
from hexisolve.data.model_spec import ModelSpec

FamilyReader = Callable[[ConfigReader], ModelSpec]

_replace = dataclasses.replace

LLAMA = Traits()
MISTRAL = Traits(kv_heads="required", qkv_bias=False, o_bias=False, mlp_bias=False)
QWEN2 = Traits(
    kv_heads="required",
    qkv_bias=True,
    o_bias=False,
    mlp_bias=False,
    reach=upper_layers_windowed,
)
QWEN2_MOE = _replace(
    QWEN2,
    qkv_bias=("qkv_bias", True),
    reach=lower_even_layers_windowed,
    mlp=qwen_moe(shared=True),
)
QWEN3 = Traits(
    kv_heads="required",
    head_dim="required",
    mlp_bias=False,
    qk_norm="head",
    reach=upper_layers_windowed,
)
QWEN3_MOE = _replace(
    QWEN3, head_dim="derived", reach=one_window_if_used, mlp=qwen_moe(shared=False)
)
GEMMA = Traits(tied=True, kv_heads="required", head_dim="required", mlp_bias=False)
GEMMA2 = _replace(GEMMA, norms_per_layer=4, reach=every_nth_full(2))
GEMMA3 = _replace(GEMMA2, qk_norm="head", reach=every_nth_full(6))
DEEPSEEK = Traits(mlp_bias=False, attention=read_mla, mlp=deepseek_moe)
GLM = Traits(
    kv_heads="required",
    head_dim="required",
    qkv_bias=("attention_bias", True),
    o_bias=False,
    mlp_bias=False,
)
COHERE = Traits(
    tied=True, mlp_bias=False, qk_norm="heads", qk_norm_if=("use_qk_norm", False), norms_per_layer=1
)
LLAMA4 = Traits(
    kv_heads="required",
    head_dim="required",
    mlp_bias=False,
    reach=chunked_unless_nope,
    mlp=llama4_moe,
)
PLAIN_BIAS = ("bias", False)

LLAMA_LIKE: dict[str, Traits] = {
    "llama": LLAMA,
    "mistral": _replace(MISTRAL, reach=mistral_window),
    "ministral3": _replace(MISTRAL, reach=one_window),
    "mixtral": _replace(MISTRAL, reach=one_window, mlp=experts_everywhere()),
    "qwen2": QWEN2,
    "qwen2_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_5_omni_text": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": _replace(QWEN3_MOE, head_dim="required"),
    "qwen3_omni_moe_text": QWEN3_MOE,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "phi3": Traits(qkv_bias=False, o_bias=False, mlp_bias=False, reach=one_window),
    "gpt_oss": Traits(
        kv_heads="required",
        head_dim="required",
        qkv_bias=("attention_bias", True),
        o_bias=("attention_bias", True),
        reach=every_nth_full(2),
        sinks=True,
        mlp=experts_everywhere(biased=True),
    ),
    "llama4_text": LLAMA4,
    "glm": GLM,
    "glm4": _replace(GLM, norms_per_layer=4),
    "glm4_moe": _replace(
        GLM,
        head_dim="derived",
        qkv_bias=("attention_bias", False),
        qk_norm="head",
        qk_norm_if=("use_qk_norm", False),
        mlp=deepseek_moe,
    ),
    "cohere": COHERE,
    "cohere2": _replace(COHERE, qk_norm=None, reach=every_nth_full(4)),
    "olmo": Traits(mlp_bias=False, norm_vectors=0),
    "olmo2": Traits(mlp_bias=False, qk_norm="heads"),
    "olmo3": Traits(mlp_bias=False, qk_norm="heads", reach=every_nth_full(4)),
    "olmoe": Traits(kv_heads="all", mlp_bias=False, qk_norm="heads", mlp=experts_everywhere()),
    "stablelm": Traits(
        kv_heads="required",
        qkv_bias=("use_qkv_bias", False),
        o_bias=False,
        mlp_bias=False,
        qk_norm="heads",
        qk_norm_if=("qk_layernorm", False),
        parallel_if=("use_parallel_residual", False),
        norm_vectors=2,
    ),
    "starcoder2": Traits(
        tied=True,
        kv_heads="required",
        qkv_bias=("use_bias", True),
        o_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        norm_vectors=2,
        gated=False,
        reach=one_window,
    ),
    "phi": Traits(
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
        qk_norm="head",
        qk_norm_if=("qk_layernorm", False),
        qk_norm_bias=True,
        norms_per_layer=1,
        norm_vectors=2,
        gated=False,
    ),
    "granite": LLAMA,
    "smollm3": _replace(
        QWEN3, tied=True, head_dim="derived", qk_norm=None, mlp_bias=LLAMA.mlp_bias
    ),
    "baichuan": Traits(qkv_bias=False, o_bias=False, mlp_bias=False),
    "internlm": Traits(qkv_bias=("bias", True), o_bias=("bias", True), mlp_bias=False),
    "internlm2": Traits(qkv_bias=("bias", True), o_bias=("bias", True), mlp_bias=False),
    "minicpm": Traits(tied=True, mlp_bias=False, mlp=minicpm_mlp),
}
"""Families that `read_decoder` reads."""

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

RECURRENT: frozenset[str] = frozenset(
    "mamba mamba2 falcon_mamba rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma xlstm retnet lfm2 lfm2_moe "
    "jamba zamba zamba2 bamba falcon_h1 nemotron_h granitemoehybrid qwen3_next qwen3_5_text "
    "qwen3_5_moe_text kimi_linear minimax olmo_hybrid plamo2 hymba".split()
)
"""Types with state-space, linear-attention or convolution layers."""

NOT_DECODERS: frozenset[str] = frozenset(
    "bert roberta xlm-roberta deberta deberta-v2 distilbert albert electra modernbert t5 mt5 umt5 "
    "bart mbart pegasus led marian whisper clip siglip vit".split()
)


def find_family(reader: ConfigReader) -> FamilyReader:
    """The reader of this config's family.

    Raises
    ------
    InstanceError
        When the type is missing, unknown, or cannot be placed; says which and what to do.
    """
    family = _model_type(reader)
    if reader.config.get("block_configs") is not None:
        return read_block_configs
    if family in LLAMA_LIKE:
        return functools.partial(read_decoder, traits=LLAMA_LIKE[family])
    if family in OTHERS:
        return OTHERS[family]
    known = ", ".join(sorted({*LLAMA_LIKE, *OTHERS}))
    if family in RECURRENT:
        reader.report(
            "model_type",
            family,
            "has state-space, linear-attention or convolution layers, which cannot be cut along "
            "the sequence",
            "use a model whose layers are all attention layers",
        )
    elif family in NOT_DECODERS or reader.config.get("is_encoder_decoder") is True:
        reader.report(
            "model_type", family, "is not a decoder-only language model", f"known types: {known}"
        )
    elif family:
        reader.report(
            "model_type",
            family,
            "is an architecture hexisolve does not know",
            f"if its layers are those of a known type, write that type; known: {known}",
        )
    reader.finish()
    raise AssertionError("an unknown family was reported")


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
