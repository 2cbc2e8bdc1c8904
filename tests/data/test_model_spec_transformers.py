"""Parameter counts against `transformers` models built without memory on the meta device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hexisolve.data.families.traits_table import LLAMA_LIKE
from hexisolve.data.model_spec import ModelSpec
from hexisolve.errors import InstanceError

Count = Callable[[Mapping[str, Any]], int]

# Types without a class of their own in transformers, and the class with the same tensors.
SAME_TENSORS_AS: dict[str, dict[str, Any]] = {
    "baichuan": {"model_type": "llama"},
    "internlm": {"model_type": "llama", "attention_bias": True},
    "minicpm": {"model_type": "llama"},
    "RefinedWeb": {"model_type": "falcon"},
    "RefinedWebModel": {"model_type": "falcon"},
}
FALCON_KEYS = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_kv_heads",
}
CHATGLM_KEYS = {
    "padded_vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "multi_query_group_num": "num_key_value_heads",
}


def in_words_of_transformers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same model, as a config that transformers has a class for."""
    own = {key: value for key, value in config.items() if key != "quantization_config"}
    family = own["model_type"]
    if family == "ministral3" and "text_config" in own:
        return dict(own["text_config"])
    if family == "chatglm":
        assert own["multi_query_attention"]
        assert own["add_qkv_bias"]
        assert not own["add_bias_linear"]
        renamed = {CHATGLM_KEYS.get(key, key): value for key, value in own.items()}
        return renamed | {"model_type": "qwen2"}
    if family == "minicpm" and own.get("num_experts"):
        return own | {"model_type": "mixtral", "num_local_experts": own["num_experts"]}
    if family.startswith("RefinedWeb"):
        own = {FALCON_KEYS.get(key, key): value for key, value in own.items()}
    return own | SAME_TENSORS_AS.get(family, {})


