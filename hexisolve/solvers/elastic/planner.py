"""Plans for batch after batch, made one iteration ahead in a process of their own.

The process first makes the rule's plan of a batch, then improves it. Whoever trains takes the
improved plan if it is there, else the rule's, and waits only when there is neither.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from hexisolve.data.instance import Instance
from hexisolve.errors import BackendError, HexisolveError, NoPlanError, PlanError
from hexisolve.plan.check import check_plan
from hexisolve.plan.plan import Layout, Plan
from hexisolve.solvers.elastic.heuristic import heuristic_batch
from hexisolve.solvers.elastic.recompute import improved_recompute

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_PATIENCE_S = 5.0
_ERRORS = {"NoPlanError": NoPlanError, "BackendError": BackendError}


@dataclass(frozen=True)
class PlannedBatch:
    """One batch, ready to run.

    Parameters
    ----------
    instance
        The planner's instance with the lengths of the batch as its workload.
    plan
        Legal for that instance.
    is_improved
        Whether the recompute program has had its turn; else the plan is the rule's.
    """

    instance: Instance
    plan: Plan
    is_improved: bool


class BatchPlanner:
    """Plans batches on one layout.

    Parameters
    ----------
    instance
        Its workload's lengths are replaced by those of every batch.
    plan
        Whose layout is used.
    time_limit_s, relative_gap
        Of the recompute program, per batch.
    """

    def __init__(
        self, instance: Instance, plan: Plan, *, time_limit_s: float = 1.0,
        relative_gap: float = 0.005,
    ) -> None:  # fmt: skip
        self.instance = instance
        self.layout = plan.layout
        self.time_limit_s = time_limit_s
        self.relative_gap = relative_gap
        # Batches of `stream` that took the rule's plan because the improved one was late.
        self.num_by_rule = 0

    def plan(self, lengths: Sequence[int]) -> PlannedBatch:
        """Plan one batch here and now.

        Raises
        ------
        InstanceError
            When a length is none.
        NoPlanError
            When a sequence does not fit.
        """
        instance = batch_instance(self.instance, lengths)
        plan = heuristic_batch(instance, self.layout)
        result = improved_recompute(instance, plan, self.time_limit_s, self.relative_gap, 0)
        return PlannedBatch(instance, result.plan, True)

    def stream(self, batches: Iterable[Sequence[int]]) -> Iterator[PlannedBatch]:
        """Plan batches while those before them run; one is always ahead.

        Raises
        ------
        InstanceError, NoPlanError
            At the batch they are about.
        BackendError
            When the planning process has ended.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        limits = (self.time_limit_s, self.relative_gap)
        process = context.Process(
            target=_work, args=(theirs, self.instance, self.layout, *limits), daemon=True
        )
        process.start()
        theirs.close()
        answers: dict[int, tuple[str, object]] = {}
        waiting: list[Instance] = []
        try:
            number = 0
            source = iter(batches)
            self._submit(ours, source, waiting)
            while waiting:
                self._submit(ours, source, waiting)
                instance = waiting.pop(0)
                yield self._answer(ours, process, answers, number, instance)
                number += 1
        finally:
            with suppress(OSError):
                ours.send(None)
            ours.close()
            process.join(_PATIENCE_S)
            if process.is_alive():
                process.terminate()
                process.join()

    def _submit(
        self, ours: Connection, source: Iterator[Sequence[int]], waiting: list[Instance]
    ) -> None:
        lengths = next(source, None)
        if lengths is not None:
            instance = batch_instance(self.instance, lengths)
            waiting.append(instance)
            with suppress(OSError):  # a process that has ended is told of when it is waited for
                ours.send(tuple(lengths))

    def _answer(
        self, ours: Connection, process: multiprocessing.process.BaseProcess,
        answers: dict[int, tuple[str, object]], number: int, instance: Instance,
    ) -> PlannedBatch:  # fmt: skip
        """The best answer that is there; the first one to come when there is none."""
        is_open = True
        while is_open and (number not in answers or ours.poll(0)):
            try:
                if ours.poll(_POLL_S):
                    about, *answer = ours.recv()
                    if about >= number:  # else it is too late for that batch
                        answers[about] = (answer[0], answer[1])
                else:
                    is_open = process.is_alive()
            except (EOFError, OSError):
                is_open = False
        if number not in answers:
            process.join(_PATIENCE_S)
            raise BackendError("the planning process has ended", f"exit code {process.exitcode}")
        kind, content = answers.pop(number)
        if not isinstance(content, Plan):
            raise _ERRORS.get(kind, BackendError)(str(content))
        self.num_by_rule += kind == "rule"
        if kind == "rule":
            logger.info("batch %d runs with the rule's plan: the improved one is late", number)
        return PlannedBatch(instance, content, kind == "best")


def batch_instance(instance: Instance, lengths: Sequence[int]) -> Instance:
    """The instance with these sequences; raises InstanceError for what is no length."""
    workload = replace(
        instance.workload, context_tokens=None, batch_sequences=None, lengths=tuple(lengths)
    )
    return replace(instance, workload=workload)


def _work(
    theirs: Connection, instance: Instance, layout: Layout, time_limit_s: float, gap: float
) -> None:
    """The planning process: lengths in, ``(number, kind, plan or message)`` out, None ends it."""
    number = 0
    try:
        while (lengths := theirs.recv()) is not None:
            own = batch_instance(instance, lengths)
            try:
                plan = heuristic_batch(own, layout)
                violations = check_plan(own, plan)
                if violations:
                    raise PlanError(violations)
                theirs.send((number, "rule", plan))
                result = improved_recompute(own, plan, time_limit_s, gap, 0)
                theirs.send((number, "best", result.plan))
            except HexisolveError as error:
                theirs.send((number, type(error).__name__, str(error)))
            number += 1
    except (EOFError, OSError):
        return  # whoever asked is gone
