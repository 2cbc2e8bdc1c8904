"""Batches of thousands of sequences: checked in time in proportion to their size, same verdicts."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
from hexisolve.plan.pieces import stage_pieces
from hexisolve.plan.plan import BatchPlan, Pipeline, Plan, ReplicaBatch
from tests.plans import make

NUM_STAGES = 4
LONGEST_S = 10.0
"""5,000 sequences take about 1 s; in time that grows with their square they took 22 s."""


def _chain(packs: list[list[int]], num_stages: int = NUM_STAGES) -> tuple[Instance, Plan]:
    """Stages of a layer and two uneven ranks each."""
    stages = [((idx, idx + 1), [[(3, (0, 4)), (2, (4, 6))]]) for idx in range(num_stages)]
    num_sequences = sum(map(len, packs))
    return make(stages, packs, [17 + 7 * idx % 91 for idx in range(num_sequences)])


def _with_pipeline(plan: Plan, **changes: object) -> Plan:
    pipeline = replace(plan.batch.replicas[0].pipelines[0], **changes)
    return replace(plan, batch=BatchPlan((ReplicaBatch((pipeline,)),)))


def _pipeline(plan: Plan) -> Pipeline:
    return plan.batch.replicas[0].pipelines[0]


@pytest.mark.parametrize(
    "packs",
    [[[idx] for idx in range(5000)], [list(range(5000))]],
    ids=["a chunk each", "one chunk"],
)
def test_5000_sequences_on_4_stages(packs: list[list[int]]) -> None:
    instance, plan = _chain(packs)
    begun_s = time.perf_counter()
    assert check_plan(instance, plan) == []
    assert time.perf_counter() - begun_s < LONGEST_S


def test_5000_sequences_with_explicit_pieces() -> None:
    instance, plan = _chain([list(range(5000))])
    (chunk,) = _pipeline(plan).chunks
    pieces = tuple(
        tuple(own for group in stage_pieces(stage, chunk) for own in group)
        for stage in plan.layout.replicas[0].stages
    )
    explicit = _with_pipeline(plan, chunks=(replace(chunk, pieces=pieces),))
    begun_s = time.perf_counter()
    assert check_plan(instance, explicit) == []
    assert time.perf_counter() - begun_s < LONGEST_S


OPERATIONS = st.sampled_from(["F0", "F1", "F2", "B0", "B1", "B2", "F3", "B7", "X1"])


@given(row=st.lists(OPERATIONS, max_size=9))
def test_every_fault_of_a_row_is_told_once(row: list[str]) -> None:
    """Against a count written out: what is missing, unknown, repeated or no operation."""
    instance, plan = _chain([[0], [1], [2]], num_stages=1)
    found = check_plan(instance, _with_pipeline(plan, schedule=(tuple(row),)))
    told = sorted(str(entry.message) for entry in found if entry.rule == "schedule")
    expected = ["F0", "F1", "F2", "B0", "B1", "B2"]
    wanted = ["'X1' is no operation; write F0, B0, ..."] * row.count("X1")
    wanted += [
        f"{name} is missing; every chunk needs its F and its B once"
        for name in expected
        if name not in row
    ]
    wanted += [f"{name} names none of the 3 chunks" for name in ("F3", "B7") if name in row]
    wanted += [
        f"{name} stands there {row.count(name)} times" for name in expected if row.count(name) > 1
    ]
    assert told == sorted(wanted)
