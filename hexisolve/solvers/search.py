"""The course of one solve: plans from above, bounds from below, until they meet."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from hexisolve.data.instance import Instance
from hexisolve.errors import BackendError, PlanError
from hexisolve.formulation.configuration_program import (
    build_configuration_program,
    count_places,
)
from hexisolve.formulation.pipeline_table import Configuration
from hexisolve.formulation.relaxed_layer import column_shape
from hexisolve.formulation.relaxed_table import RelaxedProblem, relaxed_problem
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.formulation.units import MAX_SINGLE_DEVICES, connected_parts, devices_of
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import HeadGroup, Plan
from hexisolve.solvers.backends import solve_linear
from hexisolve.solvers.baselines import baselines
from hexisolve.solvers.closing import Closer, can_close
from hexisolve.solvers.diagnosis import diagnose
from hexisolve.solvers.drafts import Draft, step_time_s, to_plan
from hexisolve.solvers.dynamic_program import solve_relaxed
from hexisolve.solvers.incumbent import (
    best_configurations,
    drafts_of,
    real_problem,
    wanted_units,
)
from hexisolve.solvers.linear_solution import Termination
from hexisolve.solvers.polish import polish
from hexisolve.solvers.result import Limit, Progress, Result, Status
from hexisolve.solvers.sharpening import Sharpener

logger = logging.getLogger(__name__)

_NUM_DRAFTS = 4
_ROUNDING = 1e-8  # of sums of seconds in different orders
_MAX_CLOSED_DEVICES = 5
_QUICK_DEVICES = 32  # beyond, pricing all columns takes long
_NUM_SIMPLE = 16
_NUM_SHARPENED = 3  # relaxed configurations whose prices are raised at once
_NUM_MET = 6  # relaxed configurations whose stages are arranged
_CUTOFFS = (1.15, 1.5, 3.0, math.inf)  # times the bound, while there is no plan
_BASELINE_S = 4.0  # left of the time before the first baseline is tried
_LEAST_SEARCH_S = 0.6  # a table that was priced is also searched
_SHARPER = 0.02  # prices rise at least so before the optimum is looked for again
_WORTH = 1.03  # configurations of real stages up to so much above the best plan are drafted
_PROGRAM_SHARE = 0.4  # of the time of a proof that a backend may take
_MAX_PLACES = 20_000  # of the configuration program; beyond, the dynamic program proves


class Search:
    """State of a solve."""

    def __init__(
        self,
        instance: Instance,
        *,
        deadline: float,
        relative_gap: float,
        backend: str,
        num_stages: int | None,
        seed: int,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.instance = instance
        self.deadline = deadline
        self.relative_gap = relative_gap
        self.backend = backend
        self.proved_by = "dp"
        self.num_stages = num_stages
        self.seed = seed
        self.on_progress = on_progress
        self.started = time.monotonic()
        self.plan: Plan | None = None
        self.draft: Draft | None = None
        self.value_s = math.inf
        self.bound_s = 0.0
        self.is_infeasible = False
        self.diagnosis = ""
        self.history: list[Progress] = []
        self._rings: dict[tuple[str, ...], Sequence[tuple[HeadGroup, ...]]] = {}
        self.relaxed: RelaxedProblem | None = None
        self.part: frozenset[str] = frozenset()
        self.part_deadline = deadline
        self.is_refuted = False
        self._part_bounds: dict[frozenset[str], float] = {}
        self._met: dict[Configuration, float] = {}
        self._sharpener = Sharpener({})
        self._polished: set[Draft] = set()
        self._remembered: dict[tuple[int, ...], None] = {}
        self._has_offered = False
        self._has_asked = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to prove."""
        return self.is_infeasible or (
            self.plan is not None
            and self.bound_s >= self.value_s * (1 - self.relative_gap - _ROUNDING)
        )

    @property
    def limit(self) -> Limit | None:
        """What ended the search."""
        if self.is_closed:
            return None
        early = time.monotonic() < self.deadline - _LEAST_SEARCH_S
        return "methods" if early else "time"

    def run(self) -> None:
        """Search until the gap is closed or time is up, in every connected part of the cluster."""
        parts = connected_parts(self.instance.cluster, self.instance.workload.dtype)
        for part in parts:
            self._part_bounds[part] = 0.0
        refuted = 0
        for number, part in enumerate(parts):
            now = time.monotonic()
            until = now + (self.deadline - now) / (len(parts) - number)
            self.part, self.part_deadline, self.is_refuted = part, until, False
            self._search_part()
            refuted += self.is_refuted
        if not self.is_closed and refuted < len(parts):
            self._offer_baselines()
        if refuted == len(parts):
            self.is_infeasible = True
            self.diagnosis = self.diagnosis or "no device computes in the workload's dtype"

    def _search_part(self) -> None:
        is_small = len(self.part) <= _MAX_CLOSED_DEVICES
        self._met, self._remembered = {}, {}
        self._sharpener = Sharpener({})
        self._has_asked = False
        self._raise_bound(self._least_work_s())
        if len(self.part) > _QUICK_DEVICES:
            # Stages of one unit: a first plan long before all columns are priced.
            try:
                quick = self.relaxed = relaxed_problem(
                    self.instance, self.num_stages, False, self.part, 1, self._time_left(0.5)
                )
            except TimeoutError:
                return
            self._plans(quick, wanted_units(quick), 0.05)
            self._offer_baselines()
        try:
            relaxed = self.relaxed = relaxed_problem(
                self.instance, self.num_stages, is_small, self.part,
                deadline=math.inf if is_small else self._time_left(0.8),
            )  # fmt: skip
        except TimeoutError:
            return
        if is_small:
            self._plans(relaxed, wanted_units(relaxed)[: 4 * _NUM_SIMPLE])
            if relaxed.columns and can_close(relaxed):
                # A bound first, in case the enumeration does not end in time.
                self._prove(relaxed, self._time_left(0.2), most_labels=256)
                if not self._is_settled():
                    self._close(relaxed)
                return
        self._close_in(relaxed)

    def _close_in(self, relaxed: RelaxedProblem) -> None:
        """Raise prices and arrange stages in turn where the relaxed optimum is."""
        self._first_bound(relaxed)
        if self._is_settled():
            return
        # Stages on one host are quickly arranged and carry many good plans.
        wanted = sorted(wanted_units(relaxed), key=lambda units: self._num_hosts(relaxed, units))
        simple = [units for units in wanted if self._num_hosts(relaxed, units) <= 1]
        self._plans(relaxed, [*self._met_units(relaxed), *simple[:_NUM_SIMPLE]], is_first=True)
        if self.plan is None:
            self._plans(relaxed, self._next_units(relaxed, wanted), 0.3)
        share = 0.4  # better plans half-way, so that less has to be proved
        while time.monotonic() < self.part_deadline - _LEAST_SEARCH_S:
            before = self.bound_s, self.value_s
            relaxed = self._sharpen(relaxed, self._time_left(share))
            share = 0.9
            if self._is_settled():
                return
            self._plans(relaxed, self._met_units(relaxed))
            if self._is_settled():
                return
            if (self.bound_s, self.value_s) == before:
                rest = self._next_units(relaxed, wanted)
                if not rest:
                    break
                self._plans(relaxed, rest)
        if not self.is_closed:
            self._prove(relaxed, self.part_deadline, most_labels=2048)

    def _is_settled(self) -> bool:
        """Whether nothing is left to do in this part."""
        return self.is_closed or self.is_refuted

    def _first_bound(self, relaxed: RelaxedProblem) -> None:
        """A bound and what it is made of: low cutoffs first, where little has to be looked at."""
        # A library is asked once, so about everything.
        places = 0 if self.backend == "dp" else count_places(relaxed.table, relaxed.table.worst_s())
        self._has_asked = not 0 < places <= _MAX_PLACES
        for factor in _CUTOFFS if self._has_asked else _CUTOFFS[-1:]:
            cutoff = factor * self._part_bounds[self.part]
            self._prove(relaxed, self._time_left(0.3), most_labels=256, cutoff_s=cutoff)
            if self._met or self._is_settled():
                return

    def _met_units(self, relaxed: RelaxedProblem) -> list[tuple[int, ...]]:
        """Unit multisets of the best relaxed configurations, and those remembered."""
        best = sorted(self._met, key=lambda configuration: self._met[configuration])[:_NUM_MET]
        met = [relaxed.columns[choice.column].units for conf in best for choice in conf]
        return list(dict.fromkeys([*met, *self._remembered]))

    def _sharpen(self, relaxed: RelaxedProblem, deadline: float) -> RelaxedProblem:
        """Close in from both sides until nothing more can be raised for the relaxed optimum."""
        while self._met and not self._is_settled():
            least = sorted(self._met, key=lambda configuration: self._met[configuration])
            least = least[:_NUM_SHARPENED]
            units = [relaxed.columns[choice.column].units for conf in least for choice in conf]
            self._remembered.update(dict.fromkeys(units))
            # In slices: another column may become the one that matters.
            until = min(deadline, self.part_deadline - _LEAST_SEARCH_S)
            until = min(until, time.monotonic() + _LEAST_SEARCH_S)
            step = _SHARPER
            if self.plan is not None:
                step = max(step, (1.0 - self.bound_s / self.value_s) / 2)
            sharper = self._sharpener.sharper(relaxed, least, step, until)
            if time.monotonic() > deadline:
                break
            if sharper is None:
                # Nothing to raise: what is left may be labels that were merged.
                self._met = {}
                self._prove(relaxed, deadline, most_labels=2048)
                break
            if sharper is relaxed:
                continue
            relaxed = self.relaxed = sharper
            self._met = {}
            self._prove(relaxed, max(deadline, time.monotonic() + 0.3), most_labels=256)
        return relaxed

    def accept_start(self, plan: Plan) -> None:
        """Take a user's plan as the first incumbent."""
        violations = check_plan(self.instance, plan)
        if violations:
            raise PlanError(violations)
        self._offer(plan)

    def result(self, limit: Limit | None) -> Result:
        """The answer as it stands."""
        wall_s = time.monotonic() - self.started
        status = Status.NO_SOLUTION
        if self.plan is not None:
            status = Status.OPTIMAL if self.is_closed else Status.FEASIBLE
        elif self.is_infeasible:
            status = Status.INFEASIBLE
        stopped = status in (Status.FEASIBLE, Status.NO_SOLUTION)
        bound_s = None if status is Status.INFEASIBLE else min(self.bound_s, self.value_s)
        if status is not Status.INFEASIBLE and not math.isfinite(self.bound_s):
            bound_s = self.value_s
        return Result(
            status=status,
            limit=(limit or "time") if stopped else None,
            plan=self.plan,
            objective_s=None if self.plan is None else self.value_s,
            bound_s=bound_s,
            wall_s=wall_s,
            backend=self.proved_by,
            diagnosis="" if self.plan is not None else self.diagnosis,
            history=tuple(self.history),
        )

    def _offer(self, plan: Plan, draft: Draft | None = None) -> None:
        """Keep a plan if it is better and the independent checker accepts it."""
        value_s = evaluate(self.instance, plan).step_time_s
        if value_s >= self.value_s or check_plan(self.instance, plan):
            return
        self.plan, self.value_s, self.draft = plan, value_s, draft
        self._report()

    def _offer_baselines(self) -> None:
        """Never be worse than the best known rule with one replica, if time suffices for it."""
        if self._has_offered or len(self.instance.cluster.devices) <= MAX_SINGLE_DEVICES:
            return
        self._has_offered = True
        needs_s = _BASELINE_S
        for name in ("proportional", "subset_one_replica"):
            started = time.monotonic()
            if self.is_closed or started + needs_s > self.deadline:
                return
            plan = baselines(self.instance, names=(name,))[name].plan
            # Every kind and prefix of kinds, by three families, costs some times as much.
            needs_s = 6.0 * (time.monotonic() - started)
            if plan is not None and len(plan.layout.replicas) == 1 and self._has_stages(plan):
                self._offer(plan)

    def _has_stages(self, plan: Plan) -> bool:
        return self.num_stages in (None, len(plan.layout.replicas[0].stages))

    def _raise_bound(self, bound_s: float) -> None:
        """A bound on the plans of the present part; the least of all parts counts."""
        self._part_bounds[self.part] = max(self._part_bounds[self.part], bound_s)
        bound_s = min(*self._part_bounds.values(), self.value_s)
        if math.isfinite(bound_s) and bound_s > self.bound_s:
            self.bound_s = bound_s
            self._report()

    def _report(self) -> None:
        incumbent = self.value_s if self.plan is not None else None
        gap = None if incumbent is None else max(1 - self.bound_s / incumbent, 0.0)
        progress = Progress(time.monotonic() - self.started, incumbent, self.bound_s, gap)
        self.history.append(progress)
        if self.on_progress is not None:
            self.on_progress(progress)

    def _time_left(self, share: float) -> float:
        """A moment that uses this share of what is left."""
        now = time.monotonic()
        return now + share * max(self.part_deadline - now, 0.0)

    def _num_hosts(self, relaxed: RelaxedProblem, units: tuple[int, ...]) -> int:
        cluster = self.instance.cluster
        return len({cluster.device(d).host for d in devices_of(relaxed.classes, units)})

    def _next_units(
        self, relaxed: RelaxedProblem, wanted: Sequence[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """Unit multisets that relaxed optima use, then others by how busy devices can be."""
        known = {column.units for column in relaxed.columns}
        met = [relaxed.columns[c.column].units for conf in self._met for c in conf]
        order = dict.fromkeys([*met, *self._remembered])
        every = dict.fromkeys([*order, *wanted])
        return [units for units in every if units in known and units not in self._sharpener.pool]

    def _least_work_s(self) -> float:
        """A bound without columns: every device of the part busy until the end."""
        numbers = [self.instance.cluster.device_index[device] for device in sorted(self.part)]
        return StagePricer(self.instance, 1).least_work_s(numbers)

    def _plans(
        self, relaxed: RelaxedProblem, wanted: Sequence[tuple[int, ...]],
        share: float = 0.3, is_first: bool = False,
    ) -> None:  # fmt: skip
        """Plans by the dynamic program over real stages, then local moves."""
        if not relaxed.columns:
            return
        until = self._time_left(share)
        now = time.monotonic()
        pool, arrange = self._sharpener.pool, self._sharpener.arrange
        real = real_problem(relaxed, wanted, now + 0.6 * (until - now), pool, arrange)
        until = max(until, time.monotonic() + _LEAST_SEARCH_S)
        # Low cutoffs first while there is no plan: far fewer labels stay.
        least_s = self._part_bounds[self.part]
        cutoffs = [factor * least_s for factor in _CUTOFFS]
        if self.plan is not None:
            cutoffs = [self.value_s * _WORTH]
        for cutoff in cutoffs:
            found = best_configurations(
                real, min(cutoff, 1e9), self.num_stages, until, self.plan is None
            )
            if found:
                break
        drafts: list[tuple[float, int, Draft]] = []
        for draft in drafts_of(self.instance, relaxed.classes, real, found[: 2 * _NUM_DRAFTS]):
            drafts.append((step_time_s(self.instance, draft), len(drafts), draft))
            self._offer(to_plan(self.instance, draft), draft)
            if time.monotonic() > self.part_deadline:
                break
        for value_s, _, draft in sorted(drafts, key=lambda entry: entry[:2])[:1]:
            if draft in self._polished or is_first:
                continue
            better, _ = polish(
                self.instance,
                draft,
                value_s,
                self.rings_of,
                min(self._time_left(share / 3), time.monotonic() + _LEAST_SEARCH_S),
            )
            self._polished |= {draft, better}
            self._offer(to_plan(self.instance, better), better)

    def rings_of(self, devices: tuple[str, ...]) -> Sequence[tuple[HeadGroup, ...]]:
        """Arrangements of a set of devices, remembered."""
        known = self._rings.get(devices)
        if known is None:
            assert self.relaxed is not None
            pricer = self.relaxed.pricer
            index = self.instance.cluster.device_index
            shape = column_shape(pricer.rates, sorted(index[device] for device in devices))
            known = [stage.ring for stage in self._sharpener.arrange(pricer, shape)]
            self._rings[devices] = known
        return known

    def _prove(
        self, relaxed: RelaxedProblem, deadline: float, most_labels: int,
        cutoff_s: float = math.inf,
    ) -> None:  # fmt: skip
        """Bound from the relaxed problem, or proof that there is no plan below the cutoff."""
        worst = self.value_s if self.plan is not None else relaxed.table.worst_s()
        cutoff = min(worst, cutoff_s)
        if self.backend != "dp" and not self._has_asked:
            self._has_asked = True
            now = time.monotonic()
            self._prove_by_program(relaxed, cutoff, now + _PROGRAM_SHARE * (deadline - now))
            if self._is_settled():
                return

        def remember(configuration: Configuration, value_s: float) -> None:
            self._met[configuration] = value_s

        # Its rows turn at any stage, which the linear program cannot say.
        optimum = solve_relaxed(
            relaxed.table,
            cutoff_s=cutoff,
            relative_gap=max(self.relative_gap / 5, 1e-6),
            num_stages=self.num_stages,
            deadline=deadline,
            floor_s=self._part_bounds[self.part],
            most_labels=most_labels,
            on_configuration=remember,
        )
        if optimum.bound_s > self._part_bounds[self.part]:
            self.proved_by = "dp"
        has_none = optimum.is_complete and optimum.configuration is None
        if has_none and self.plan is None and cutoff == worst:
            self.proved_by = "dp"
            self._no_plan(relaxed)
            return
        self._raise_bound(optimum.bound_s)

    def _prove_by_program(self, relaxed: RelaxedProblem, cutoff_s: float, deadline: float) -> None:
        """The same with a backend on the configuration program, while that is small."""
        table = relaxed.table
        if not table.num_columns or count_places(table, cutoff_s) > _MAX_PLACES:
            return
        program = build_configuration_program(table, cutoff_s, self.num_stages)
        try:
            solution = solve_linear(
                program.model,
                self.backend,
                time_limit_s=deadline - time.monotonic(),
                relative_gap=self.relative_gap / 5,
                seed=self.seed,
            )
        except BackendError as error:
            logger.warning("the dynamic program goes on alone: %s", error)
            return
        if solution.values is not None:
            configuration = program.configuration(solution.values)
            self._met[configuration] = table.value_s(configuration)
        if solution.termination is Termination.INFEASIBLE:
            if self.plan is None:
                self._no_plan(relaxed)
            else:
                self._raise_bound(cutoff_s)
            self.proved_by = self.backend
        elif solution.bound is not None:
            if solution.bound > self._part_bounds[self.part]:
                self.proved_by = self.backend
            self._raise_bound(solution.bound)

    def _no_plan(self, relaxed: RelaxedProblem) -> None:
        """The present part has no plan."""
        self.is_refuted = True
        self.diagnosis = self.diagnosis or diagnose(self.instance, relaxed, self.num_stages)
        self._raise_bound(math.inf)

    def _close(self, relaxed: RelaxedProblem) -> None:
        """Enumerate what could still be better."""

        def offer(plan: Plan) -> float:
            self._offer(plan)
            return self.value_s

        self.proved_by = "enumeration"
        closer = Closer(relaxed, self.num_stages, offer)
        closing = closer.run(self.value_s, self.relative_gap, self.part_deadline)
        if closing.is_complete and self.plan is None:
            self._no_plan(relaxed)
            return
        self._raise_bound(closing.bound_s)
