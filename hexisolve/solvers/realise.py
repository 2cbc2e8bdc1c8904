"""The best real pipeline stage on given devices: groups, ring, shares, ZeRO, recompute.

Found by search, priced by `price_stage`: an upper bound, never a lower one. The ring and its
shares are searched once per set of devices; numbers of layers then only count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hexisolve.cost.collectives import ring_traffic
from hexisolve.cost.memory import states_bytes, usable_bytes
from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Chunk, HeadGroup, Policy, Rank, Slice, Stage
from hexisolve.plan.price_book import PriceBook, price_book
from hexisolve.plan.stage_price import stage_blocks, stage_price
from hexisolve.plan.step_memory import chunk_memory
from hexisolve.plan.synchronise import stage_parameters
from hexisolve.plan.tokens import ChunkShape, chunk_shape
from hexisolve.solvers.realise_candidates import Candidate, Ring, Search, reordered, rings
from hexisolve.solvers.realise_memory import (
    POLICIES,
    MixTable,
    ShareBytes,
    ZeroChoice,
    gathered_bytes,
    share_bytes,
    state_bytes,
    state_weights,
)
from hexisolve.solvers.realise_structures import Groups

# Choices of a ZeRO mode that stay in the race, next to the best one's seconds.
_PRICED_WITHIN = 1.02
_PROBE_BYTES = 1e9
# Candidates whose shares are shifted towards devices with more memory when memory binds.
_MAX_LEANING = 2
# Of a tiny set, where all shares of all rings are priced: how many stay.
_MAX_FAST = 200
_MAX_LIGHT = 60
# Kept free of every rank, so that whole state shares cannot overflow it.
_MARGIN_BYTES = 1


@dataclass(frozen=True)
class RealStage:
    """A stage that fits its devices, and its exact price for one chunk.

    Parameters
    ----------
    stage
        Layers, ring, shares and ZeRO mode.
    recompute
        Layers under each policy.
    forward_s, backward_s
        Seconds of F and B of one whole sequence.
    """

    stage: Stage
    recompute: Mapping[Policy, int]
    forward_s: float
    backward_s: float

    @property
    def time_s(self) -> float:
        """F + B."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class _Place:
    """Where a stage stands in its pipeline, and how many chunks it holds at its peak."""

    is_first: bool
    is_last: bool
    num_stages: int
    chunks_in_flight: int
    num_peers: int

    @property
    def stage_idx(self) -> int:
        """A position with these ends: prices of whole sequences depend on nothing else."""
        if self.is_first:
            return 0
        return self.num_stages - 1 if self.is_last else 1


@dataclass(eq=False)
class _Found:
    """Everything known about one set of devices, whatever the number of layers."""

    search: Search
    rings: dict[int, Ring] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    leaning: list[Candidate] | None = None
    bytes: dict[tuple[Candidate, bool, bool], ShareBytes] = field(default_factory=dict)
    seconds_per_byte: dict[Groups, float] = field(default_factory=dict)
    tables: dict[tuple[Candidate, _Place, tuple[int, ...]], MixTable] = field(default_factory=dict)


def realise_stage(
    instance: Instance,
    devices: Sequence[str],
    *,
    num_layers: int,
    first_layer: int = 0,
    is_first: bool,
    is_last: bool,
    chunks_in_flight: int,
    num_stages: int,
    num_peers: int | None = None,
) -> list[RealStage]:
    """The best stages of `num_layers` layers on `devices`, one per ZeRO mode, fastest first.

    See `realise_all`; the list is empty when nothing fits.
    """
    return realise_all(
        instance, devices, [num_layers], first_layer=first_layer, is_first=is_first,
        is_last=is_last, chunks_in_flight=chunks_in_flight, num_stages=num_stages,
        num_peers=num_peers,
    )[num_layers]  # fmt: skip


