from __future__ import annotations

import numpy as np
import pytest

from hexisolve.formulation.pipeline_table import PipelineTable, usage_states
from hexisolve.formulation.twins import Twins
from hexisolve.solvers.dynamic_program import solve_relaxed
from tests.solvers.random_tables import least_value_s, random_table


def symmetric_table(seed: int) -> PipelineTable:
    """Two classes of two units whose exchange changes nothing, and a third class."""
    table = random_table(seed, (2, 2, 1), num_layers=3)
    units = usage_states((2, 2, 1))[1:]
    order = {tuple(row): idx for idx, row in enumerate(units.tolist())}
    twin = [order[b, a, c] for a, b, c in units.tolist()]
    source = np.minimum(np.arange(len(units)), twin)
    return PipelineTable(
        available=table.available,
        units=units,
        time_s=table.time_s[:, source],
        entry_s=table.entry_s[source],
        finish_s=table.finish_s[source],
        num_chunks=table.num_chunks,
        total_s=table.total_s[:, source],
        forward_s=table.forward_s[:, source],
        backward_s=table.backward_s[:, source],
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_stays_and_no_class_is_used_twice_over(seed: int) -> None:
    table = symmetric_table(seed)
    assert Twins(table).groups == ((0, 1),)
    found = solve_relaxed(table, cutoff_s=100.0)
    assert found.value_s == pytest.approx(least_value_s(table), rel=1e-6)
    assert found.configuration is not None
    used = sum(table.units[choice.column] for choice in found.configuration)
    assert (used <= np.array(table.available)).all()


def test_unlike_classes_are_no_twins() -> None:
    assert Twins(random_table(1, (2, 2))).groups == ()
