"""Reading Hugging Face configs: dimensions, layers one by one, defaults and refusals."""

from __future__ import annotations

import contextlib
import doctest
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.data.model_spec import ModelSpec, llama_like, to_summary
from hexisolve.errors import InstanceError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 24}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
QWEN3_MOE = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "decoder_sparse_step": 1,
}


def read(config: dict[str, Any]) -> ModelSpec:
    return ModelSpec.from_config(config, "test")


def problems(config: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InstanceError) as caught:
        read(config)
    return {problem.field: str(problem) for problem in caught.value.problems}


def kinds(config: dict[str, Any]) -> list[str]:
    return [layer.attention.kind for layer in read(config).layers]


def mlps(config: dict[str, Any]) -> list[str]:
    return [layer.mlp.kind for layer in read(config).layers]


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {other: value for other, value in config.items() if other != key}


# --- dimensions ---------------------------------------------------------------------------------


def test_llama_like_has_the_weights_of_the_worked_example() -> None:
    model = llama_like("example", 64, 2, 4, 2, 128, 100)
    layer = model.layers[0]
    assert layer.matmul_parameters == 36864
    assert layer.parameters == 36864 + 2 * 64
    assert model.parameters == 2 * layer.parameters + 2 * 100 * 64 + 64


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 32), st.booleans())
def test_llama_like_survives_a_round_trip_through_its_config(
    num_layers: int, num_kv_heads: int, group: int, head_dim: int, tied: bool
) -> None:
    model = llama_like(
        "m", 48, num_layers, num_kv_heads * group, num_kv_heads, 96, 300, head_dim, tied
    )
    again = ModelSpec.from_config(json.loads(json.dumps(dict(model.config))), model.name)
    assert again == model
    assert [layer.attention.kv_head_of(group) for layer in model.layers] == [1] * num_layers


@pytest.mark.parametrize(
    ("name", "head_dim", "q_width"),
    [("qwen3-32b", 128, 64 * 128), ("gemma-2-9b", 256, 16 * 256), ("llama-3.2-3b", 128, 24 * 128)],
)
def test_explicit_head_dim_decides_the_projections(
    repository: Path, name: str, head_dim: int, q_width: int
) -> None:
    model = ModelSpec.from_config(repository / "models" / "llm" / f"{name}.json")
    attention = model.layers[0].attention
    kv_width = attention.num_kv_heads * head_dim
    assert attention.qk_head_dim == attention.v_head_dim == head_dim
    assert attention.matmul_parameters == model.hidden_size * (2 * q_width + 2 * kv_width)


def test_head_dim_is_hidden_size_over_heads_when_llama_gives_none() -> None:
    assert read(LLAMA).layers[0].attention.qk_head_dim == 16


@pytest.mark.parametrize("key", sorted(without(LLAMA, "model_type")))
def test_missing_dimension_of_llama_is_an_error_with_the_keys_searched(key: str) -> None:
    if key == "num_key_value_heads":
        assert read(without(LLAMA, key)).layers[0].attention.num_kv_heads == 4  # Llama's own rule
        return
    found = problems(without(LLAMA, key))
    assert list(found) == [key]
    assert f"missing (searched: {key}" in found[key]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (QWEN3, "head_dim"),  # transformers would take 128
        (QWEN3, "num_key_value_heads"),  # transformers would take 32
        (DEEPSEEK, "kv_lora_rank"),
        (DEEPSEEK, "n_shared_experts"),
        (DEEPSEEK, "first_k_dense_replace"),
        (QWEN3_MOE, "num_experts"),
        (QWEN3_MOE, "num_experts_per_tok"),
        (QWEN3_MOE, "moe_intermediate_size"),
        (QWEN3_MOE, "decoder_sparse_step"),
        (LLAMA | {"model_type": "gemma2", "head_dim": 8, "sliding_window": 9}, "sliding_window"),
    ],
)
def test_a_number_of_some_other_model_is_never_put_in_place(
    config: dict[str, Any], key: str
) -> None:
    read(config)
    assert list(problems(without(config, key))) == [key]


