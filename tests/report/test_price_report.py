"""Why a plan takes what it takes: the document and the tables agree with `evaluate`."""

from __future__ import annotations

import json

import pytest

from hexisolve.plan.evaluate import evaluate
from hexisolve.report.plan import plan_document, plan_parts
from hexisolve.report.price import peak_shares, price_document, recomputed
from tests.plans import CASES, ring_of_groups, two_stages


@pytest.mark.parametrize("name", CASES)
def test_every_plan_can_be_reported(name: str) -> None:
    instance, plan = CASES[name]()
    document = plan_document(instance, plan)
    json.dumps(document, allow_nan=False)
    assert document["violations"] == []
    assert document["price"]["step_time_s"] == evaluate(instance, plan).step_time_s
    assert str(plan) in str(plan_parts(instance, plan)[0])


def test_memory_items_sum_to_the_peak() -> None:
    document = price_document(evaluate(*two_stages()))
    for entry in document["devices"]:
        items = dict(entry["memory"])
        reserve = items.pop("reserve")
        assert sum(items.values()) == entry["peak_bytes"]
        assert entry["usable_bytes"] + reserve == 85_520_809_984  # 81,559 MiB, as the driver says


def test_share_of_peak_is_the_useful_flop_over_time_and_peak() -> None:
    evaluation = evaluate(*two_stages())
    peak = evaluation.instance.cluster.devices[0].dense_peak_flop_per_s
    flop = sum(
        entry.peak_flop_share * evaluation.step_time_s * peak for entry in evaluation.devices
    )
    # All four devices are of one kind, so its share is the FLOP over four peaks.
    expected = flop / (4 * peak * evaluation.step_time_s)
    assert peak_shares(evaluation) == pytest.approx({"H100-SXM-80GB": expected})
    assert 0 < expected < 1


def test_recomputed_layers_are_told_with_their_policy() -> None:
    evaluation = evaluate(*ring_of_groups(recompute="layer"))
    assert [recomputed(evaluation, stage) for stage in evaluation.stages] == [
        {"layer": (2, 2)},
        {"layer": (2, 2)},
    ]


def test_breakdown_of_a_stage_adds_up_to_its_busy_time() -> None:
    document = price_document(evaluate(*two_stages()))
    for stage in document["stages"]:
        assert sum(stage["breakdown"].values()) == pytest.approx(stage["busy_s"], rel=1e-6)
