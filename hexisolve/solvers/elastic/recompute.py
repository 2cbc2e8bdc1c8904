"""The best recompute for the chunks and orders of a plan, with a bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hexisolve.data.instance import Instance
from hexisolve.errors import BackendError, PlanError
from hexisolve.formulation.linear_model import without_integers
from hexisolve.formulation.recompute_program import Place, RecomputeProgram, recompute_program
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import BatchPlan, Pipeline, Plan, Policy, ReplicaBatch
from hexisolve.plan.price_book import price_book
from hexisolve.plan.synchronise import step_end
from hexisolve.solvers.elastic.rounding import rounded_counts
from hexisolve.solvers.highs import solve_with_highs


@dataclass(frozen=True)
class RecomputeResult:
    """A plan and how far its recompute may be from the best.

    Parameters
    ----------
    plan
        Same layout, chunks and orders as given; legal; never slower than what was given.
    step_time_s
        What `evaluate` says of it.
    bound_s
        No recompute for these chunks and orders gives a shorter step; None where the program is
        not exact (layers of several kinds in a stage, gathered weights).
    """

    plan: Plan
    step_time_s: float
    bound_s: float | None

    @property
    def gap(self) -> float | None:
        """``(step - bound) / step``."""
        if self.bound_s is None:
            return None
        return (self.step_time_s - self.bound_s) / self.step_time_s


def best_recompute(
    instance: Instance,
    plan: Plan,
    *,
    time_limit_s: float = 10.0,
    relative_gap: float = 0.0,
    seed: int = 0,
) -> RecomputeResult:
    """Choose the recomputed layers of every (stage, chunk) by the exact program.

    Parameters
    ----------
    plan
        A legal plan; its recompute is the start. Offload is not supported.
    time_limit_s
        Of all replicas together.
    relative_gap
        Of the makespan of each replica.

    Raises
    ------
    PlanError
        When the plan is not legal, or offloads.
    """
    violations = check_plan(instance, plan)
    if violations:
        raise PlanError(violations)
    return improved_recompute(instance, plan, time_limit_s, relative_gap, seed)


def improved_recompute(
    instance: Instance, plan: Plan, time_limit_s: float, relative_gap: float, seed: int
) -> RecomputeResult:
    """`best_recompute` for a plan that needs no check: what comes back is checked.

    Raises
    ------
    PlanError
        When the plan offloads, or is not legal and nothing better was found.
    """
    pipelines = [pipeline for batch in plan.batch.replicas for pipeline in batch.pipelines]
    if any(count for pipeline in pipelines for row in pipeline.offload for count in row):
        raise PlanError(["the plan offloads activations; the recompute program keeps all of them"])
    rows = [row for pipeline in pipelines for row in pipeline.recompute]
    if all(set(own) <= {"none"} for row in rows for own in row):
        # Recompute only lengthens operations: nothing beats none where none fits.
        best, step_time_s = _better(instance, plan, plan, is_exact=True)
        return RecomputeResult(best, step_time_s, step_time_s)
    ends_at = time.monotonic() + time_limit_s
    book = price_book(instance)
    batches, bounds = [], []
    num_left = len(plan.batch.replicas)
    for replica_idx, batch in enumerate(plan.batch.replicas):
        program = recompute_program(book, plan.layout, replica_idx, batch.pipelines)
        limit_s = (ends_at - time.monotonic()) / num_left
        values, bound_s = _solved(program, batch, limit_s, relative_gap, seed)
        batches.append(_with_counts(program, batch, values))
        bounds.append(bound_s if program.is_exact else None)
        num_left -= 1
    found = replace(plan, batch=BatchPlan(tuple(batches)))
    best, step_time_s = _better(instance, plan, found, is_exact=None not in bounds)
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return RecomputeResult(best, step_time_s, None)
    # The end of the step is the layout's own.
    end = step_end(book, plan.layout)
    step_bound_s = max(known) + end.synchronisation_s + end.optimizer_s
    # The plan is there: a bound above it is rounding of the library.
    return RecomputeResult(best, step_time_s, min(step_bound_s, step_time_s))


def _better(instance: Instance, given: Plan, found: Plan, *, is_exact: bool) -> tuple[Plan, float]:
    """The legal one with the shorter step; found by an exact program, it is never the slower one.

    Except where an edge needs longer than all operations: bytes are not in the program.
    """
    violations = check_plan(instance, found)
    if not violations:
        evaluation = evaluate(instance, found)
        if found == given or (is_exact and not evaluation.is_edge_bound):
            return found, evaluation.step_time_s
        given_s = evaluate(instance, given).step_time_s
        if evaluation.step_time_s <= given_s or check_plan(instance, given):
            return found, evaluation.step_time_s
        return given, given_s
    violations = check_plan(instance, given)
    if violations:
        raise PlanError(violations)
    return given, evaluate(instance, given).step_time_s


def _solved(
    program: RecomputeProgram, batch: ReplicaBatch, limit_s: float, gap: float, seed: int
) -> tuple[Sequence[float], float]:
    start = program.values_of(_counts(batch))
    bare = program.values_of(_nothing_again(program))
    if not program.layers:
        # Everything fits without recompute, which nothing beats.
        return bare, program.model.objective_value(bare)
    # Recompute only lengthens operations, whatever memory says.
    bound_s = program.model.objective_value(bare)
    ends_at = time.monotonic() + limit_s
    relaxed = solve_with_highs(without_integers(program.model), time_limit_s=limit_s, seed=seed)
    if relaxed.bound is not None:
        bound_s = max(bound_s, relaxed.bound)
    if relaxed.values is not None:
        rounded = rounded_counts(program, relaxed.values)
        candidate = program.values_of(rounded) if rounded is not None else start
        if program.model.objective_value(candidate) < program.model.objective_value(start):
            start = candidate
    start_s = program.model.objective_value(start)
    limit_s = ends_at - time.monotonic()
    if start_s - bound_s <= gap * start_s or limit_s <= 0.0:
        return start, bound_s
    found = solve_with_highs(
        program.model, time_limit_s=limit_s, relative_gap=gap, seed=seed, start=start
    )
    if found.bound is None and program.is_exact:
        raise BackendError("HiGHS finds no recompute where a legal plan was given", "infeasible")
    values = min(found.values or start, start, key=program.model.objective_value)
    return values, max(found.bound or 0.0, bound_s)


def _nothing_again(program: RecomputeProgram) -> dict[Place, Mapping[Policy, int]]:
    num_chunks = program.prices.forward_s.shape[1]
    return {
        Place(p, k): {"none": count}
        for p, count in enumerate(program.num_layers)
        for k in range(num_chunks)
    }


def _counts(batch: ReplicaBatch) -> dict[Place, Mapping[Policy, int]]:
    counts: dict[Place, Mapping[Policy, int]] = {}
    first = 0
    for pipeline in batch.pipelines:
        for p, row in enumerate(pipeline.recompute):
            for k, own in enumerate(row):
                counts[Place(p, first + k)] = own
        first += len(pipeline.chunks)
    return counts


def _with_counts(
    program: RecomputeProgram, batch: ReplicaBatch, values: Sequence[float]
) -> ReplicaBatch:
    pipelines: list[Pipeline] = []
    first = 0
    for pipeline in batch.pipelines:
        chunks = range(first, first + len(pipeline.chunks))
        recompute = tuple(
            tuple(program.counts(values, Place(p, k)) for k in chunks)
            for p in range(len(program.num_layers))
        )
        pipelines.append(replace(pipeline, recompute=recompute))
        first += len(pipeline.chunks)
    return ReplicaBatch(tuple(pipelines))
