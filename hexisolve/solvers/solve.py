"""Solve the layout of an instance: a plan, a proven bound, and why it stopped.

1. Relaxed prices of every stage column give a table (`hexisolve.formulation`).
2. Real stages for promising columns, the dynamic program over them, and local moves give plans.
3. An exact method proves how good the best plan is: the dynamic program, or CP-SAT or another
   backend on the configuration program.
4. Small instances are closed by enumerating the insides of stages (`hexisolve.solvers.closing`).
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from hexisolve.data.instance import Instance
from hexisolve.errors import InstanceError, PlanError
from hexisolve.formulation.units import unit_classes
from hexisolve.plan.plan import Plan
from hexisolve.solvers.result import Progress, Result, Status

logger = logging.getLogger(__name__)

_FEW_COLLECTIONS = 200_000  # new objects between two passes

Backend = Literal[
    "cp-sat", "dp", "cbc", "highs", "mathopt-gscip", "mathopt-cp-sat", "mathopt-highs",
    "gurobi", "cplex", "xpress",
]  # fmt: skip
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def solve(
    instance: Instance,
    *,
    time_limit_s: float = 10.0,
    relative_gap: float = 0.01,
    backend: Backend = "cp-sat",
    stages: int | None = None,
    start: Plan | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find a plan with the least step time in the plan space, and prove how good it is.

    Parameters
    ----------
    instance
        Cluster, model and workload.
    time_limit_s
        Seconds of wall clock.
    relative_gap
        Stop when ``(objective - bound) / objective`` is at most this.
    backend
        ``cp-sat``: CP-SAT is asked first, while its program is small, then the dynamic program,
        whose rows are stronger; ``dp``: only that; any other name of
        `hexisolve.solvers.backends.BACKENDS` in the place of CP-SAT. Small instances end by
        enumeration.
    stages
        Exact number of pipeline stages; None for any.
    start
        A legal plan to start from. One outside the plan space may be below the bound; its own
        time is reported as the bound then, and says nothing about other plans outside.
    seed
        Seed of the backend; all else is deterministic. When no limit is met the plan is the same.
    on_progress
        Called at every improvement of plan or bound.

    Returns
    -------
    A result whose plan the independent checker accepted and `evaluate` priced.

    Raises
    ------
    InstanceError
        When an argument is out of range or a device type lacks the dtype.
    BackendUnavailableError
        When the backend is not installed; says what to install.
    PlanError
        When `start` breaks a rule.
    """
    from hexisolve.solvers.backends import require_backend
    from hexisolve.solvers.search import Search

    _check_arguments(instance, time_limit_s, relative_gap, backend, stages, seed)
    if backend != "dp":
        require_backend(backend)
    search = Search(
        instance,
        deadline=time.monotonic() + time_limit_s,
        relative_gap=relative_gap,
        backend=backend,
        num_stages=stages,
        seed=seed,
        on_progress=on_progress,
    )
    if start is not None:
        _check_start(start, stages)
        search.accept_start(start)
    try:
        with _rare_collections():
            search.run()
    except KeyboardInterrupt:
        logger.info("interrupted: the best plan so far is kept")
        return search.result("interrupted")
    return search.result(search.limit)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Fewer passes over all objects: a search keeps many, and hardly any in cycles.

    They cost up to a third of the time. The process's setting comes back at the end.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _FEW_COLLECTIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _check_arguments(
    instance: Instance,
    time_limit_s: float,
    relative_gap: float,
    backend: str,
    stages: int | None,
    seed: int,
) -> None:
    if not time_limit_s > 0:
        raise InstanceError.single("time_limit_s", time_limit_s, "must be above 0")
    if not 0 <= relative_gap < 1:
        raise InstanceError.single("relative_gap", relative_gap, "must lie in 0..1")
    if not 0 <= seed < 2**31:
        raise InstanceError.single("seed", seed, "must lie in 0..2147483647")
    if backend not in BACKENDS:
        raise InstanceError.single(
            "backend", backend, "is unknown", f"use one of {', '.join(BACKENDS)}"
        )
    if stages is not None:
        _check_stages(instance, stages)


def _check_stages(instance: Instance, stages: int) -> None:
    """At most a layer, and a unit of the plan space, for each stage."""
    num_layers = instance.model.num_layers
    if not 1 <= stages <= num_layers:
        raise InstanceError.single(
            "stages", stages, f"must lie in 1..{num_layers}", f"the model has {num_layers} layers"
        )
    units = [unit for entry in unit_classes(instance.cluster) for unit in entry.units]
    if stages > len(units):
        largest = max(map(len, units))
        raise InstanceError.single(
            "stages", stages, f"must lie in 1..{len(units)}",
            f"the solver gives a stage whole units of up to {largest} devices, and there are"
            f" {len(units)} (docs/plan-space.md)",
        )  # fmt: skip


def _check_start(start: Plan, stages: int | None) -> None:
    """A start has the number of stages that is asked for."""
    for replica in start.layout.replicas:
        number = len(replica.stages)
        if stages not in (None, number):
            raise InstanceError.single(
                "start", f"a plan of {number} stages", f"must have the {stages} stages asked for",
                "leave out stages, or start from another plan",
            )  # fmt: skip


__all__ = ["BACKENDS", "Backend", "PlanError", "Progress", "Result", "Status", "solve"]
