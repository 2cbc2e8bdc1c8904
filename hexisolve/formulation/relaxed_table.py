"""The table of relaxed stage prices of an instance (docs/formulation.md, sections 2-4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.cost.flop import head_forward_flop
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.bundles import least_bundled_s
from hexisolve.formulation.cuts import CutRates
from hexisolve.formulation.pipeline_table import (
    FloatArray,
    IntArray,
    PipelineTable,
    usage_states,
)
from hexisolve.formulation.relaxed_layer import ColumnShape, column_shape, least_layer_s
from hexisolve.formulation.stage_memory_bound import (
    StateMode,
    gathered_bytes,
    layer_memory,
    least_recompute_mixed_s,
    least_recompute_s,
    state_bytes_per_device,
    state_modes,
    usable_of,
)
from hexisolve.formulation.units import (
    MAX_SINGLE_DEVICES,
    UnitClass,
    devices_of,
    unit_classes,
)
from hexisolve.formulation.work import POLICIES, REPEATS, layer_load

_MAX_STAGES = 8
_MAX_LENGTHS = 6


class Column(NamedTuple):
    """What a column of the table stands for."""

    units: tuple[int, ...]
    devices: tuple[str, ...]
    mode: StateMode


@dataclass(frozen=True, eq=False)
class RelaxedProblem:
    """The relaxed layout problem of an instance.

    Parameters
    ----------
    table
        Its numbers.
    columns
        What its columns mean.
    classes
        The units.
    pricer
        What priced the columns.
    pool
        Every column, those that are not in the table included.
    keeps_all
        Whether columns that are never better stay in the table.
    """

    table: PipelineTable
    columns: tuple[Column, ...]
    classes: tuple[UnitClass, ...]
    pricer: StagePricer
    pool: tuple[PricedColumn, ...]
    keeps_all: bool


class PricedColumn(NamedTuple):
    """A column with its shape, its least transfers in, and its prices."""

    column: Column
    shape: ColumnShape
    entry_s: float
    prices: StagePrices


class Lengths(NamedTuple):
    """Chunks of an instance, one sequence each, longest first, in classes of about equal length.

    A class counts with its shortest length, so that prices stay lower bounds.
    """

    tokens: tuple[int, ...]
    counts: tuple[int, ...]
    live_tokens: tuple[int, ...]

    @property
    def num_chunks(self) -> int:
        """N."""
        return sum(self.counts)


def chunk_lengths(instance: Instance) -> Lengths:
    """Sort the sequences and merge their lengths into a few classes."""
    ordered = sorted(instance.workload.sequence_lengths, reverse=True)
    live = tuple(np.cumsum(ordered).tolist())
    distinct = sorted(set(ordered), reverse=True)
    if len(distinct) > _MAX_LENGTHS:
        places = np.linspace(0, len(ordered) - 1, _MAX_LENGTHS).round().astype(int)
        distinct = sorted({ordered[place] for place in places}, reverse=True)
    counts = [0] * len(distinct)
    for length in ordered:
        # The longest class that is not above it.
        counts[next(idx for idx, own in enumerate(distinct) if own <= length)] += 1
    return Lengths(tuple(distinct), tuple(counts), live)


@dataclass(frozen=True, eq=False)
class StageSizes:
    """Sizes of every possible stage as arrays ``[place, layers]``.

    With equal layers the places are "not the first stage" and "the first stage"; otherwise the
    numbers of layers after the stage.

    Parameters
    ----------
    kind_counts
        Per kind of layer, how many of them.
    num_layers
        Layers.
    parameters, pair, largest
        Parameters of the stage, of its largest two neighbouring blocks, of its largest block.
    first_block, last_block
        Parameters of the first and the last block.
    exists
        Whether there is such a stage.
    is_first
        Whether it is the first.
    """

    kind_counts: tuple[IntArray, ...]
    num_layers: IntArray
    parameters: FloatArray
    pair: FloatArray
    largest: FloatArray
    first_block: FloatArray
    last_block: FloatArray
    exists: npt.NDArray[np.bool_]
    is_first: npt.NDArray[np.bool_]


def stage_sizes(instance: Instance, is_last: bool) -> StageSizes:
    """Sizes of the stages that are, or are not, the last of a pipeline."""
    model = instance.model
    num_layers = model.num_layers
    kinds = tuple(dict.fromkeys(model.layers))
    are_equal = len(kinds) == 1
    places = 2 if are_equal else num_layers + 1
    shape = (places, num_layers + 1)
    counts = [np.zeros(shape, dtype=np.int64) for _ in kinds]
    layers = np.broadcast_to(np.arange(num_layers + 1), shape)
    parameters, pair, largest, first_block, last_block = np.zeros((5, *shape))
    exists, is_first = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for place in range(places):
        for size in range(1, num_layers + 1):
            if are_equal:
                first, starts = 0, place == 1
                if starts and is_last != (size == num_layers):
                    continue
                if not starts and size == num_layers:
                    continue
            else:
                first = num_layers - place - size
                starts = first == 0
                if first < 0 or is_last != (place == 0):
                    continue
            own = model.layers[first : first + size]
            exists[place, size], is_first[place, size] = True, starts
            for idx, kind in enumerate(kinds):
                counts[idx][place, size] = own.count(kind)
            blocks = _blocks(instance, own, starts, is_last)
            parameters[place, size] = sum(blocks)
            neighbours = [a + b for a, b in pairwise(blocks)]
            pair[place, size] = max(neighbours, default=blocks[0])
            largest[place, size] = max(blocks)
            first_block[place, size], last_block[place, size] = blocks[0], blocks[-1]
    return StageSizes(
        tuple(counts), layers, parameters, pair, largest, first_block, last_block, exists, is_first
    )


def _blocks(
    instance: Instance, layers: Sequence[LayerSpec], is_first: bool, is_last: bool
) -> list[int]:
    """Parameters of the blocks of a stage, in order of forward."""
    model = instance.model
    blocks = [model.embedding_parameters] * is_first + [layer.parameters for layer in layers]
    if is_last:
        head = model.head_parameters + model.final_norm_parameters
        if model.tied_embeddings and not is_first:
            head += model.hidden_size * model.vocab_size
        blocks.append(head)
    return blocks


class StagePrices(NamedTuple):
    """Prices of a column, ``[j, place, layers]``."""

    time_s: FloatArray
    total_s: FloatArray
    finish_s: FloatArray


# (mode, sizes, first and last + 1 number of stages after) -> [length, j, place, layers].
RecomputeSeconds = Callable[[StateMode, StageSizes, int, int], FloatArray]


class StagePricer:
    """Prices the columns of one instance."""

    def __init__(self, instance: Instance, max_stages: int) -> None:
        self.instance = instance
        self.max_stages = max_stages
        self.lengths = chunk_lengths(instance)
        self.rates = CutRates(instance)
        self.sizes = (stage_sizes(instance, True), stage_sizes(instance, False))
        self.kinds = tuple(dict.fromkeys(instance.model.layers))
        self.memories = tuple(layer_memory(instance, kind) for kind in self.kinds)
        self.has_bundles = len(instance.cluster.devices) > MAX_SINGLE_DEVICES
        self._bundled: set[object] = set()
        self._layer_s: dict[object, FloatArray] = {}

    def entry_s(self, numbers: Sequence[int]) -> float:
        """Hidden states in, gradients out: all tokens of the shortest chunk cross the border.

        A host that is only partly in the column may hold the neighbour, so its devices' own
        links are the border there.
        """
        instance = self.instance
        devices = instance.cluster.devices
        outside = [n for n in range(len(devices)) if n not in set(numbers)]
        if not outside:
            return 0.0
        num_bytes = (
            self.lengths.tokens[-1] * instance.model.hidden_size * instance.workload.element_bytes
        )
        rate_in = rate_out = 0.0
        for host in {devices[n].host for n in numbers}:
            own = [n for n in numbers if devices[n].host == host]
            rate_in += self.rates.rate_bytes_per_s(outside, own)
            rate_out += self.rates.rate_bytes_per_s(own, outside)
        if not rate_in or not rate_out:
            return 0.0
        return num_bytes / rate_in + num_bytes / rate_out

    def layer_s(self, shape: ColumnShape) -> FloatArray:
        """``[length, kind, policy]`` least F + B seconds of a layer."""
        key = _signature(shape)
        known = self._layer_s.get(key)
        if known is None:
            cost = self.instance.cost
            known = np.array(
                [
                    [
                        [least_layer_s(load, policy, shape, cost, tokens) for policy in POLICIES]
                        for load in (
                            layer_load(self.instance, kind, tokens, shape.devices)
                            for kind in self.kinds
                        )
                    ]
                    for tokens in self.lengths.tokens
                ]
            )
            self._layer_s[key] = known
        return known

    def sharpen(self, shape: ColumnShape, deadline: float = np.inf) -> bool:
        """Price layers by the bundles of the column's hosts as well; False if that is done.

        It costs far more than the other rows, so only columns that matter are sharpened.
        """
        key = _signature(shape)
        if not self.has_bundles or len(shape.hosts) < 2 or key in self._bundled:
            return False
        self._bundled.add(key)
        self._layer_s[key] = np.maximum(self.layer_s(shape), self._bundled_s(shape, deadline))
        return True

    def _bundled_s(self, shape: ColumnShape, deadline: float) -> FloatArray:
        """The same from the bundles of the column's hosts (R8)."""
        cost = self.instance.cost
        result = np.empty((len(self.lengths.tokens), len(self.kinds), len(POLICIES)))
        for length, tokens in enumerate(self.lengths.tokens):
            for kind, layer in enumerate(self.kinds):
                load = layer_load(self.instance, layer, tokens, shape.devices)
                least = [
                    least_bundled_s(load, policy, shape, cost, deadline) for policy in POLICIES[:2]
                ]
                # `full` repeats all that `layer` repeats.
                result[length, kind] = [*least, least[1]]
        launches = cost.launch_overhead_s * cost.launches_per_layer
        result += np.array([launches * (1.0 + REPEATS[policy][5]) for policy in POLICIES])
        return result

    def price(
        self, shape: ColumnShape, mode: StateMode, layer_s: FloatArray | None = None,
        recompute_s: RecomputeSeconds | None = None,
    ) -> StagePrices:  # fmt: skip
        """All stages of a column.

        Relaxed prices, unless prices of layers and seconds of recompute are given.
        """
        num_stages, (places, width) = self.max_stages, self.sizes[0].exists.shape
        result = StagePrices(*(np.full((num_stages, places, width), np.inf) for _ in range(3)))
        layer_s = self.layer_s(shape) if layer_s is None else layer_s
        # Prices of stages that are not the last do not depend on j, only their memory does.
        groups = [(self.sizes[0], 0, 1), (self.sizes[1], 1, num_stages)]
        for sizes, start, stop in groups:
            if start >= stop:
                continue
            span = slice(start, stop)
            exists = sizes.exists[None]
            finish_s = self._finish_s(shape, mode, sizes)
            result.finish_s[span] = np.where(sizes.exists, finish_s, np.inf)
            if recompute_s is None:
                extra = self._recompute_s(shape, mode, sizes, start, stop, layer_s)
            else:
                extra = recompute_s(mode, sizes, start, stop)
            for idx, count in enumerate(self.lengths.counts):
                time_s = self._stage_s(shape, mode, sizes, start == 0, idx, layer_s)[None]
                time_s = np.where(exists, time_s + extra[idx], np.inf)
                result.total_s[span] = count * time_s + (result.total_s[span] if idx else 0.0)
                result.time_s[span] = time_s  # the last length is the shortest
        return result

    def _stage_s(
        self, shape: ColumnShape, mode: StateMode, sizes: StageSizes, is_last: bool, length: int,
        layer_s: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """F + B without recompute: layers, head, exposed gathers."""
        instance, model = self.instance, self.instance.model
        tokens = self.lengths.tokens[length]
        work: FloatArray = np.zeros(sizes.exists.shape)
        for kind, counts in enumerate(sizes.kind_counts):
            work = work + counts * layer_s[length, kind, 0]
        if is_last:
            flop = 3.0 * head_forward_flop(model.hidden_size, model.vocab_size, tokens)
            work = work + flop / sum(device.dense_flop_per_s for device in shape.devices)
        num_devices = len(shape.devices)
        if mode.zero != 3 or num_devices == 1:
            return work
        per_parameter = (1 - 1 / num_devices) / shape.slowest_bytes_per_s
        gather = per_parameter * instance.workload.element_bytes
        scatter = per_parameter * instance.cost.gradient_bytes * (mode.gradients == "chunk")
        # Backward starts with the last block; the embedding is not gathered again.
        exposed = (sizes.first_block + sizes.last_block) * gather + sizes.first_block * scatter
        traffic = sizes.parameters * (2 * gather + scatter)
        traffic = traffic - np.where(sizes.is_first, sizes.first_block, 0.0) * gather
        result: FloatArray = np.maximum(work + exposed, traffic)
        return result

    def _recompute_s(
        self, shape: ColumnShape, mode: StateMode, sizes: StageSizes, start: int, stop: int,
        layer_s: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """``[length, j, place, layers]`` least seconds of recompute; infinite where nothing fits.

        For the stages with `start` to `stop` - 1 stages after them.
        """
        instance = self.instance
        num_devices, lengths = len(shape.devices), self.lengths
        longest = max(instance.workload.sequence_lengths)
        states = state_bytes_per_device(instance, mode, sizes.parameters, num_devices)
        states = states + gathered_bytes(instance, mode, sizes.pair, sizes.largest, num_devices)
        hidden_bytes = 2 * longest * instance.model.hidden_size * instance.workload.element_bytes
        # A neighbour is at least one device.
        neighbours = (~sizes.is_first).astype(int) + (start > 0)
        usable = np.array([usable_of(instance, shape.devices, count) for count in range(3)])
        total, least = usable.sum(axis=1)[neighbours], usable.min(axis=1)[neighbours]
        rooms = total - num_devices * states - np.where(neighbours > 0, hidden_bytes, 0)
        if start == 0:
            rooms = rooms - self._logits_bytes(sizes, usable.max(axis=1)[neighbours] - states)
        fits = (states <= least) & (rooms >= 0)
        live = np.array(
            [lengths.live_tokens[min(j, lengths.num_chunks - 1)] for j in range(start, stop)]
        )[:, None, None]
        result = []
        for length in range(len(lengths.tokens)):
            if len(self.kinds) == 1:
                extra_s = np.maximum(layer_s[length, 0] - layer_s[length, 0, 0], 0.0)
                seconds = least_recompute_s(
                    extra_s.tolist(), self.memories[0], sizes.num_layers[None], rooms[None],
                    live.astype(float), longest,
                )  # fmt: skip
            else:
                seconds = self._mixed_recompute_s(
                    sizes, rooms[None], live.astype(float), longest, layer_s[length]
                )
            result.append(np.where(fits[None], seconds, np.inf))
        return np.array(result)

    def _logits_bytes(self, sizes: StageSizes, most: FloatArray) -> FloatArray:
        """Tiles of logits over the devices of the last stage, at least (M3).

        A device of `most` free bytes holds at most a share c of the longest chunk, so at least
        1 / c devices have tokens, and all but one of them c or what makes up for it. The sum of
        ``min(tokens, tile)`` is concave: it is least when as many as can are at c.
        """
        instance, model = self.instance, self.instance.model
        longest = max(instance.workload.sequence_lengths)
        per_token: FloatArray = np.full(
            sizes.exists.shape, min(float(memory.transient.min()) for memory in self.memories)
        )
        per_token = per_token + sum(
            counts * float(memory.kept.min())
            for counts, memory in zip(sizes.kind_counts, self.memories, strict=True)
        )
        share = np.clip(np.maximum(most, 0.0) / (per_token * longest), 1e-6, 1.0)
        tile = instance.cost.logits_tile_tokens
        full = np.ceil(1.0 / share - 1e-9) - 1.0
        tokens = np.maximum(full * np.minimum(share * longest, tile), min(longest, tile))
        width = model.vocab_size * (instance.workload.element_bytes + 8)
        # Whole tokens: a device may have one less than its share says.
        result: FloatArray = np.maximum(tokens - full - 1, 0.0) * width
        return result

    def _mixed_recompute_s(
        self, sizes: StageSizes, rooms: FloatArray, live: FloatArray, longest: int,
        layer_s: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """Unlike layers: each kind goes none -> layer -> full, or straight if cheaper."""
        transient = min(float(memory.transient.min()) for memory in self.memories) * longest
        excess: FloatArray = transient - rooms + 0 * live
        steps: list[tuple[FloatArray, FloatArray]] = []
        for kind, counts in enumerate(sizes.kind_counts):
            kept = [value * live for value in self.memories[kind].kept]
            price = np.maximum(layer_s[kind] - layer_s[kind, 0], 0.0)
            excess = excess + counts * kept[0]
            saved = (kept[0] - kept[1], kept[1] - kept[2])
            lost = (float(price[1]), max(float(price[2] - price[1]), 0.0))
            if (lost[0] * saved[1] > lost[1] * saved[0]).any():
                saved, lost = (saved[0] + saved[1], 0 * saved[1]), (lost[0] + lost[1], 0.0)
            for fewer_bytes, more_s in zip(saved, lost, strict=True):
                bytes_: FloatArray = np.multiply(counts, fewer_bytes)
                seconds: FloatArray = np.multiply(counts, more_s) + 0 * live
                steps.append((bytes_, seconds))
        return least_recompute_mixed_s(steps, excess)

    def _finish_s(self, shape: ColumnShape, mode: StateMode, sizes: StageSizes) -> FloatArray:
        """Gradient synchronisation of the stage itself, and its optimizer."""
        cost, num_devices = self.instance.cost, len(shape.devices)
        slowest_memory = min(device.memory_bytes_per_s for device in shape.devices)
        own = sizes.parameters * (1.0 if mode.zero == 0 else 1.0 / num_devices)
        seconds: FloatArray = own * cost.optimizer_traffic_bytes / slowest_memory
        if num_devices == 1:
            return seconds
        received = {0: 2.0 * cost.gradient_bytes, 1: cost.gradient_bytes * 1.0, 3: 0.0}[mode.zero]
        if mode.zero == 3 and mode.gradients == "step":
            received = cost.gradient_bytes
        if mode.zero == 1:
            received += self.instance.workload.element_bytes
        share = 1 - 1 / num_devices
        return seconds + sizes.parameters * share * received / shape.slowest_bytes_per_s


def _signature(shape: ColumnShape) -> object:
    """Equal for columns whose layers have equal relaxed prices."""
    order: dict[str, int] = {}
    devices = tuple(
        (order.setdefault(d.host, len(order)), d.dense_flop_per_s, d.attention_forward_flop_per_s,
         d.attention_backward_flop_per_s, d.memory_bytes)
        for d in shape.devices
    )  # fmt: skip
    cuts = tuple((c.inside, c.in_bytes_per_s, c.out_bytes_per_s) for c in shape.cuts)
    return devices, cuts, shape.device_bytes_per_s


def relaxed_problem(
    instance: Instance,
    num_stages: int | None = None,
    keep_all: bool = False,
    part: frozenset[str] | None = None,
) -> RelaxedProblem:
    """Price every column of an instance from below.

    Parameters
    ----------
    instance
        What is to be placed.
    num_stages
        Most stages wanted; None for up to 8.
    keep_all
        Keep columns that are never better by their relaxed prices: real prices may differ.
    part
        Only units whose devices are all in this set; None for the whole cluster.
    """
    classes = unit_classes(instance.cluster)
    if part is not None:
        inside = [
            UnitClass(tuple(unit for unit in entry.units if part.issuperset(unit)))
            for entry in classes
        ]
        classes = tuple(entry for entry in inside if entry.count)
    num_units = sum(entry.count for entry in classes)
    most = min(num_units, instance.model.num_layers, num_stages or _MAX_STAGES)
    pricer = StagePricer(instance, most)
    pool: list[PricedColumn] = []
    for counts in usage_states([entry.count for entry in classes])[1:]:
        devices = devices_of(classes, counts.tolist())
        numbers = [instance.cluster.device_index[device] for device in devices]
        shape = column_shape(pricer.rates, numbers)
        if len(numbers) > 1 and shape.device_bytes_per_s == 0:
            continue
        entry = pricer.entry_s(numbers)
        for mode in state_modes(instance, len(numbers)):
            column = Column(tuple(counts.tolist()), devices, mode)
            pool.append(PricedColumn(column, shape, entry, pricer.price(shape, mode)))
    return _problem(pricer, classes, tuple(pool), keep_all)


def sharpened(
    problem: RelaxedProblem, wanted: Collection[tuple[int, ...]], deadline: float = np.inf
) -> RelaxedProblem | None:
    """The problem with columns of these units priced more sharply; None when none can be.

    What is not worked out by the `deadline` stays as loose as it is then.
    """
    pricer = problem.pricer
    # Columns that look alike share a price, so all of them change together.
    changed = [
        _signature(entry.shape)
        for entry in problem.pool
        if entry.column.units in wanted and pricer.sharpen(entry.shape, deadline)
    ]
    if not changed:
        return None
    pool = tuple(
        entry._replace(prices=pricer.price(entry.shape, entry.column.mode))
        if _signature(entry.shape) in changed
        else entry
        for entry in problem.pool
    )
    return _problem(pricer, problem.classes, pool, problem.keeps_all)


def _problem(
    pricer: StagePricer,
    classes: tuple[UnitClass, ...],
    pool: tuple[PricedColumn, ...],
    keep_all: bool,
) -> RelaxedProblem:
    """The table of a pool of columns, without those that cannot be or are never better."""
    possible = [entry for entry in pool if np.isfinite(entry.prices.time_s).any()]
    units = [np.array(entry.column.units, dtype=np.int64) for entry in possible]
    entries = [entry.entry_s for entry in possible]
    stages = [entry.prices for entry in possible]
    kept = list(range(len(possible))) if keep_all else undominated(units, entries, stages)
    table = make_table(
        pricer, [units[i] for i in kept], [entries[i] for i in kept], [stages[i] for i in kept],
        tuple(entry.count for entry in classes),
    )  # fmt: skip
    columns = tuple(possible[idx].column for idx in kept)
    return RelaxedProblem(table, columns, classes, pricer, pool, keep_all)


def make_table(
    pricer: StagePricer,
    units: Sequence[IntArray],
    entries: Sequence[float],
    stages: Sequence[StagePrices],
    available: tuple[int, ...],
) -> PipelineTable:
    """Put columns together."""
    instance, most = pricer.instance, pricer.max_stages
    finish_s = _spread(instance, most, [stage.finish_s for stage in stages])
    return PipelineTable(
        available=available,
        units=np.array(units, dtype=np.int64).reshape(-1, len(available)),
        time_s=_spread(instance, most, [stage.time_s for stage in stages]),
        total_s=_spread(instance, most, [stage.total_s for stage in stages]),
        finish_s=finish_s.min(axis=0),
        entry_s=np.array(entries, dtype=float),
        num_chunks=pricer.lengths.num_chunks,
    )


def undominated(
    units: Sequence[IntArray], entries: Sequence[float], stages: Sequence[StagePrices]
) -> list[int]:
    """Columns that no other beats with no more units, in any place and with any layers."""
    flat = [
        np.concatenate([own.time_s.ravel(), own.finish_s.min(axis=0).ravel()]) for own in stages
    ]
    if not all(_is_multiple(own) for own in stages):
        flat = [
            np.concatenate([values, own.total_s.ravel()])
            for values, own in zip(flat, stages, strict=True)
        ]
    sizes, borders = np.array(units), np.array(entries)
    # A column with a smaller sum cannot be dominated by one with a larger sum.
    weights = [np.where(np.isfinite(values), values, 1e9).sum() for values in flat]
    kept: list[int] = []
    for idx in sorted(range(len(flat)), key=lambda idx: (weights[idx], idx)):
        if kept:
            smaller = (sizes[kept] <= sizes[idx]).all(axis=1) & (borders[kept] <= borders[idx])
            if any((flat[kept[k]] <= flat[idx]).all() for k in np.flatnonzero(smaller)):
                continue
        kept.append(idx)
    return sorted(kept)


def _is_multiple(stage: StagePrices) -> bool:
    """Whether the sum over chunks says nothing beyond the time of one."""
    finite = np.isfinite(stage.time_s)
    ratios = stage.total_s[finite] / stage.time_s[finite]
    return bool(np.ptp(ratios) < 1e-9 * ratios.max()) if ratios.size else True


def _spread(instance: Instance, num_stages: int, compact: Sequence[FloatArray]) -> FloatArray:
    """``[j, place, layers]`` of every column as ``[j, column, layers after, layers]``."""
    num_layers = instance.model.num_layers
    are_equal = len(set(instance.model.layers)) == 1
    full = np.full((num_stages, len(compact), num_layers + 1, num_layers + 1), np.inf)
    for column, values in enumerate(compact):
        if not are_equal:
            full[:, column] = values
            continue
        for after in range(num_layers):
            inner = num_layers - after
            first_j, stop_j = (0, 1) if after == 0 else (1, num_stages)
            full[first_j:stop_j, column, after, 1:inner] = values[first_j:stop_j, 0, 1:inner]
            full[first_j:stop_j, column, after, inner] = values[first_j:stop_j, 1, inner]
    return full
