"""Arrangements of a column, one ring with its shares each, with their exact prices and memory.

Prices of layers are those of `evaluate`, with what gathers of ZeRO-3 cost beside them. What the
ends of a stage add is never above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hexisolve.cost.memory import usable_bytes
from hexisolve.data.instance import Instance
from hexisolve.formulation.column_bounds import beside
from hexisolve.formulation.pipeline_table import FloatArray, IntArray
from hexisolve.formulation.recompute_counts import best_counts
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.stage_memory_bound import (
    StateMode,
    gathered_bytes,
    state_bytes_per_device,
)
from hexisolve.formulation.stage_pricer import GivenLayers, StagePricer, StagePrices
from hexisolve.formulation.stage_sizes import StageSizes
from hexisolve.formulation.units import unit_classes
from hexisolve.formulation.whole_shares import evenly
from hexisolve.formulation.work import POLICIES
from hexisolve.plan.gathered_chain import collective
from hexisolve.plan.layer_price import LayerWork
from hexisolve.plan.plan import Chunk, HeadGroup, Rank, Slice, Stage
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import layer_works, stage_price
from hexisolve.plan.step_memory import chunk_memory
from hexisolve.plan.tokens import chunk_shape

_NEIGHBOURS = 8  # ranks of both neighbouring stages together, while nobody knows who they are


@dataclass(frozen=True, eq=False)
class Arrangement:
    """An arrangement of a column with its prices, not yet tied to layers.

    Parameters
    ----------
    ring
        The inside.
    layer_s
        ``[beside][length, kind, policy]`` F + B seconds of a layer in the middle of a stage, with
        nothing, gathers, or gathers and gradient sums beside it.
    forward_s
        ``[length, kind]`` F of a layer with nothing beside it.
    ends_s, only_s
        ``[beside][length]`` what a stage of two layers, or of one, has less than that.
    kept
        ``[rank, policy, kind]`` bytes of a layer of the longest chunk between F and B.
    transient
        ``[rank, policy]`` bytes during a backward, the largest over the kinds.
    fixed, fixed_alone
        ``[rank]`` bytes of buffers, with and without a neighbouring stage.
    logits
        ``[rank]`` bytes of a tile of logits on the last stage.
    """

    ring: tuple[HeadGroup, ...]
    layer_s: tuple[FloatArray, ...]
    forward_s: FloatArray
    ends_s: tuple[FloatArray, ...]
    only_s: tuple[FloatArray, ...]
    kept: FloatArray
    transient: FloatArray
    fixed: FloatArray
    fixed_alone: FloatArray
    logits: FloatArray


def even_rings(instance: Instance, devices: Sequence[str]) -> Iterator[tuple[HeadGroup, ...]]:
    """Equal devices of one host in groups of equal size, with tokens and heads shared evenly.

    The first ranks take the blocks and heads that are left over. The shorter block of a length that
    is no multiple is the last of the blocks left over, or else of the last rank.
    """
    num_ranks = len(devices)
    num_tokens, block = max(instance.workload.sequence_lengths), instance.workload.block_tokens
    num_blocks = -(-num_tokens // block)
    tokens = [block * count for count in evenly(num_blocks, num_ranks)]
    tokens[(num_blocks - 1) % num_ranks] -= num_blocks * block - num_tokens
    num_heads = instance.model.layers[0].attention.num_q_heads
    for num_groups in (g for g in range(1, num_ranks + 1) if num_ranks % g == 0):
        size = num_ranks // num_groups
        if (num_groups - 1) * size >= num_blocks:
            continue  # a group without tokens
        edges = np.cumsum([0, *evenly(num_heads, size)]).tolist()
        yield tuple(
            HeadGroup(
                tuple(
                    Rank(devices[first + k], tokens[first + k], (edges[k], edges[k + 1]))
                    for k in range(size)
                )
            )
            for first in range(0, num_ranks, size)
        )


def arrange(pricer: StagePricer, ring: tuple[HeadGroup, ...]) -> Arrangement:
    """Price a ring as a stage in the middle of a pipeline."""
    instance = pricer.instance
    book = price_book(instance)
    layers = instance.model.layers
    places = [layers.index(kind) for kind in pricer.kinds]
    hidden_s = np.inf  # the least time that a pass leaves beside its own exchanges
    layer_s = np.empty((len(pricer.lengths.tokens), len(places), len(POLICIES)))
    forward_s = np.empty(layer_s.shape[:2])
    for length, tokens in enumerate(pricer.lengths.tokens):
        shape = chunk_shape(Chunk((Slice(0, 0, tokens),)))
        for kind, place in enumerate(places):
            stage = Stage((place, place + 1), ring)
            work: LayerWork = next(iter(layer_works(book, stage, 1, shape)))
            forward_s[length, kind] = work.forward.total_s
            hidden_s = min(hidden_s, _hidden_s(work))
            for idx, policy in enumerate(POLICIES):
                layer_s[length, kind, idx] = work.forward.total_s + work.backward(policy).total_s
    longest = chunk_shape(Chunk((Slice(0, 0, max(instance.workload.sequence_lengths)),)))
    num_ranks = sum(len(group.ranks) for group in ring)
    kept = np.empty((num_ranks, len(POLICIES), len(places)))
    transient = np.zeros((num_ranks, len(POLICIES)))
    fixed, fixed_alone, logits = np.zeros((3, num_ranks))
    for kind, place in enumerate(places):
        stage = Stage((place, place + 1), ring)
        for idx, policy in enumerate(POLICIES):
            memory = chunk_memory(book, stage, 2, 3, longest, {policy: 1})
            kept[:, idx, kind] = memory.kept
            working = np.array(memory.working, dtype=float)
            transient[:, idx] = np.maximum(transient[:, idx], working[:, 0])
            fixed, logits = np.maximum(fixed, working[:, 1]), working[:, 2]
            alone = chunk_memory(book, stage, 0, 1, longest, {policy: 1})
            fixed_alone = np.maximum(fixed_alone, [items[1] for items in alone.working])
    layers_s, ends_s, only_s = _with_gathers(pricer, ring, layer_s, hidden_s)
    return Arrangement(
        ring, layers_s, forward_s, ends_s, only_s, kept, transient, fixed, fixed_alone, logits
    )


def _hidden_s(work: LayerWork) -> float:
    """Seconds of a layer's passes that its own exchanges, one after the other, leave over."""
    exchanges_s = sum(exchange.seconds for exchange in work.forward_exchanges)
    left = work.forward.total_s - exchanges_s
    for policy in POLICIES:
        exchanges_s = sum(exchange.seconds for exchange in work.backward_exchanges(policy))
        left = min(left, work.backward(policy).total_s - exchanges_s)
    return left


