"""Batches planned one ahead, in a process of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from hexisolve.errors import BackendError, InstanceError, NoPlanError
from hexisolve.plan.check import check_plan
from hexisolve.solvers.elastic.heuristic import heuristic_batch
from hexisolve.solvers.elastic.planner import BatchPlanner, batch_instance
from tests.solvers.elastic.elastic_cases import bundled, stage_per_host

BATCHES = [(20_000, 500, 400, 300), (7, 1), (9_000, *range(100, 900, 50)), (3_000,)]


@pytest.fixture
def planner() -> BatchPlanner:
    instance = bundled("a800-4x8", "llama-2-7b", [1_000])
    return BatchPlanner(instance, heuristic_batch(instance, stage_per_host(instance)))


def test_one_batch_here_and_now(planner: BatchPlanner) -> None:
    batch = planner.plan(BATCHES[0])
    assert batch.is_improved
    assert batch.instance.workload.lengths == BATCHES[0]
    assert batch.plan.layout == planner.layout
    assert check_plan(batch.instance, batch.plan) == []


@pytest.mark.dist
@pytest.mark.timeout(120)
def test_batches_come_in_order_and_legal(planner: BatchPlanner) -> None:
    found = list(planner.stream(BATCHES))
    assert [batch.instance.workload.lengths for batch in found] == BATCHES
    assert all(check_plan(batch.instance, batch.plan) == [] for batch in found)
    assert planner.num_by_rule == sum(not batch.is_improved for batch in found)


@pytest.mark.dist
@pytest.mark.timeout(120)
def test_whoever_takes_long_for_a_step_gets_improved_plans(planner: BatchPlanner) -> None:
    stream = planner.stream(BATCHES)
    next(stream)
    time.sleep(5.0)
    assert next(stream).is_improved
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.dist
@pytest.mark.timeout(120)
def test_the_next_batch_is_asked_for_before_one_is_given(planner: BatchPlanner) -> None:
    asked: list[int] = []

    def source() -> Iterator[Sequence[int]]:
        for idx, lengths in enumerate(BATCHES):
            asked.append(idx)
            yield lengths

    stream = planner.stream(source())
    next(stream)
    assert asked == [0, 1]
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.dist
@pytest.mark.timeout(120)
def test_a_batch_that_cannot_be_planned_says_so_in_its_turn(planner: BatchPlanner) -> None:
    stream = planner.stream([(100, 50), (10**9,), (70,)])
    assert next(stream).instance.workload.lengths == (100, 50)
    with pytest.raises(NoPlanError, match="sequence 0 of 1000000000 tokens"):
        next(stream)


def test_what_is_no_length_is_refused(planner: BatchPlanner) -> None:
    for lengths in ((), (0,), (-3, 5)):
        with pytest.raises(InstanceError):
            planner.plan(lengths)


@pytest.mark.dist
@pytest.mark.timeout(120)
def test_a_process_that_was_lost_is_told(
    planner: BatchPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexisolve.solvers.elastic.planner._work", _lost)
    with pytest.raises(BackendError, match="has ended"):
        next(iter(planner.stream(BATCHES)))


def _lost(*_: object) -> None:
    """A planning process that ends at once."""


def test_the_instance_of_a_batch_differs_in_its_lengths_alone(planner: BatchPlanner) -> None:
    other = batch_instance(planner.instance, (5, 6))
    assert other.workload.lengths == (5, 6)
    assert other.cluster is planner.instance.cluster
    assert other.workload.dtype == planner.instance.workload.dtype
