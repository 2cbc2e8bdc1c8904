"""What a solver library brings back for a linear model, checked, in our words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Termination(Enum):
    """Why a library stopped."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LinearSolution:
    """Values and bound of a linear model.

    Parameters
    ----------
    termination
        Optimal and infeasible only when proved.
    values
        One per variable, in the order of the model; None without a solution.
    bound
        Proven lower bound on the objective; None when infeasible.
    """

    termination: Termination
    values: tuple[float, ...] | None
    bound: float | None
