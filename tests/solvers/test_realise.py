"""Real stages: as good as every share tried, legal, repeatable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.constants import CostConstants
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.check import check_plan
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Policy,
    Rank,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.price_book import price_book
from hexisolve.plan.schedule import one_f_one_b
from hexisolve.plan.stage_price import price_stage
from hexisolve.solvers.realise import RealStage, realise_all, realise_stage
from hexisolve.solvers.realise_candidates import Ring, Search, device_keys

BLOCK = 1024


def cluster_of(
    peaks: Sequence[float], memory: Sequence[float], links: Sequence[float] | None = None
) -> Cluster:
    """Devices d0, d1, ... with peaks in TFLOP/s, memory in GB, links to one switch in GB/s."""
    links = links or [20.0] * len(peaks)
    types, nodes, edges = {}, [{"id": "switch", "kind": "switch"}], []
    for idx, (peak, size, link) in enumerate(zip(peaks, memory, links, strict=True)):
        types[f"type{idx}"] = {
            "dense_peak": f"{peak} TFLOP/s",
            "memory": f"{round(size * 1e9)} B",
            "memory_bandwidth": "1000 GB/s",
            "dense_efficiency": 0.6,
            "attention_forward_efficiency": 0.5 - 0.1 * (idx % 2),
            "attention_backward_efficiency": 0.4 - 0.1 * (idx % 2),
            "dtypes": ["bf16"],
        }
        nodes.append({"id": f"d{idx}", "kind": "device", "type": f"type{idx}"})
        band = {"bandwidth": f"{link} GB/s", "latency": "2 us"}
        edges.append({"source": f"d{idx}", "target": "switch", **band})
        edges.append({"source": "switch", "target": f"d{idx}", **band})
    return Cluster.from_dict(
        {"name": "tiny", "device_types": types, "nodes": nodes, "edges": edges}
    )


def model_of(num_layers: int = 3, num_heads: int = 4, num_kv_heads: int = 2) -> ModelSpec:
    """A Llama with heads of 64."""
    return llama_like(
        "tiny", 64 * num_heads, num_layers, num_heads, num_kv_heads, 160 * num_heads, 100
    )


def instance_of(
    cluster: Cluster, model: ModelSpec | None = None, num_tokens: int = 4 * BLOCK, **options: object
) -> Instance:
    """A batch of 4 sequences; no reserve of memory."""
    workload = Workload(context_tokens=num_tokens, batch_sequences=4, block_tokens=BLOCK, **options)  # type: ignore[arg-type]
    cost = CostConstants(reserve_bytes=0, peer_buffer_bytes=0, usable_fraction=1.0)
    return Instance(cluster, model or model_of(), workload, cost)


def only_stage(instance: Instance, devices: Sequence[str], in_flight: int = 1) -> list[RealStage]:
    """The best stages that hold the whole model."""
    return realise_stage(
        instance, devices, num_layers=instance.model.num_layers, is_first=True, is_last=True,
        chunks_in_flight=in_flight, num_stages=1,
    )  # fmt: skip


def plan_of(instance: Instance, real: RealStage) -> Plan:
    """A plan of one stage."""
    lengths = instance.workload.sequence_lengths
    chunks = tuple(Chunk((Slice(idx, 0, length),)) for idx, length in enumerate(lengths))
    pipeline = Pipeline(
        chunks, one_f_one_b(1, len(chunks)), ((dict(real.recompute),) * len(chunks),)
    )
    return Plan(Layout((Replica((real.stage,)),)), BatchPlan((ReplicaBatch((pipeline,)),)))


def compositions(total: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered sums, the plain way."""
    if num_parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, num_parts - 1):
            yield (first, *rest)


