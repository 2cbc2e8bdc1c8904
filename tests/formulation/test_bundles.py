"""R8 against random stages whose hosts are joined in bundles (docs/plan-space.md)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.formulation.arrangement import arrange
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.relaxed_table import relaxed_problem, sharpened
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.plan.plan import HeadGroup, Rank


def instance(cluster: str, kv_heads: int, context: int) -> Instance:
    model = llama_like("mid", 2048, 4, 16, kv_heads, 5504, 32_000)
    return Instance(
        Cluster.read(cluster), model, Workload(context_tokens=context, batch_sequences=2)
    )


def random_ring(problem: Instance, hosts: list[str], rng: Random) -> tuple[HeadGroup, ...]:
    """Bundles of hosts; in each, groups that give a host the same heads every time."""
    rest, groups = list(hosts), []
    rng.shuffle(rest)
    while rest:
        bundle = [rest.pop() for _ in range(rng.randint(1, len(rest)))]
        groups += _groups(problem, bundle, rng)
    rng.shuffle(groups)
    blocks = problem.workload.num_tokens // 2 // problem.workload.block_tokens
    devices = [device for group in groups for device, _ in group]
    # Shares by speed, shaken; sometimes concentrated on a few.
    spread = rng.choice((0.0, 0.2, 1.0, 3.0))
    weights = [
        problem.cluster.device(d).dense_flop_per_s * np.exp(spread * rng.gauss(0, 1))
        for d in devices
    ]
    counts = [int(blocks * w / sum(weights)) for w in weights]
    counts[rng.randrange(len(counts))] += blocks - sum(counts)
    tokens = iter(counts)
    block = problem.workload.block_tokens
    return tuple(
        HeadGroup(tuple(Rank(device, next(tokens) * block, heads) for device, heads in group))
        for group in groups
    )


def _groups(problem: Instance, bundle: list[str], rng: Random):
    members = {host: [d.id for d in problem.cluster.devices_of(host)] for host in bundle}
    num_groups = rng.choice([1, 2, 4, 8])
    cuts = sorted(rng.randint(0, 16) for _ in range(len(bundle) - 1))
    bounds = list(zip([0, *cuts], [*cuts, 16], strict=True))
    groups = []
    for number in range(num_groups):
        group = []
        for host, (first, stop) in zip(bundle, bounds, strict=True):
            own = members[host][number * 8 // num_groups : (number + 1) * 8 // num_groups]
            inner = sorted(rng.randint(first, stop) for _ in range(len(own) - 1))
            edges = [first, *inner, stop]
            group += [(d, (a, b)) for d, a, b in zip(own, edges[:-1], edges[1:], strict=True)]
        groups.append(group)
    return groups


@pytest.mark.parametrize(("cluster", "kv_heads", "context"), [
    ("mixed-32", 16, 16_384), ("mixed-32-fast", 4, 131_072),
    *(
        pytest.param(cluster, kv_heads, context, marks=pytest.mark.slow)
        for cluster in ("mixed-32", "mixed-32-fast")
        for kv_heads in (16, 4)
        for context in (32_768, 262_144)
    ),
])  # fmt: skip
def test_sharp_prices_stay_below_random_stages(cluster: str, kv_heads: int, context: int) -> None:
    problem = instance(cluster, kv_heads, context)
    pricer = StagePricer(problem, 4)
    every = list(problem.cluster.hosts())
    rng = Random(11)
    for hosts in (every[:2], every[1:3], every[2:], every[:3], every[1:]):
        numbers = sorted(
            problem.cluster.device_index[d.id] for h in hosts for d in problem.cluster.devices_of(h)
        )
        shape = column_shape(pricer.rates, numbers)
        pricer.sharpen(shape)
        relaxed = pricer.layer_s(shape)
        for _ in range(12):
            real = arrange(pricer, random_ring(problem, hosts, rng)).layer_s
            assert (relaxed <= real * (1 + 1e-9)).all()


def test_sharpening_only_raises_prices() -> None:
    problem = instance("mixed-16", 16, 32_768)
    coarse = relaxed_problem(problem)
    widest = max((column.units for column in coarse.columns), key=sum)
    sharp = sharpened(coarse, {widest})
    assert sharp is not None
    before = {(e.column.units, e.column.mode): e.prices.time_s for e in coarse.pool}
    for entry in sharp.pool:
        assert (entry.prices.time_s >= before[entry.column.units, entry.column.mode]).all()
    assert sharpened(sharp, {widest}) is None
