"""R8 against random stages whose hosts are joined in bundles (docs/plan-space.md)."""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.formulation.arrangement import arrange
from hexisolve.formulation.bundled_column import bundled_layer
from hexisolve.formulation.column_bounds import PLAIN
from hexisolve.formulation.host_memory import StagePlace
from hexisolve.formulation.pipeline_table import Choice
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.relaxed_table import make_table, relaxed_problem, sharpened
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.plan.evaluate import evaluate
from hexisolve.solvers.small_optimum import SmallOptimiser
from tests.formulation.regular_plans import regular_plans, regular_ring

OPTIMISE = SmallOptimiser()
MODES = (PLAIN, StateMode(3, "step"), StateMode(3, "chunk"))


def instance(cluster: str, kv_heads: int, context: int) -> Instance:
    model = llama_like("mid", 2048, 4, 16, kv_heads, 5504, 32_000)
    return Instance(
        Cluster.read(cluster), model, Workload(context_tokens=context, batch_sequences=2)
    )


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
        for mode in MODES:
            pricer.bounds.sharpen(shape, mode, OPTIMISE, time.monotonic() + 2.0)
        pricer.bounds.sharpen_passes(
            shape, OPTIMISE, time.monotonic() + 2.0, np.full((1, 1, 4), 1e6)
        )
        passes = pricer.bounds.pass_s(shape)[0, 0]
        relaxed = [pricer.bounds.layer_s(shape, mode) for mode in MODES]
        for _ in range(12):
            real = arrange(pricer, regular_ring(problem, hosts, rng))
            for own, theirs in zip(relaxed, real.layer_s, strict=True):
                assert (own <= theirs * (1 + 1e-9)).all()
            forward_s, both_s = real.forward_s[0, 0], real.layer_s[0][0, 0]
            assert passes[0] <= forward_s * (1 + 1e-9)
            assert (passes[1:] <= (both_s - forward_s) * (1 + 1e-9)).all()


def unequal() -> Instance:
    """Short sequences beside a long one: shares are whole blocks of the long one only."""
    model = llama_like("m", 8192, 4, 64, 8, 28_672, 32_000)
    workload = Workload(lengths=(16_384, *[2_176] * 16))
    return Instance(Cluster.read("a800-4x8"), model, workload)


@pytest.mark.parametrize(
    "problem",
    [
        instance("mixed-32", 16, 65_536), instance("mixed-32-fast", 16, 16_384),
        instance("mixed-16", 4, 5_130), instance("a800-4x8", 16, 1_024), unequal(),
    ],
    ids=["mixed-32", "mixed-32-fast", "no multiple of a block", "gathers show", "lengths"],
)  # fmt: skip
def test_the_table_stays_below_random_plans(problem: Instance) -> None:
    relaxed = relaxed_problem(problem)
    every = {(column.units, column.mode) for column in relaxed.columns}
    relaxed = sharpened(relaxed, every, OPTIMISE, time.monotonic() + 5.0) or relaxed
    index = {(entry.column.units, entry.column.mode): entry for entry in relaxed.pool}
    count = 0
    for plan in regular_plans(problem, Random(3), 40):
        stages = plan.layout.replicas[0].stages
        units, entries, prices, choices = [], [], [], []
        for idx, stage in enumerate(stages):
            after = len(stages) - 1 - idx
            used = {rank.device for rank in stage.ranks}
            key = tuple(
                sum(used.issuperset(unit) for unit in entry.units) for entry in relaxed.classes
            )
            mode = StateMode(stage.zero, stage.zero3_gradients)
            found = index[key, mode]
            place = StagePlace(after, int(idx == 0), stage.num_layers)
            # Its own time is enough: a bound that rises above it would be wrong.
            relaxed.pricer.join(found.shape, mode, place, 1e6, OPTIMISE, time.monotonic() + 0.3)
            found = found._replace(prices=relaxed.pricer.price(found.shape, mode))
            units.append(np.eye(len(stages), dtype=np.int64)[idx])
            entries.append(found.entry_s)
            prices.append(found.prices)
            choices.append(Choice(idx, stage.layers[0], stage.num_layers))
        table = make_table(relaxed.pricer, units, entries, prices, (1,) * len(stages))
        assert table.value_s(tuple(choices)) <= evaluate(problem, plan).step_time_s * (1 + 1e-9)
        count += 1
    assert count >= 20


def test_sharpening_only_raises_prices() -> None:
    problem = instance("mixed-16", 16, 32_768)
    coarse = relaxed_problem(problem)
    widest = max(((c.units, c.mode) for c in coarse.columns), key=lambda key: sum(key[0]))
    sharp = sharpened(coarse, {widest}, OPTIMISE)
    assert sharp is not None
    before = {(e.column.units, e.column.mode): e.prices.time_s for e in coarse.pool}
    for entry in sharp.pool:
        assert (entry.prices.time_s >= before[entry.column.units, entry.column.mode]).all()
    assert sharpened(sharp, {widest}, OPTIMISE) is None


@pytest.mark.parametrize("share", [1e-6, 0.3, 0.9])
def test_no_more_than_enough_is_proved(share: float) -> None:
    # With a target that no box can keep there is nothing to halve.
    problem = instance("mixed-32", 16, 65_536)
    pricer = StagePricer(problem, 4)
    shape = column_shape(pricer.rates, range(len(problem.cluster.devices)))
    plain = float(pricer.bounds.layer_s(shape)[0, 0, 0])
    kind = problem.model.layers[0]
    layer = bundled_layer(problem, kind, 65_536, shape, PLAIN, "none", OPTIMISE)
    layer.expect(share * plain)
    layer.run(np.inf, time.monotonic() + 2.0)
    assert 0.0 <= layer.bound_s <= share * plain
    assert share > 0.5 or layer.bound_s == pytest.approx(share * plain)
