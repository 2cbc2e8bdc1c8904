"""MPS and LP text of a linear model, written and read by HiGHS to the last digit.

OR-Tools writes six digits and PuLP thirteen. Runs in a process of its own
(`hexisolve.solvers.isolated`) and leaves its file in the present folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.formulation.linear_model import LinearModel, Sense, Variable


def write_text(model: LinearModel, suffix: str) -> str:
    """The model as the text of a file that ends in `suffix`, ``.mps`` or ``.lp``.

    Raises
    ------
    BackendError
        When HiGHS refuses the model.
    """
    highspy = _library()
    program = highspy.HighsLp()
    program.model_name_ = "model"
    program.num_col_, program.num_row_ = len(model.variables), len(model.rows)
    cost = np.zeros(len(model.variables))
    for index, factor in model.objective.items():
        cost[index] = factor
    program.col_cost_ = cost
    program.col_lower_ = np.array([v.lower for v in model.variables], dtype=float)
    program.col_upper_ = np.array([v.upper for v in model.variables], dtype=float)
    program.row_lower_ = np.array(
        [-math.inf if row.sense == "<=" else row.right for row in model.rows], dtype=float
    )
    program.row_upper_ = np.array(
        [math.inf if row.sense == ">=" else row.right for row in model.rows], dtype=float
    )
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = program.num_col_, program.num_row_
    matrix.start_ = np.cumsum([0, *(len(row.terms) for row in model.rows)])
    matrix.index_ = np.array([index for row in model.rows for index in row.terms], dtype=np.int32)
    matrix.value_ = np.array([f for row in model.rows for f in row.terms.values()], dtype=float)
    kinds = highspy.HighsVarType
    program.integrality_ = [
        kinds.kInteger if v.is_integer else kinds.kContinuous for v in model.variables
    ]
    program.col_names_ = plain_names(variable.name for variable in model.variables)
    program.row_names_ = plain_names(row.name for row in model.rows)
    solver = _solver(highspy)
    _need(highspy, solver.passModel(program), "takes the model")
    path = Path(f"model{suffix}")
    _need(highspy, solver.writeModel(str(path)), f"writes {suffix}")
    return path.read_text(encoding="ascii")


def read_text(text: str, suffix: str) -> LinearModel:
    """The model in the text of such a file; a row with two sides becomes two.

    Raises
    ------
    BackendError
        When HiGHS cannot read it, or it says something that a linear model of ours cannot.
    """
    highspy = _library()
    path = Path(f"model{suffix}")
    path.write_text(text, encoding="utf-8")
    solver = _solver(highspy)
    _need(highspy, solver.readModel(str(path)), f"reads {suffix}")
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


def plain_names(names: Iterable[str]) -> list[str]:
    """Names that both formats take: letters, digits and underscores, none twice.

    >>> plain_names(["x[0,1]", "x(0 1)", "e7"])
    ['x_0_1', 'x_0_1_1', 'v_e7']
    """
    plain: dict[str, None] = {}
    for name in names:
        own = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
        if not re.match(r"[A-DF-Za-df-z]", own):  # an e may begin a number
            own = f"v_{own}"
        number, one = 0, own
        while one in plain:
            number += 1
            one = f"{own}_{number}"
        plain[one] = None
    return list(plain)


def _library() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise BackendUnavailableError("highspy is not installed: pip install highspy") from error
    return highspy


def _solver(highspy: Any) -> Any:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    return solver


def _need(highspy: Any, status: Any, what: str) -> None:
    if status != highspy.HighsStatus.kOk:
        raise BackendError(f"HiGHS does not say that it {what} without loss", str(status))


def _row_terms(program: Any, model: LinearModel) -> list[list[tuple[Variable, float]]]:
    """Terms of each row, from the columns that HiGHS keeps."""
    matrix = program.a_matrix_
    rows: list[list[tuple[Variable, float]]] = [[] for _ in range(program.num_row_)]
    starts, indices, values = list(matrix.start_), list(matrix.index_), list(matrix.value_)
    for variable in model.variables:
        for at in range(starts[variable.index], starts[variable.index + 1]):
            rows[indices[at]].append((variable, float(values[at])))
    return rows