def realise_all(
    instance: Instance,
    devices: Sequence[str],
    layer_counts: Sequence[int],
    *,
    first_layer: int = 0,
    is_first: bool,
    is_last: bool,
    chunks_in_flight: int,
    num_stages: int,
    num_peers: int | None = None,
) -> dict[int, list[RealStage]]:
    """`realise_stage` for many numbers of layers; the ring is searched once.

    Parameters
    ----------
    devices
        Ids; the order does not matter. All of them are used.
    layer_counts
        Numbers of layers of the stage.
    first_layer
        Where its layers begin in the model.
    is_first, is_last
        Whether it holds the embedding, the output projection.
    chunks_in_flight
        Chunks (one whole sequence of the longest length each) alive at its memory peak.
    num_stages
        Stages of the pipeline.
    num_peers
        Ranks it shares process groups with: its own and the neighbours' stages, less one. By
        default all devices of the cluster, which is safe.

    Returns
    -------
    Number of layers -> stages, the fastest of each ZeRO mode, fastest first.
    """
    book = price_book(instance)
    index = instance.cluster.device_index
    chosen = tuple(sorted(devices, key=lambda name: index[name]))
    if num_peers is None:
        num_peers = (len(chosen) if num_stages == 1 else len(index)) - 1
    place = _Place(is_first, is_last, num_stages, chunks_in_flight, num_peers)
    found = _find(book, chosen, sorted(layer_counts)[len(layer_counts) // 2] if is_last else 0)
    result = {}
    for count in layer_counts:
        layers = (first_layer, first_layer + count)
        result[count] = _best(found, layers, place) if _is_legal(instance, layers) else []
    return result


def real_rings(
    instance: Instance, devices: Sequence[str], *, last_layers: int = 0
) -> list[tuple[HeadGroup, ...]]:
    """Rings on `devices` with their best shares, the fastest per layer without recompute first.

    Parameters
    ----------
    last_layers
        For a last stage: its number of layers, so that the output projection counts in the shares.
    """
    book, index = price_book(instance), instance.cluster.device_index
    chosen = tuple(sorted(devices, key=lambda name: index[name]))
    return [_ring_of(option) for option in _find(book, chosen, last_layers).candidates]


def leaning_rings(instance: Instance, devices: Sequence[str]) -> list[tuple[HeadGroup, ...]]:
    """Rings whose shares give up speed for room in memory, from a little to all the way."""
    book, index = price_book(instance), instance.cluster.device_index
    chosen = tuple(sorted(devices, key=lambda name: index[name]))
    found = _find(book, chosen, 0)
    if found.leaning is None:
        found.leaning = list(_leaning(found))
    return [_ring_of(option) for option in found.leaning]


def _is_legal(instance: Instance, layers: tuple[int, int]) -> bool:
    """Layers that exist, all with one number of query heads."""
    own = instance.model.layers[slice(*layers)]
    heads = {layer.attention.num_q_heads for layer in own}
    return 0 < layers[1] - layers[0] == len(own) and len(heads) == 1


def _find(book: PriceBook, devices: tuple[str, ...], num_layers: int) -> _Found:
    """The candidates on a set of devices; `num_layers` weighs the output projection, 0 for none."""
    key = ("realise", devices, num_layers)
    found: _Found | None = book.entries.get(key)
    if found is not None:
        return found
    num_tokens = max(book.instance.workload.sequence_lengths)
    search = Search(book, devices, num_tokens, 1.0 / num_layers if num_layers else 0.0)
    found = _Found(search)
    options: list[tuple[Ring, Candidate]] = []
    policies = (2, 1) if search.is_tiny else (2,)
    for ring in rings(search):
        options += [(ring, candidate) for candidate in ring.climbed(policies)]
    options.sort(key=lambda option: _per_layer_s(found.search, option[1]))
    if options and not search.is_tiny:
        options += reordered(*options[0])
        options.sort(key=lambda option: _per_layer_s(found.search, option[1]))
    if search.is_tiny:
        options = _thinned(options)
    unlike = {(c.groups, c.tokens, c.heads): (ring, c) for ring, c in reversed(options)}
    options = list(reversed(unlike.values()))
    found.candidates = [candidate for _, candidate in options]
    found.rings = {id(candidate): ring for ring, candidate in options}
    book.entries[key] = found
    return found


def _thinned(options: list[tuple[Ring, Candidate]]) -> list[tuple[Ring, Candidate]]:
    """The fastest of all rings, and of the rest those that load memory most evenly."""
    rest = sorted(options[_MAX_FAST:], key=lambda option: _pressure(*option))
    return options[:_MAX_FAST] + rest[:_MAX_LIGHT]


def _pressure(ring: Ring, candidate: Candidate) -> float:
    """The largest number of tokens per byte of a device."""
    return max(t / b for t, b in zip(candidate.tokens, ring.memory_bytes, strict=True))


def _per_layer_s(search: Search, candidate: Candidate) -> float:
    """Seconds per layer without recompute, its share of the output projection included."""
    own = float(candidate.seconds[:, 2] @ search.kind_weights)
    return own + search.head_weight * candidate.head_s


@dataclass(frozen=True)
class _Option:
    """A candidate with ZeRO mode and recompute, before its exact price."""

    seconds: float
    candidate: Candidate
    choice: ZeroChoice
    recompute: Mapping[Policy, int]
    weights: tuple[int, ...]


def _best(found: _Found, layers: tuple[int, int], place: _Place) -> list[RealStage]:
    """The fastest stage of every ZeRO mode."""
    book = found.search.book
    shape = chunk_shape(Chunk((Slice(0, 0, found.search.num_tokens),)))
    result = []
    for choice in zero_choices(book.instance, len(found.search.devices)):
        options = _options(found, found.candidates, layers, place, choice, np.inf)
        least_s = min((option.seconds for option in options), default=np.inf)
        if not options or "none" not in options[0].recompute or len(options[0].recompute) > 1:
            if found.leaning is None:
                found.leaning = list(_leaning(found))
            options += _options(found, found.leaning, layers, place, choice, least_s)
        options.sort(key=lambda option: option.seconds)
        priced = (_priced(book, option, layers, place, shape) for option in options)
        real = next((stage for stage in priced if stage is not None), None)
        if real is not None:
            result.append(real)
    return sorted(result, key=lambda stage: stage.time_s)


def _leaning(found: _Found) -> Iterator[Candidate]:
    """For when memory binds: shares for layers that recompute, shares that lean to memory."""
    for candidate in found.candidates[:_MAX_LEANING]:
        ring = found.rings[id(candidate)]
        if not found.search.is_tiny and len(ring.space.classes) > 1:
            yield from ring.climbed((1,), candidate)
            yield from ring.leaning(candidate)


def zero_choices(instance: Instance, num_ranks: int) -> Iterator[ZeroChoice]:
    """ZeRO modes worth trying; ZeRO-1 is never worse than ZeRO-0, on one rank all are equal."""
    allowed = instance.workload.zero
    if 1 in allowed or 0 in allowed:
        yield ZeroChoice(1 if 1 in allowed else 0, "step")
    if 3 in allowed and (num_ranks > 1 or len(allowed) == 1):
        yield ZeroChoice(3, "step")
        yield ZeroChoice(3, "chunk")


def _options(
    found: _Found,
    candidates: Sequence[Candidate],
    layers: tuple[int, int],
    place: _Place,
    choice: ZeroChoice,
    limit_s: float,
) -> list[_Option]:
    """What fits of some candidates, unless it is surely slower than `limit_s`."""
    book = found.search.book
    kinds = book.layer_kinds[slice(*layers)]
    probe = Stage(layers, (), "kv")
    blocks = stage_blocks(book.instance, probe, place.stage_idx, place.num_stages)
    parameters = sum(block.parameters for block in blocks)
    own, shared = state_bytes(book, parameters, choice)
    num_ranks = len(found.search.devices)
    gathered = gathered_bytes(book, blocks, choice) if num_ranks > 1 else 0
    counts = np.bincount(kinds, minlength=len(book.kind_layers))
    options: list[_Option] = []
    for candidate in candidates:
        head_s = candidate.head_s if place.is_last else 0.0
        if float(candidate.seconds[:, 2] @ counts) + head_s >= limit_s:
            continue
        table = _table(found, candidate, place, layers[0])
        mix = table.best(len(kinds), own + gathered + _MARGIN_BYTES, shared)
        if mix is None:
            continue
        seconds = mix.seconds + head_s
        if choice.zero == 3 and num_ranks > 1:
            seconds += _exposed_s(found, candidate, choice, kinds, mix.recompute)
        limit_s = min(limit_s, seconds * _PRICED_WITHIN)
        weights = state_weights(mix.slack, shared)
        options.append(_Option(seconds, candidate, choice, mix.recompute, weights))
    return sorted(options, key=lambda option: option.seconds)


def _exposed_s(
    found: _Found,
    candidate: Candidate,
    choice: ZeroChoice,
    kinds: Sequence[int],
    recompute: Mapping[Policy, int],
) -> float:
    """About the seconds of gathers and reduce-scatters that layers do not hide (ZeRO-3)."""
    book = found.search.book
    per_byte = found.seconds_per_byte.get(candidate.groups)
    if per_byte is None:
        devices = [name for group in candidate.groups for name in group]
        probe = ring_traffic(devices, [_PROBE_BYTES] * len(devices))
        per_byte = book.exchange(probe).seconds / _PROBE_BYTES
        found.seconds_per_byte[candidate.groups] = per_byte
    per_byte *= 1.0 - 1.0 / len(found.search.devices)
    total, position = 0.0, 0
    for idx, policy in enumerate(POLICIES):
        count = recompute.get(policy, 0)
        for kind in kinds[position : position + count]:
            parameters = book.kind_layers[kind].parameters
            gather = per_byte * parameters * book.e
            scatter = 0.0
            if choice.gradients == "chunk":
                scatter = per_byte * parameters * book.instance.cost.gradient_bytes
            forward = float(candidate.forward_s[kind])
            backward = float(candidate.seconds[kind][idx]) - forward
            total += max(gather - forward, 0.0) + max(gather + scatter - backward, 0.0)
        position += count
    return total


def _table(found: _Found, candidate: Candidate, place: _Place, first_layer: int) -> MixTable:
    """Sums over the layers from the first of a stage on, of one candidate."""
    book, cluster = found.search.book, found.search.book.instance.cluster
    kinds = book.layer_kinds[first_layer:]
    key = (candidate, place, kinds)
    table = found.tables.get(key)
    if table is None:
        share_key = (candidate, place.is_last, place.num_stages > 1)
        memory = found.bytes.get(share_key)
        if memory is None:
            memory = found.bytes[share_key] = share_bytes(
                book, [len(group) for group in candidate.groups], candidate.tokens,
                candidate.heads, found.search.num_tokens, is_last=place.is_last,
                has_boundary=place.num_stages > 1,
            )  # fmt: skip
        cost = book.instance.cost
        usable = [
            usable_bytes(cluster.device(name).memory_bytes, place.num_peers, cost)
            for group in candidate.groups
            for name in group
        ]
        table = found.tables[key] = MixTable(
            memory, candidate.seconds, kinds, usable, place.chunks_in_flight
        )
    return table


def _priced(
    book: PriceBook, option: _Option, layers: tuple[int, int], place: _Place, shape: ChunkShape
) -> RealStage | None:
    """The option's exact price, None when its exact memory does not fit."""
    ring = _ring_of(option.candidate, option.weights)
    stage = Stage(layers, ring, "kv", option.choice.zero)  # type: ignore[arg-type]
    if option.choice.gradients == "chunk":
        stage = replace(stage, zero3_gradients="chunk")
    if not fits(book, stage, option.recompute, place, shape):
        return None
    price = stage_price(book, stage, place.stage_idx, place.num_stages, shape, option.recompute)
    return RealStage(stage, option.recompute, price.forward_s, price.backward_s)


def _ring_of(candidate: Candidate, weights: Sequence[int] | None = None) -> tuple[HeadGroup, ...]:
    """The candidate as head groups, with state shares."""
    shares = weights or [1] * len(candidate.tokens)
    ring, position = [], 0
    for group in candidate.groups:
        ranks, first = [], 0
        for name in group:
            stop = first + candidate.heads[position]
            tokens = candidate.tokens[position]
            ranks.append(Rank(name, tokens, (first, stop), shares[position]))
            first, position = stop, position + 1
        ring.append(HeadGroup(tuple(ranks)))
    return tuple(ring)


def fits(
    book: PriceBook,
    stage: Stage,
    recompute: Mapping[Policy, int],
    place: _Place,
    shape: ChunkShape,
) -> bool:
    """Whether every rank has the memory, by the items of `hexisolve.plan.step_memory`."""
    cost = book.instance.cost
    memory = chunk_memory(book, stage, place.stage_idx, place.num_stages, shape, recompute)
    parameters = stage_parameters(book, stage, place.stage_idx, place.num_stages)
    total = sum(rank.state_share for rank in stage.ranks)
    for idx, rank in enumerate(stage.ranks):
        states = states_bytes(
            parameters, rank.state_share / total, stage.zero, stage.zero3_gradients, book.e, cost
        )
        held = -int(-states // 1) + place.chunks_in_flight * memory.kept[idx]
        capacity = book.instance.cluster.device(rank.device).memory_bytes
        if held + sum(memory.working[idx]) > usable_bytes(capacity, place.num_peers, cost):
            return False
    return True