def test_all_spellings_searched_are_named() -> None:
    message = problems(without(LLAMA, "hidden_size"))["hidden_size"]
    assert "searched: hidden_size, n_embd, d_model, n_embed" in message


def test_contradicting_spellings_are_refused_and_equal_ones_accepted() -> None:
    assert read(LLAMA | {"n_embd": 64}) == read(LLAMA)
    assert "hidden_size = 64, n_embd = 65" in problems(LLAMA | {"n_embd": 65})["hidden_size"]


def test_mla_keeps_its_widths_and_its_latent() -> None:
    attention = read(DEEPSEEK).layers[0].attention
    assert (attention.qk_head_dim, attention.v_head_dim) == (12, 6)
    assert (attention.kv_latent_dim, attention.q_latent_dim) == (16, 20)
    queries = 64 * 20 + 20 * 4 * 12
    keys_values = 64 * (12 + 4) + 12 * 4 * (8 + 6)
    assert attention.matmul_parameters == queries + keys_values + 4 * 6 * 64
    assert attention.parameters == attention.matmul_parameters + 20 + 12


def test_absent_query_rank_follows_transformers_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attention = read(without(DEEPSEEK, "q_lora_rank")).layers[0].attention
    assert attention.q_latent_dim == 1536
    assert "q_lora_rank is absent: 1536 assumed" in caplog.text
    assert read(DEEPSEEK | {"q_lora_rank": None}).layers[0].attention.q_latent_dim is None


# --- nested configs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["text_config", "llm_config", "language_config", "thinker_config.text_config"]
)
def test_nested_language_model_is_read_and_the_vision_tower_is_not(path: str) -> None:
    document: Any = LLAMA
    for key in reversed(path.split(".")):
        document = {key: document}
    tower = {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16}
    document |= {"model_type": "some_vision_model", "hidden_size": 999, "vision_config": tower}
    assert read(document) == read(LLAMA)
    assert read(document).config == document


def test_missing_dimension_of_a_nested_config_is_not_taken_from_around_it() -> None:
    document = {
        "model_type": "gemma3",
        "vocab_size": 77,
        "text_config": without(LLAMA | {"model_type": "gemma3_text", "head_dim": 8}, "vocab_size")
        | {"sliding_window": 16},
        "vision_config": {"vocab_size": 99},
    }
    message = problems(document)["text_config.vocab_size"]
    assert "searched: text_config.vocab_size" in message
    assert "add text_config.vocab_size" in message


def test_nested_config_without_a_type_has_that_of_the_model_around_it() -> None:
    text = without(LLAMA, "model_type") | {"head_dim": 24}
    model = read({"model_type": "qwen3_vl", "text_config": text})
    assert model.layers == read(QWEN3).layers


# --- layers one by one --------------------------------------------------------------------------


def test_layer_types_give_each_layer_its_kind() -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = QWEN3 | {"layer_types": types, "sliding_window": 32, "use_sliding_window": True}
    assert kinds(config) == ["full", "sliding", "sliding", "full"]
    windows = [layer.attention.window_tokens for layer in read(config).layers]
    assert windows == [None, 32, 32, None]
    assert (
        "has 4 entries for 5 layers" in problems(config | {"num_hidden_layers": 5})["layer_types"]
    )


def test_sliding_layers_need_a_window() -> None:
    config = QWEN3 | {"layer_types": ["sliding_attention"] * 4}
    assert list(problems(config)) == ["sliding_window"]


@pytest.mark.parametrize(
    ("family", "extra", "expected"),
    [
        ("gemma2", {}, "sfsf"),
        ("gemma3_text", {"sliding_window_pattern": 3}, "ssfs"),
        ("cohere2", {}, "sssf"),
        ("mistral", {}, "ssss"),
        ("mistral", {"sliding_window": None}, "ffff"),
        ("phi3", {}, "ssss"),
        ("qwen2", {"use_sliding_window": False}, "ffff"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}, "fffs"),
        ("llama", {}, "ffff"),  # Llama has no window, whatever the key says
    ],
)
def test_windows_follow_the_rule_of_the_family(
    family: str, extra: dict[str, Any], expected: str
) -> None:
    config = LLAMA | {"model_type": family, "head_dim": 16, "sliding_window": 32} | extra
    assert "".join(kind[0] for kind in kinds(config)) == expected


