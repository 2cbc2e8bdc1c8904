from __future__ import annotations

from hexisolve.formulation.linear_model import LinearModel


def small_model() -> LinearModel:
    model = LinearModel("small")
    count = model.add_variable("count", 0, 5)
    step = model.add_variable("step_s", 0.0, 10.0, is_integer=False)
    model.add_row("cover", [(count, 2.0), (step, 1.0)], ">=", 4.5)
    model.minimise([(step, 1.0)])
    return model


def test_broken_rows_are_named() -> None:
    model = small_model()
    assert model.broken_rows([2, 0.5]) == []
    assert model.broken_rows([2, 0.4]) == ["cover"]
    assert model.broken_rows([2.5, 0.5]) == ["count"]
    assert model.broken_rows([6, 0.5]) == ["count"]


def test_objective_is_read_by_handle() -> None:
    # Reading values back by order of names permutes l_0_10 before l_0_2.
    model = LinearModel("names")
    variables = [model.add_variable(f"x[{idx}]", 0, 20) for idx in range(12)]
    model.minimise([(variables[10], 1.0)])
    assert model.objective_value(list(range(12))) == 10


def test_repeated_terms_add_up_and_zeros_vanish() -> None:
    model = LinearModel("merge")
    x = model.add_variable("x", 0, 1)
    y = model.add_variable("y", 0, 1)
    model.add_row("row", [(x, 1.0), (x, 2.0), (y, 1.0), (y, -1.0)], "<=", 3)
    assert dict(model.rows[0].terms) == {x.index: 3.0}


def test_text_names_everything() -> None:
    text = small_model().to_text()
    for part in (
        "minimise 1 step_s",
        "cover: 2 count + 1 step_s >= 4.5",
        "0 <= count <= 5 integer",
    ):
        assert part in text