def all_groups(devices: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every cut of every order of the devices into a ring (each ring several times)."""
    for order in permutations(devices):
        for cuts in product((False, True), repeat=len(devices) - 1):
            groups: list[tuple[str, ...]] = [(order[0],)]
            for cut, device in zip(cuts, order[1:], strict=True):
                if cut:
                    groups.append((device,))
                else:
                    groups[-1] = (*groups[-1], device)
            yield tuple(groups)


def all_stages(instance: Instance, devices: tuple[str, ...]) -> Iterator[Stage]:
    """Every stage of the whole model in which each group owns tokens."""
    num_heads = instance.model.layers[0].attention.num_q_heads
    num_tokens = max(instance.workload.sequence_lengths)
    seen = set()
    for groups in all_groups(devices):
        first = groups.index(min(groups))
        turned = groups[first:] + groups[:first]
        if turned in seen:
            continue
        seen.add(turned)
        for counts in compositions(num_tokens // BLOCK, len(devices)):
            heads = [list(compositions(num_heads, len(group))) for group in turned]
            for own in product(*heads):
                blocks = iter(counts)
                ring = []
                for group, parts in zip(turned, own, strict=True):
                    ranks, start = [], 0
                    for device, part in zip(group, parts, strict=True):
                        ranks.append(Rank(device, BLOCK * next(blocks), (start, start + part)))
                        start += part
                    ring.append(HeadGroup(tuple(ranks)))
                if all(group.tokens for group in ring):
                    yield Stage((0, instance.model.num_layers), tuple(ring), "kv", 1)


def time_of(instance: Instance, stage: Stage, recompute: dict[Policy, int]) -> float:
    """F + B of one sequence."""
    chunk = Chunk((Slice(0, 0, max(instance.workload.sequence_lengths)),))
    price = price_stage(instance, stage, 0, 1, chunk, recompute)
    return price.forward_s + price.backward_s


@pytest.mark.parametrize(
    ("peaks", "links", "kv_heads"),
    [
        ((100.0, 50.0), (1.0, 1.0), 2),
        ((100.0, 60.0, 30.0), (20.0, 20.0, 20.0), 2),
        ((100.0, 100.0, 40.0), (5.0, 0.5, 5.0), 4),
        ((80.0, 20.0, 70.0), (0.3, 0.3, 2.0), 1),
    ],
)
def test_equals_every_share_of_every_ring(
    peaks: tuple[float, ...], links: tuple[float, ...], kv_heads: int
) -> None:
    instance = instance_of(cluster_of(peaks, [10] * len(peaks), links), model_of(3, 4, kv_heads))
    devices = tuple(f"d{idx}" for idx in range(len(peaks)))
    best = only_stage(instance, devices)[0]
    least_s = min(time_of(instance, s, {"none": 3}) for s in all_stages(instance, devices))
    assert best.time_s == pytest.approx(least_s, rel=1e-9)
    assert best.recompute == {"none": 3}


def test_price_is_that_of_price_stage() -> None:
    instance = instance_of(cluster_of((90.0, 30.0), (10, 10)))
    for real in only_stage(instance, ["d0", "d1"]):
        assert real.time_s == time_of(instance, real.stage, dict(real.recompute))


@pytest.mark.parametrize("num_ranks", [3, 5, 7, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(28, 4), (40, 8)])
def test_heads_that_divide_by_nothing(num_ranks: int, heads: int, kv_heads: int) -> None:
    cluster = cluster_of([100.0 + idx for idx in range(num_ranks)], [60] * num_ranks)
    instance = instance_of(cluster, model_of(2, heads, kv_heads), 100 * BLOCK)
    found = only_stage(instance, [f"d{idx}" for idx in range(num_ranks)])
    assert found
    for real in found:
        assert check_plan(instance, plan_of(instance, real)) == []
        assert all(rank.tokens % BLOCK == 0 for rank in real.stage.ranks)
        assert sum(rank.tokens for rank in real.stage.ranks) == 100 * BLOCK


def test_left_over_tokens_are_owned() -> None:
    instance = instance_of(cluster_of((90.0, 30.0), (10, 10)), num_tokens=5 * BLOCK + 77)
    real = only_stage(instance, ["d0", "d1"])[0]
    assert real.stage.tokens == 5 * BLOCK + 77
    assert check_plan(instance, plan_of(instance, real)) == []


def test_slow_attention_takes_more_tokens_and_fewer_heads() -> None:
    # d1 has the same matrix products and slower attention; all-to-all is cheap, the ring is not.
    cluster = cluster_of((100.0, 100.0, 100.0, 100.0), [80] * 4, [100.0] * 4)
    instance = instance_of(cluster, model_of(2, 16, 16), 512 * BLOCK)
    (group,) = _ring_of(instance, (("d0", "d1", "d2", "d3"),)).climbed((2,))
    assert group.heads[1] < group.heads[0]
    assert abs(group.tokens[1] - group.tokens[0]) <= BLOCK


def _ring_of(instance: Instance, groups: tuple[tuple[str, ...], ...]) -> Ring:
    devices = tuple(device for group in groups for device in group)
    search = Search(
        price_book(instance), devices, max(instance.workload.sequence_lengths), head_weight=0.0
    )
    return Ring(search, groups, device_keys(instance.cluster, devices))


@pytest.mark.parametrize("memory", [0.2, 0.08, 0.076, 0.06, 0.053, 0.051, 0.049, 0.047])
def test_tight_memory_equals_every_share_and_mix(memory: float) -> None:
    instance = instance_of(cluster_of((100.0, 60.0), (memory, memory * 0.9)), model_of(2, 4, 2))
    devices = ("d0", "d1")
    mixes: list[dict[Policy, int]] = [
        {p: c for p, c in (("full", f), ("layer", 2 - f - n), ("none", n)) if c}  # type: ignore[misc]
        for f in range(3)
        for n in range(3 - f)
    ]
    least_s = math.inf
    for stage, mix in product(all_stages(instance, devices), mixes):
        time_s = time_of(instance, stage, mix)
        if time_s < least_s:
            real = RealStage(stage, mix, time_s, 0.0)
            if not check_plan(instance, plan_of(instance, real)):
                least_s = time_s
    found = [real for real in only_stage(instance, devices) if real.stage.zero == 1]
    best_s = min((real.time_s for real in found), default=math.inf)
    assert best_s <= least_s * (1 + 1e-9)


def test_repeatable_and_blind_to_the_order_of_devices() -> None:
    devices = ["d0", "d1", "d2", "d3", "d4"]
    answers = []
    for order in (devices, devices[::-1]):
        instance = instance_of(
            cluster_of((100.0, 100.0, 60.0, 60.0, 30.0), [40] * 5), model_of(3, 8, 4), 64 * BLOCK
        )
        answers.append(only_stage(instance, order))
    assert answers[0] == answers[1]


def test_many_counts_equal_one_by_one() -> None:
    instance = instance_of(cluster_of((100.0, 70.0, 60.0), [40] * 3), model_of(6, 8, 4), 64 * BLOCK)
    where = {"is_first": False, "is_last": False, "chunks_in_flight": 2, "num_stages": 3}
    both = realise_all(instance, ["d0", "d2"], [1, 2, 4], first_layer=1, **where)  # type: ignore[arg-type]
    for count, found in both.items():
        alone = realise_stage(instance, ["d0", "d2"], num_layers=count, first_layer=1, **where)  # type: ignore[arg-type]
        assert alone == found
        assert found[0].stage.layers == (1, 1 + count)


def _memory_needed(instance: Instance, devices: Sequence[str]) -> float:
    """GB per device with which nothing need be recomputed, roughly."""
    low, high = 0.0, 100.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        smaller = replace(
            instance, cluster=cluster_of((100.0, 60.0), (middle, middle), (20.0, 20.0))
        )
        found = only_stage(smaller, devices)
        low, high = (low, middle) if found and "none" in found[0].recompute else (middle, high)
    return high


@pytest.mark.parametrize("share", [1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
def test_tight_memory_is_legal_and_never_slower_than_needed(share: float) -> None:
    devices = ["d0", "d1"]
    base = instance_of(cluster_of((100.0, 60.0), (50, 50)), model_of(4, 8, 4), 64 * BLOCK)
    needed = _memory_needed(base, devices)
    tight = replace(
        base, cluster=cluster_of((100.0, 60.0), (share * needed, share * needed), (20.0, 20.0))
    )
    found = only_stage(tight, devices)
    wide = only_stage(base, devices)[0]
    for real in found:
        assert check_plan(tight, plan_of(tight, real)) == []
        assert real.time_s >= wide.time_s * (1 - 1e-12)


def test_nothing_fits() -> None:
    instance = instance_of(cluster_of((100.0, 60.0), (0.001, 0.001)))
    assert only_stage(instance, ["d0", "d1"]) == []


def test_only_allowed_zero_modes() -> None:
    cluster = cluster_of((100.0, 60.0), (10, 10))
    for modes in ((0,), (3,), (0, 1)):
        instance = instance_of(cluster, zero=modes)
        found = only_stage(instance, ["d0", "d1"])
        assert found
        assert {real.stage.zero for real in found} <= set(modes)


def test_small_memory_takes_fewer_tokens() -> None:
    # d1 is as fast as d0 but has room for a fraction: even shares would not fit.
    model = model_of(8, 8, 8)
    wide = instance_of(cluster_of((50.0, 50.0), (80, 80)), model, 512 * BLOCK)
    narrow = instance_of(cluster_of((50.0, 50.0), (80, 2.0)), model, 512 * BLOCK)
    even, uneven = only_stage(wide, ["d0", "d1"])[0], only_stage(narrow, ["d0", "d1"])[0]
    tokens = {rank.device: rank.tokens for rank in uneven.stage.ranks}
    assert check_plan(narrow, plan_of(narrow, uneven)) == []
    assert tokens["d1"] <= tokens["d0"]
    assert uneven.time_s >= even.time_s
