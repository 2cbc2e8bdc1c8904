"""Links that transfers share: simultaneous jobs divide an edge's bytes per second.

A *job* is a set of flows that move together: one point-to-point transfer, or all flows of a
collective. On every edge each flow gets the same share, so a job with c of the edge's C flows gets
c / C of its capacity; the job advances at the pace of its slowest edge. What runs aside (gathers of
the next layer's weights) yields to what a rank waits for: its flows share what those jobs leave of
an edge, at least a sixteenth of a flow's share each.

A job alone therefore takes ``max over edges (bytes / capacity)``, the flow rule of
docs/cost-model.md, and two jobs that are limited by the same edge take the sum of their times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from hexisolve.cost.communication import FlowNetwork, flow_network
from hexisolve.data.instance import Instance

_INFINITE = float("inf")
_SAME_MOMENT = 1e-12
YIELD = 16
"""How many flows that run aside weigh as much as one that a rank waits for, on a full edge."""
FlowBytes = tuple[int, int, float]
"""(sender's device number, receiver's device number, bytes)."""
_Users: TypeAlias = dict[int, dict["Job", None]]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What a job puts on the links.

    Parameters
    ----------
    edges
        Positions of the edges it uses.
    edge_bytes
        Bytes on each of them.
    num_flows
        Flows on each of them, by weight.
    latency_s
        The longest sum of latencies of its flows, added when the bytes are through.
    is_aside
        Whether it yields to others.
    """

    edges: tuple[int, ...]
    edge_bytes: tuple[float, ...]
    num_flows: tuple[float, ...]
    latency_s: float
    is_aside: bool = False
    flows_per_byte: tuple[tuple[int, float], ...] = field(init=False)

    def __post_init__(self) -> None:
        ratios = (
            (edge, flows / num_bytes)
            for edge, num_bytes, flows in zip(
                self.edges, self.edge_bytes, self.num_flows, strict=True
            )
        )
        object.__setattr__(self, "flows_per_byte", tuple(ratios))

    def yielding(self) -> Load:
        """The same load with flows that weigh a sixteenth and yield."""
        flows = tuple(count / YIELD for count in self.num_flows)
        return Load(self.edges, self.edge_bytes, flows, self.latency_s, is_aside=True)


class Links:
    """Capacities of a cluster's edges, and the loads of flow sets on them."""

    def __init__(self, instance: Instance) -> None:
        self._network: FlowNetwork = flow_network(instance.cluster)
        efficiency = instance.cost.link_efficiency
        rates = self._network.edge_bytes_per_s[: self._network.num_edges] * efficiency
        self.bytes_per_s: tuple[float, ...] = tuple(float(rate) for rate in rates)
        self._routes: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}

    def load(self, flows: Iterable[FlowBytes]) -> Load:
        """The load of a set of flows; empty ones and those to itself are free."""
        moving = [flow for flow in flows if flow[0] != flow[1] and flow[2] > 0]
        if len(moving) == 1:
            ((source, target, num_bytes),) = moving
            edges, latency_s = self._route(source, target)
            return Load(edges, (num_bytes,) * len(edges), (1,) * len(edges), latency_s)
        if not moving:
            return Load((), (), (), 0.0)
        sources, targets, sizes = zip(*moving, strict=True)
        table = self._network.route_table(sources, targets)
        spread = np.repeat(np.array(sizes), table.shape[1])
        length = self._network.num_edges + 1
        total = np.bincount(table.ravel(), spread, minlength=length)[:-1]
        count = np.bincount(table.ravel(), minlength=length)[:-1]
        used = np.flatnonzero(total)
        return Load(
            tuple(int(edge) for edge in used),
            tuple(float(total[edge]) for edge in used),
            tuple(int(count[edge]) for edge in used),
            float(self._network.pair_latency_s(sources, targets).max()),
        )

    def _route(self, source: int, target: int) -> tuple[tuple[int, ...], float]:
        known = self._routes.get((source, target))
        if known is None:
            row = self._network.route_table([source], [target])[0]
            edges = tuple(int(edge) for edge in row if edge < self._network.num_edges)
            latency_s = float(self._network.pair_latency_s([source], [target])[0])
            known = self._routes[source, target] = edges, latency_s
        return known


