"""Compile a plan into one program per rank, with every size known before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import AttentionSpec
from hexisolve.errors import UnsupportedPlanError
from hexisolve.plan.pieces import Pieces, StagePieces, stage_pieces
from hexisolve.plan.plan import Chunk, Pipeline, Plan, Policy, Slice, Stage, layer_policies
from hexisolve.plan.schedule import parse_operation
from hexisolve.program.boundary import BoundaryWriter, RowMap, overlaps
from hexisolve.program.instructions import (
    Embed,
    EmbedBackward,
    Gather,
    Loss,
    LossBackward,
    Reduce,
)
from hexisolve.program.layer_programs import LayerWriter, StageShape, stage_shape
from hexisolve.program.rank_program import (
    STEP_END,
    Call,
    Channel,
    Do,
    Phase,
    Programs,
    RankProgram,
    Shard,
    Template,
)
from hexisolve.program.weights import (
    SHARED,
    WORLD,
    Holding,
    StepEnd,
    gather_weight,
    rank_units,
    reduce_scatter,
    stage_holdings,
)

DEFAULT_RING_BLOCKS = 64


def compile_plan(
    instance: Instance, plan: Plan, *, ring_blocks: int = DEFAULT_RING_BLOCKS
) -> Programs:
    """Compile `plan`, which `check_plan` has accepted, for all of its ranks.

    Parameters
    ----------
    ring_blocks
        Blocks of KV aimed at per ring; every group with travelling tokens has at least one.

    Raises
    ------
    UnsupportedPlanError
        When the plan uses a part no program can express yet; names all such parts.
    """
    _refuse_unsupported(instance, plan)
    if ring_blocks < 1:
        raise ValueError(f"ring_blocks must be at least 1, got {ring_blocks}")
    lengths = instance.workload.sequence_lengths
    replicas = _replica_compilers(instance, plan, ring_blocks)
    holdings = [own for replica in replicas for own in replica.holdings]
    step_end = StepEnd(plan.layout, holdings)
    ranks = tuple(program for replica in replicas for program in replica.programs(step_end))
    world = tuple(range(len(ranks)))
    channels = [channel for replica in replicas for channel in replica.channels()]
    if step_end.is_sharing:
        channels.append(Channel(SHARED, world))
    if len(world) > 1:
        channels.append(Channel(WORLD, world))
    return Programs(
        instance,
        plan,
        ranks,
        tuple(channels),
        lengths,
        sum(length - 1 for length in lengths),
        ring_blocks,
    )


def _refuse_unsupported(instance: Instance, plan: Plan) -> None:
    problems: list[str] = []
    lengths = instance.workload.sequence_lengths
    for r_idx, p_idx, stage in plan.layout.stages():
        where = f"replica {r_idx} stage {p_idx}"
        if stage.ring_kind != "kv" and len(stage.ring) > 1:
            problems.append(f"{where}: rings in which q travels have no program yet; use kv")
        for group_idx, group in enumerate(stage.ring):
            num_heads = sum(rank.num_q_heads for rank in group.ranks)
            for layer in range(*stage.layers):
                expected = instance.model.layers[layer].attention.num_q_heads
                if num_heads != expected:
                    problems.append(
                        f"{where} group {group_idx}: {num_heads} query heads, layer {layer} has "
                        f"{expected}; plans have one head split for all layers"
                    )
                    break
    if instance.workload.attention == "full" and any(
        layer.attention.window_tokens for layer in instance.model.layers
    ):
        problems.append("sliding windows have a program only with causal attention")
    for r_idx, batch in enumerate(plan.batch.replicas):
        for pipeline in batch.pipelines:
            problems.extend(
                f"replica {r_idx} chunk {idx}: tokens {part.start}..{part.stop} of sequence "
                f"{part.sequence} ({lengths[part.sequence]} long): slices have no program yet; "
                "use whole sequences"
                for idx, chunk in enumerate(pipeline.chunks)
                for part in chunk.slices
                if (part.start, part.stop) != (0, lengths[part.sequence])
            )
    if problems:
        raise UnsupportedPlanError("\n".join(problems))


def _replica_compilers(
    instance: Instance, plan: Plan, ring_blocks: int
) -> tuple[_ReplicaCompiler, ...]:
    sizes = [sum(len(stage.ranks) for stage in replica.stages) for replica in plan.layout.replicas]
    first_ranks = (0, *accumulate(sizes))
    return tuple(
        _ReplicaCompiler(
            instance, idx, replica.stages, batch.pipelines, first_ranks[idx], ring_blocks
        )
        for idx, (replica, batch) in enumerate(
            zip(plan.layout.replicas, plan.batch.replicas, strict=True)
        )
    )


@dataclass
class _ReplicaCompiler:
    """All programs of one replica."""

    instance: Instance
    replica_idx: int
    stages: Sequence[Stage]
    pipelines: Sequence[Pipeline]
    first_rank: int
    ring_blocks: int
    _shapes: dict[tuple[int, int, AttentionSpec], StageShape] = field(default_factory=dict)
    _rows: dict[tuple[int, int], RowMap] = field(default_factory=dict)

    @cached_property
    def stage_first_ranks(self) -> tuple[int, ...]:
        sizes = [len(stage.ranks) for stage in self.stages]
        return tuple(accumulate(sizes[:-1], initial=self.first_rank))

    def members(self, stage_idx: int) -> tuple[int, ...]:
        first = self.stage_first_ranks[stage_idx]
        return tuple(range(first, first + len(self.stages[stage_idx].ranks)))

    def prefix(self, stage_idx: int) -> str:
        return f"r{self.replica_idx}.s{stage_idx}"

    @cached_property
    def holdings(self) -> tuple[tuple[Holding, ...], ...]:
        return tuple(
            stage_holdings(
                self.instance.model, stage, self.members(idx), f"{self.prefix(idx)}.states"
            )
            for idx, stage in enumerate(self.stages)
        )

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(chunk for pipeline in self.pipelines for chunk in pipeline.chunks)

    @cached_property
    def chunk_shapes(self) -> tuple[int, ...]:
        """Number of the shape of every chunk."""
        numbers: dict[Chunk, int] = {}
        return tuple(numbers.setdefault(_shape(chunk), len(numbers)) for chunk in self.chunks)

    def channels(self) -> Iterator[Channel]:
        """Process groups of the replica, in creation order."""
        for idx, stage in enumerate(self.stages):
            first = self.stage_first_ranks[idx]
            for group_idx, group in enumerate(stage.ring):
                if len(group.ranks) > 1:
                    members = tuple(range(first, first + len(group.ranks)))
                    yield Channel(f"{self.prefix(idx)}.group{group_idx}", members)
                first += len(group.ranks)
            if len(stage.ring) > 1:
                yield Channel(f"{self.prefix(idx)}.ring", self.members(idx))
            if len(stage.ranks) > 1:
                yield Channel(f"{self.prefix(idx)}.states", self.members(idx))
        for idx, names in enumerate(self.boundary_channels):
            members = self.members(idx) + self.members(idx + 1)
            yield from (Channel(name, members) for name in names)

    @cached_property
    def boundary_channels(self) -> tuple[tuple[str, str], ...]:
        """``[boundary] -> (forward, backward)``."""
        return tuple(
            (
                f"r{self.replica_idx}.boundary{idx}.forward",
                f"r{self.replica_idx}.boundary{idx}.backward",
            )
            for idx in range(len(self.stages) - 1)
        )

    @cached_property
    def layer_kinds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Number of every layer's kind: by attention alone, and by attention and size."""
        layers = self.instance.model.layers
        by_attention: dict[AttentionSpec, int] = {}
        by_size: dict[tuple[AttentionSpec, int], int] = {}
        return (
            tuple(by_attention.setdefault(la.attention, len(by_attention)) for la in layers),
            tuple(by_size.setdefault((la.attention, la.parameters), len(by_size)) for la in layers),
        )

    def pieces(self, stage_idx: int, chunk_idx: int) -> StagePieces:
        """Pieces of a chunk in its canonical shape: sequences numbered from 0."""
        return stage_pieces(self.stages[stage_idx], _shape(self.chunks[chunk_idx]), stage_idx)

    def shape(self, stage_idx: int, chunk_idx: int, attention: AttentionSpec) -> StageShape:
        key = (stage_idx, self.chunk_shapes[chunk_idx], attention)
        if key not in self._shapes:
            self._shapes[key] = stage_shape(
                self.stages[stage_idx],
                self.stage_first_ranks[stage_idx],
                self.pieces(stage_idx, chunk_idx),
                attention,
                self.prefix(stage_idx),
                causal=self.instance.workload.attention == "causal",
                ring_blocks=self.ring_blocks,
            )
        return self._shapes[key]

    def boundary_rows(self, chunk_idx: int, boundary: int) -> RowMap:
        key = (self.chunk_shapes[chunk_idx], boundary)
        if key not in self._rows:
            self._rows[key] = overlaps(
                self.pieces(boundary, chunk_idx),
                self.stage_first_ranks[boundary],
                self.pieces(boundary + 1, chunk_idx),
                self.stage_first_ranks[boundary + 1],
            )
        return self._rows[key]

    def programs(self, step_end: StepEnd) -> Iterator[RankProgram]:
        """Programs of the replica's ranks, in order."""
        for stage_idx, stage in enumerate(self.stages):
            member_idx = 0
            for group_idx, group in enumerate(stage.ring):
                for idx_in_group in range(len(group.ranks)):
                    yield _RankCompiler(
                        self, stage_idx, group_idx, idx_in_group, member_idx
                    ).program(step_end)
                    member_idx += 1


