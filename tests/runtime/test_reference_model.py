"""The reference, the truth of all exactness tests, against `transformers`; and who is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexisolve.data.model_spec import ModelSpec
from hexisolve.errors import UnsupportedPlanError
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.corpus import random_batch
from hexisolve.runtime.reference import reference_gradients
from hexisolve.runtime.rope import inverse_frequencies
from hexisolve.runtime.weights import initial_weights

BASE: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 64,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama, biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3 rope": ("LlamaForCausalLM", {"rope_scaling": LLAMA3_ROPE}),
    "llama, linear rope": (
        "LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "mistral, window 5": ("MistralForCausalLM", {"sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
}  # fmt: skip


def family_config(name: str) -> tuple[str, dict[str, Any]]:
    class_name, options = FAMILIES[name]
    model_type = name.split(",")[0]
    return class_name, {**BASE, **options, "model_type": model_type}


@pytest.mark.parametrize("name", FAMILIES)
def test_reference_equals_transformers(name: str) -> None:
    """Loss and every gradient with the same weights.

    Their norm computes in float32 whatever the weights are, hence the tolerance.
    """
    transformers = pytest.importorskip("transformers")
    class_name, config = family_config(name)
    architecture = Architecture.of(ModelSpec.from_config(config, name))
    weights = initial_weights(architecture, architecture.shapes(range(2)), 0, "probe")
    model_class = getattr(transformers, class_name)
    theirs = model_class(model_class.config_class(**config, attn_implementation="eager")).double()
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    theirs.tie_weights()
    batch = random_batch([19, 11], 64, seed=1)
    loss, gradients = reference_gradients(architecture, weights, batch.tokens, batch.targets)
    their_sum = torch.zeros((), dtype=torch.float64)
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        logits = theirs(input_ids=tokens[None]).logits[0].double()
        their_sum = their_sum + torch.nn.functional.cross_entropy(
            logits, targets, ignore_index=-100, reduction="sum"
        )
    their_loss = their_sum / batch.num_supervised
    their_loss.backward()
    assert loss == pytest.approx(their_loss.item(), rel=1e-6)
    named = dict(theirs.named_parameters())
    assert set(gradients) == set(named)
    for parameter, gradient in gradients.items():
        their_gradient = named[parameter].grad
        assert their_gradient is not None
        scale = float(their_gradient.abs().max())
        assert scale > 1e-4, f"{parameter} does not matter in this test"
        assert (gradient - their_gradient).abs().max() < 3e-6 * scale + 1e-8, parameter


@pytest.mark.parametrize("scaling", [LLAMA3_ROPE, {"rope_type": "linear", "factor": 4.0}])
def test_rope_frequencies_equal_transformers(scaling: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    config = {**BASE, "model_type": "llama", "head_dim": 64, "rope_scaling": scaling}
    architecture = Architecture.of(ModelSpec.from_config(config, "rope"))
    theirs, _ = utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        transformers.LlamaConfig(**config), torch.device("cpu")
    )
    ours = inverse_frequencies(architecture.rope, 64)
    assert torch.allclose(ours.float(), theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "llama", "hidden_act": "gelu"}, "gelu"),
        ({"model_type": "llama", "head_dim": 5}, "even head width"),
        (
            {"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "yarn",
        ),
        (
            {
                "model_type": "mixtral",
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
            "mixtral",
        ),
    ],
)
def test_models_without_code_are_refused_by_name(options: dict[str, Any], reason: str) -> None:
    model = ModelSpec.from_config({**BASE, **options}, "other")
    with pytest.raises(UnsupportedPlanError, match=reason):
        Architecture.of(model)