@dataclass(slots=True, eq=False)
class Job:
    """A load on its way.

    Parameters
    ----------
    left
        Share of it that has not moved, in 0..1.
    per_s
        Share that moves per second now.
    since_s
        When `left` was right.
    version
        Counts changes of pace: an announced end of an older pace is void.
    tag
        What the caller wants back at its end.
    """

    load: Load
    left: float
    per_s: float
    since_s: float
    version: int
    tag: object


class SharedLinks:
    """The jobs that are on their way, and when the next one ends.

    Changes of one moment are collected; paces are worked out once when time goes on.

    Parameters
    ----------
    bytes_per_s
        Capacity of every edge.
    taken_bytes_per_s
        Edge -> bytes/s that others use all the time (the link situation of a template).
    """

    def __init__(
        self, bytes_per_s: Sequence[float], taken_bytes_per_s: Mapping[int, float] | None = None
    ) -> None:
        self._capacity = list(bytes_per_s)
        self._free = list(bytes_per_s)
        self._users: tuple[_Users, _Users] = ({}, {})
        """Edge -> jobs: those that ranks wait for, and those that yield."""
        self._num_flows = [0.0] * len(self._capacity)
        self._num_aside = [0.0] * len(self._capacity)
        self._used = [0.0] * len(self._capacity)
        """Bytes/s of the jobs that ranks wait for."""
        self._ends: list[tuple[float, int, int, Job]] = []
        self._num_announced = 0
        self._changed: dict[int, None] = {}
        self._new: list[Job] = []
        self._now_s = 0.0
        self._taken: dict[int, float] = {}
        if taken_bytes_per_s:
            self.set_taken(taken_bytes_per_s, 0.0)

    def add(self, load: Load, now_s: float, tag: object) -> Job:
        """Start a job. One without bytes ends at once."""
        self._go_to(now_s)
        job = Job(load, 1.0, 0.0, now_s, 0, tag)
        all_users = self._users[load.is_aside]
        for edge, flows in zip(load.edges, load.num_flows, strict=True):
            users = all_users.get(edge)
            if users is None:
                users = all_users[edge] = {}
            users[job] = None
            self._num_flows[edge] += flows
            if load.is_aside:
                self._num_aside[edge] += flows
            self._changed[edge] = None
        self._new.append(job)
        return job

    def next_end_s(self) -> float | None:
        """When the next job has moved its bytes; None when nothing moves."""
        self._settle()
        while self._ends:
            end_s, _, version, job = self._ends[0]
            if version == job.version:
                return end_s
            heapq.heappop(self._ends)
        return None

    def pop(self) -> list[Job]:
        """Take the jobs that end next, all at one moment, off the links."""
        end_s = self.next_end_s()
        assert end_s is not None
        latest_s = end_s + abs(end_s) * _SAME_MOMENT
        ended = []
        while self._ends and self._ends[0][0] <= latest_s:
            _, _, version, job = heapq.heappop(self._ends)
            if version != job.version:
                continue
            ended.append(job)
            job.version += 1
            self._remove(job)
        self._now_s = max(self._now_s, end_s)
        return ended

    def _remove(self, job: Job) -> None:
        """Take a job off its edges; an edge without jobs starts from 0 again."""
        load = job.load
        waited_for, aside = self._users
        for edge, flows, num_bytes in zip(load.edges, load.num_flows, load.edge_bytes, strict=True):
            own, others = (aside, waited_for) if load.is_aside else (waited_for, aside)
            del own[edge][job]
            is_empty = not own[edge]
            self._num_flows[edge] -= flows
            if is_empty and not others.get(edge):
                self._num_flows[edge] = 0.0
            if load.is_aside:
                self._num_aside[edge] = 0.0 if is_empty else self._num_aside[edge] - flows
            else:
                self._used[edge] = 0.0 if is_empty else self._used[edge] - job.per_s * num_bytes
            self._changed[edge] = None

    def set_taken(self, taken_bytes_per_s: Mapping[int, float], now_s: float) -> None:
        """Change what others use of the links from now on."""
        self._go_to(now_s)
        for edge in self._taken.keys() | taken_bytes_per_s.keys():
            capacity, taken = self._capacity[edge], taken_bytes_per_s.get(edge, 0.0)
            # Others never push a job below an even share of the edge.
            free = max(capacity - taken, capacity / 2)
            if free != self._free[edge]:
                self._free[edge] = free
                self._changed[edge] = None
        self._taken = dict(taken_bytes_per_s)

    def waiting(self, now_s: float) -> dict[int, tuple[float, float]]:
        """Edge -> (bytes, flows) that are on their way over it."""
        found: dict[int, tuple[float, float]] = {}
        every_user = (
            (edge, job) for users in self._users for edge, jobs in users.items() for job in jobs
        )
        for edge, job in every_user:
            position = job.load.edges.index(edge)
            left = max(job.left - max(now_s - job.since_s, 0.0) * job.per_s, 0.0)
            num_bytes, flows = found.get(edge, (0.0, 0.0))
            found[edge] = (
                num_bytes + left * job.load.edge_bytes[position],
                flows + job.load.num_flows[position],
            )
        return found

    def _go_to(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._settle()
            self._now_s = now_s

    def _settle(self) -> None:
        """Give every job on an edge that changed its pace of now; those that yield come last."""
        if not self._changed and not self._new:
            return
        waited_for, aside = self._users
        affected = {job: None for job in self._new if not job.load.is_aside}
        for edge in self._changed:
            affected.update(waited_for.get(edge, ()))
        touched = self._changed
        used = self._used
        for job in affected:
            before = job.per_s
            per_s = self._pace(job.load)
            if per_s != before and per_s != _INFINITE:
                for edge, num_bytes in zip(job.load.edges, job.load.edge_bytes, strict=True):
                    used[edge] += (per_s - before) * num_bytes
                    touched[edge] = None
            self._go_at(job, per_s)
        yielding = {job: None for job in self._new if job.load.is_aside}
        for edge in touched:
            yielding.update(aside.get(edge, ()))
        for job in yielding:
            self._go_at(job, self._pace_aside(job.load))
        touched.clear()
        self._new.clear()

    def _go_at(self, job: Job, per_s: float) -> None:
        """Set the pace of a job from now on, and announce its end."""
        if per_s == job.per_s:
            return
        if self._now_s > job.since_s:
            job.left = max(job.left - (self._now_s - job.since_s) * job.per_s, 0.0)
            job.since_s = self._now_s
        job.per_s = per_s
        job.version += 1
        self._num_announced += 1
        end_s = job.since_s + (job.left / per_s if per_s != _INFINITE else 0.0)
        heapq.heappush(self._ends, (end_s, self._num_announced, job.version, job))

    def _pace(self, load: Load) -> float:
        """Share of the load that moves per second: the slowest of its edges."""
        free, num_flows = self._free, self._num_flows
        slowest = _INFINITE
        for edge, flows_per_byte in load.flows_per_byte:
            pace = free[edge] / num_flows[edge] * flows_per_byte
            if pace < slowest:
                slowest = pace
        return slowest

    def _pace_aside(self, load: Load) -> float:
        """The same of a load that yields: it shares what the others leave."""
        free, used = self._free, self._used
        slowest = _INFINITE
        for edge, flows_per_byte in load.flows_per_byte:
            num_aside = self._num_aside[edge]
            # Rounding apart, the others never use more than this leaves.
            least = free[edge] * num_aside / self._num_flows[edge]
            pace = max(free[edge] - used[edge], least) / num_aside * flows_per_byte
            if pace < slowest:
                slowest = pace
        return slowest
