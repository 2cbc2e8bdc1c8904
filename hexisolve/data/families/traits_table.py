"""The traits of every Llama-like family, by ``model_type``.

The facts are those of the `transformers` classes (version 5): what has a bias, which norms there
are, what an absent key means. Where a class falls back to a number of one particular model
(``num_key_value_heads = 8``), the key is required here instead.
"""

from __future__ import annotations

import dataclasses

from hexisolve.data.families.decoder import Traits
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
    "arcee": Traits(kv_heads="required", head_dim="derived", gated=False),
    "ernie4_5": Traits(
        tied=True,
        kv_heads="required",
        head_dim="required",
        qkv_bias=("use_bias", False),
        o_bias=("use_bias", False),
        mlp_bias=("use_bias", False),
    ),
    "granitemoe": Traits(mlp=experts_everywhere()),
    "hunyuan_v1_dense": Traits(mlp_bias=False, qk_norm="head"),
    "minimax_m2": _replace(MISTRAL, qk_norm="heads", head_dim="derived", mlp=experts_everywhere()),
    "nemotron": Traits(norm_vectors=2, gated=False),
    "phimoe": Traits(
        kv_heads="required",
        norm_vectors=2,
        head_bias=("lm_head_bias", False),
        reach=one_window,
        mlp=experts_everywhere(),
    ),
    "seed_oss": Traits(
        kv_heads="required",
        head_dim="required",
        qkv_bias=("attention_bias", True),
        o_bias=("attention_out_bias", False),
    ),
    "baichuan": Traits(qkv_bias=False, o_bias=False, mlp_bias=False),
    "internlm": Traits(qkv_bias=("bias", True), o_bias=("bias", True), mlp_bias=False),
    "internlm2": Traits(qkv_bias=("bias", True), o_bias=("bias", True), mlp_bias=False),
    "minicpm": Traits(tied=True, mlp_bias=False, mlp=minicpm_mlp),
}
"""Families that `read_decoder` reads."""