def _with_gathers(
    pricer: StagePricer, ring: tuple[HeadGroup, ...], layer_s: FloatArray, hidden_s: float,
) -> tuple[tuple[FloatArray, ...], ...]:  # fmt: skip
    """Prices of layers with nothing, gathers, or also gradient sums beside: what one more costs.

    Where layers are unlike, gathers are taken as hidden.
    """
    num_lengths = len(layer_s)
    layers = [layer_s]
    ends, only = [np.zeros(num_lengths)], [np.zeros(num_lengths)]
    num_ranks = sum(len(group.ranks) for group in ring)
    book, model = price_book(pricer.instance), pricer.instance.model
    parameters = model.layers[0].parameters
    modes: tuple[Literal["step", "chunk"], ...] = ("step", "chunk")
    for gradients in modes:
        can_price = num_ranks > 1 and len(pricer.kinds) == 1 and model.num_layers >= 3
        moved_s = 0.0
        if can_price:
            alone = [collective(book, Stage((0, 1), ring, "kv", 3, gradients), parameters, kind)
                     for kind in ("gather", "reduce_scatter")]  # fmt: skip
            moved_s = alone[0].seconds + alone[1].seconds * (gradients == "chunk")
        if not can_price or moved_s <= hidden_s:
            layers.append(layer_s)
            ends.append(ends[0])
            only.append(only[0])
            continue
        own = np.empty_like(layer_s)
        less = np.empty(num_lengths)
        exposed = moved_s + alone[0].seconds
        for length, tokens in enumerate(pricer.lengths.tokens):
            shape = chunk_shape(Chunk((Slice(0, 0, tokens),)))
            for idx, policy in enumerate(POLICIES):
                two, three = (
                    stage_price(
                        book, Stage((0, n), ring, "kv", 3, gradients), 1, 3, shape, {policy: n}
                    )
                    for n in (2, 3)
                )
                one_forward = three.forward_s - two.forward_s
                own[length, 0, idx] = one_forward + three.backward_s - two.backward_s
                if not idx:
                    total = two.forward_s + two.backward_s - exposed
                    less[length] = 2.0 * own[length, 0, 0] - total
        layers.append(own)
        ends.append(np.maximum(less, 0.0))
        only.append(np.maximum(own - layer_s, 0.0)[:, 0, 0])
    return tuple(layers), tuple(ends), tuple(only)


