from __future__ import annotations

import pytest

from hexisolve.errors import BackendError
from hexisolve.formulation.configuration_program import build_configuration_program
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.cp_sat import solve_with_cp_sat
from hexisolve.solvers.dynamic_program import solve_relaxed
from hexisolve.solvers.linear_solution import Termination
from tests.solvers.random_tables import random_table

CUTOFF_S = 100.0


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_dynamic_program(seed: int) -> None:
    table = random_table(seed)
    expected = solve_relaxed(table, cutoff_s=CUTOFF_S)
    program = build_configuration_program(table, CUTOFF_S)
    found = solve_with_cp_sat(program.model, time_limit_s=30)
    assert (found.values is None) == (expected.configuration is None)
    if found.values is None:
        assert found.termination is Termination.INFEASIBLE
        return
    assert found.termination is Termination.OPTIMAL
    assert found.bound is not None
    value_s = table.value_s(program.configuration(found.values))
    assert value_s == pytest.approx(expected.value_s, rel=1e-4)
    assert found.bound <= expected.value_s
    assert found.bound == pytest.approx(expected.value_s, rel=1e-4)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_program_for_a_number_of_stages(num_stages: int) -> None:
    table = random_table(7)
    expected = solve_relaxed(table, cutoff_s=CUTOFF_S, num_stages=num_stages)
    program = build_configuration_program(table, CUTOFF_S, num_stages)
    found = solve_with_cp_sat(program.model, time_limit_s=30)
    assert found.values is not None
    configuration = program.configuration(found.values)
    assert len(configuration) == num_stages
    assert table.value_s(configuration) == pytest.approx(expected.value_s, rel=1e-4)


def test_a_time_limit_is_neither_optimal_nor_infeasible() -> None:
    # Case 43: nothing can be proved in this time.
    program = build_configuration_program(random_table(1, (3, 3), 8), CUTOFF_S)
    found = solve_with_cp_sat(program.model, time_limit_s=0.0)
    assert found.termination in (Termination.UNKNOWN, Termination.FEASIBLE)
    assert found.bound is not None


def test_bounds_out_of_range_name_the_quantity() -> None:
    # Case 40: CP-SAT answers MODEL_INVALID to upper bounds near 1e14.
    model = LinearModel("wide")
    memory = model.add_variable("memory_of_stage_2", 0, 1e14)
    model.minimise([(memory, 1.0)])
    with pytest.raises(BackendError, match="memory_of_stage_2"):
        solve_with_cp_sat(model, time_limit_s=1)


def test_large_coefficients_are_scaled_into_32_bits() -> None:
    # Case 39: coefficients near 3e9 make CP-SAT report worse solutions as optimal.
    model = LinearModel("bytes")
    total = model.add_variable("total_bytes", 0.0, 1e11, is_integer=False)
    weights = [3e9 + 7e7 * idx for idx in range(8)]
    picks = [model.add_variable(f"pick[{idx}]", 0, 1) for idx in range(8)]
    model.add_row("pick_three", [(pick, 1.0) for pick in picks], ">=", 3)
    model.add_row("sum", [*zip(picks, weights, strict=True), (total, -1.0)], "<=", 0)
    model.minimise([(total, 1.0)])
    found = solve_with_cp_sat(model, time_limit_s=10)
    assert found.values is not None
    assert found.bound is not None
    best = sum(sorted(weights)[:3])
    assert found.bound <= best
    assert found.bound == pytest.approx(best, rel=1e-5)
    assert [found.values[pick.index] for pick in picks] == [1, 1, 1, 0, 0, 0, 0, 0]


def test_the_model_cbc_gets_wrong() -> None:
    # Case 41: CBC calls this feasible model infeasible.
    model = LinearModel("cbc")
    x0, x1, x2, c0, c1 = (model.add_variable(name, 0, 1) for name in ("x0", "x1", "x2", "c0", "c1"))
    model.add_row("a", [(x0, 1), (c1, 1)], "==", 1)
    model.add_row("b", [(x0, 1), (c0, 1)], ">=", 1)
    model.add_row("c", [(x1, 1), (c1, 1)], "<=", 1)
    model.add_row("d", [(c0, 1), (c1, 1)], "<=", 1)
    model.add_row("e", [(x2, 1)], "==", 1)
    model.add_row("f", [(x1, 9000), (x2, 7200), (c1, 10800)], ">=", 16200)
    model.minimise([(c0, 1.0), (c1, 1.0)])
    found = solve_with_cp_sat(model, time_limit_s=10)
    assert found.termination is Termination.OPTIMAL
    assert found.values == (1, 1, 1, 0, 0)


def test_infeasible_has_no_bound() -> None:
    model = LinearModel("none")
    pick = model.add_variable("pick", 0, 1)
    model.add_row("more", [(pick, 1.0)], ">=", 2)
    model.minimise([(pick, 1.0)])
    found = solve_with_cp_sat(model, time_limit_s=1)
    assert found.termination is Termination.INFEASIBLE
    assert found.bound is None
    assert found.values is None