def test_llama4_attends_in_chunks_but_for_every_fourth_layer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = LLAMA | {
        "model_type": "llama4_text",
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 200,
        "attention_chunk_size": 32,
    }
    assert kinds(config) == ["chunked", "chunked", "chunked", "full"]
    assert "attention_chunk_size limits attention to chunks" in caplog.text
    assert mlps(config) == ["dense", "moe", "dense", "moe"]
    assert [layer.mlp.intermediate_size for layer in read(config).layers] == [200, 128, 200, 128]
    assert mlps(config | {"moe_layers": [0]}) == ["moe", "dense", "dense", "dense"]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, "dmmm"),
        ({"first_k_dense_replace": 3}, "dddm"),
        ({"moe_layer_freq": 2}, "ddmd"),
        ({"moe_layer_freq": [0, 1, 0, 1]}, "dmdm"),
    ],
)
def test_deepseek_layers_are_dense_then_experts(extra: dict[str, Any], expected: str) -> None:
    assert "".join(kind[0] for kind in mlps(DEEPSEEK | extra)) == expected


def test_qwen_moe_skips_layers_by_step_and_by_list() -> None:
    assert mlps(QWEN3_MOE | {"decoder_sparse_step": 2}) == ["dense", "moe", "dense", "moe"]
    assert mlps(QWEN3_MOE | {"mlp_only_layers": [1, 2]}) == ["moe", "dense", "dense", "moe"]
    assert (
        "are not layers of this model"
        in problems(QWEN3_MOE | {"mlp_only_layers": [7]})["mlp_only_layers"]
    )


def test_experts_count_whole_for_memory_and_active_for_work() -> None:
    mlp = read(DEEPSEEK).layers[1].mlp
    expert, router = 3 * 64 * 40, 64 * 6
    assert (mlp.num_experts, mlp.num_active_experts, mlp.num_shared_experts) == (6, 3, 2)
    assert mlp.parameters == (6 + 2) * expert + router
    assert mlp.active_parameters == mlp.matmul_parameters == (3 + 2) * expert + router


BLOCK = {
    "attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
    "ffn": {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False},
}


def test_block_configs_give_each_layer_its_own_shape() -> None:
    blocks = [
        BLOCK,
        BLOCK | {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 8.0}},
        BLOCK | {"attention": {"no_op": True}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
    ]
    config = LLAMA | {"model_type": "nemotron-nas", "block_configs": blocks}
    del config["num_key_value_heads"], config["intermediate_size"]
    layers = read(config).layers
    assert [layer.attention.kind for layer in layers] == ["full", "full", "none", "none"]
    assert [layer.attention.num_kv_heads for layer in layers[:2]] == [2, 1]
    assert [layer.mlp.intermediate_size for layer in layers] == [256, 512, 256, 0]
    assert [layer.norm_parameters for layer in layers] == [128, 128, 64, 64]
    assert [layer.attention.matmul_parameters for layer in layers[2:]] == [0, 64 * 64]
    assert layers[3].mlp.parameters == 0


def test_problems_of_block_configs_name_the_block() -> None:
    bad = {"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": -1}}
    config = LLAMA | {"model_type": "nemotron-nas", "block_configs": [BLOCK, bad, {}, BLOCK]}
    assert set(problems(config)) == {
        "block_configs[2].attention",
        "block_configs[2].ffn",
        "block_configs[1].attention.n_heads_in_group",
        "block_configs[1].ffn.ffn_mult",
    }