class ArrangedRecompute:
    """Recompute counts of an arrangement: as few repeated seconds as memory allows.

    Layers of one kind: the best of all numbers of ``layer`` and ``full`` layers. Unlike layers
    change step by step: first all are ``none``, then more and more ``layer`` from the first on,
    then more and more ``full``.

    Parameters
    ----------
    neighbours
        Ranks of each neighbouring stage; None when nobody knows: then 8 of both together.
    """

    def __init__(
        self, pricer: StagePricer, arrangement: Arrangement, neighbours: int | None = None
    ) -> None:
        self.pricer, self.stage = pricer, arrangement
        self.neighbours = neighbours
        instance = pricer.instance
        self.devices = [
            instance.cluster.device(r.device) for g in arrangement.ring for r in g.ranks
        ]
        self.num_ranks = len(self.devices)
        kinds = pricer.kinds
        self.order = [kinds.index(layer) for layer in instance.model.layers]
        zeros = np.zeros((self.num_ranks, len(POLICIES), 1))
        # [rank, policy, number of layers from the start]
        self.kept = np.concatenate([zeros, arrangement.kept[:, :, self.order].cumsum(axis=2)], 2)
        self.unlike = self._unlike_ranks()

    def _unlike_ranks(self) -> list[int]:
        """One of all ranks that need and have the same bytes: the others fit when it fits."""
        stage = self.stage
        capacity = [device.memory_bytes for device in self.devices]
        rows = np.concatenate(
            [stage.kept.reshape(self.num_ranks, -1), stage.transient,
             np.stack([stage.fixed, stage.logits, capacity], axis=1)], axis=1,
        )  # fmt: skip
        return sorted(np.unique(rows, axis=0, return_index=True)[1].tolist())

    def seconds(self, mode: StateMode, sizes: StageSizes, start: int, stop: int) -> FloatArray:
        """Extra seconds, ``[length, j, place, layers]``; see `StagePricer.price`."""
        num_again, num_full = self.counts(mode, sizes, start, stop)
        fits = num_again >= 0
        layer_s = self.stage.layer_s[beside(mode)]
        first, last = self._first(sizes), len(self.order)
        result = []
        for length in range(len(layer_s)):
            dearer = np.diff(layer_s[length][self.order], axis=1)
            to_layer, to_full = (
                np.concatenate([[0.0], dearer[:, idx].cumsum()]) for idx in range(2)
            )
            one = np.minimum(first + num_full, last)
            two = np.minimum(one + np.maximum(num_again, 0), last)
            seconds = to_layer[two] - to_layer[first] + to_full[one] - to_full[first]
            result.append(np.where(fits, seconds, np.inf))
        return np.array(result)

    def counts(
        self, mode: StateMode, sizes: StageSizes, start: int, stop: int
    ) -> tuple[IntArray, IntArray]:
        """Layers that are ``layer`` and ``full``, ``[j, place, layers]``; -1 where none fits."""
        lengths = self.pricer.lengths
        longest = lengths.live_tokens[0]
        live = np.array(
            [lengths.live_tokens[min(j, lengths.num_chunks - 1)] / longest
             for j in range(start, stop)]
        )[:, None, None]  # fmt: skip
        rooms = self._rooms(mode, sizes, start)
        if len(self.pricer.kinds) == 1:
            dearer = np.diff(self.stage.layer_s[beside(mode)][0, 0])
            kept = self.stage.kept[self.unlike][:, :, 0]
            transient = self.stage.transient[self.unlike]
            return best_counts(kept, transient, dearer, sizes.num_layers, rooms, live)
        steps = self._steps(rooms, sizes, live)
        num_full = np.maximum(steps - sizes.num_layers, 0)
        num_again = np.minimum(steps, sizes.num_layers) - num_full
        return np.where(steps > 2 * sizes.num_layers, -1, num_again), num_full

    def _rooms(self, mode: StateMode, sizes: StageSizes, start: int) -> FloatArray:
        """``[unlike rank, place, layers]`` bytes left for activations and transients."""
        instance = self.pricer.instance
        states = state_bytes_per_device(instance, mode, sizes.parameters, self.num_ranks)
        states = states + gathered_bytes(instance, mode, sizes.pair, sizes.largest, self.num_ranks)
        peers = np.full(sizes.exists.shape, self.num_ranks - 1)
        if self.neighbours is None:
            peers += min(_NEIGHBOURS, len(instance.cluster.devices) - self.num_ranks)
        else:
            peers += self.neighbours * (~sizes.is_first + (start > 0))
        counts, place = np.unique(peers, return_inverse=True)
        is_alone = sizes.is_first & (start == 0)
        rooms = np.empty((len(self.unlike), *sizes.exists.shape))
        for idx, rank in enumerate(self.unlike):
            capacity = self.devices[rank].memory_bytes
            by_count = [usable_bytes(capacity, n, instance.cost) for n in counts.tolist()]
            usable = np.array(by_count, dtype=float)[place.reshape(peers.shape)]
            fixed = np.where(is_alone, self.stage.fixed_alone[rank], self.stage.fixed[rank])
            rooms[idx] = usable - states - fixed - self.stage.logits[rank] * (start == 0)
        return rooms

    def _steps(self, rooms: FloatArray, sizes: StageSizes, live: FloatArray) -> IntArray:
        """Fewest steps of recompute that fit, ``[j, place, layers]``; 2 l + 1 when none does."""
        low = np.zeros((len(live), *sizes.exists.shape), dtype=np.int64)
        high = np.broadcast_to(2 * sizes.num_layers + 1, low.shape).copy()
        high[self._fits(rooms, sizes, live, low)] = 0
        for _ in range(int(np.ceil(np.log2(2 * int(sizes.num_layers.max()) + 2)))):
            middle = (low + high) // 2
            fits = self._fits(rooms, sizes, live, middle)
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
        self, rooms: FloatArray, sizes: StageSizes, live: FloatArray, steps: np.ndarray
    ) -> np.ndarray:
        stage = self.stage
        layers = sizes.num_layers
        num_full = np.maximum(steps - layers, 0)
        num_again = np.minimum(steps, layers) - num_full
        first = self._first(sizes)
        last = self.kept.shape[2] - 1
        one = np.minimum(first + num_full, last)
        two = np.minimum(one + num_again, last)
        three = np.minimum(first + layers, last)
        fits = np.ones(steps.shape, dtype=bool)
        for rank, room in zip(self.unlike, rooms, strict=True):
            kept = self.kept[rank]
            own = kept[2][one] - kept[2][first]
            own = own + kept[1][two] - kept[1][one] + kept[0][three] - kept[0][two]
            working = np.where(
                num_full > 0, stage.transient[rank, 2],
                np.where(num_again > 0, stage.transient[rank, 1], stage.transient[rank, 0]),
            )  # fmt: skip
            fits &= own * live + working <= room
        return fits & (steps <= 2 * layers)


