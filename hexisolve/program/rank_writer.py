"""The program of one rank: its part of every chunk in schedule order, then the step's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from hexisolve.plan.pieces import Pieces, stage_pieces
from hexisolve.plan.plan import Pipeline, Policy, Stage, layer_policies
from hexisolve.plan.schedule import parse_operation
from hexisolve.program.boundary import BoundaryWriter
from hexisolve.program.instructions import (
    Embed,
    EmbedBackward,
    Gather,
    Loss,
    LossBackward,
    Reduce,
)
from hexisolve.program.layer_programs import LayerWriter
from hexisolve.program.rank_program import (
    STEP_END,
    Call,
    Do,
    Phase,
    RankProgram,
    Shard,
    Template,
)
from hexisolve.program.replica_context import ReplicaContext
from hexisolve.program.weights import (
    Holding,
    StepEnd,
    gather_weight,
    rank_units,
    reduce_scatter,
)


@dataclass
class RankWriter:
    """Writes the program of one rank.

    Parameters
    ----------
    group_idx, idx_in_group
        Head group in the ring; position in the group.
    member_idx
        Position among the ranks of the stage.
    """

    replica: ReplicaContext
    stage_idx: int
    group_idx: int
    idx_in_group: int
    member_idx: int
    templates: dict[str, Template] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Global number."""
        return self.replica.stage_first_ranks[self.stage_idx] + self.member_idx

    @property
    def stage(self) -> Stage:
        """Its stage."""
        return self.replica.stages[self.stage_idx]

    @property
    def is_last(self) -> bool:
        """Whether the stage holds the head."""
        return self.stage_idx == len(self.replica.stages) - 1

    @cached_property
    def holdings(self) -> dict[str, Holding]:
        """Units of the stage by name."""
        return {own.unit: own for own in self.replica.holdings[self.stage_idx]}

    def program(self, step_end: StepEnd) -> RankProgram:
        """Write the whole step."""
        own = self.replica.holdings[self.stage_idx]
        body = [
            *self._pipelines(),
            *(Do(STEP_END, item) for item in step_end.instructions(own, self.member_idx)),
        ]
        return RankProgram(
            rank=self.rank,
            device=self.stage.ranks[self.member_idx].device,
            replica=self.replica.replica_idx,
            stage=self.stage_idx,
            num_stages=len(self.replica.stages),
            group_idx=self.group_idx,
            member_idx=self.idx_in_group,
            layers=self.stage.layers,
            zero=self.stage.zero,
            units=rank_units(own, self.member_idx),
            shards=tuple(self._shard(idx) for idx in range(len(self.replica.chunks))),
            templates=self.templates,
            body=tuple(body),
        )

    def _shard(self, chunk_idx: int) -> Shard:
        chunk = self.replica.chunks[chunk_idx]
        pieces: tuple[Pieces, ...] = stage_pieces(self.stage, chunk, self.stage_idx)[self.group_idx]
        sizes = [sum(part.num_tokens for part in own) for own in pieces]
        first = sum(sizes[: self.idx_in_group])
        rows = (first, first + sizes[self.idx_in_group])
        return Shard(pieces[self.idx_in_group], rows, sum(sizes))

    def _num_rows(self, chunk_idx: int) -> int:
        pieces = self.replica.pieces(self.stage_idx, chunk_idx)[self.group_idx]
        return sum(part.num_tokens for part in pieces[self.idx_in_group])

    def _pipelines(self) -> Iterator[Do | Call]:
        first_chunk = 0
        for pipeline in self.replica.pipelines:
            boundary = BoundaryWriter(
                rank=self.rank,
                stage_idx=self.stage_idx,
                schedules=[[parse_operation(text) for text in row] for row in pipeline.schedule],
                rows=[
                    [
                        self.replica.boundary_rows(first_chunk + idx, edge)
                        for edge in range(len(self.replica.stages) - 1)
                    ]
                    for idx in range(len(pipeline.chunks))
                ],
                width=self.replica.instance.model.hidden_size,
                channels=self.replica.boundary_channels,
                first_chunk=first_chunk,
            )
            for kind, chunk in boundary.schedules[self.stage_idx]:
                yield from boundary.receive(kind, chunk)
                if kind == "F":
                    yield from self._forward(boundary, pipeline, chunk)
                else:
                    yield from self._backward(boundary, pipeline, chunk)
            yield from boundary.finish()
            first_chunk += len(pipeline.chunks)

    def _forward(
        self, boundary: BoundaryWriter, pipeline: Pipeline, chunk: int
    ) -> Iterator[Do | Call]:
        number = boundary.first_chunk + chunk
        if self.stage_idx == 0:
            yield from self._gather(number, "embedding")
            yield Do(number, Embed(self._num_rows(number)))
        yield from self._calls(pipeline, chunk, number, "forward")
        if self.is_last:
            yield from self._gather(number, *self._head_units)
            yield Do(number, Loss(self._num_rows(number)))
        else:
            yield from boundary.send("F", chunk)

    def _backward(
        self, boundary: BoundaryWriter, pipeline: Pipeline, chunk: int
    ) -> Iterator[Do | Call]:
        number = boundary.first_chunk + chunk
        if self.is_last:
            yield from self._gather(number, *self._head_units)
            yield Do(number, LossBackward(self._num_rows(number)))
            if self.stage_idx > 0:
                yield from self._reduce(number, *self._head_units)
            else:
                yield from self._reduce(number, *(u for u in self._head_units if u != "embedding"))
        yield from self._calls(pipeline, chunk, number, "backward")
        if self.stage_idx == 0:
            yield Do(number, EmbedBackward(self._num_rows(number)))
            yield from self._reduce(number, "embedding")
        else:
            yield from boundary.send("B", chunk)

    @property
    def _head_units(self) -> tuple[str, ...]:
        is_tied = self.replica.instance.model.tied_embeddings
        wanted = ("final_norm", "embedding" if is_tied else "", "head")
        return tuple(name for name in wanted if name in self.holdings)

    def _gather(self, chunk: int, *units: str) -> Iterator[Do]:
        if self.stage.zero == 3 and len(self.stage.ranks) > 1:
            for unit in units:
                yield Do(chunk, gather_weight(self.holdings[unit]))

    def _reduce(self, chunk: int, *units: str) -> Iterator[Do]:
        if len(self.stage.ranks) > 1:
            for unit in units:
                if self.holdings[unit].per_chunk:
                    yield Do(chunk, reduce_scatter(self.holdings[unit]))

    def _calls(self, pipeline: Pipeline, chunk: int, number: int, phase: Phase) -> Iterator[Call]:
        """Write runs of layers with one template, in the order they are executed."""
        policies = layer_policies(pipeline.recompute[self.stage_idx][chunk])
        num_offloaded = pipeline.offload[self.stage_idx][chunk] if pipeline.offload else 0
        first = self.stage.layers[0]
        layers = range(self.stage.num_layers)
        names = [
            self._template(first + idx, number, policies[idx], phase, idx < num_offloaded)
            for idx in layers
        ]
        runs = [
            (name, [first + idx for idx in run])
            for name, run in groupby(layers, key=lambda idx: names[idx])
        ]
        for name, run in runs if phase == "forward" else reversed(runs):
            yield Call(name, number, (run[0], run[-1] + 1), phase)

    def _template(
        self, layer: int, chunk: int, policy: Policy, phase: Phase, is_offloaded: bool
    ) -> str:
        kind, gather, reduce = self._layer_kind(layer)
        name = (
            f"{self.replica.prefix(self.stage_idx)}.shape{self.replica.chunk_shapes[chunk]}"
            f".kind{kind}.{policy}{'.offload' if is_offloaded else ''}.{phase}"
        )
        if name not in self.templates:
            attention = self.replica.instance.model.layers[layer].attention
            writer = LayerWriter(
                self.replica.shape(self.stage_idx, chunk, attention),
                self.group_idx,
                self.idx_in_group,
                gather,
                reduce,
            )
            self.templates[name] = writer.template(name, phase, policy, is_offloaded=is_offloaded)
        return name

    def _layer_kind(self, layer: int) -> tuple[int, Gather | None, Reduce | None]:
        """Find a layer's kind; in ZeRO-3 also how its weights come and its gradients go."""
        spec = self.replica.instance.model.layers
        is_sharded = self.stage.zero == 3 and len(self.stage.ranks) > 1
        kinds = self.replica.layer_kinds[is_sharded]
        if not is_sharded:
            return kinds[layer], None, None
        holding = self.holdings[f"layer:{layer}"]
        assert holding.size == spec[layer].parameters
        return (
            kinds[layer],
            gather_weight(holding, "layer"),
            reduce_scatter(holding, "layer") if holding.per_chunk else None,
        )
