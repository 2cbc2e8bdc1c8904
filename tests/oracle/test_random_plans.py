"""Random plans made without a solver are legal, differ, get better, and stay in the plan space."""

from __future__ import annotations

from random import Random

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Plan
from tests.oracle.brute_force import brute_force
from tests.oracle.instances import random_instance
from tests.oracle.random_plans import random_legal_plans


def large(name: str) -> Instance:
    model = llama_like("mid", 1024, 12, 16, 4, 2816, 32000)
    workload = Workload(context_tokens=65_536, batch_sequences=4)
    return Instance(Cluster.read(name), model, workload)


@pytest.mark.parametrize("name", ["mixed-16", "mixed-32"])
def test_plans_of_large_clusters_are_legal_and_differ(name: str) -> None:
    instance = large(name)
    plans = list(random_legal_plans(instance, Random(1), number=6, moves=10))
    assert len(plans) >= 6
    assert all(not check_plan(instance, plan) for plan in plans)
    assert len({plan.layout for plan in plans}) == len(plans)
    assert len({len(plan.layout.replicas[0].stages) for plan in plans}) > 1


def test_improvements_are_faster_than_their_draws() -> None:
    instance = large("mixed-16")
    draw, improved = random_legal_plans(instance, Random(3), number=1, moves=40)
    assert evaluate(instance, improved).step_time_s < evaluate(instance, draw).step_time_s


def test_token_shares_are_whole_blocks_of_the_context() -> None:
    instance = large("mixed-16")
    for plan in random_legal_plans(instance, Random(5), number=4, moves=10):
        for _, _, stage in plan.layout.stages():
            assert stage.tokens == 65_536
            assert all(rank.tokens % 128 == 0 for rank in stage.ranks)


def test_units_stay_together() -> None:
    instance = large("mixed-32")
    units = [
        tuple(device.id for device in instance.cluster.devices_of(host))
        for host in instance.cluster.hosts()
    ]
    homes = {device: unit for unit, devices in enumerate(units) for device in devices}
    for plan in random_legal_plans(
        instance, Random(2), number=5, moves=20, units=units, whole_groups=True
    ):
        for used, number in _unit_sizes(plan, homes):
            assert number == len(units[used])


def _unit_sizes(plan: Plan, homes: dict[str, int]) -> list[tuple[int, int]]:
    """(unit, its devices in one head group) for every unit of every group."""
    return [
        (unit, sum(homes[rank.device] == unit for rank in group.ranks))
        for _, _, stage in plan.layout.stages()
        for group in stage.ring
        for unit in {homes[rank.device] for rank in group.ranks}
    ]


@pytest.mark.parametrize("seed", range(12))
def test_no_random_plan_beats_brute_force(seed: int) -> None:
    instance = random_instance(Random(seed), 1_000)
    best_s, best, _ = brute_force(instance)
    plans = list(random_legal_plans(instance, Random(seed), number=5, moves=15))
    assert bool(plans) <= (best is not None)
    for plan in plans:
        assert evaluate(instance, plan).step_time_s >= best_s * (1 - 1e-9)
