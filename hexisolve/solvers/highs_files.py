"""MPS and LP text read by HiGHS.

Runs in a process of its own (`hexisolve.solvers.isolated`) and leaves its file in the present
folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel, Sense, Variable


def read_text(text: str, suffix: str) -> LinearModel:
    """The model in the text of an ``.mps`` or ``.lp`` file; a row with two sides becomes two.

    Raises
    ------
    BackendError
        When HiGHS cannot read it, or it says something that a linear model of ours cannot.
    """
    highspy = _library()
    path = Path(f"model{suffix}")
    path.write_text(text, encoding="utf-8")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    status = solver.readModel(str(path))
    if status != highspy.HighsStatus.kOk:
        raise BackendError(f"HiGHS does not read the {suffix} text without a doubt", str(status))
    program = solver.getLp()
    if program.sense_ != highspy.ObjSense.kMinimize or program.offset_:
        raise BackendError("the objective of the file is no minimum of a sum without a constant")
    model = LinearModel(program.model_name_ or "model")
    kinds = list(program.integrality_) or [highspy.HighsVarType.kContinuous] * program.num_col_
    integer = {highspy.HighsVarType.kInteger: True, highspy.HighsVarType.kContinuous: False}
    for name, lower, upper, kind in zip(
        program.col_names_, program.col_lower_, program.col_upper_, kinds, strict=True
    ):
        if kind not in integer:
            raise BackendError(f"variable {name!r} of the file is neither integer nor real")
        model.add_variable(name, float(lower), float(upper), integer[kind])
    for name, row, lower, upper in zip(
        program.row_names_, _row_terms(program, model), program.row_lower_, program.row_upper_,
        strict=True,
    ):  # fmt: skip
        sides: list[tuple[Sense, float]] = [(">=", lower), ("<=", upper)]
        if lower == upper:
            sides = [("==", lower)]
        for sense, right in sides:
            if math.isfinite(right):
                model.add_row(name, row, sense, float(right))
    costs = zip(model.variables, map(float, program.col_cost_), strict=True)
    model.minimise((variable, cost) for variable, cost in costs if cost)
    return model


def _library() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise BackendUnavailableError("highspy is not installed: pip install highspy") from error
    return highspy


def _row_terms(program: Any, model: LinearModel) -> list[list[tuple[Variable, float]]]:
    """Terms of each row, from the columns that HiGHS keeps."""
    matrix = program.a_matrix_
    rows: list[list[tuple[Variable, float]]] = [[] for _ in range(program.num_row_)]
    starts, indices, values = list(matrix.start_), list(matrix.index_), list(matrix.value_)
    for variable in model.variables:
        for at in range(starts[variable.index], starts[variable.index + 1]):
            rows[indices[at]].append((variable, float(values[at])))
    return rows
