"""The enumerator itself: closed-form counts, no plan twice, every plan legal, the best the best."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexisolve.data.instance import Instance
from hexisolve.data.workload import Workload
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Plan
from tests.oracle.brute_force import (
    brute_force,
    compositions,
    count_plans,
    enumerate_plans,
    head_ranges,
    skeletons,
    stage_options,
)
from tests.oracle.instances import all_sizes, random_instance, tiny_instances
from tests.plan.plan_examples import (
    cluster_of,
    instance_of,
    model_of,
    plan_of,
    stage_of,
    whole_chunks,
)

FEW = settings(
    max_examples=15, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def small(
    num_devices: int,
    *,
    num_layers: int = 1,
    num_heads: int = 1,
    num_blocks: int = 1,
    zero: tuple[int, ...] = (0,),
) -> Instance:
    model = model_of(num_layers, num_attention_heads=num_heads, num_key_value_heads=1)
    speeds = [1.0 + 0.5 * idx for idx in range(num_devices)]
    sizes = {"context_tokens": 100 * num_blocks, "batch_sequences": 2, "block_tokens": 100}
    return instance_of(cluster_of(speeds), model, zero=zero, **sizes)  # type: ignore[arg-type]


def key(plan: Plan) -> tuple[object, ...]:
    """What tells two plans apart."""
    (pipeline,) = plan.batch.replicas[0].pipelines
    recompute = tuple(tuple(sorted(row[0].items())) for row in pipeline.recompute)
    return plan.layout, recompute


@pytest.mark.parametrize(
    ("instance", "number"),
    [
        (small(1), 3),  # none, layer, full
        (small(1, num_layers=2), 6),  # two layers of three policies, in any numbers
        (small(1, zero=(0, 1, 3)), 12),  # ZeRO-3 reduces per step or per chunk
        (small(1, num_heads=4, num_blocks=4), 3),  # one device takes everything
        # 2 alone; 2 orders x (ring of two + head group: 1 head on either) x 2 places of the block
        (small(2), 3 * (2 + 2 * (1 + 2) * 2)),
        # 2 alone; together 3 splits of 2 blocks, ring or 2 heads as 2-0, 0-2, 1-1 either way round
        (small(2, num_heads=2, num_blocks=2), 3 * (2 + 2 * 3 * (1 + 4))),
        # one stage: 6 policies x (2 + 2 x 3 x 2); two stages of one layer: 2 orders x 3 x 3
        (small(2, num_layers=2), 6 * (2 + 2 * 3 * 2) + 2 * 9),
    ],
)  # fmt: skip
def test_number_of_plans_has_the_closed_form(instance: Instance, number: int) -> None:
    assert count_plans(instance) == number
    assert len(list(enumerate_plans(instance))) == number


def test_one_policy_a_stage_leaves_fewer_plans() -> None:
    instance = small(1, num_layers=3)
    assert count_plans(instance) == 10
    assert count_plans(instance, mixed=False) == 3
    assert len(list(enumerate_plans(instance, mixed=False))) == 3


def test_compositions_are_all_sums() -> None:
    assert list(compositions(2, 2)) == [(0, 2), (1, 1), (2, 0)]
    assert len(list(compositions(4, 4))) == 35


def test_head_ranges_lie_in_any_order_and_may_be_empty() -> None:
    assert set(head_ranges(2, 2)) == {
        ((0, 2), (0, 0)), ((0, 0), (0, 2)), ((0, 1), (1, 2)), ((1, 2), (0, 1)),
    }  # fmt: skip
    # j ranks with heads: C(4, j) x j! orders x C(3, j - 1) cuts
    assert len(head_ranges(4, 4)) == 4 * 1 + 12 * 3 + 24 * 3 + 24 * 1


def test_limit_ends_the_enumeration() -> None:
    assert len(list(enumerate_plans(small(2), limit=5))) == 5


@FEW
@given(tiny_instances(most_plans=500))
def test_plans_are_distinct_and_as_many_as_counted(instance: Instance) -> None:
    plans = {key(plan) for plan in enumerate_plans(instance)}
    assert len(plans) == count_plans(instance)


@FEW
@given(tiny_instances(most_plans=500))
def test_every_plan_breaks_no_rule_but_memory(instance: Instance) -> None:
    for plan in enumerate_plans(instance):
        assert {violation.rule for violation in check_plan(instance, plan)} <= {"memory"}


@FEW
@given(tiny_instances(most_plans=600))
def test_brute_force_equals_pricing_every_plan(instance: Instance) -> None:
    prices = [
        evaluate(instance, plan).step_time_s
        for plan in enumerate_plans(instance)
        if not check_plan(instance, plan)
    ]
    best_s, best, number = brute_force(instance)
    assert number == count_plans(instance)
    assert (best is None) == (not prices)
    assert best_s == pytest.approx(min(prices, default=inf), rel=1e-8)


def test_empty_head_range_may_begin_anywhere() -> None:
    """Why the enumerator writes an empty range in one way only."""
    model = model_of(2)
    instance = instance_of(cluster_of((1.0, 2.0, 3.0)), model, context_tokens=40)
    prices, needs = set(), set()
    for start in range(5):
        first = stage_of(
            (0, 2), [("d0", 10, (0, 4)), ("d1", 20, (start, start))], [("d2", 10, (0, 4))]
        )
        plan = plan_of([first], whole_chunks([40] * 4))
        price = evaluate(instance, plan)
        prices.add(price.step_time_s)
        needs.add(
            tuple(str(violation) for violation in check_plan(_without_memory(instance), plan))
        )
    assert len(prices) == 1
    assert len(needs) == 1
    assert "" not in needs


def _without_memory(instance: Instance) -> Instance:
    """The same with a byte a device, so that `check_plan` says what every rank needs."""
    return replace(instance, cluster=cluster_of((1.0, 2.0, 3.0), memory=[1, 1, 1]))


def test_order_within_a_group_is_not_assumed_symmetric() -> None:
    """Tokens are dealt in rank order: ranks that change places are fed over other links."""
    instance = small(3, num_layers=2, num_heads=2, num_blocks=2)
    orders = {devices for skeleton in skeletons(instance) for devices, _ in skeleton}
    assert {("d0", "d1"), ("d1", "d0")} <= orders


def test_best_is_no_worse_than_plans_made_by_hand() -> None:
    instance = small(3, num_layers=2, num_heads=2, zero=(0, 1))
    chunks = whole_chunks([100] * 2)
    alone = stage_of((0, 2), [("d2", 100, (0, 2))])
    ring = stage_of((0, 2), [("d2", 100, (0, 2))], [("d1", 0, (0, 2))], zero=1)
    group = stage_of((0, 2), [("d0", 0, (0, 1)), ("d2", 100, (1, 2))])
    piped = [stage_of((0, 1), [("d1", 100, (0, 2))]), stage_of((1, 2), [("d2", 100, (0, 2))])]
    wide = [
        stage_of((0, 1), [("d0", 0, (1, 2)), ("d1", 100, (0, 1))]),
        stage_of((1, 2), [("d2", 100, (0, 2))]),
    ]
    known = {key(plan) for plan in enumerate_plans(instance)}
    best_s, _, _ = brute_force(instance)
    for stages in ([alone], [ring], [group], piped, wide):
        for policy in ("none", "layer", "full"):
            plan = plan_of(stages, chunks, policy)
            assert key(plan) in known
            assert best_s <= evaluate(instance, plan).step_time_s * (1 + 1e-9)


def test_longest_sequence_comes_first() -> None:
    instance = replace(small(1), workload=Workload(lengths=(100, 300, 200), block_tokens=100))
    plan = next(enumerate_plans(instance))
    (pipeline,) = plan.batch.replicas[0].pipelines
    assert [chunk.num_tokens for chunk in pipeline.chunks] == [300, 200, 100]


def test_devices_without_a_way_are_in_no_plan_together() -> None:
    instance = replace(small(2), cluster=_two_islands())
    assert all(len(plan.layout.ranks) == 1 for plan in enumerate_plans(instance))
    assert brute_force(instance).plan is not None


def _two_islands():  # type: ignore[no-untyped-def]
    from hexisolve.data.cluster import Cluster

    document = cluster_of((1.0, 2.0)).to_dict()
    document["edges"] = [edge for edge in document["edges"] if "d0" not in edge.values()]
    return Cluster.from_dict(document)


def test_stage_options_have_every_split_of_the_blocks() -> None:
    instance = small(2, num_blocks=3)
    splits = {
        tuple(rank.tokens for rank in option.stage.ranks)
        for option in stage_options(instance, ["d0", "d1"], (0, 1))
    }
    assert splits == {(0, 300), (100, 200), (200, 100), (300, 0)}
    rings = {
        tuple(len(group.ranks) for group in option.stage.ring)
        for option in stage_options(instance, ["d0", "d1"], (0, 1))
    }
    assert rings == {(2,), (1, 1)}


def test_draws_have_all_kinds_of_instances() -> None:
    """Up to 4 devices, with and without a legal plan; the sizes stay under the limit."""
    assert set(all_sizes(100_000)) == {1, 2, 3, 4}
    found = [random_instance(Random(seed), 400) for seed in range(30)]
    assert all(count_plans(instance) <= 400 for instance in found)
    assert {len(instance.cluster.hosts()) for instance in found} >= {1, 2}
    assert {brute_force(instance).plan is None for instance in found} == {True, False}


@pytest.mark.slow
@settings(FEW, max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_brute_force_equals_pricing_every_plan_of_larger_spaces(seed: int) -> None:
    instance = random_instance(Random(seed), 8_000)
    prices = [
        evaluate(instance, plan).step_time_s
        for plan in enumerate_plans(instance)
        if not check_plan(instance, plan)
    ]
    assert brute_force(instance).best_s == pytest.approx(min(prices, default=inf), rel=1e-8)
