"""Heads, tokens and degrees of the baselines' stages, and the 2:1 pair."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.evaluate import evaluate
from hexisolve.solvers.baselines import baselines
from hexisolve.solvers.baselines.families import ring_layouts, ulysses_layouts
from hexisolve.solvers.baselines.hexiseq import bandwidth_clusters
from hexisolve.solvers.baselines.megatron import megatron_degrees, price_megatron
from hexisolve.solvers.baselines.search import best_plan
from hexisolve.solvers.baselines.shapes import degrees, even_counts, token_counts


def pair(slower_by: float) -> Cluster:
    """Two devices on one switch, the second `slower_by` times slower than the first."""
    types = {
        f"gpu{idx}": {
            "dense_peak": f"{100 / speed} TFLOP/s",
            "memory": "80 GiB",
            "memory_bandwidth": "2 TB/s",
            "dense_efficiency": 0.5,
            "attention_forward_efficiency": 0.5,
            "attention_backward_efficiency": 0.5,
            "dtypes": ["bf16"],
        }
        for idx, speed in enumerate((1, slower_by))
    }
    return Cluster.from_dict(
        {
            "schema_version": 1,
            "name": "pair",
            "device_types": types,
            "nodes": [
                {"id": "switch", "kind": "switch"},
                *({"id": f"d{idx}", "kind": "device", "type": f"gpu{idx}"} for idx in (0, 1)),
            ],
            "edges": [
                {"source": a, "target": b, "bandwidth": "400 GB/s", "latency": "1 us"}
                for idx in (0, 1)
                for a, b in ((f"d{idx}", "switch"), ("switch", f"d{idx}"))
            ],
        }
    )


def test_the_even_split_of_a_2_to_1_pair_takes_the_slow_cards_time() -> None:
    """Case 27: even waits for the slow card, proportional follows the ratio and is faster."""
    model = llama_like("small", 1024, 4, 16, 16, 4096, 32_768)
    workload = Workload(context_tokens=16_384, batch_sequences=1)
    mixed = Instance(pair(2.0), model, workload)
    found = baselines(mixed, names=["ring", "proportional"])
    even_s, uneven_s = found["ring"].step_time_s, found["proportional"].step_time_s
    assert even_s is not None
    assert uneven_s is not None
    slow_plan = found["ring"].plan
    assert slow_plan is not None
    assert len(slow_plan.layout.replicas[0].stages) == 1
    both_slow = Instance(pair(1.0).with_speed("gpu0", 0.5).with_speed("gpu1", 0.5), model, workload)
    assert even_s == pytest.approx(evaluate(both_slow, slow_plan).step_time_s, rel=0.01)
    # The even split computes half on the slow card, the proportional one a third.
    assert even_s / uneven_s == pytest.approx(1.5, rel=0.05)


def test_40_heads_over_16_ranks_are_2_or_3_each() -> None:
    """Case 1: floor / ceil, every head once."""
    instance = Instance(
        resolve_cluster("mixed-16"),
        resolve_model("llama-2-13b"),
        Workload(context_tokens=4096, batch_sequences=1),
    )
    layout = next(ulysses_layouts(instance, instance.cluster.devices))
    (stage,) = layout.replicas[0].stages
    (group,) = stage.ring
    counts = [rank.num_q_heads for rank in group.ranks]
    assert sorted(counts) == [2] * 8 + [3] * 8
    stops = [rank.q_heads for rank in group.ranks]
    assert stops[0][0] == 0
    assert stops[-1][1] == 40
    assert all(left[1] == right[0] for left, right in pairwise(stops))


def test_even_counts_cover_the_total_for_all_small_sizes() -> None:
    for total in range(1, 40):
        for parts in range(1, 20):
            counts = even_counts(total, parts)
            assert sum(counts) == total
            assert max(counts) - min(counts) <= 1


def test_degrees_are_all_factorisations() -> None:
    found = list(degrees(12, 12, 12))
    assert len(found) == len(set(found))
    assert len(found) == 40  # 2^2 x 3 in four factors: C(5, 3) x C(4, 3)
    assert all(d.replicas * d.stages * d.ring * d.heads == 12 for d in found)


def test_unequal_token_counts_come_in_blocks_that_sum_to_the_sequence() -> None:
    instance = Instance(
        resolve_cluster("mixed-16"),
        resolve_model("llama-2-13b"),
        Workload(context_tokens=100_001, batch_sequences=1, block_tokens=128),
    )
    counts = token_counts(instance, [3, 2, 1])
    assert sum(counts) == 100_001
    assert counts[1] % 128 == counts[2] % 128 == 0


def test_megatron_degrees_divide_everything() -> None:
    instance = Instance(
        resolve_cluster("mixed-32"),
        resolve_model("llama-3.1-70b"),
        Workload(context_tokens=65_536, batch_sequences=8),
    )
    found = list(megatron_degrees(instance, instance.cluster.devices))
    assert found
    for d in found:
        assert d.tensor * d.context * d.pipeline * d.data == 32
        assert 8 % d.tensor == 0  # KV heads, and the devices of a host
        assert 80 % d.pipeline == 0
        assert 8 % d.data == 0
        assert 65_536 % (2 * d.context * d.tensor) == 0


def test_megatron_without_a_divisor_has_a_reason() -> None:
    instance = Instance(
        resolve_cluster("mixed-16"),
        llama_like("odd", 256, 3, 4, 4, 1024, 1000),
        Workload(context_tokens=1001, batch_sequences=3),
    )
    price = price_megatron(instance, instance.cluster.devices)
    assert price.step_time_s is None
    assert "divisib" in price.reason


def test_megatron_without_parallelism_costs_what_evaluate_says() -> None:
    """One device: no tensor or context parallelism is left, so both prices are the same."""
    cluster = pair(1.0)
    model = llama_like("small", 1024, 2, 16, 16, 4096, 32_768)
    instance = Instance(cluster, model, Workload(context_tokens=8192, batch_sequences=2))
    alone = cluster.devices[:1]
    found = best_plan(instance, ring_layouts(instance, alone))
    assert price_megatron(instance, alone).step_time_s == pytest.approx(found.step_time_s, rel=1e-9)


def test_bandwidth_clusters_are_the_hosts_below_the_network() -> None:
    cluster = resolve_cluster("mixed-16")
    levels = bandwidth_clusters(cluster, cluster.devices)
    assert [len(group) for group in levels[0]] == [16]
    hosts = [frozenset(d.host for d in group) for group in levels[1]]
    assert [len(group) for group in hosts] == [1] * len(hosts)
    assert [len(group) for group in levels[-1]] == [1] * 16
