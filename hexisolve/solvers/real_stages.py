"""Real stages for a column: arrangements with their exact prices and memory.

The tables that come out have the form of relaxed ones, so the same dynamic program finds the best
configuration of real stages; plans built from it are priced again by `evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hexisolve.cost.memory import usable_bytes
from hexisolve.formulation.pipeline_table import FloatArray, IntArray
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.stage_memory_bound import (
    StateMode,
    gathered_bytes,
    state_bytes_per_device,
)
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.formulation.stage_sizes import StageSizes
from hexisolve.formulation.work import POLICIES
from hexisolve.plan.layer_price import LayerWork
from hexisolve.plan.plan import Chunk, HeadGroup, Slice, Stage
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import layer_works
from hexisolve.plan.step_memory import chunk_memory
from hexisolve.plan.tokens import chunk_shape
from hexisolve.solvers.realise import leaning_rings, real_rings

_NUM_FAST = 2  # fastest rings of a column that are priced
_NUM_LEANING = 4  # and of those that lean to memory
_NEIGHBOURS = 8  # ranks of neighbouring stages counted as peers while the neighbours are unknown


@dataclass(frozen=True, eq=False)
class RealStage:
    """An arrangement of a column with its prices, not yet tied to layers.

    Parameters
    ----------
    ring
        The inside.
    layer_s
        ``[length, kind, policy]`` F + B seconds of a layer.
    kept
        ``[rank, policy, kind]`` bytes of a layer of the longest chunk between F and B.
    transient
        ``[rank, policy]`` bytes during a backward, the largest over the kinds.
    fixed
        ``[rank]`` bytes of buffers.
    logits
        ``[rank]`` bytes of a tile of logits on the last stage.
    """

    ring: tuple[HeadGroup, ...]
    layer_s: FloatArray
    kept: FloatArray
    transient: FloatArray
    fixed: FloatArray
    logits: FloatArray


def real_stages(pricer: StagePricer, shape: ColumnShape) -> list[RealStage]:
    """Arrangements of a column: the fastest, then some that trade speed for room in memory."""
    devices = [device.id for device in shape.devices]
    fast = real_rings(pricer.instance, devices)[:_NUM_FAST]
    leaning = leaning_rings(pricer.instance, devices)
    leaning = leaning[:: -(-len(leaning) // _NUM_LEANING) or 1]
    return [price_ring(pricer, ring) for ring in (*fast, *leaning)]


def price_ring(pricer: StagePricer, ring: tuple[HeadGroup, ...]) -> RealStage:
    """Price a ring as a stage in the middle of a pipeline."""
    instance = pricer.instance
    book = price_book(instance)
    layers = instance.model.layers
    places = [layers.index(kind) for kind in pricer.kinds]
    layer_s = np.empty((len(pricer.lengths.tokens), len(places), len(POLICIES)))
    for length, tokens in enumerate(pricer.lengths.tokens):
        shape = chunk_shape(Chunk((Slice(0, 0, tokens),)))
        for kind, place in enumerate(places):
            stage = Stage((place, place + 1), ring)
            work: LayerWork = next(iter(layer_works(book, stage, 1, shape)))
            for idx, policy in enumerate(POLICIES):
                layer_s[length, kind, idx] = work.forward.total_s + work.backward(policy).total_s
    longest = chunk_shape(Chunk((Slice(0, 0, max(instance.workload.sequence_lengths)),)))
    num_ranks = sum(len(group.ranks) for group in ring)
    kept = np.empty((num_ranks, len(POLICIES), len(places)))
    transient = np.zeros((num_ranks, len(POLICIES)))
    fixed, logits = np.zeros(num_ranks), np.zeros(num_ranks)
    for kind, place in enumerate(places):
        stage = Stage((place, place + 1), ring)
        for idx, policy in enumerate(POLICIES):
            memory = chunk_memory(book, stage, 2, 3, longest, {policy: 1})
            kept[:, idx, kind] = memory.kept
            working = np.array(memory.working, dtype=float)
            transient[:, idx] = np.maximum(transient[:, idx], working[:, 0])
            fixed, logits = np.maximum(fixed, working[:, 1]), working[:, 2]
    return RealStage(ring, layer_s, kept, transient, fixed, logits)


class RealRecompute:
    """Recompute counts of a real stage, as few repeated seconds as memory allows.

    Policies change step by step: first all layers ``none``, then more and more ``layer`` from the
    first on, then more and more ``full``.
    """

    def __init__(self, pricer: StagePricer, stage: RealStage, shape: ColumnShape) -> None:
        self.pricer, self.stage, self.shape = pricer, stage, shape
        instance = pricer.instance
        devices = [instance.cluster.device(r.device) for g in stage.ring for r in g.ranks]
        self.num_ranks = len(devices)
        neighbours = min(_NEIGHBOURS, len(instance.cluster.devices) - self.num_ranks)
        self.usable = np.array(
            [usable_bytes(d.memory_bytes, self.num_ranks - 1 + neighbours, instance.cost)
             for d in devices]
        )  # fmt: skip
        kinds = pricer.kinds
        order = [kinds.index(layer) for layer in instance.model.layers]
        zeros = np.zeros((self.num_ranks, len(POLICIES), 1))
        # [rank, policy, number of layers from the start]
        self.kept = np.concatenate([zeros, stage.kept[:, :, order].cumsum(axis=2)], axis=2)
        self.order = order
        self.unlike = self._unlike_ranks()

    def _unlike_ranks(self) -> list[int]:
        """One of all ranks that need and have the same bytes: the others fit when it fits."""
        stage = self.stage
        rows = np.concatenate(
            [stage.kept.reshape(self.num_ranks, -1), stage.transient,
             np.stack([stage.fixed, stage.logits, self.usable], axis=1)], axis=1,
        )  # fmt: skip
        return sorted(np.unique(rows, axis=0, return_index=True)[1].tolist())

    def seconds(self, mode: StateMode, sizes: StageSizes, start: int, stop: int) -> FloatArray:
        """Extra seconds, ``[length, j, place, layers]``; see `StagePricer.price`."""
        steps = self.steps(mode, sizes, start, stop)
        layer_s = self.stage.layer_s
        extra_layer = layer_s[:, :, 1] - layer_s[:, :, 0]
        extra_full = layer_s[:, :, 2] - layer_s[:, :, 1]
        first = self._first(sizes)
        result = []
        for length in range(len(layer_s)):
            to_layer = np.concatenate([[0.0], extra_layer[length][self.order].cumsum()])
            to_full = np.concatenate([[0.0], extra_full[length][self.order].cumsum()])
            num_full = np.maximum(steps - sizes.num_layers, 0)
            num_again = np.minimum(steps, sizes.num_layers)
            last = len(to_layer) - 1
            seconds = to_layer[np.minimum(first + num_again, last)] - to_layer[first]
            seconds = seconds + to_full[np.minimum(first + num_full, last)] - to_full[first]
            result.append(np.where(steps > 2 * sizes.num_layers, np.inf, seconds))
        return np.array(result)

    def steps(self, mode: StateMode, sizes: StageSizes, start: int, stop: int) -> IntArray:
        """Fewest steps of recompute that fit, ``[j, place, layers]``; 2 l + 1 when none does."""
        lengths = self.pricer.lengths
        longest = lengths.live_tokens[0]
        live = np.array(
            [lengths.live_tokens[min(j, lengths.num_chunks - 1)] / longest
             for j in range(start, stop)]
        )[:, None, None]  # fmt: skip
        low = np.zeros((stop - start, *sizes.exists.shape), dtype=np.int64)
        high = np.broadcast_to(2 * sizes.num_layers + 1, low.shape).copy()
        fits_none = self._fits(mode, sizes, start, live, low)
        high[fits_none] = 0
        for _ in range(int(np.ceil(np.log2(2 * int(sizes.num_layers.max()) + 2)))):
            middle = (low + high) // 2
            fits = self._fits(mode, sizes, start, live, middle)
            high = np.where(fits, np.minimum(high, middle), high)
            low = np.where(fits, low, np.minimum(middle + 1, high))
        return high

    def _first(self, sizes: StageSizes) -> IntArray:
        if len(self.pricer.kinds) == 1:
            return np.zeros_like(sizes.num_layers)
        num_layers = sizes.num_layers.shape[1] - 1
        after = np.arange(num_layers + 1)[:, None]
        first: IntArray = np.maximum(num_layers - after - sizes.num_layers, 0)
        return first

    def _fits(
        self, mode: StateMode, sizes: StageSizes, start: int, live: FloatArray, steps: np.ndarray
    ) -> np.ndarray:
        instance, stage = self.pricer.instance, self.stage
        layers = sizes.num_layers
        num_full = np.maximum(steps - layers, 0)
        num_again = np.minimum(steps, layers) - num_full
        first = self._first(sizes)
        last = self.kept.shape[2] - 1
        one = np.minimum(first + num_full, last)
        two = np.minimum(one + num_again, last)
        three = np.minimum(first + layers, last)
        states = state_bytes_per_device(instance, mode, sizes.parameters, self.num_ranks)
        states = states + gathered_bytes(instance, mode, sizes.pair, sizes.largest, self.num_ranks)
        fits = np.ones(steps.shape, dtype=bool)
        for rank in self.unlike:
            kept = self.kept[rank]
            own = kept[2][one] - kept[2][first]
            own = own + kept[1][two] - kept[1][one] + kept[0][three] - kept[0][two]
            working = np.where(
                num_full > 0, stage.transient[rank, 2],
                np.where(num_again > 0, stage.transient[rank, 1], stage.transient[rank, 0]),
            )  # fmt: skip
            need = states + own * live + working + stage.fixed[rank]
            if start == 0:
                need = need + stage.logits[rank]
            fits &= need <= self.usable[rank]
        return fits & (steps <= 2 * layers)