@pytest.fixture(scope="module")
def count() -> Count:
    """Counts the parameters of the text model of a config; tied tables once."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3VLForConditionalGeneration
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def counted(config: Mapping[str, Any]) -> int:
        own = in_words_of_transformers(config)
        parsed = CONFIG_MAPPING[own["model_type"]].from_dict(own)
        with torch.device("meta"):
            if own["model_type"] == "qwen3_vl":
                # There is no text-only class: the whole model less its vision tower.
                whole = Qwen3VLForConditionalGeneration(parsed)
                tower = sum(weight.numel() for weight in whole.model.visual.parameters())
                return int(whole.num_parameters()) - tower
            model = AutoModelForCausalLM.from_config(parsed.get_text_config())
        return int(model.num_parameters())

    return counted


def mismatches(files: list[Path], count: Count) -> dict[str, tuple[int, int]]:
    found = {}
    for file in files:
        ours = ModelSpec.from_config(file).parameters
        theirs = count(json.loads(file.read_text()))
        if ours != theirs:
            found[file.stem] = (ours, theirs)
    return found


def test_every_shared_config_has_the_parameters_of_transformers_or_is_refused(
    shared_data: Path, count: Count
) -> None:
    files = sorted((shared_data / "llm-configs").glob("*.json"))
    assert len(files) >= 55
    # Its text config has no vocab_size; transformers would put a table of 262,208 rows there.
    refused = "gemma-3-27b-nested"
    assert mismatches([file for file in files if file.stem != refused], count) == {}
    with pytest.raises(InstanceError, match=r"text_config\.vocab_size: missing"):
        ModelSpec.from_config(shared_data / "llm-configs" / f"{refused}.json")


def test_refused_nested_gemma_is_exact_once_its_vocabulary_is_written(
    shared_data: Path, count: Count
) -> None:
    config = json.loads((shared_data / "llm-configs" / "gemma-3-27b-nested.json").read_text())
    config["text_config"]["vocab_size"] = 262_208
    assert ModelSpec.from_config(config).parameters == count(config)


def test_every_bundled_config_has_the_parameters_of_transformers(
    repository: Path, count: Count
) -> None:
    files = sorted((repository / "models" / "llm").glob("*.json"))
    assert len(files) >= 15
    assert mismatches(files, count) == {}


def test_bundled_configs_describe_the_same_models_as_the_shared_ones(
    repository: Path, shared_data: Path
) -> None:
    # The shared file of DeepSeek-V2-Lite lacks the `"q_lora_rank": null` of the published model.
    for file in sorted((repository / "models" / "llm").glob("*.json")):
        shared = shared_data / "llm-configs" / file.name
        if shared.exists() and file.stem != "deepseek-v2-lite":
            ours, theirs = ModelSpec.from_config(file), ModelSpec.from_config(shared)
            assert (ours.layers, ours.parameters) == (theirs.layers, theirs.parameters), file.stem


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 96,
    "vocab_size": 320,
    "pad_token_id": None,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 8,
    "n_group": 1,
    "topk_group": 1,
}
SQUARE = {"head_dim": 8}  # hidden size / heads, for classes that know no other width
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {"sliding_window": 16}),
    ("ministral3", {}),
    ("mixtral", EXPERTS),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}),
    ("qwen2_moe", EXPERTS | SQUARE | {"shared_expert_intermediate_size": 56, "qkv_bias": False}
     | {"mlp_only_layers": [1], "decoder_sparse_step": 2}),
    ("qwen2_moe", EXPERTS | SQUARE | {"shared_expert_intermediate_size": 56}
     | {"decoder_sparse_step": 1}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3_moe", EXPERTS | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("gemma", {"attention_bias": True}),
    ("gemma2", {"sliding_window": 16}),
    ("gemma3_text", {"sliding_window": 16, "tie_word_embeddings": False}),
    ("deepseek_v2", DEEPSEEK),
    ("deepseek_v2", DEEPSEEK | {"q_lora_rank": None, "attention_bias": True}),
    ("deepseek_v3", DEEPSEEK),
    ("deepseek_v3", DEEPSEEK | {"attention_bias": True, "first_k_dense_replace": 0}),
    ("phi3", SQUARE),
    ("phi3", {"sliding_window": 16, "tie_word_embeddings": True}),
    ("gpt_oss", EXPERTS | {"sliding_window": 16, "attention_bias": False}),
    ("gpt_oss", EXPERTS | {"sliding_window": 16}),
    ("llama4_text", EXPERTS | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 112}
     | {"attention_chunk_size": 16}),
    ("llama4_text", EXPERTS | {"moe_layers": [0, 5], "intermediate_size_mlp": 112}
     | {"attention_chunk_size": 16}),
    ("glm", {}),
    ("glm4", {"attention_bias": False}),
    ("glm4_moe", DEEPSEEK | {"use_qk_norm": True, "attention_bias": True}),
    ("cohere", SQUARE | {"use_qk_norm": True, "attention_bias": True}),
    ("cohere2", SQUARE | {"sliding_window": 16}),
    ("olmo", SQUARE),
    ("olmo2", {"attention_bias": True}),
    ("olmo3", {"sliding_window": 16}),
    ("olmoe", EXPERTS | SQUARE),
    ("stablelm", SQUARE | {"use_qkv_bias": True, "qk_layernorm": True}),
    ("stablelm", SQUARE | {"use_parallel_residual": True}),
    ("starcoder2", SQUARE),
    ("starcoder2", SQUARE | {"use_bias": False, "tie_word_embeddings": False}),
    ("phi", SQUARE),
    ("phi", SQUARE | {"qk_layernorm": True}),
    ("granite", {"mlp_bias": True}),
    ("smollm3", {}),
    ("arcee", {}),
    ("ernie4_5", {"use_bias": True}),
    ("granitemoe", EXPERTS | SQUARE),
    ("hunyuan_v1_dense", {"attention_bias": True}),
    ("minimax_m2", EXPERTS),
    ("nemotron", {"mlp_bias": True}),
    ("phimoe", EXPERTS | SQUARE | {"attention_bias": True, "lm_head_bias": True}),
    ("seed_oss", {"mlp_bias": True}),
    ("gpt2", {"n_positions": 48}),
    ("gpt2", {"n_positions": 48, "n_inner": 100, "tie_word_embeddings": False}),
    ("gpt_bigcode", {"n_positions": 48, "multi_query": False}),
    ("gpt_neox", {"attention_bias": False}),
    ("gpt_neox", {"tie_word_embeddings": True}),
    ("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}),
    ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    ("falcon", {"ffn_hidden_size": 100, "num_ln_in_parallel_attn": 1}
     | {"num_kv_heads": 4, "new_decoder_architecture": True}),
    ("bloom", {}),
    ("opt", {"ffn_dim": 96, "max_position_embeddings": 48, "word_embed_proj_dim": 32}),
    ("opt", {"ffn_dim": 96, "max_position_embeddings": 48, "word_embed_proj_dim": 64}
     | {"enable_bias": False, "do_layer_norm_before": False}),
]  # fmt: skip
VARIANT_IDS = [f"{family}-{index}" for index, (family, _) in enumerate(VARIANTS)]
OWN_KEYS = {
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
    "bloom": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
}
OWN_KEYS["gpt_bigcode"] = OWN_KEYS["gpt2"]
ONLY_SQUARE = ("gpt2", "gpt_bigcode", "gpt_neox", "bloom", "opt", "falcon")


def small(family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A small config in the family's own words."""
    sizes = dict(SMALL)
    if family in ONLY_SQUARE:
        for key in ("head_dim", "num_key_value_heads"):
            del sizes[key]
    if family in ("gpt2", "gpt_bigcode", "falcon", "bloom", "opt"):
        del sizes["intermediate_size"]
    keys = OWN_KEYS.get(family, {})
    merged = sizes | options
    return {keys.get(key, key): value for key, value in merged.items()} | {"model_type": family}


@pytest.mark.parametrize(("family", "options"), VARIANTS, ids=VARIANT_IDS)
def test_small_variants_have_the_parameters_of_transformers(
    family: str, options: dict[str, Any], count: Count
) -> None:
    config = small(family, options)
    assert ModelSpec.from_config(config).parameters == count(config)


@pytest.mark.parametrize("family", sorted({family for family, _ in VARIANTS} & LLAMA_LIKE.keys()))
def test_absent_tie_is_the_class_default_of_transformers(family: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert LLAMA_LIKE[family].tied is CONFIG_MAPPING[family]().tie_word_embeddings


@pytest.mark.parametrize(("family", "options"), VARIANTS, ids=VARIANT_IDS)
def test_layers_slide_where_those_of_transformers_do(family: str, options: dict[str, Any]) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = small(family, options)
    theirs = CONFIG_MAPPING[family].from_dict(config)
    layers = ModelSpec.from_config(config).layers
    types = getattr(theirs, "layer_types", None)
    if types is None:
        slides = getattr(theirs, "sliding_window", None) is not None
        types = ["sliding_attention" if slides else "full_attention"] * len(layers)
    assert [f"{layer.attention.kind}_attention" for layer in layers] == types