def _shape(chunk: Chunk) -> Chunk:
    """Renumber the sequences of a chunk in order of appearance."""
    numbers: dict[int, int] = {}

    def renumber(parts: Sequence[Slice]) -> tuple[Slice, ...]:
        return tuple(
            Slice(numbers.setdefault(part.sequence, len(numbers)), part.start, part.stop)
            for part in parts
        )

    slices = renumber(chunk.slices)
    if chunk.pieces is None:
        return Chunk(slices)
    return Chunk(slices, tuple(tuple(renumber(own) for own in ranks) for ranks in chunk.pieces))


@dataclass
class _RankCompiler:
    """The program of one rank."""

    replica: _ReplicaCompiler
    stage_idx: int
    group_idx: int
    idx_in_group: int
    member_idx: int
    templates: dict[str, Template] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.replica.stage_first_ranks[self.stage_idx] + self.member_idx

    @property
    def stage(self) -> Stage:
        return self.replica.stages[self.stage_idx]

    @property
    def is_last(self) -> bool:
        return self.stage_idx == len(self.replica.stages) - 1

    @cached_property
    def holdings(self) -> dict[str, Holding]:
        return {own.unit: own for own in self.replica.holdings[self.stage_idx]}

    def program(self, step_end: StepEnd) -> RankProgram:
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
        else:
            yield from boundary.receive("F", chunk)
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
        else:
            yield from boundary.receive("B", chunk)
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
