"""Prices of all stages of a column, from below or real (docs/formulation.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hexisolve.cost.flop import head_forward_flop
from hexisolve.data.instance import Instance
from hexisolve.formulation.bundles import Suggestion
from hexisolve.formulation.column_bounds import ColumnBounds, signature
from hexisolve.formulation.cuts import CutRates
from hexisolve.formulation.host_memory import StagePlace
from hexisolve.formulation.joint_recompute import JointStage, joint_layers_s
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.recompute_counts import best_counts
from hexisolve.formulation.relaxed_layer import ColumnShape, two_work_bound_s
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import (
    StateMode,
    gathered_bytes,
    layer_memory,
    least_recompute_mixed_s,
    state_bytes_per_device,
    usable_of,
)
from hexisolve.formulation.stage_sizes import StageSizes, chunk_lengths, stage_sizes
from hexisolve.formulation.units import unit_classes
from hexisolve.formulation.work import layer_load


class StagePrices(NamedTuple):
    """Prices of a column, ``[j, place, layers]``; F and B are least ones, 0 where no stage is."""

    time_s: FloatArray
    total_s: FloatArray
    finish_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray


# (mode, sizes, first and last + 1 number of stages after) -> [length, j, place, layers].
RecomputeSeconds = Callable[[StateMode, StageSizes, int, int], FloatArray]


@dataclass(frozen=True, eq=False)
class GivenLayers:
    """Prices of layers inside a column.

    Parameters
    ----------
    layer_s
        ``[length, kind, policy]`` F + B of a layer in the middle of a stage, with gathers beside.
    ends_s, only_s
        ``[length]`` what a stage of two or more layers, or of one, has less than that many layers.
    forward_s, backward_s
        ``[length, kind]`` F and, without recompute, B of a layer with nothing beside it; None when
        they are not known.
    recompute_s
        Seconds of recompute; None for the least that pooled memory allows.
    """

    layer_s: FloatArray
    ends_s: FloatArray
    only_s: FloatArray
    forward_s: FloatArray | None = None
    backward_s: FloatArray | None = None
    recompute_s: RecomputeSeconds | None = None


class _StageSeconds(NamedTuple):
    """Seconds of stages without recompute, ``[place, layers]``: all, and without the layers."""

    total_s: FloatArray
    rest_s: FloatArray


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
        # Stages are whole units.
        self.smallest_stage = min(
            len(unit) for entry in unit_classes(instance.cluster) for unit in entry.units
        )
        self.bounds = ColumnBounds(instance, self.lengths, self.kinds)
        # Least seconds of all layers of a stage, [j, place, layers], where they were bounded
        # jointly.
        self._joint_s: dict[object, FloatArray] = {}
        self._repeated: dict[object, tuple[FloatArray, FloatArray]] = {}

    @property
    def is_simple(self) -> bool:
        """Whether one kind of layer and one length of chunks are all there is."""
        return self.bounds.is_simple

    @property
    def has_bundles(self) -> bool:
        """Whether the cluster is large enough for the plan space of bundles."""
        return self.bounds.has_bundles

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

    def least_work_s(self, numbers: Sequence[int]) -> float:
        """No plan on these devices takes less: all of them busy with all chunks until the end."""
        devices = [self.instance.cluster.devices[number] for number in numbers]
        seconds = 0.0
        for tokens, count in zip(self.lengths.tokens, self.lengths.counts, strict=True):
            for kind in self.kinds:
                load = layer_load(self.instance, kind, tokens, devices)
                attention = load.attention_forward_s + load.attention_backward_s
                own = two_work_bound_s(3.0 * load.dense_s, attention)
                seconds += count * self.instance.model.layers.count(kind) * own
        return seconds

    def join(
        self, shape: ColumnShape, mode: StateMode, place: StagePlace, real_s: float,
        optimise: Optimise, deadline: float = np.inf,
    ) -> tuple[bool, list[Suggestion]]:  # fmt: skip
        """Bound speed and memory of a stage by the same shares, where several hosts make it up.

        Whether its price rises, and shares that suit it. No more than `real_s`, what a real stage
        takes there, is asked for. A stage with more layers, or more stages after it, takes as much
        and a layer more for each; stages without one after them have a head and stand alone.
        """
        if not self.bounds.bundles_say_all(shape):
            return False, []
        j, number, num_layers = place
        sizes = self.sizes[j > 0]
        layers = self._relaxed_layers(shape, mode)
        work = self._work_s(shape, mode, sizes, j == 0, 0, layers)
        rest_s = float(work[1][number, num_layers])
        layer_s, plain_s = layers.layer_s[0, 0], self.bounds.layer_s(shape)[0, 0]
        ends = (1 + (mode.gradients == "chunk")) * bool((layer_s > plain_s).any())
        live_tokens = self.lengths.live_tokens[min(j, self.lengths.num_chunks - 1)]
        stage = JointStage(
            shape, mode, sizes, place, live_tokens,
            layer_s, plain_s, min(ends, num_layers),
            self.bounds.bundled_layers(shape, mode, optimise), self.smallest_stage,
            self.bounds.rows(shape, mode),
        )  # fmt: skip
        enough_s = min(real_s - rest_s, 2.0 * num_layers * float(layer_s[2]))
        bound_s, found = joint_layers_s(self.instance, stage, optimise, enough_s, deadline)
        known = self._joint_s.get((signature(shape), mode))
        if known is None:
            known = np.zeros((self.max_stages, *self.sizes[0].exists.shape))
        more = bound_s + np.arange(known.shape[2] - num_layers) * float(plain_s[0])
        raised = known.copy()
        after = slice(j, j + 1) if j == 0 else slice(j, None)
        raised[after, number, num_layers:] = np.maximum(known[after, number, num_layers:], more)
        self._joint_s[signature(shape), mode] = raised
        return bool(raised[place] > known[place] * (1 + 1e-9)), found

    def price(
        self, shape: ColumnShape, mode: StateMode, given: GivenLayers | None = None
    ) -> StagePrices:
        """All stages of a column: relaxed prices, unless those of an arrangement are given."""
        num_stages, (places, width) = self.max_stages, self.sizes[0].exists.shape
        values = [np.full((num_stages, places, width), value) for value in [np.inf] * 3 + [0.0] * 2]
        result = StagePrices(*values)
        layers = given or self._relaxed_layers(shape, mode)
        layer_s = layers.layer_s
        joint = None if given else self._joint_s.get((signature(shape), mode))
        # Prices of stages that are not the last do not depend on j, only their memory does.
        groups = [(self.sizes[0], 0, 1), (self.sizes[1], 1, num_stages)]
        for sizes, start, stop in groups:
            if start >= stop:
                continue
            span = slice(start, stop)
            exists = sizes.exists[None]
            finish_s = self._finish_s(shape, mode, sizes)
            result.finish_s[span] = np.where(sizes.exists, finish_s, np.inf)
            if layers.recompute_s is None:
                extra = self._recompute_s(shape, mode, sizes, start, stop, layer_s)
            else:
                extra = layers.recompute_s(mode, sizes, start, stop)
            for idx, count in enumerate(self.lengths.counts):
                own = self._stage_s(shape, mode, sizes, start == 0, idx, layers)
                time_s = own.total_s[None] + extra[idx]
                if joint is not None:
                    time_s = np.maximum(time_s, joint[span] + own.rest_s[None])
                time_s = np.where(exists, time_s, np.inf)
                result.total_s[span] = count * time_s + (result.total_s[span] if idx else 0.0)
                result.time_s[span] = time_s  # the last length is the shortest
            passes = self._passes_s(shape, mode, sizes, start, stop, layers, extra)
            result.forward_s[span] = passes[0]
            result.backward_s[span] = np.where(exists, passes[1], 0.0)
        return result

    def _relaxed_layers(self, shape: ColumnShape, mode: StateMode) -> GivenLayers:
        layer_s, plain_s = self.bounds.layer_s(shape, mode), self.bounds.layer_s(shape)
        only_s = (layer_s - plain_s)[:, :, 0].max(axis=1)
        times = 2.0 if mode.gradients == "chunk" else 1.0
        return GivenLayers(layer_s, times * only_s, only_s)

    def _passes_s(
        self, shape: ColumnShape, mode: StateMode, sizes: StageSizes, start: int, stop: int,
        layers: GivenLayers, extra: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """Least F and least B of the shortest chunk, each on its own.

        Of an arrangement those of its layers, whatever is beside them. `extra` is its recompute.
        """
        model, tokens = self.instance.model, self.lengths.tokens[-1]
        forward, backward = np.zeros((2, *sizes.exists.shape))
        if layers.forward_s is not None and layers.backward_s is not None:
            for idx, counts in enumerate(sizes.kind_counts):
                forward += counts * layers.forward_s[-1, idx]
                backward += counts * layers.backward_s[-1, idx]
            again = extra[-1]
        else:
            pass_s = self.bounds.pass_s(shape)
            for idx, counts in enumerate(sizes.kind_counts):
                forward += counts * pass_s[-1, idx, 0]
                backward += counts * pass_s[-1, idx, 1]
            again = self._repeated_s(shape, mode, sizes, start, stop, pass_s)
        backward = backward + np.where(np.isfinite(again), again, 0.0)
        if mode.zero == 3 and len(shape.devices) > 1:
            gather = self._per_parameter(shape)[0]
            forward = forward + (sizes.first_block + self._beside_embedding(sizes)) * gather
            backward = backward + sizes.last_block * gather
        if start == 0:
            flop = float(head_forward_flop(model.hidden_size, model.vocab_size, tokens))
            head_s = flop / sum(device.dense_flop_per_s for device in shape.devices)
            forward, backward = forward + head_s, backward + 2.0 * head_s
        return forward, backward

    def _repeated_s(
        self, shape: ColumnShape, mode: StateMode, sizes: StageSizes, start: int, stop: int,
        pass_s: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """Least seconds that recompute adds to B of the shortest chunk; remembered."""
        key = (signature(shape), mode, start)
        known = self._repeated.get(key)
        if known is None or known[0] is not pass_s:
            again = self._recompute_s(shape, mode, sizes, start, stop, pass_s[:, :, 1:])[-1]
            known = self._repeated[key] = pass_s, again
        return known[1]

    def _stage_s(
        self, shape: ColumnShape, mode: StateMode, sizes: StageSizes, is_last: bool, length: int,
        layers: GivenLayers,
    ) -> _StageSeconds:  # fmt: skip
        """F + B without recompute: layers, head, exposed gathers."""
        layers_s, rest_s, traffic = self._work_s(shape, mode, sizes, is_last, length, layers)
        return _StageSeconds(np.maximum(layers_s + rest_s, traffic), rest_s)

    def _beside_embedding(self, sizes: StageSizes) -> FloatArray:
        """Parameters that move while the embedding runs, which hides nothing: a layer's."""
        least = min(kind.parameters for kind in self.kinds)
        result: FloatArray = np.where(sizes.is_first, float(least), 0.0)
        return result

    def _per_parameter(self, shape: ColumnShape) -> tuple[float, float]:
        """Seconds of a gather and of a reduce-scatter per parameter."""
        per_byte = (1 - 1 / len(shape.devices)) / shape.slowest_bytes_per_s
        workload, cost = self.instance.workload, self.instance.cost
        return per_byte * workload.element_bytes, per_byte * cost.gradient_bytes

    def _work_s(
        self, shape: ColumnShape, mode: StateMode, sizes: StageSizes, is_last: bool, length: int,
        layers: GivenLayers,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
        """Layers; head and what no layer hides of the gathers; and all gathers."""
        model = self.instance.model
        tokens = self.lengths.tokens[length]
        work: FloatArray = np.zeros(sizes.exists.shape)
        for kind, counts in enumerate(sizes.kind_counts):
            work = work + counts * layers.layer_s[length, kind, 0]
        # Nothing is gathered beside the last block, or scattered beside the first.
        work = work - np.where(sizes.num_layers > 1, layers.ends_s[length], layers.only_s[length])
        rest: FloatArray = np.zeros_like(work)
        if is_last:
            flop = 3.0 * head_forward_flop(model.hidden_size, model.vocab_size, tokens)
            rest = rest + flop / sum(device.dense_flop_per_s for device in shape.devices)
        if mode.zero != 3 or len(shape.devices) == 1:
            return work, rest, np.zeros_like(work)
        gather, scatter = self._per_parameter(shape)
        scatter *= mode.gradients == "chunk"
        # Backward starts with the last block; the embedding is not gathered again.
        exposed = (sizes.first_block + sizes.last_block) * gather + sizes.first_block * scatter
        exposed = exposed + self._beside_embedding(sizes) * (gather + scatter)
        traffic = sizes.parameters * (2 * gather + scatter)
        traffic = traffic - np.where(sizes.is_first, sizes.first_block, 0.0) * gather
        return work, rest + exposed, traffic

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
        neighbours = (~sizes.is_first).astype(int) + (start > 0)
        usable = np.array(
            [usable_of(instance, shape.devices, k * self.smallest_stage) for k in range(3)]
        )
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
                memory = self.memories[0]
                dearer = np.diff(np.maximum(layer_s[length, 0] - layer_s[length, 0, 0], 0.0))
                again, full = best_counts(
                    memory.kept[None], longest * memory.transient[None], dearer,
                    sizes.num_layers, rooms[None], live.astype(float),
                )  # fmt: skip
                seconds = full * dearer.sum() + again * dearer[0]
                seconds = np.where(again >= 0, seconds, np.inf)
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
