from __future__ import annotations

import time

import pytest

from hexisolve.solvers.dynamic_program import solve_relaxed
from tests.solvers.random_tables import least_value_s, random_table

CUTOFF_S = 100.0


@pytest.mark.parametrize("seed", range(25))
def test_finds_the_least_value_of_a_random_table(seed: int) -> None:
    table = random_table(seed)
    found = solve_relaxed(table, cutoff_s=CUTOFF_S)
    assert found.is_complete
    assert found.value_s == pytest.approx(min(least_value_s(table), CUTOFF_S), rel=1e-7)
    assert found.bound_s <= found.value_s
    assert found.bound_s == pytest.approx(found.value_s, rel=1e-7)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_keeps_to_the_number_of_stages(num_stages: int) -> None:
    table = random_table(7)
    found = solve_relaxed(table, cutoff_s=CUTOFF_S, num_stages=num_stages)
    assert found.value_s == pytest.approx(least_value_s(table, num_stages), rel=1e-7)
    assert found.configuration is not None
    assert len(found.configuration) == num_stages


def test_no_configuration_below_the_cutoff_is_a_proof() -> None:
    table = random_table(5)
    cutoff_s = least_value_s(table) * 0.99
    found = solve_relaxed(table, cutoff_s=cutoff_s)
    assert found.configuration is None
    assert found.is_complete
    assert found.bound_s == cutoff_s


def test_out_of_time_keeps_a_valid_bound() -> None:
    table = random_table(5)
    found = solve_relaxed(table, cutoff_s=CUTOFF_S, deadline=time.monotonic())
    assert found.bound_s <= least_value_s(table) <= found.value_s
