"""The heart: relaxed prices never exceed `evaluate`, for legal plans made without the solver."""

from __future__ import annotations

from random import Random

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.data.workload import Workload
from hexisolve.formulation.pipeline_table import Choice
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.relaxed_table import make_table
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer, StagePrices
from hexisolve.formulation.units import unit_classes
from hexisolve.plan.evaluate import Evaluation, evaluate
from hexisolve.plan.plan import Plan
from tests.oracle.instances import random_instance
from tests.oracle.random_plans import random_legal_plans

ROUNDING = 1 + 1e-9


def assert_below(instance: Instance, plan: Plan) -> float:
    """Every term of the relaxed problem at this plan; returns relaxed / real step time."""
    found: Evaluation = evaluate(instance, plan)
    stages = plan.layout.replicas[0].stages
    pricer = StagePricer(instance, len(stages))
    num_layers = instance.model.num_layers
    index = instance.cluster.device_index
    prices, entries, configuration = [], [], []
    for idx, stage in enumerate(stages):
        numbers = sorted(index[rank.device] for rank in stage.ranks)
        shape = column_shape(pricer.rates, numbers)
        mode = StateMode(stage.zero, stage.zero3_gradients if stage.zero == 3 else "step")
        price = pricer.price(shape, mode)
        j, after = len(stages) - 1 - idx, num_layers - stage.layers[1]
        relaxed_layers = pricer.bounds.layer_s(shape)
        _assert_layers_below(instance, pricer, found, idx, relaxed_layers)
        prices.append(price)
        entries.append(pricer.entry_s(numbers))
        configuration.append(Choice(idx, stage.layers[0], stage.num_layers))
        place = after if len(pricer.kinds) > 1 else int(idx == 0)
        own = found.stages[idx]
        seconds = [f + b for f, b in zip(own.forward_s, own.backward_s, strict=True)]
        assert price.time_s[j, place, stage.num_layers] <= min(seconds) * ROUNDING
        assert price.total_s[j, place, stage.num_layers] <= sum(seconds) * ROUNDING
        end_s = found.synchronisation_s + found.optimizer_s
        assert price.finish_s[j, place, stage.num_layers] <= end_s * ROUNDING
        if idx:
            border = found.boundaries[idx - 1]
            crossing = min(f + b for f, b in zip(border.forward_s, border.backward_s, strict=True))
            assert entries[-1] <= crossing * ROUNDING
    value_s = _value_s(pricer, prices, entries, tuple(configuration))
    assert value_s <= found.step_time_s * ROUNDING
    return value_s / found.step_time_s


def _assert_layers_below(instance, pricer, found, stage_idx, relaxed_layers) -> None:
    """F + B of every layer under its policy."""
    policies = ("none", "layer", "full")
    stage = found.stages[stage_idx]
    plan_stage = found.plan.layout.replicas[0].stages[stage_idx]
    recompute = found.plan.batch.replicas[0].pipelines[0].recompute[stage_idx][0]
    order = [p for p in ("full", "layer", "none") for _ in range(recompute.get(p, 0))]
    chunks = found.plan.batch.replicas[0].pipelines[0].chunks
    for chunk, price in zip(chunks, stage.prices, strict=True):
        lengths = [
            k for k, tokens in enumerate(pricer.lengths.tokens) if tokens <= chunk.num_tokens
        ]
        length = lengths[0]
        for layer_idx, policy, layer in zip(
            range(*plan_stage.layers), order, price.layers, strict=True
        ):
            kind = pricer.kinds.index(instance.model.layers[layer_idx])
            real = layer.forward.total_s + layer.backward.total_s
            assert relaxed_layers[length, kind, policies.index(policy)] <= real * ROUNDING


def _value_s(pricer, prices: list[StagePrices], entries, configuration) -> float:
    """F1 and F2 with one column per stage."""
    units = [[int(k == idx) for k in range(len(prices))] for idx in range(len(prices))]
    table = make_table(pricer, units, entries, prices, (1,) * len(prices))
    return table.value_s(configuration)


def units_of(instance: Instance) -> list[tuple[str, ...]]:
    return [unit for entry in unit_classes(instance.cluster) for unit in entry.units]


@pytest.mark.parametrize("seed", range(40))
def test_tiny_instances(seed: int) -> None:
    instance = random_instance(Random(seed), 3_000)
    for plan in random_legal_plans(instance, Random(seed), number=4, moves=12):
        assert_below(instance, plan)


LARGE = [
    ("mixed-16", "mha", 16_384, 3), ("mixed-16-fast", "gqa", 65_536, 4),
    ("mixed-32", "mha", 65_536, 4), ("mixed-32-fast", "mha", 16_384, 2),
    ("mixed-32", "gqa", 262_144, 2), ("consumer-2x4", "gqa", 8_192, 4),
    ("local-mixed-4", "small", 2_048, 3), ("a800-4x8", "gqa", 32_768, 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "context", "batch"), LARGE)
def test_large_clusters(name: str, kind: str, context: int, batch: int) -> None:
    kv_heads = {"mha": 16, "gqa": 4, "small": 8}[kind]
    model = llama_like("mid", 1024, 12, 16, kv_heads, 2816, 32_000)
    if kind == "small":
        model = llama_like("small", 256, 6, 8, kv_heads, 704, 1_000)
    workload = Workload(context_tokens=context, batch_sequences=batch)
    instance = Instance(Cluster.read(name), model, workload)
    plans = list(
        random_legal_plans(instance, Random(7), number=4, moves=25, units=units_of(instance))
    )
    assert plans
    for plan in plans:
        assert_below(instance, plan)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-2-9b", "deepseek-v2-lite", "mixtral-8x7b"])
def test_unlike_layers(name: str, repository) -> None:
    model = ModelSpec.from_config(repository / "models" / "llm" / f"{name}.json", name)
    workload = Workload(lengths=(16_384, 8_192, 5_000))
    instance = Instance(Cluster.read("mixed-16"), model, workload)
    plans = list(
        random_legal_plans(instance, Random(3), number=2, moves=10, units=units_of(instance))
    )
    assert plans
    for plan in plans:
        assert_below(instance, plan)
