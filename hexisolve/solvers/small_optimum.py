"""Optima of small linear programs by HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np

from hexisolve.formulation.pipeline_table import IntArray
from hexisolve.formulation.small_program import Multipliers, SmallProgram


class SmallOptimiser:
    """Calls HiGHS again and again without a new instance: most of its time would be set-up.

    Programs of a few dozen rows need neither presolve nor scaling. One thread.
    """

    def __init__(self) -> None:
        import highspy

        self._library = highspy
        self._solver = highspy.Highs()
        self._models: dict[int, tuple[IntArray, Any]] = {}
        for option, value in (
            ("output_flag", False), ("presolve", "off"), ("solver", "simplex"), ("threads", 1),
            ("simplex_scale_strategy", 0),
        ):  # fmt: skip
            self._solver.setOptionValue(option, value)

    def __call__(self, program: SmallProgram) -> Multipliers:
        """The optimum, or multipliers that show a contradiction; zeros where HiGHS gives up."""
        library, solver = self._library, self._solver
        model = self._model(program)
        model.col_cost_, model.col_lower_, model.col_upper_ = (
            program.cost, program.low, program.high,
        )  # fmt: skip
        model.row_lower_ = program.right
        model.a_matrix_.value_ = program.values
        solver.passModel(model)
        solver.run()
        status = solver.getModelStatus()
        if status == library.HighsModelStatus.kOptimal:
            solution = solver.getSolution()
            return Multipliers(np.array(solution.col_value), np.array(solution.row_dual))
        if status == library.HighsModelStatus.kInfeasible:
            _, has_ray, ray = solver.getDualRay()
            if has_ray:
                return Multipliers(None, np.array(ray))
        return Multipliers(None, np.zeros(len(program.right)))

    def _model(self, program: SmallProgram) -> Any:
        """The rows of the program in the library's form; only numbers change between programs.

        Equal rows must keep their right-hand sides.
        """
        known = self._models.get(id(program.columns))
        if known is not None and known[0] is program.columns:
            return known[1]
        model = self._library.HighsLp()
        model.num_col_, model.num_row_ = len(program.cost), len(program.right)
        model.row_upper_ = np.where(program.is_equal, program.right, np.inf)
        model.a_matrix_.format_ = self._library.MatrixFormat.kRowwise
        model.a_matrix_.start_ = program.starts
        model.a_matrix_.index_ = program.columns
        # The columns are kept too, so that nothing else gets their number.
        self._models[id(program.columns)] = program.columns, model
        return model
