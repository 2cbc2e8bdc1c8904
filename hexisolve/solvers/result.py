"""What a solve brings back: is it solved, how good is it, why did it stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from hexisolve.errors import NoPlanError
from hexisolve.plan.plan import Plan
from hexisolve.units import format_seconds

Limit = Literal["time", "methods", "memory", "interrupted"]
_TOLERANCE = 1e-9


class Status(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_SOLUTION = "no_solution"


@dataclass(frozen=True)
class Progress:
    """Where a running solve stands.

    Parameters
    ----------
    elapsed_s
        Seconds since the start.
    incumbent_s
        Step time of the best plan so far; None without one.
    bound_s
        Proven lower bound so far.
    gap
        ``(incumbent - bound) / incumbent``; None without a plan.
    """

    elapsed_s: float
    incumbent_s: float | None
    bound_s: float
    gap: float | None


@dataclass(frozen=True)
class Result:
    """The answer of `solve`.

    Parameters
    ----------
    status
        ``OPTIMAL``: proved within the gap that was asked for.
    limit
        What ended the search early, set with ``FEASIBLE`` and ``NO_SOLUTION``; ``methods``: every
        method has ended before the time.
    plan
        The best plan, checked; present with ``OPTIMAL`` and ``FEASIBLE``.
    objective_s
        Its step time by `hexisolve.evaluate`.
    bound_s
        No plan of the plan space (docs/plan-space.md) takes less; None only when infeasible.
    wall_s
        Seconds of wall clock.
    backend
        Which exact method proved the bound.
    diagnosis
        Why there is no plan, in words with numbers; empty otherwise.
    history
        Progress at every improvement of plan or bound.
    """

    status: Status
    limit: Limit | None
    plan: Plan | None
    objective_s: float | None
    bound_s: float | None
    wall_s: float
    backend: str
    diagnosis: str = ""
    history: tuple[Progress, ...] = ()

    def __post_init__(self) -> None:
        has_plan = self.status in (Status.OPTIMAL, Status.FEASIBLE)
        if has_plan != (self.plan is not None) or has_plan != (self.objective_s is not None):
            raise ValueError(f"a {self.status.value} result has a plan exactly when it found one")
        if (self.limit is not None) != (self.status in (Status.FEASIBLE, Status.NO_SOLUTION)):
            raise ValueError(f"limit {self.limit!r} does not go with status {self.status.value}")
        if (self.bound_s is None) != (self.status is Status.INFEASIBLE):
            raise ValueError("the bound is a number unless the instance is infeasible")
        numbers = [value for value in (self.objective_s, self.bound_s) if value is not None]
        if not all(math.isfinite(value) for value in numbers):
            raise ValueError("objective and bound are finite")
        if len(numbers) == 2 and numbers[1] > numbers[0] * (1 + _TOLERANCE):
            raise ValueError(f"the bound {numbers[1]} exceeds the objective {numbers[0]}")

    @property
    def gap(self) -> float | None:
        """``(objective - bound) / objective``; None without a plan."""
        if self.objective_s is None or self.bound_s is None:
            return None
        return max(self.objective_s - self.bound_s, 0.0) / self.objective_s

    def require_plan(self) -> Plan:
        """The plan.

        Raises
        ------
        NoPlanError
            When there is none; says why.
        """
        if self.plan is None:
            raise NoPlanError(self.diagnosis or f"the solver ended with {self.status.value}")
        return self.plan

    def __str__(self) -> str:
        parts = [self.status.value]
        if self.limit is not None:
            ended = self.limit == "methods"
            parts.append("every method has ended" if ended else f"stopped by {self.limit}")
        if self.objective_s is not None:
            parts.append(f"step {format_seconds(self.objective_s)}")
        if self.bound_s is not None:
            parts.append(f"bound {format_seconds(self.bound_s)}")
        if self.gap is not None:
            parts.append(f"gap {100 * self.gap:.2f}%")
        parts.append(f"{self.wall_s:.1f} s with {self.backend}")
        if self.diagnosis:
            parts.append(self.diagnosis)
        return ", ".join(parts)
