"""Recompute per (stage, chunk) for a fixed order: start times and memory as one linear model.

Equation E6 of docs/elastic.md. Seconds and bytes are those of `evaluate` and `check_plan` where the
layers of a stage are of one kind and no weights are gathered; else they are no smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hexisolve.cost.pipeline import step_length_s
from hexisolve.formulation.chunk_bytes import ChunkBytes, StageBytes, stage_bytes
from hexisolve.formulation.chunk_load import FloatArray, IntArray
from hexisolve.formulation.chunk_seconds import LADDER
from hexisolve.formulation.linear_model import LinearModel, Variable
from hexisolve.plan.boundary import boundary
from hexisolve.plan.plan import Layout, Pipeline, Policy
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.schedule import parse_operation
from hexisolve.plan.stage_price import layer_works, stage_price, tokens_of
from hexisolve.plan.step_memory import earlier_slices
from hexisolve.plan.tokens import chunk_shape

RECOMPUTED = LADDER[1:]
_MIB = 2.0**20
Operation = tuple[str, int]


class Place(NamedTuple):
    """A chunk on a stage; chunks are numbered through the pipelines of the replica."""

    stage_idx: int
    chunk_idx: int


@dataclass(frozen=True, eq=False)
class Prices:
    """Seconds of a replica's operations.

    Parameters
    ----------
    forward_s, backward_s
        ``[stage, chunk]`` F, and B without recompute.
    again_s
        Policy -> ``[stage, chunk]`` seconds that one layer adds to B.
    there_s, back_s
        ``[boundary, chunk]`` transfers.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    again_s: Mapping[Policy, FloatArray]
    there_s: FloatArray
    back_s: FloatArray


@dataclass(eq=False)
class RecomputeProgram:
    """The model with what its variables stand for.

    Parameters
    ----------
    model
        Minimises the makespan of one replica, in seconds.
    layers
        (place, policy) -> variable: recomputed layers; places that are not in it keep all.
    is_exact
        Whether the optimum is the makespan of the best plan, and a bound a bound.
    """

    model: LinearModel
    prices: Prices
    num_layers: tuple[int, ...]
    rows: tuple[tuple[Operation, ...], ...]
    is_exact: bool
    layers: dict[tuple[Place, Policy], Variable] = field(default_factory=dict)
    present: dict[tuple[Place, Policy], Variable] = field(default_factory=dict)
    starts: dict[tuple[Place, str], Variable] = field(default_factory=dict)
    makespan: Variable | None = None

    def counts(self, values: Sequence[float], place: Place) -> dict[Policy, int]:
        """Layers under each policy of a chunk on a stage."""
        counts: dict[Policy, int] = {}
        for policy in RECOMPUTED:
            variable = self.layers.get((place, policy))
            number = round(values[variable.index]) if variable else 0
            if number:
                counts[policy] = number
        rest = self.num_layers[place.stage_idx] - sum(counts.values())
        return counts | ({"none": rest} if rest or not counts else {})

    def values_of(self, counts: Mapping[Place, Mapping[Policy, int]]) -> list[float]:
        """Values of all variables for given recompute: earliest starts."""
        values = [variable.lower for variable in self.model.variables]
        backward = self.prices.backward_s.copy()
        for place, own in counts.items():
            for policy in RECOMPUTED:
                backward[place] += own.get(policy, 0) * self.prices.again_s[policy][place]
        for (place, policy), variable in self.layers.items():
            values[variable.index] = float(counts[place].get(policy, 0))
        for (place, policy), variable in self.present.items():
            dearer = RECOMPUTED[RECOMPUTED.index(policy) :]
            values[variable.index] = float(any(counts[place].get(p, 0) for p in dearer))
        p = self.prices
        times = step_length_s(
            self.rows, p.forward_s.tolist(), backward.tolist(), p.there_s.tolist(),
            p.back_s.tolist(),
        )  # fmt: skip
        for stage_idx, row in enumerate(self.rows):
            for (kind, chunk), start in zip(row, times.start_s[stage_idx], strict=True):
                values[self.starts[Place(stage_idx, chunk), kind].index] = start
        assert self.makespan is not None
        values[self.makespan.index] = times.makespan_s
        return values


