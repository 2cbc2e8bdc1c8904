from __future__ import annotations

import math

import pytest

from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.scaled_model import scaled_model
from tests.solvers.random_models import random_model


@pytest.mark.parametrize("seed", range(60))
def test_the_way_there_and_back_changes_nothing(seed: int) -> None:
    model = random_model(seed)
    scaled = scaled_model(model)
    values = tuple(
        variable.lower if variable.is_integer else variable.upper / 3
        for variable in model.variables
    )
    native = scaled.native_values(values)
    assert scaled.values(native) == values
    value = scaled.model.objective_value(native) * scaled.objective_unit
    assert value == pytest.approx(model.objective_value(values), rel=1e-12)
    for row, own in zip(model.rows, scaled.model.rows, strict=True):
        if row.violation(values):
            ratio = own.violation(native) / row.violation(values)
            assert math.log2(ratio) == pytest.approx(round(math.log2(ratio)), abs=1e-6)
        else:
            assert own.violation(native) == 0


@pytest.mark.parametrize("upper", [1e-3, 1.0, 3600.0, 1e9])
def test_reals_take_about_a_thousand_steps_and_bytes_no_more(upper: float) -> None:
    model = LinearModel("step")
    pick = model.add_variable("pick", 0, 1)
    step_s = model.add_variable("step_s", 0.0, upper, is_integer=False)
    model.add_row("time", [(pick, upper / 2), (step_s, -1.0)], "<=", 0.0)
    model.add_row("bytes", [(pick, 80e9)], "<=", 81e9)
    model.minimise([(step_s, 1.0)])
    scaled = scaled_model(model).model
    assert 700 < scaled.variables[1].upper < 1500
    for row in scaled.rows:
        assert 0.5 < max(map(abs, row.terms.values())) < 1500


def test_a_small_objective_of_integers_is_multiplied_and_a_large_one_kept() -> None:
    model = random_model(0)
    for factor, least, most in ((1e-4, 500, 1500), (5e6, 4.9e6, 5.1e6)):
        model.objective = {0: factor}
        scaled = scaled_model(model)
        assert least < scaled.model.objective[0] < most
        assert scaled.model.objective[0] * scaled.objective_unit == pytest.approx(factor)
