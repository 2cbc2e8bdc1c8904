"""The exact end for small instances: branch and bound over configurations and insides.

Configurations come in the order of their relaxed value. One that could still be better is opened:
stage by stage its insides are priced exactly, those that cannot lead below the incumbent are
dropped, and what is left at the leaves is a whole plan for `evaluate` and `check_plan`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import comb

from hexisolve.data.instance import Instance
from hexisolve.formulation.pipeline_table import (
    Choice,
    Configuration,
    PipelineTable,
    StageSeconds,
)
from hexisolve.formulation.relaxed_table import RelaxedProblem
from hexisolve.formulation.work import layer_load
from hexisolve.plan.plan import HeadGroup, Plan, Policy, Stage
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import stage_price
from hexisolve.plan.step_memory import stage_memory
from hexisolve.plan.tokens import chunk_shape
from hexisolve.solvers.drafts import make_plan
from hexisolve.solvers.incumbent import renamed
from hexisolve.solvers.insides import Ring, count_insides, insides, rank_orders

_MAX_INSIDES = 1_000_000
_MAX_REMEMBERED = 60_000  # rings of one set of devices
_MAX_CONFIGURATIONS = 200_000
_SLACK = 1e-9


@dataclass(frozen=True)
class Option:
    """One way to fill a stage of a configuration.

    Parameters
    ----------
    stage, recompute
        The stage with its layers, and its recompute counts.
    shortest_s, total_s
        F + B of the shortest chunk and of all chunks.
    """

    stage: Stage
    recompute: Mapping[Policy, int]
    shortest_s: float
    total_s: float


@dataclass(frozen=True)
class Closing:
    """Outcome: `bound_s` holds for all plans; `is_complete` when nothing is left open."""

    bound_s: float
    is_complete: bool


def can_close(relaxed: RelaxedProblem) -> bool:
    """Whether the insides of all columns are few enough to enumerate."""
    instance = relaxed.pricer.instance
    workload = instance.workload
    longest = max(workload.sequence_lengths)
    if longest % workload.block_tokens:
        return False
    heads = {layer.attention.num_q_heads for layer in instance.model.layers}
    most = max((len(column.devices) for column in relaxed.columns), default=0)
    if len(heads) > 1 or most > 5:
        return False
    if count_insides(most, longest // workload.block_tokens, max(heads)) > _MAX_INSIDES:
        return False
    # Recompute counts are chosen by the sum over chunks, which is exact for equal chunks only.
    if len(set(workload.sequence_lengths)) > 1:
        return False
    return count_configurations(relaxed.table) <= _MAX_CONFIGURATIONS


def count_configurations(table: PipelineTable) -> int:
    """How many configurations a table has at most: columns in order, and cuts of the layers."""
    ways, total = Counter({(0,) * len(table.available): 1}), 0
    for num_stages in range(1, min(table.max_stages, table.num_layers) + 1):
        longer: Counter[tuple[int, ...]] = Counter()
        for used, count in ways.items():
            for units in table.units.tolist():
                together = tuple(a + b for a, b in zip(used, units, strict=True))
                if all(a <= b for a, b in zip(together, table.available, strict=True)):
                    longer[together] += count
        ways = longer
        total += ways.total() * comb(table.num_layers - 1, num_stages - 1)
    return total


class Closer:
    """Branch and bound over one relaxed problem, which must hold every column."""

    def __init__(
        self, relaxed: RelaxedProblem, num_stages: int | None, offer: Callable[[Plan], float]
    ) -> None:
        self.relaxed = relaxed
        self.instance: Instance = relaxed.pricer.instance
        self.num_stages = num_stages
        self.offer = offer
        self.book = price_book(self.instance)
        lengths = sorted(self.instance.workload.sequence_lengths, reverse=True)
        plan_chunks = make_plan(self.instance, (), []).batch.replicas[0].pipelines[0].chunks
        self.shapes = [chunk_shape(chunk) for chunk in plan_chunks]
        self.num_blocks = lengths[0] // self.instance.workload.block_tokens
        self._rings: dict[tuple[str, ...], tuple[Ring, ...]] = {}
        self._works: dict[tuple[int, int], tuple[dict[str, float], dict[str, float]]] = {}

    def run(self, value_s: float, relative_gap: float, deadline: float) -> Closing:
        """Close the gap below `value_s`, or stop at the deadline."""
        wanted = sorted(
            (value, configuration)
            for configuration in self._configurations()
            if (value := self.relaxed.table.value_s(configuration)) < value_s
        )
        for value, configuration in wanted:
            if value >= value_s * (1 - max(relative_gap, _SLACK)):
                return Closing(min(value, value_s), True)
            finished, value_s = self._open(configuration, value_s, deadline)
            if not finished:
                return Closing(min(value, value_s), False)
        return Closing(value_s, True)

    def _configurations(self) -> Iterator[Configuration]:
        table = self.relaxed.table
        most = table.max_stages

        def extend(
            chosen: Configuration, used: tuple[int, ...], covered: int
        ) -> Iterator[Configuration]:
            if covered == table.num_layers:
                if self.num_stages in (None, len(chosen)):
                    yield chosen
                return
            if len(chosen) == most:
                return
            for column in range(table.num_columns):
                together = tuple(a + int(b) for a, b in zip(used, table.units[column], strict=True))
                if all(a <= b for a, b in zip(together, table.available, strict=True)):
                    for layers in range(1, table.num_layers - covered + 1):
                        choice = Choice(column, covered, layers)
                        yield from extend((*chosen, choice), together, covered + layers)

        for configuration in extend((), (0,) * len(table.available), 0):
            if math.isfinite(table.value_s(configuration)):
                yield configuration

    def _open(
        self, configuration: Configuration, value_s: float, deadline: float
    ) -> tuple[bool, float]:
        """Look at every plan of a configuration that may be below `value_s`."""
        num_stages = len(configuration)
        options: list[list[Option]] = []
        bests: list[tuple[float, float]] = [
            self._relaxed_s(configuration, idx) for idx in range(num_stages)
        ]
        used = [0] * len(self.relaxed.classes)
        names: list[tuple[str, ...]] = []
        for choice in configuration:
            column = self.relaxed.columns[choice.column]
            mapping = renamed(self.relaxed.classes, column.units, used)
            names.append(tuple(mapping[device] for device in column.devices))
            used = [a + b for a, b in zip(used, column.units, strict=True)]
        sizes = [len(devices) for devices in names]
        for idx, choice in enumerate(configuration):
            found = []
            mode = self.relaxed.columns[choice.column].mode
            layers = (choice.first_layer, choice.first_layer + choice.num_layers)
            for ring in self._rings_of(names[idx]):
                if time.monotonic() > deadline:
                    return False, value_s
                floor = self._floor_s(choice, ring)
                trial = [*bests[:idx], _larger(floor, bests[idx]), *bests[idx + 1 :]]
                if self._value_s(configuration, trial) >= value_s * (1 - _SLACK):
                    continue
                stage = Stage(layers, ring, "kv", mode.zero, mode.gradients)
                seconds = self._stage_s(stage, idx, num_stages, {"none": choice.num_layers})
                trial = [*bests[:idx], seconds, *bests[idx + 1 :]]
                if self._value_s(configuration, trial) >= value_s * (1 - _SLACK):
                    continue
                option = self._with_recompute(stage, idx, num_stages, sizes)
                if option is None:
                    continue
                trial[idx] = (option.shortest_s, option.total_s)
                if self._value_s(configuration, trial) < value_s * (1 - _SLACK):
                    found.append(option)
            if not found:
                return True, value_s
            options.append(sorted(found, key=lambda option: option.total_s))
            bests[idx] = (
                min(option.shortest_s for option in found),
                options[-1][0].total_s,
            )
        return self._leaves(configuration, options, bests, (), value_s, deadline)

    def _leaves(
        self, configuration: Configuration, options: list[list[Option]],
        bests: list[tuple[float, float]], chosen: tuple[Option, ...], value_s: float,
        deadline: float,
    ) -> tuple[bool, float]:  # fmt: skip
        """Depth first over the options of the stages, then over orders of ranks."""
        place = len(chosen)
        if place == len(options):
            return self._leaf(chosen, value_s, deadline)
        for option in options[place]:
            trial = [*((o.shortest_s, o.total_s) for o in (*chosen, option)), *bests[place + 1 :]]
            if self._value_s(configuration, trial) >= value_s * (1 - _SLACK):
                continue
            finished, value_s = self._leaves(
                configuration, options, bests, (*chosen, option), value_s, deadline
            )
            if not finished:
                return False, value_s
        return True, value_s

    def _leaf(
        self, chosen: tuple[Option, ...], value_s: float, deadline: float
    ) -> tuple[bool, float]:
        orders = [[option.stage.ring] for option in chosen]
        if len(chosen) > 1:
            orders = [list(rank_orders(option.stage.ring)) for option in chosen]
        for rings in product(*orders):
            if time.monotonic() > deadline:
                return False, value_s
            stages = tuple(
                Stage(o.stage.layers, ring, "kv", o.stage.zero, o.stage.zero3_gradients)
                for o, ring in zip(chosen, rings, strict=True)
            )
            plan = make_plan(self.instance, stages, [option.recompute for option in chosen])
            value_s = min(value_s, self.offer(plan))
        return True, value_s

    def _rings_of(self, devices: tuple[str, ...]) -> Iterable[Ring]:
        known = self._rings.get(devices)
        if known is not None:
            return known
        heads = self.instance.model.layers[0].attention.num_q_heads
        block = self.instance.workload.block_tokens
        rings = insides(devices, self.num_blocks, block, heads)
        if count_insides(len(devices), self.num_blocks, heads) > _MAX_REMEMBERED:
            return rings
        self._rings[devices] = tuple(rings)
        return self._rings[devices]

    def _floor_s(self, choice: Choice, ring: Ring) -> tuple[float, float]:
        """What a ring takes at least, without any exchange: cheaper than its price."""
        key = (choice.first_layer, choice.num_layers)
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = self._work(choice)
        dense, attention = work
        total = self.num_blocks * self.instance.workload.block_tokens
        seconds = 0.0
        for group in ring:
            # Exact pairs of a group are its share of all but for the rounding of odd pieces.
            share = max(group.tokens / total - 2.0 / (total + 1), 0.0)
            seconds = max(
                seconds,
                max(rank.tokens / total * dense[rank.device] for rank in group.ranks)
                + share * max(rank.num_q_heads * attention[rank.device] for rank in group.ranks),
            )
        if len(set(self.shapes)) > 1:
            return 0.0, seconds
        return seconds, len(self.shapes) * seconds

    def _work(self, choice: Choice) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of all dense work, and of one query head, for every device; longest chunk."""
        instance = self.instance
        devices = instance.cluster.devices
        longest = max(instance.workload.sequence_lengths)
        dense = {device.id: 0.0 for device in devices}
        attention = dict(dense)
        for layer in instance.model.layers[choice.first_layer :][: choice.num_layers]:
            load = layer_load(instance, layer, longest, devices)
            both = load.attention_forward_s + load.attention_backward_s
            for idx, device in enumerate(devices):
                dense[device.id] += 3.0 * float(load.dense_s[idx])
                if load.is_proportional:
                    attention[device.id] += float(both[idx]) / load.query_heads
        return dense, attention

    def _stage_s(
        self, stage: Stage, idx: int, num_stages: int, recompute: Mapping[Policy, int]
    ) -> tuple[float, float]:
        """F + B of the shortest chunk, and of all chunks."""
        prices = {}
        for shape in set(self.shapes):
            price = stage_price(self.book, stage, idx, num_stages, shape, recompute)
            prices[shape] = price.forward_s + price.backward_s
        return min(prices.values()), sum(prices[shape] for shape in self.shapes)

    def _with_recompute(
        self, stage: Stage, idx: int, num_stages: int, sizes: list[int]
    ) -> Option | None:
        """The stage with the recompute counts that fit and take least; None when none fits."""
        choices: list[tuple[float, float, int, dict[Policy, int]]] = []
        for counts in _recompute_choices(stage.num_layers):
            seconds = self._stage_s(stage, idx, num_stages, counts)
            choices.append((seconds[1], seconds[0], len(choices), counts))
        for total_s, shortest_s, _, counts in sorted(choices):
            if self._fits(stage, idx, num_stages, sizes, counts):
                return Option(stage, counts, shortest_s, total_s)
        return None

    def _fits(
        self, stage: Stage, idx: int, num_stages: int, sizes: list[int],
        counts: Mapping[Policy, int],
    ) -> bool:  # fmt: skip
        """Memory of a stage among stages of known sizes; who its neighbours are does not matter."""
        rank = stage.ring[0].ranks[0]
        stages = tuple(
            stage if k == idx else Stage((0, 1), (HeadGroup((rank,) * size),))
            for k, size in enumerate(sizes)
        )
        empty: list[Mapping[Policy, int]] = [
            dict(counts) if k == idx else {} for k in range(num_stages)
        ]
        plan = make_plan(self.instance, stages, empty)
        memory = stage_memory(self.book, plan.layout, 0, idx, plan.batch.replicas[0].pipelines)
        for rank, items in zip(stage.ranks, memory, strict=True):
            capacity = self.instance.cluster.device(rank.device).memory_bytes
            if items.needed_bytes > capacity - items.reserve:
                return False
        return True

    def _relaxed_s(self, configuration: Configuration, idx: int) -> tuple[float, float]:
        table, choice = self.relaxed.table, configuration[idx]
        j = len(configuration) - 1 - idx
        after = table.num_layers - choice.first_layer - choice.num_layers
        place = (j, choice.column, after, choice.num_layers)
        return float(table.time_s[place]), float(table.total_s[place])

    def _value_s(self, configuration: Configuration, seconds: list[tuple[float, float]]) -> float:
        return self.relaxed.table.value_of(configuration, [StageSeconds(*own) for own in seconds])


def _larger(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def _recompute_choices(num_layers: int) -> Iterator[dict[Policy, int]]:
    for num_full in range(num_layers + 1):
        for num_again in range(num_layers - num_full + 1):
            counts: dict[Policy, int] = {
                "none": num_layers - num_again - num_full, "layer": num_again, "full": num_full
            }  # fmt: skip
            yield {policy: count for policy, count in counts.items() if count}