def recompute_program(
    book: PriceBook,
    layout: Layout,
    replica_idx: int,
    pipelines: Sequence[Pipeline],
    *,
    everywhere: bool = False,
) -> RecomputeProgram:
    """Build the model for the orders of a replica's pipelines; their own recompute is not read.

    Parameters
    ----------
    everywhere
        Give every (stage, chunk) its variables, also where memory cannot bind.
    """
    stages = layout.replicas[replica_idx].stages
    rows = tuple(_operations(pipelines, p) for p in range(len(stages)))
    prices = replica_prices(book, layout, replica_idx, pipelines)
    kinds = [{book.layer_kinds[idx] for idx in range(*stage.layers)} for stage in stages]
    gathers = any(stage.zero == 3 and len(stage.ranks) > 1 for stage in stages)
    program = RecomputeProgram(
        LinearModel("recompute"), prices, tuple(stage.num_layers for stage in stages), rows,
        is_exact=all(len(own) == 1 for own in kinds) and not gathers,
    )  # fmt: skip
    for p in range(len(stages)):
        first = 0
        for pipeline in pipelines:
            own = stage_bytes(book, layout, replica_idx, p)
            _add_memory(program, p, first, own, _laid(book, layout, replica_idx, p, pipeline),
                        pipeline)  # fmt: skip
            first += len(pipeline.chunks)
    if everywhere:
        for p in range(len(stages)):
            for k in range(prices.forward_s.shape[1]):
                for policy in RECOMPUTED:
                    _layers(program, Place(p, k), policy)
    _add_layers(program)
    _add_times(program)
    return program


def _operations(pipelines: Sequence[Pipeline], stage_idx: int) -> tuple[Operation, ...]:
    """The operations of a stage over all pipelines, chunks numbered through."""
    row: list[Operation] = []
    first = 0
    for pipeline in pipelines:
        parsed = (parse_operation(text) for text in pipeline.schedule[stage_idx])
        row += [(kind, first + number) for kind, number in parsed]
        first += len(pipeline.chunks)
    return tuple(row)


def replica_prices(
    book: PriceBook, layout: Layout, replica_idx: int, pipelines: Sequence[Pipeline]
) -> Prices:
    """Price every chunk on every stage and boundary, as `evaluate` does."""
    stages = layout.replicas[replica_idx].stages
    shapes = [chunk_shape(chunk) for pipeline in pipelines for chunk in pipeline.chunks]
    size = (len(stages), len(shapes))
    forward, backward = np.zeros(size), np.zeros(size)
    again = {policy: np.zeros(size) for policy in RECOMPUTED}
    there, back = np.zeros((len(stages) - 1, size[1])), np.zeros((len(stages) - 1, size[1]))
    for p, stage in enumerate(stages):
        # One layer of every kind stands for all of them.
        kinds = {book.layer_kinds[idx]: idx for idx in range(*stage.layers)}
        singles = [replace(stage, layers=(idx, idx + 1)) for idx in kinds.values()]
        for k, shape in enumerate(shapes):
            price = stage_price(book, stage, p, len(stages), shape, {"none": stage.num_layers})
            forward[p, k], backward[p, k] = price.forward_s, price.backward_s
            for single in singles:
                (work,) = layer_works(book, single, p, shape)
                bare_s = work.backward("none").total_s
                for policy in RECOMPUTED:
                    more_s = work.backward(policy).total_s - bare_s
                    again[policy][p, k] = max(again[policy][p, k], more_s)
            if p + 1 < len(stages):
                both = boundary(book, stage, stages[p + 1], p, shape)
                there[p, k], back[p, k] = both.forward.seconds, both.backward.seconds
    return Prices(forward, backward, again, there, back)


