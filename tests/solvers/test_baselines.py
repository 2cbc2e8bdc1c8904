"""Baselines: legal plans, priced by `evaluate`, even where they say even."""

from __future__ import annotations

import pytest

from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.workload import Workload
from hexisolve.errors import InstanceError
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Plan
from hexisolve.solvers.baselines import NAMES, Baseline, baselines

EVEN = ("ring", "ulysses", "usp", "even")


def instance_of(cluster: str, model: str, context: int, batch: int = 4) -> Instance:
    workload = Workload(context_tokens=context, batch_sequences=batch)
    return Instance(resolve_cluster(cluster), resolve_model(model), workload)


@pytest.fixture(scope="module")
def mixed_16() -> Instance:
    return instance_of("mixed-16", "llama-2-13b", 16_384)


@pytest.fixture(scope="module")
def on_mixed_16(mixed_16: Instance) -> dict[str, Baseline]:
    return baselines(mixed_16)


def plan_of(found: Baseline) -> Plan:
    assert found.plan is not None, found.reason
    return found.plan


def test_every_baseline_has_an_answer_in_the_order_of_the_names(
    on_mixed_16: dict[str, Baseline],
) -> None:
    assert tuple(on_mixed_16) == NAMES
    assert all(found.step_time_s is not None for found in on_mixed_16.values())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "megatron"])
def test_a_baseline_is_a_legal_plan_priced_by_evaluate(
    mixed_16: Instance, on_mixed_16: dict[str, Baseline], name: str
) -> None:
    plan = plan_of(on_mixed_16[name])
    assert check_plan(mixed_16, plan) == []
    assert on_mixed_16[name].step_time_s == evaluate(mixed_16, plan).step_time_s


def test_baselines_of_32_devices_are_legal() -> None:
    instance = instance_of("mixed-32", "llama-2-13b", 32_768, batch=2)
    found = baselines(instance, names=["usp", "hexiseq"])
    for baseline in found.values():
        assert check_plan(instance, plan_of(baseline)) == []
    assert (found["hexiseq"].step_time_s or 0) < (found["usp"].step_time_s or 0)


@pytest.mark.parametrize("name", EVEN)
def test_even_means_even(on_mixed_16: dict[str, Baseline], name: str) -> None:
    plan = plan_of(on_mixed_16[name])
    stages = [stage for _, _, stage in plan.layout.stages()]
    assert len({len(stage.ranks) for stage in stages}) == 1
    assert len({tuple(len(group.ranks) for group in stage.ring) for stage in stages}) == 1
    for stage in stages:
        tokens = [rank.tokens for rank in stage.ranks]
        assert max(tokens) - min(tokens) <= 1
        for group in stage.ring:
            heads = [rank.num_q_heads for rank in group.ranks]
            assert max(heads) - min(heads) <= 1
    layers = [stage.num_layers for stage in stages]
    assert max(layers) - min(layers) <= 1
    assert {rank.device for rank in plan.layout.ranks} == {
        f"{host}-0.{slot}" for host in ("h100", "a100") for slot in range(8)
    }


def test_ring_has_single_ranks_and_ulysses_single_groups(
    on_mixed_16: dict[str, Baseline],
) -> None:
    for _, _, stage in plan_of(on_mixed_16["ring"]).layout.stages():
        assert all(len(group.ranks) == 1 for group in stage.ring)
    for _, _, stage in plan_of(on_mixed_16["ulysses"]).layout.stages():
        assert len(stage.ring) == 1


def test_larger_families_are_no_slower(on_mixed_16: dict[str, Baseline]) -> None:
    seconds = {name: found.step_time_s or 0.0 for name, found in on_mixed_16.items()}
    assert seconds["usp"] <= min(seconds["ring"], seconds["ulysses"])
    assert seconds["even"] <= seconds["usp"]
    assert seconds["subset"] <= min(seconds["even"], seconds["proportional"], seconds["hexiseq"])
    assert seconds["subset"] <= seconds["subset_one_replica"]


def test_one_replica_says_how_many_replicas_there_are(on_mixed_16: dict[str, Baseline]) -> None:
    for found in on_mixed_16.values():
        if found.plan is not None:
            assert found.one_replica == (len(found.plan.layout.replicas) == 1)
    assert on_mixed_16["subset_one_replica"].one_replica


def test_a_baseline_that_does_not_fit_is_null_with_a_reason() -> None:
    instance = instance_of("mixed-16", "llama-3.1-70b", 262_144)
    for name, found in baselines(instance).items():
        assert (found.plan, found.step_time_s) == (None, None), name
        assert "fit in memory" in found.reason
    assert "GiB" in baselines(instance, names=["ring"])["ring"].reason


def test_unknown_names_are_refused_with_the_known_ones(mixed_16: Instance) -> None:
    with pytest.raises(InstanceError, match=r"flexsp.*hexiseq"):
        baselines(mixed_16, names=["ring", "flexsp"])


def test_variable_lengths_are_priced_as_whole_sequences() -> None:
    lengths = (16_384, 4_000, 4_000, 999)
    instance = Instance(
        resolve_cluster("mixed-16"), resolve_model("llama-2-13b"), Workload(lengths=lengths)
    )
    found = baselines(instance, names=["usp", "proportional"])
    for baseline in found.values():
        plan = plan_of(baseline)
        assert check_plan(instance, plan) == []
        pipelines = [pipe for replica in plan.batch.replicas for pipe in replica.pipelines]
        assert [chunk.num_tokens for pipe in pipelines for chunk in pipe.chunks] == list(lengths)


def test_two_fabrics_never_share_a_plan() -> None:
    instance = instance_of("two-fabrics", "llama-2-7b", 8_192)
    cluster = instance.cluster
    for found in baselines(instance, names=["usp", "subset"]).values():
        devices = [rank.device for rank in plan_of(found).layout.ranks]
        assert all(cluster.connected(devices[0], other) for other in devices)
