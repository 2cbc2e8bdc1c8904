"""Joint bounds of speed and memory against the best arrangement of a stage."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.formulation.arrangement import arrange, arrangement_prices
from hexisolve.formulation.bundled_ring import bundled_ring
from hexisolve.formulation.column_bounds import PLAIN
from hexisolve.formulation.host_memory import StagePlace
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.solvers.small_optimum import SmallOptimiser


@pytest.mark.parametrize("context", [262_144, 1_048_576, 1_572_864])
@pytest.mark.parametrize("num_layers", [1, 6])
@pytest.mark.parametrize("mode", [PLAIN, StateMode(3, "chunk")], ids=["states whole", "gathered"])
def test_no_arrangement_beats_the_joint_bound(
    context: int, num_layers: int, mode: StateMode
) -> None:
    # The longer contexts leave room for no layer without recompute.
    model = llama_like("mid", 4096, 12, 32, 8, 14_336, 32_000)
    problem = Instance(
        Cluster.read("mixed-16"), model, Workload(context_tokens=context, batch_sequences=4)
    )
    pricer, optimise = StagePricer(problem, 4), SmallOptimiser()
    shape = column_shape(pricer.rates, range(16))
    place = StagePlace(1, 0, num_layers)
    hosts = [[shape.devices[k].id for k in host] for host in shape.hosts]
    _, found = pricer.join(shape, mode, place, 1e6, optimise, time.monotonic() + 20.0)
    bound_s = pricer.price(shape, mode).time_s[place]
    for layer in pricer.bounds.bundled_layers(shape, mode, optimise):
        found += layer.suggestions()
    real_s = min(
        float(
            arrangement_prices(
                pricer, shape, mode, arrange(pricer, bundled_ring(problem, hosts, own))
            ).time_s[place]
        )
        for own in found
    )
    assert bound_s <= real_s * (1 + 1e-9)
    assert np.isinf(real_s) or bound_s >= 0.8 * real_s
