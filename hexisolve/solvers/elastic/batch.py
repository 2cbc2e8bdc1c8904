"""One batch on one layout: the rule's plan, its recompute improved, and how good that is."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Layout, Plan
from hexisolve.solvers.elastic.bound import batch_bound_s
from hexisolve.solvers.elastic.heuristic import heuristic_batch
from hexisolve.solvers.elastic.recompute import improved_recompute


@dataclass(frozen=True)
class BatchResult:
    """A legal plan for a batch, with bounds.

    Parameters
    ----------
    plan
        What to run.
    step_time_s
        What `evaluate` says of it.
    bound_s
        No batch plan of the layout is below it, whatever its chunks.
    fixed_bound_s
        No recompute of these chunks in this order is below it; None where it is not known.
    rule_wall_s, wall_s
        Seconds of the rule alone, and of everything.
    """

    plan: Plan
    step_time_s: float
    bound_s: float
    fixed_bound_s: float | None
    rule_wall_s: float
    wall_s: float

    @property
    def gap(self) -> float:
        """``(step - bound) / step``, against every choice of chunks."""
        return (self.step_time_s - self.bound_s) / self.step_time_s

    @property
    def fixed_gap(self) -> float | None:
        """The part of the gap that recompute could close for these chunks and orders."""
        if self.fixed_bound_s is None:
            return None
        return (self.step_time_s - self.fixed_bound_s) / self.step_time_s


def plan_batch(
    instance: Instance,
    layout: Layout,
    *,
    time_limit_s: float = 1.0,
    relative_gap: float = 0.005,
    seed: int = 0,
) -> BatchResult:
    """Plan the sequences of the workload on a layout.

    Parameters
    ----------
    instance
        Its workload gives the lengths of the batch.
    time_limit_s
        Of the recompute program; the rule before it takes about 0.1 s for 512 sequences.
    relative_gap
        Recompute within this of its bound is good enough.

    Raises
    ------
    NoPlanError
        When a sequence does not fit, see `heuristic_batch`.
    PlanError
        When the layout breaks a rule of `check_plan`.
    """
    begun = time.monotonic()
    plan = heuristic_batch(instance, layout)
    rule_wall_s = time.monotonic() - begun
    improved = improved_recompute(instance, plan, time_limit_s, relative_gap, seed)
    bound_s = batch_bound_s(instance, layout)
    return BatchResult(
        plan=improved.plan,
        step_time_s=improved.step_time_s,
        bound_s=bound_s,
        fixed_bound_s=improved.bound_s,
        rule_wall_s=rule_wall_s,
        wall_s=time.monotonic() - begun,
    )
