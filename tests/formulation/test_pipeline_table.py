from __future__ import annotations

import numpy as np
import pytest

from hexisolve.cost.pipeline import step_length_s
from hexisolve.formulation.pipeline_table import Choice, PipelineTable, layer_splits
from hexisolve.plan.schedule import one_f_one_b, parse_operation


def one_stage_per_column(forward, backward, there, back, num_chunks: int) -> PipelineTable:
    """Stage p is column p with one layer."""
    num_stages = len(forward)
    time_s = np.full((num_stages, num_stages, num_stages + 1, num_stages + 1), np.inf)
    forward_s, backward_s = np.zeros_like(time_s), np.zeros_like(time_s)
    for p in range(num_stages):
        place = (num_stages - 1 - p, p, num_stages - 1 - p, 1)
        time_s[place] = forward[p] + backward[p]
        forward_s[place], backward_s[place] = forward[p], backward[p]
    return PipelineTable(
        available=(1,) * num_stages,
        units=np.eye(num_stages, dtype=np.int64),
        time_s=time_s,
        entry_s=np.array([0.0, *(a + b for a, b in zip(there, back, strict=True))]),
        finish_s=np.zeros((num_stages, num_stages + 1, num_stages + 1)),
        num_chunks=num_chunks,
        total_s=num_chunks * time_s,
        forward_s=forward_s,
        backward_s=backward_s,
    )


def longest_path_s(forward, backward, there, back, num_chunks: int) -> float:
    schedule = [
        [parse_operation(operation) for operation in row]
        for row in one_f_one_b(len(forward), num_chunks)
    ]
    spread = [[[value] * num_chunks for value in row] for row in (forward, backward, there, back)]
    return step_length_s(schedule, *spread).makespan_s


def test_rows_never_exceed_the_longest_path() -> None:
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(1500):
        num_stages, num_chunks = int(rng.integers(1, 7)), int(rng.integers(1, 12))
        forward = rng.uniform(0.05, 1, num_stages) ** 2
        backward = forward * rng.uniform(1, 3, num_stages)
        there, back = rng.uniform(0, 0.2, (2, num_stages - 1))
        table = one_stage_per_column(forward, backward, there, back, num_chunks)
        value = table.value_s(tuple(Choice(p, p, 1) for p in range(num_stages)))
        truth = longest_path_s(forward, backward, there, back, num_chunks)
        assert value <= truth * (1 + 1e-12)
        shares.append(value / truth)
    assert np.median(shares) > 0.999


def test_equal_stages_and_chunks_are_exact() -> None:
    forward, backward = [1.0] * 4, [2.0] * 4
    table = one_stage_per_column(forward, backward, [0.0] * 3, [0.0] * 3, 8)
    value = table.value_s(tuple(Choice(p, p, 1) for p in range(4)))
    assert value == pytest.approx((8 - 1 + 4) * 3.0)
    assert value == pytest.approx(longest_path_s(forward, backward, [0.0] * 3, [0.0] * 3, 8))


def test_layer_splits_cover_every_layer_exactly() -> None:
    # Case 17, the solver's part: every split it considers sums to all layers, none empty.
    for num_layers in range(1, 12):
        for num_stages in range(1, 6):
            splits = list(layer_splits(num_layers, num_stages))
            assert all(sum(split) == num_layers and min(split) >= 1 for split in splits)
            assert len(set(splits)) == len(splits)