# --- tied embeddings, quantised files -----------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "extra", "tied"),
    [
        ("llama", {}, False),
        ("qwen2", {}, False),
        ("gemma", {"head_dim": 16}, True),
        ("cohere", {}, True),
        ("llama", {"tie_word_embeddings": True}, True),
        ("gemma", {"head_dim": 16, "tie_word_embeddings": False}, False),
        ("falcon", {}, True),
        ("gpt_neox", {}, False),
        ("chatglm", {"padded_vocab_size": 256, "ffn_hidden_size": 128}, False),
    ],
)
def test_absent_tie_is_the_default_of_the_family(
    family: str, extra: dict[str, Any], tied: bool
) -> None:
    model = read(without(LLAMA, "model_type") | {"model_type": family} | extra)
    assert model.tied_embeddings is tied
    assert model.head_parameters == (0 if tied else 256 * 64)


def test_tie_of_the_outer_config_counts_when_the_text_config_has_none() -> None:
    nested = {"model_type": "gemma3", "text_config": LLAMA, "tie_word_embeddings": True}
    assert read(nested).tied_embeddings
    own = {"text_config": LLAMA | {"tie_word_embeddings": False}, "tie_word_embeddings": True}
    assert not read(own).tied_embeddings


@pytest.mark.parametrize("method", ["mxfp4", "fp8"])
def test_quantised_files_keep_the_estimate_and_warn(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": method}}
    with caplog.at_level(logging.WARNING):
        model = read(config)
    assert model == read(LLAMA)
    assert f"quantization_config says {method}: ignored" in caplog.text


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "mamba2"}, "'mamba2'"),
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
            "linear_attention",
        ),
        (
            {"model_type": "jamba", "layers_block_type": ["mamba", "attention"]},
            "has mamba layers",
        ),
    ],
)
def test_recurrent_models_are_refused_by_name(config: dict[str, Any], named: str) -> None:
    message = problems(LLAMA | config)["model_type"]
    assert named in message
    assert "cannot be cut along the sequence" in message


def test_layers_that_cannot_be_cut_are_refused_by_index_and_name() -> None:
    types = ["linear_attention", "linear_attention", "full_attention", "mamba"]
    with pytest.raises(InstanceError) as caught:
        read(LLAMA | {"layer_types": types})
    first, second = (str(problem) for problem in caught.value.problems)
    assert "layers 0, 1 cannot be cut" in first
    assert "linear_attention" in first
    assert "layers 3 cannot be cut" in second
    assert "mamba" in second


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"model_type": "frobnicate"}, "model_type", "does not know"),
        ({"model_type": 7}, "model_type", "must be a text"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder", "not a causal decoder"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
        ({"attention_bias": 1}, "attention_bias", "true or false"),
        ({"num_attention_heads": 6, "head_dim": 8, "num_key_value_heads": 4},
         "num_key_value_heads", "does not divide the 6 query heads"),
        ({"num_attention_heads": 6}, "hidden_size", "not divisible by the 6 heads"),
        ({"layer_types": "full_attention"}, "layer_types", "must be a list"),
        ({"hidden_size": "64"}, "hidden_size", "must be a whole number"),
        ({"hidden_size": 64.0}, "hidden_size", "must be a whole number"),
        ({"hidden_size": True}, "hidden_size", "must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "between 1 and 10000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "between 1 and 10000"),
        ({"vocab_size": -5}, "vocab_size", "between 1"),
        ({"intermediate_size": [128]}, "intermediate_size", "must be a whole number"),
    ],
)  # fmt: skip
def test_bad_values_are_named_with_what_is_allowed(
    config: dict[str, Any], field: str, words: str
) -> None:
    assert words in problems(LLAMA | config)[field]


def test_model_type_can_come_from_the_architecture() -> None:
    config = without(LLAMA, "model_type") | {"architectures": ["MistralForCausalLM"]}
    model = read(config | {"sliding_window": 8})
    assert (model.family, model.layers[0].attention.window_tokens) == ("mistral", 8)
    message = problems(without(LLAMA, "model_type"))["model_type"]
    assert "searched: model_type, architectures" in message