def _laid(
    book: PriceBook, layout: Layout, replica_idx: int, stage_idx: int, pipeline: Pipeline
) -> ChunkBytes:
    """Bytes of a pipeline's chunks from their exact pieces."""
    stage = layout.replicas[replica_idx].stages[stage_idx]
    last: dict[int, int] = {}
    for part in (part for chunk in pipeline.chunks for part in chunk.slices):
        last[part.sequence] = max(last.get(part.sequence, 0), part.start)
    own, group, read_later, context = [], [], [], []
    sizes = [len(part.ranks) for part in stage.ring]
    for chunk in pipeline.chunks:
        tokens = tokens_of(book, stage, stage_idx, chunk_shape(chunk))
        own.append([count for counts in tokens.rank_tokens for count in counts])
        group.append(np.repeat(tokens.group_tokens, sizes))
        later = np.zeros(len(sizes), dtype=np.int64)
        for part, owned in zip(chunk.slices, tokens.owned, strict=True):
            if part.start < last[part.sequence]:
                later += np.array(owned)
        read_later.append(np.repeat(later, sizes))
        context.append(max(part.stop for part in chunk.slices))
    tables = (np.array(table, dtype=np.int64) for table in (own, group, read_later, context))
    return stage_bytes(book, layout, replica_idx, stage_idx).measure(*tables)


class _Moment(NamedTuple):
    """The start of a B: its chunk, the chunks that are alive, those whose dK, dV are held."""

    chunk_idx: int
    live: tuple[int, ...]
    summed: tuple[int, ...]


def _moments(pipeline: Pipeline, stage_idx: int) -> Iterator[_Moment]:
    """The start of every B of a stage."""
    earlier = earlier_slices(pipeline)
    live: dict[int, None] = {}
    summed: dict[int, None] = {}
    for text in pipeline.schedule[stage_idx]:
        kind, number = parse_operation(text)
        if kind == "F":
            live[number] = None
            continue
        summed |= dict.fromkeys(earlier[number])
        yield _Moment(number, tuple(live), tuple(summed))
        del live[number]
        summed.pop(number, None)


def _add_memory(
    program: RecomputeProgram,
    p: int,
    first: int,
    stage: StageBytes,
    laid: ChunkBytes,
    pipeline: Pipeline,
) -> None:
    """What is held at the start of every B fits every rank; rows that cannot bind are left out."""
    kept = {
        c: stage.layer_kept[c][0] * laid.tokens + stage.layer_kept[c][1] * laid.group_tokens
        for c in LADDER
    }
    for c in ("layer", "full"):
        kept[c] = kept[c] + stage.layer_kv * laid.read_later
    gradients = stage.gradients(laid)
    num_layers = stage.num_layers
    for moment in _moments(pipeline, p):
        live, own = list(moment.live), moment.chunk_idx
        room = stage.budget - gradients[list(moment.summed)].sum(axis=0) - laid.working[own]
        room = room - num_layers * kept["none"][live].sum(axis=0)
        if (room >= laid.transient[LADDER[-1]][own]).all():
            continue
        saved = np.stack([kept["none"][live] - kept[c][live] for c in RECOMPUTED], axis=1)
        steps = [
            laid.transient[dearer][own] - laid.transient[cheaper][own]
            for cheaper, dearer in zip(LADDER[:-1], RECOMPUTED, strict=True)
        ]
        room = room - laid.transient[LADDER[0]][own]
        saved = saved.reshape(-1, saved.shape[2])
        counted = [_layers(program, Place(p, first + k), c) for k in live for c in RECOMPUTED]
        for rank in _undominated(np.vstack([-room, *steps, -saved])):
            terms = [
                (_present(program, Place(p, first + own), c), float(step[rank]) / _MIB)
                for c, step in zip(RECOMPUTED, steps, strict=True)
                if step[rank]
            ]
            terms += zip(counted, (saved[:, rank] / -_MIB).tolist(), strict=True)
            name = f"memory[{p},B{first + own},{rank}]"
            program.model.add_row(name, terms, "<=", float(room[rank]) / _MIB)


def _undominated(table: IntArray) -> list[int]:
    """Columns (ranks) that no other column exceeds everywhere; the first of equal ones."""
    kept: list[int] = []
    for rank in range(table.shape[1]):
        column = table[:, rank]
        if any((table[:, other] >= column).all() for other in kept):
            continue
        kept = [other for other in kept if not (column >= table[:, other]).all()]
        kept.append(rank)
    return kept


