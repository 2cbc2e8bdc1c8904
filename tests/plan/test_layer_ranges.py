"""Case 17: the union of the stages is exactly all layers, in order, or the checker says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_examples import cluster_of, instance_of, model_of, plan_of, stage_of, whole_chunks

from hexisolve.plan.check import check_plan
from hexisolve.plan.check_layout import _layers
from hexisolve.plan.plan import Replica

DEVICES = cluster_of((1.0,) * 32, memory=[10**12] * 32)
ONE_LAYER = model_of(1)


def model_with(num_layers):  # type: ignore[no-untyped-def]
    return replace(ONE_LAYER, layers=ONE_LAYER.layers * num_layers)


def rules_broken(instance, bounds):  # type: ignore[no-untyped-def]
    """Rules of layers that stages with these bounds break."""
    stages = [
        stage_of((bounds[p], bounds[p + 1]), [(f"d{p}", 1, (0, 4))]) for p in range(len(bounds) - 1)
    ]
    return {violation.rule for violation in _layers(instance, 0, Replica(tuple(stages)))}


INSTANCES = [instance_of(DEVICES, model_with(count), context_tokens=8) for count in range(1, 131)]


@pytest.mark.parametrize("num_stages", range(1, 33))
def test_every_layer_is_in_exactly_one_stage(num_stages):  # type: ignore[no-untyped-def]
    for num_layers, instance in enumerate(INSTANCES, start=1):
        bounds = [num_layers * p // num_stages for p in range(num_stages + 1)]
        found = rules_broken(instance, bounds)
        if num_stages <= num_layers:
            assert found == set()
            lost = [num_layers // num_stages * p for p in range(num_stages + 1)]
            if lost[-1] != num_layers:  # each stage rounded down on its own
                assert rules_broken(instance, lost) == {"layers"}
        else:
            assert {"stage-count", "empty-stage"} <= found


def test_30_layers_on_4_stages_must_not_become_28():  # type: ignore[no-untyped-def]
    instance = instance_of(DEVICES, model_with(30))
    stages = [stage_of((7 * p, 7 * p + 7), [(f"d{p}", 1, (0, 4))]) for p in range(4)]
    (found,) = check_plan(instance, plan_of(stages, whole_chunks([1000] * 4)))
    assert str(found) == (
        "replica 0, stage 3: ends at layer 28, the model has 30; end at 30 [layers]"
    )
