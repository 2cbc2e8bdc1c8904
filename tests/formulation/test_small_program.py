"""Bounds of small linear programs hold whatever a solver claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexisolve.formulation.small_program import (
    Multipliers,
    Rows,
    SmallProgram,
    least,
    proved_bound,
)
from hexisolve.solvers.small_optimum import SmallOptimiser

OPTIMISE = SmallOptimiser()


def two_shares(demand: float) -> SmallProgram:
    """Minimise 2 x + 3 y with x + y >= demand, x <= 0.4, y <= 0.5; scaled by a large number."""
    rows = Rows()
    rows.add([(0, 1e9), (1, 1e9)], demand * 1e9)
    return rows.program(np.array([2.0, 3.0]), np.zeros(2), np.array([0.4, 0.5]))


def test_the_optimum_is_proved() -> None:
    value, point = least(two_shares(0.6), OPTIMISE)
    assert value == pytest.approx(2 * 0.4 + 3 * 0.2)
    assert point is not None
    assert point == pytest.approx([0.4, 0.2])


def test_a_contradiction_is_proved_by_its_ray() -> None:
    assert least(two_shares(1.0), OPTIMISE) == (np.inf, None)


@given(st.floats(0.0, 0.9), st.floats(-5.0, 5.0))
def test_any_multipliers_stay_below_the_optimum(demand: float, multiplier: float) -> None:
    program = two_shares(demand)
    optimum = 2 * min(demand, 0.4) + 3 * max(demand - 0.4, 0.0)
    assert proved_bound(program, np.array([multiplier]), program.cost) <= optimum + 1e-9


def test_a_solver_that_lies_proves_nothing() -> None:
    def liar(program: SmallProgram) -> Multipliers:
        return Multipliers(None, np.ones(len(program.right)))

    assert least(two_shares(0.6), liar) == (-np.inf, None)


def test_coefficients_of_a_variable_given_twice_add_up() -> None:
    rows = Rows()
    rows.add([(0, 1.0), (0, 2.0)], 1.5)
    program = rows.program(np.ones(1), np.zeros(1), np.ones(1))
    assert least(program, OPTIMISE)[0] == pytest.approx(0.5)


def test_programs_of_the_same_rows_differ_only_in_numbers() -> None:
    rows = Rows()
    rows.add([(0, 1.0), (1, 1.0)], 1.0, is_equal=True)
    for high in (0.5, 0.7):
        program = rows.program(np.array([1.0, 2.0]), np.zeros(2), np.array([high, 1.0]))
        assert least(program, OPTIMISE)[0] == pytest.approx(high + 2 * (1 - high))