def _layers(program: RecomputeProgram, place: Place, policy: Policy) -> Variable:
    """x: recomputed layers, added when a memory row first asks for them."""
    known = program.layers.get((place, policy))
    if known is None:
        name = f"layers[{place.stage_idx},{place.chunk_idx},{policy}]"
        most = program.num_layers[place.stage_idx]
        known = program.layers[place, policy] = program.model.add_variable(name, 0, most)
    return known


def _present(program: RecomputeProgram, place: Place, policy: Policy) -> Variable:
    """Whether some layer is at least as dear as the policy."""
    known = program.present.get((place, policy))
    if known is None:
        name = f"some[{place.stage_idx},{place.chunk_idx},{policy}]"
        known = program.present[place, policy] = program.model.add_variable(name, 0, 1)
        dearer = RECOMPUTED[RECOMPUTED.index(policy) :]
        terms = [(_layers(program, place, c), 1.0) for c in dearer]
        most = float(program.num_layers[place.stage_idx])
        program.model.add_row(name, [*terms, (known, -most)], "<=", 0.0)
    return known


def _add_layers(program: RecomputeProgram) -> None:
    """No more layers than the stage has."""
    for place in dict.fromkeys(place for place, _ in program.layers):
        terms = [(_layers(program, place, c), 1.0) for c in RECOMPUTED]
        most = float(program.num_layers[place.stage_idx])
        program.model.add_row(f"all[{place.stage_idx},{place.chunk_idx}]", terms, "<=", most)


def _add_times(program: RecomputeProgram) -> None:
    """Start times: order on every stage, inputs between stages, the makespan."""
    model, prices = program.model, program.prices
    dearest = np.max(list(prices.again_s.values()), axis=0).sum(axis=1)
    horizon = float(prices.forward_s.sum() + prices.backward_s.sum())
    horizon += float(prices.there_s.sum() + prices.back_s.sum())
    horizon += float(dearest @ np.array(program.num_layers))
    for p, row in enumerate(program.rows):
        for kind, k in row:
            name = f"{kind}[{p},{k}]"
            program.starts[Place(p, k), kind] = model.add_variable(name, 0.0, horizon, False)
    makespan = program.makespan = model.add_variable("makespan", 0.0, horizon, False)
    last = len(program.rows) - 1
    for p, row in enumerate(program.rows):
        before: Operation | None = None
        for kind, k in row:
            if before is not None:
                _follows(program, Place(p, before[1]), before[0], Place(p, k), kind, 0.0)
            if kind == "F" and p:
                moved = float(prices.there_s[p - 1, k])
                _follows(program, Place(p - 1, k), "F", Place(p, k), "F", moved)
            elif kind == "B" and p < last:
                moved = float(prices.back_s[p, k])
                _follows(program, Place(p + 1, k), "B", Place(p, k), "B", moved)
            before = (kind, k)
        if before is not None:
            terms, fixed = _end(program, Place(p, before[1]), before[0])
            model.add_row(f"end[{p}]", [(makespan, 1.0), *_negative(terms)], ">=", fixed)
    model.minimise([(makespan, 1.0)])


def _follows(
    program: RecomputeProgram, one: Place, kind: str, other: Place, other_kind: str, moved_s: float
) -> None:
    terms, fixed = _end(program, one, kind)
    start = program.starts[other, other_kind]
    name = (
        f"{kind}[{one.stage_idx},{one.chunk_idx}]-{other_kind}[{other.stage_idx},{other.chunk_idx}]"
    )
    program.model.add_row(name, [(start, 1.0), *_negative(terms)], ">=", fixed + moved_s)


def _negative(terms: Sequence[tuple[Variable, float]]) -> list[tuple[Variable, float]]:
    return [(variable, -factor) for variable, factor in terms]


def _end(
    program: RecomputeProgram, place: Place, kind: str
) -> tuple[list[tuple[Variable, float]], float]:
    """(terms, constant) of the end of an operation."""
    terms = [(program.starts[place, kind], 1.0)]
    if kind == "F":
        return terms, float(program.prices.forward_s[place])
    for policy in RECOMPUTED:
        variable = program.layers.get((place, policy))
        if variable is not None:
            terms.append((variable, float(program.prices.again_s[policy][place])))
    return terms, float(program.prices.backward_s[place])