def test_all_problems_of_a_file_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad ä.json"
    wrong = {"hidden_size": -1, "vocab_size": "x", "intermediate_size": None}
    file.write_text(json.dumps(LLAMA | wrong))
    with pytest.raises(InstanceError) as caught:
        ModelSpec.from_config(file)
    found = caught.value.problems
    assert [problem.field for problem in found] == [
        "hidden_size",
        "vocab_size",
        "intermediate_size",
    ]
    assert {problem.file for problem in found} == {str(file)}
    assert [problem.value for problem in found] == ["-1", "'x'", ""]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"hidden_size": 64', "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[1, 2]", "must be a JSON object"),
        ('"llama"', "must be a JSON object"),
        ('{"text_config": [1]}', "must be a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not a JSON text file"),
    ],
)
def test_broken_files_are_one_clear_message(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InstanceError, match=words) as caught:
        ModelSpec.from_config(file)
    (problem,) = caught.value.problems
    assert problem.file == str(file)
    assert problem.remedy


def test_a_file_that_is_not_there_or_not_text_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="cannot be read: No such file"):
        ModelSpec.from_config(tmp_path / "absent.json")
    (tmp_path / "weights.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InstanceError, match="not a JSON text file"):
        ModelSpec.from_config(tmp_path / "weights.json")


def test_checkpoint_folder_is_read_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert ModelSpec.from_config(folder).name == "my-model"
    assert ModelSpec.from_config(folder / "config.json").name == "my-model"
    assert ModelSpec.from_config(folder, "other").name == "other"


def test_entries_of_layer_types_that_are_no_words_are_refused() -> None:
    with pytest.raises(InstanceError) as caught:
        read(LLAMA | {"layer_types": [["full_attention"], 1, None, {}]})
    assert [problem.field for problem in caught.value.problems] == ["layer_types"] * 4


JUNK = (None, True, 0, -3, 1.5, "12", "", [], ["x"], [-1], {}, {"a": 1}, 10**30, float("nan"))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_wrong_value_is_read_or_refused_never_a_traceback(data: st.DataObject) -> None:
    folder = Path(__file__).resolve().parents[2] / "models" / "llm"
    file = data.draw(st.sampled_from(sorted(folder.glob("*.json"))))
    config = json.loads(file.read_text())
    extra = ["layer_types", "moe_layer_freq", "block_configs", "text_config", "no_rope_layers"]
    keys = st.sampled_from(sorted(config) + extra)
    for key in data.draw(st.lists(keys, min_size=1, max_size=3, unique=True)):
        config[key] = data.draw(st.sampled_from(JUNK))
    with contextlib.suppress(InstanceError):
        model = read(config)
        assert model.parameters > 0
        assert all(layer.attention.num_q_heads > 0 for layer in model.layers)


# --- the bundled models, and the summary --------------------------------------------------------


def test_tiny_llama_fits_the_demo(repository: Path) -> None:
    model = ModelSpec.from_config(repository / "models" / "llm" / "tiny-llama-3m.json")
    attention = model.layers[0].attention
    assert 2_000_000 <= model.parameters <= 4_000_000
    assert (model.vocab_size, model.num_layers, model.tied_embeddings) == (256, 6, False)
    assert (attention.num_q_heads, attention.num_kv_heads) == (8, 4)


def test_example_of_the_documentation_runs(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    result = doctest.testfile(str(repository / "docs" / "models.md"), module_relative=False)
    assert result.attempted >= 6
    assert result.failed == 0


def test_model_stays_as_it_was_read(tmp_path: Path) -> None:
    config = {"text_config": dict(LLAMA)}
    model = read(config)
    config["text_config"]["hidden_size"] = 1
    assert ModelSpec.from_config(model.config).hidden_size == 64


def test_summary_lists_every_layer_and_is_json() -> None:
    summary = json.loads(json.dumps(to_summary(read(DEEPSEEK))))
    expected = {
        "name": "test",
        "num_layers": 4,
        "hidden_size": 64,
        "num_q_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 12,
        "vocab_size": 256,
        "tied_embeddings": False,
    }
    assert expected.items() <= summary.items()
    assert summary["parameters"] == read(DEEPSEEK).parameters
    assert summary["active_parameters"] == read(DEEPSEEK).active_parameters
    assert [layer["mlp"] for layer in summary["layers"]] == ["dense", "moe", "moe", "moe"]
    assert sum(layer["parameters"] for layer in summary["layers"]) < summary["parameters"]
