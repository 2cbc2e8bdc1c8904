from __future__ import annotations

import itertools

import pytest

from hexisolve.formulation.configuration_program import build_configuration_program
from hexisolve.formulation.linear_model import LinearModel, Variable
from hexisolve.solvers.dynamic_program import solve_relaxed
from hexisolve.solvers.whole_model import whole_model
from tests.solvers.random_models import random_model
from tests.solvers.random_tables import random_table


def _range(variable: Variable) -> float:
    return max(abs(variable.lower), abs(variable.upper), variable.upper - variable.lower)


@pytest.mark.parametrize("seed", range(80))
def test_every_row_and_the_objective_stay_in_32_bits(seed: int) -> None:
    # Case 39.
    whole = whole_model(random_model(seed)).model
    for terms in [*(row.terms for row in whole.rows), whole.objective]:
        assert all(factor == round(factor) for factor in terms.values())
        assert sum(abs(f) * _range(whole.variables[i]) for i, f in terms.items()) < 2**31


@pytest.mark.parametrize("seed", range(80))
def test_rounding_only_relaxes(seed: int) -> None:
    model = random_model(seed)
    whole = whole_model(model)
    integers = [v for v in model.variables if v.is_integer]
    for choice in itertools.product(*(range(int(v.lower), int(v.upper) + 1) for v in integers)):
        values = [float(value) for value in choice]
        if len(values) < len(model.variables):
            times = [row for row in model.rows if row.name.startswith("time")]
            values.append(max(0.0, *(row.activity([*values, 0.0]) for row in times)))
        if model.broken_rows(values, tolerance=0.0):
            continue
        native = whole.native_values(values)
        assert whole.model.broken_rows(native, tolerance=0.0) == []
        value = model.objective_value(values)
        assert whole.bound(whole.model.objective_value(native)) <= value + 1e-12 * abs(value)


def test_a_configuration_keeps_its_value_up_to_steps() -> None:
    table = random_table(3, (3, 2), 6)
    best = solve_relaxed(table, cutoff_s=100.0)
    assert best.configuration is not None
    program = build_configuration_program(table, 100.0)
    whole = whole_model(program.model)
    native = whole.native_values(program.values(best.configuration))
    assert whole.model.broken_rows(native, tolerance=0.0) == []
    assert whole.values(native)[-2] == pytest.approx(best.value_s, rel=1e-5)


def test_an_equation_that_no_integers_meet_stays_one() -> None:
    model = LinearModel("half")
    count = model.add_variable("count", 0, 5)
    model.add_row("half", [(count, 1.0)], "==", 2.5)
    whole = whole_model(model).model
    assert all(whole.broken_rows([float(value)]) for value in range(6))