def arrangement_prices(
    pricer: StagePricer,
    shape: ColumnShape,
    mode: StateMode,
    arrangement: Arrangement,
    neighbours: int | None = None,
) -> StagePrices:
    """All stages of a column inside which everything is arranged."""
    recompute = ArrangedRecompute(pricer, arrangement, neighbours)
    number = beside(mode)
    given = GivenLayers(
        arrangement.layer_s[number], arrangement.ends_s[number], arrangement.only_s[number],
        arrangement.forward_s, arrangement.layer_s[0][:, :, 0] - arrangement.forward_s,
        recompute.seconds,
    )  # fmt: skip
    return pricer.price(shape, mode, given)


def even_prices(pricer: StagePricer, shape: ColumnShape, mode: StateMode) -> StagePrices:
    """The least of all even rings of a column of equal devices in one host, number by number."""
    devices = [device.id for device in shape.devices]
    smallest = min(
        len(unit) for entry in unit_classes(pricer.instance.cluster) for unit in entry.units
    )
    every = [
        arrangement_prices(pricer, shape, mode, arrange(pricer, ring), smallest)
        for ring in even_rings(pricer.instance, devices)
    ]
    least = [np.minimum.reduce(values) for values in zip(*every, strict=True)]
    return StagePrices(*least)
