"""`demo`: it shows what it promises, and fails when something it promises is not so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hexisolve.commands import demo
from hexisolve.data.instance_file import read_instance
from hexisolve.plan.plan import HeadGroup, Plan, Rank
from hexisolve.runtime.launch import StepRecord, TrainingSummary
from hexisolve.runtime.verify import Verification
from tests.plans import one_rank, two_stages

EXACT = Verification(
    loss=5.0, reference_loss=5.0, max_loss_difference=0.0, max_gradient_difference=1e-12,
    worst_parameter="w", num_ranks=4, num_parameters=9, executor="processes", wall_s=1.0,
)  # fmt: skip


def _summary(*losses: float, reference: float | None = None, **changes: object) -> TrainingSummary:
    steps = tuple(
        StepRecord(idx, loss, reference or loss, 1024, 100.0, 1.0)
        for idx, loss in enumerate(losses)
    )
    return TrainingSummary(steps, 4, 9, 2.0, replace(EXACT, **changes))  # type: ignore[arg-type]


def _failures(plan: Plan | None = None, summary: TrainingSummary | None = None) -> str:
    instance, good = two_stages()
    answer = SimpleNamespace(instance=instance)
    return "\n".join(demo._failures(answer, plan or good, summary or _summary(5.0, 4.0)))  # type: ignore[arg-type]


def test_nothing_fails_when_all_is_as_promised() -> None:
    assert _failures() == ""


def test_a_loss_that_does_not_fall_fails() -> None:
    assert "did not fall" in _failures(summary=_summary(5.0, 5.1))
    assert "did not fall" in _failures(summary=_summary(float("nan"), float("nan")))


def test_a_loss_far_from_one_process_fails() -> None:
    assert "1e-10" in _failures(summary=_summary(5.0, 4.0, reference=5.001))
    assert "1e-10" in _failures(summary=_summary(5.0, float("nan"), 4.0))
    assert "1e-10" in _failures(summary=_summary(5.0, 4.0, max_gradient_difference=1e-9))
    assert "1e-10" in _failures(summary=_summary(5.0, 4.0, max_gradient_difference=float("inf")))


def test_a_plan_of_one_rank_fails() -> None:
    text = _failures(plan=one_rank()[1])
    for word in ("1 of 4 devices", "1 stages", "tokens evenly", "heads evenly"):
        assert word in text


def test_even_tokens_and_heads_fail() -> None:
    _, plan = two_stages()
    replica = plan.layout.replicas[0]
    even = tuple(
        replace(
            stage,
            ring=(
                HeadGroup(
                    tuple(
                        Rank(rank.device, 1, (3 * idx, 3 * idx + 3))
                        for idx, rank in enumerate(stage.ranks)
                    )
                ),
            ),
        )
        for stage in replica.stages
    )
    text = _failures(
        replace(plan, layout=replace(plan.layout, replicas=(replace(replica, stages=even),)))
    )
    assert "tokens evenly" in text
    assert "heads evenly" in text


def test_the_demo_trains_on_at_least_1024_tokens_a_step() -> None:
    instance = read_instance(demo.INSTANCE)
    assert instance.workload.num_tokens >= 1024
    assert len({device.type for device in instance.cluster.devices}) == 4
    assert 2e6 <= instance.model.parameters <= 4e6


@pytest.mark.dist
def test_two_steps_of_the_demo(shell, tmp_path) -> None:
    output = tmp_path / "plan.json"
    outcome = shell("demo", "--steps", "2", "--json", "-o", output)
    assert outcome.err.count("FAILED") == 0
    assert outcome.code == 0
    document = outcome.json
    assert document["failures"] == []
    assert document["status"] in ("optimal", "feasible")
    assert document["baselines"]["even"]["of_hexisolve"] > 1.1
    assert document["training"]["max_relative_loss_difference"] <= 1e-4
    assert document["training"]["max_gradient_difference"] <= 1e-10
    assert shell("verify", output).code == 0


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_demo(shell) -> None:
    outcome = shell("demo")
    assert outcome.code == 0
    assert "exactly as one process does" in outcome.out
    assert len([line for line in outcome.out.splitlines() if "e-0" in line]) >= 30
