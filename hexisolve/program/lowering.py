"""Programs reduced to what takes time: the lists the clock plays.

Weights of ZeRO-3 are gathered one unit ahead: the gather of the next unit of an operation is
posted when the present one has arrived, and sums of gradients per chunk run beside the next layer.
A layer's list therefore posts both aside at its start and joins them at its end; the first gather
of an operation is exposed (cost equation 9, docs/cost-model.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hexisolve.cost.collectives import (
    all_reduce_bytes,
    gather_bytes,
    reduce_scatter_bytes,
)
from hexisolve.data.model_spec import LayerSpec
from hexisolve.program.durations import Durations
from hexisolve.program.instructions import (
    DtypeRole,
    Embed,
    EmbedBackward,
    Exchange,
    Gather,
    Instruction,
    Loss,
    LossBackward,
    Norm,
    Reduce,
    Start,
    Transfer,
    Wait,
)
from hexisolve.program.link_sharing import FlowBytes, Links, Load
from hexisolve.program.played import (
    Aside,
    Await,
    Join,
    LayerCall,
    LayerKey,
    Meet,
    Played,
    Post,
    Run,
    Send,
)
from hexisolve.program.rank_program import STEP_END, Call, Do, Programs, RankProgram

_SCALAR_BYTES = 8
Operation = tuple[int, str]
"""(chunk, phase)."""


@dataclass
class Lowering:
    """Turns the programs of one plan into played lists; loads are worked out once."""

    programs: Programs
    links: Links
    _loads: dict[object, Load] = field(default_factory=dict)
    _asides: dict[Load, Meet] = field(default_factory=dict)
    _layers: dict[tuple[LayerKey, int], tuple[Played, ...]] = field(default_factory=dict)
    _load_numbers: dict[Load, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        instance = self.programs.instance
        index = instance.cluster.device_index
        self.device_numbers = [index[program.device] for program in self.programs.ranks]
        ranks = self.programs.plan.layout.ranks
        self.durations = [
            Durations(instance, instance.cluster.device(rank.device), rank.num_q_heads)
            for rank in ranks
        ]
        kinds: dict[object, int] = {}
        self.layer_kinds = [kinds.setdefault(la, len(kinds)) for la in instance.model.layers]
        stages = [(program.replica, program.stage) for program in self.programs.ranks]
        numbers = {stage: idx for idx, stage in enumerate(dict.fromkeys(stages))}
        self.stage_numbers = [numbers[stage] for stage in stages]
        self.stage_ranks: list[list[int]] = [[] for _ in numbers]
        for rank, number in enumerate(self.stage_numbers):
            self.stage_ranks[number].append(rank)
        self.num_hops = [
            max(0, sum(group.tokens > 0 for group in stage.ring) - 1)
            for _, _, stage in self.programs.plan.layout.stages()
        ]

    # Whole programs

    def lists(self, *, flat: bool) -> list[list[Played]]:
        """The list of every rank: layers as calls, or written out when `flat`."""
        return [list(self._rank(program, flat=flat)) for program in self.programs.ranks]

    def layer_lists(self, key: LayerKey, stage: int) -> dict[int, tuple[Played, ...]]:
        """What every rank of a stage does in one layer."""
        return {rank: self._layers[key, rank] for rank in self.stage_ranks[stage]}

    def _rank(self, program: RankProgram, *, flat: bool) -> Iterator[Played]:
        ahead = _Ahead(list(_gather_points(program)))
        sums: tuple[Meet, ...] = ()
        for position, item in enumerate(program.body):
            if isinstance(item, Do):
                if ahead.is_at(position):
                    yield from self._arrive(ahead)
                    yield from (Aside((meet,)) for meet in self._next_gather(ahead))
                    ahead.number += 1
                else:
                    for played in self._instruction(program, item.instruction, None, 0.0):
                        if isinstance(played, Run):
                            yield replace(played, chunk=item.chunk)
                        else:
                            yield played
                continue
            template = program.templates[item.template]
            added = [i for i in template.instructions if isinstance(i, Reduce)]
            for layer in program.layers_of(item):
                gathered: tuple[Meet, ...] = ()
                if ahead.is_at(position):
                    yield from self._arrive(ahead)
                    gathered = self._next_gather(ahead)
                    ahead.number += 1
                yield from self._layer_items(program, item, layer, (*sums, *gathered), flat=flat)
                sums = tuple(self._yielding(self._reduce(instruction)) for instruction in added)
            if sums and next_operation(program.body, position + 1) != (item.chunk, item.phase):
                yield from (Aside(sums), Join())
                sums = ()

    def _arrive(self, ahead: _Ahead) -> Iterator[Played]:
        """Wait for the weights of a point; the first of an operation are asked for only now."""
        if ahead.is_first:
            yield Aside((self._gather(ahead.points[ahead.number].gather),))
        yield Join()

    def _next_gather(self, ahead: _Ahead) -> tuple[Meet, ...]:
        following = ahead.following
        return () if following is None else (self._yielding(self._gather(following.gather)),)

    def _yielding(self, meet: Meet) -> Meet:
        """The same collective run aside."""
        known = self._asides.get(meet.load)
        if known is None:
            known = self._asides[meet.load] = meet.yielding()
        return replace(known, channel=meet.channel)

    def _layer_items(
        self, program: RankProgram, call: Call, layer: int, beside: tuple[Meet, ...], *, flat: bool
    ) -> Iterator[Played]:
        stage = self.stage_numbers[program.rank]
        loads = tuple(self._load_number(meet.load) for meet in beside)
        key = LayerKey(call.template, self.layer_kinds[layer], loads)
        played = self._layers.get((key, program.rank))
        if played is None:
            played = tuple(self._layer(program, call, layer, beside))
            self._layers[key, program.rank] = played
        if flat:
            yield from played
        else:
            num_ranks = len(self.stage_ranks[stage])
            yield LayerCall(stage, key, num_ranks, call.chunk, layer, call.phase)

    def _load_number(self, load: Load) -> int:
        return self._load_numbers.setdefault(load, len(self._load_numbers))

    def _layer(
        self, program: RankProgram, call: Call, layer: int, beside: tuple[Meet, ...]
    ) -> Iterator[Played]:
        """One layer: its instructions, local ones in a row joined, and what runs beside it."""
        if beside:
            yield Aside(beside)
        instructions = program.templates[call.template].instructions
        starts = [i.handle for i in instructions if isinstance(i, Start)]
        per_start_s = 0.0
        if starts:
            # Recomputed attention goes around the ring once more.
            num_rings = max(map(starts.count, set(starts)))
            hops = num_rings * self.num_hops[self.stage_numbers[program.rank]]
            per_start_s = hops * self.programs.instance.cost.launch_overhead_s / len(starts)
        spec = self.programs.instance.model.layers[layer]
        work: Run | None = None
        for instruction in instructions:
            if isinstance(instruction, Gather | Reduce):
                continue
            for played in self._instruction(program, instruction, spec, per_start_s):
                if isinstance(played, Run) and work is not None and work.kind == played.kind:
                    work = Run(work.seconds + played.seconds, work.kind)
                    continue
                if work is not None:
                    yield work
                work = played if isinstance(played, Run) else None
                if work is None:
                    yield played
        if work is not None:
            yield work
        if beside:
            yield Join()

    def _instruction(
        self,
        program: RankProgram,
        instruction: Instruction,
        layer: LayerSpec | None,
        per_start_s: float,
    ) -> Iterator[Played]:
        if isinstance(instruction, Start):
            if per_start_s:
                yield Run(per_start_s, "attention")
            yield self._start(program.rank, instruction)
        elif isinstance(instruction, Wait):
            yield Await(instruction.handle)
        elif isinstance(instruction, Exchange):
            assert layer is not None
            yield Run(self.durations[program.rank].launch_s, "launch")
            if instruction.channel:
                load = self._exchange(instruction, layer)
                yield Meet(instruction.channel, len(instruction.members), load)
        elif isinstance(instruction, Gather | Reduce | Norm):
            if instruction.channel:
                yield self._meet(instruction)
        else:
            work = self.durations[program.rank].run(instruction, layer)
            if work is not None and work.seconds > 0:
                yield work

    def _meet(self, instruction: Gather | Reduce | Norm) -> Meet:
        if isinstance(instruction, Gather):
            return self._gather(instruction)
        return (
            self._reduce(instruction)
            if isinstance(instruction, Reduce)
            else self._norm(instruction)
        )

    # Loads

    def _element_bytes(self, role: DtypeRole) -> int:
        cost = self.programs.instance.cost
        if role in ("activation", "weight"):
            return self.programs.instance.workload.element_bytes
        return cost.accumulator_bytes if role == "accumulator" else cost.gradient_bytes

    def _start(self, rank: int, start: Start) -> Post:
        by_channel: dict[str, list[Send]] = {}
        for transfer in start.transfers:
            by_channel.setdefault(transfer.channel, []).append(self._send(rank, transfer))
        return Post(start.handle, tuple((name, tuple(sends)) for name, sends in by_channel.items()))

    def _send(self, rank: int, transfer: Transfer) -> Send:
        ends = (rank, transfer.peer) if transfer.is_send else (transfer.peer, rank)
        num_bytes = transfer.num_elements * self._element_bytes(transfer.dtype)
        flow = (self.device_numbers[ends[0]], self.device_numbers[ends[1]], float(num_bytes))
        return Send((transfer.channel, *ends), transfer.is_send, self._load(flow, [flow]))

    def _load(self, key: object, flows: Sequence[FlowBytes]) -> Load:
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = self.links.load(flows)
        return load

    def _exchange(self, exchange: Exchange, layer: LayerSpec) -> Load:
        """All flows of an all-to-all: every pair, from the rows and heads all members know."""
        widths = layer.attention.qk_head_dim, layer.attention.v_head_dim
        key = (exchange.kind, exchange.members, exchange.rows, exchange.q_heads,
               exchange.kv_heads, widths)  # fmt: skip
        load = self._loads.get(key)
        if load is None:
            e = self._element_bytes(exchange.dtype)
            numbers = [self.device_numbers[rank] for rank in exchange.members]
            flows = [
                (numbers[sender], numbers[receiver], float(e * num_elements))
                for sender, receiver, num_elements in exchanged_elements(exchange, *widths)
            ]
            load = self._loads[key] = self.links.load(flows)
        return load

    def _collective(
        self, channel: str, members: Sequence[int], received: Sequence[float], kind: str
    ) -> Meet:
        """A ring over the members: each receives its bytes from the one before it."""
        key = (kind, tuple(members), tuple(received))
        numbers = [self.device_numbers[rank] for rank in members]
        flows = [
            (numbers[idx - 1], number, num_bytes)
            for idx, (number, num_bytes) in enumerate(zip(numbers, received, strict=True))
        ]
        hops = tuple(self._load(flow, [flow]) for flow in flows)
        return Meet(channel, len(members), self._load(key, flows), hops)

    def _gather(self, gather: Gather) -> Meet:
        size, e = sum(gather.counts), self._element_bytes(gather.dtype)
        received = [gather_bytes(count / size, size, e) for count in gather.counts]
        return self._collective(gather.channel, gather.members, received, "gather")

    def _reduce(self, reduce: Reduce) -> Meet:
        size, num_bytes = sum(reduce.counts), self._element_bytes(reduce.dtype)
        if reduce.op == "all_reduce":
            received = [all_reduce_bytes(len(reduce.members), size, num_bytes)] * len(
                reduce.members
            )
        else:
            received = [
                reduce_scatter_bytes(count / size, size, num_bytes) for count in reduce.counts
            ]
        return self._collective(reduce.channel, reduce.members, received, reduce.op)

    def _norm(self, norm: Norm) -> Meet:
        """Two scalars around all ranks and back."""
        received = [2.0 * 2 * _SCALAR_BYTES] * len(norm.members)
        return self._collective(norm.channel, norm.members, received, "norm")


def exchanged_elements(
    exchange: Exchange, qk_head_dim: int, v_head_dim: int
) -> Iterator[tuple[int, int, int]]:
    """(sending member, receiving member, elements) of an all-to-all, own parts left out."""
    per_row = []
    for q_heads, kv_heads in zip(exchange.q_heads, exchange.kv_heads, strict=True):
        num_q, num_kv = q_heads[1] - q_heads[0], kv_heads[1] - kv_heads[0]
        if exchange.kind in ("out", "d_out"):
            per_row.append(num_q * v_head_dim)
        else:
            per_row.append(num_q * qk_head_dim + num_kv * (qk_head_dim + v_head_dim))
    to_heads = exchange.kind in ("qkv", "d_out")
    for sender, sender_rows in enumerate(exchange.rows):
        for receiver, receiver_rows in enumerate(exchange.rows):
            if sender != receiver:
                sent = (
                    sender_rows * per_row[receiver] if to_heads else receiver_rows * per_row[sender]
                )
                yield sender, receiver, sent


@dataclass(frozen=True, slots=True)
class _GatherPoint:
    """A place in a body where weights must have arrived."""

    position: int
    operation: Operation
    gather: Gather


@dataclass
class _Ahead:
    """The gathers of a program, and which of them comes next."""

    points: Sequence[_GatherPoint]
    number: int = 0

    def is_at(self, position: int) -> bool:
        """Whether the next gather belongs to this item of the body."""
        return self.number < len(self.points) and self.points[self.number].position == position

    @property
    def is_first(self) -> bool:
        """Whether the next gather is the first of its operation."""
        point = self.points[self.number]
        return not self.number or self.points[self.number - 1].operation != point.operation

    @property
    def following(self) -> _GatherPoint | None:
        """The gather after the next one, in the same operation."""
        if self.number + 1 == len(self.points):
            return None
        following = self.points[self.number + 1]
        is_same = following.operation == self.points[self.number].operation
        return following if is_same else None


def _gather_points(program: RankProgram) -> Iterator[_GatherPoint]:
    """Every gather of weights before the end of the step, layer by layer."""
    for position, item in enumerate(program.body):
        if isinstance(item, Call):
            for instruction in program.templates[item.template].instructions:
                if isinstance(instruction, Gather):
                    for _ in program.layers_of(item):
                        yield _GatherPoint(position, (item.chunk, item.phase), instruction)
        elif item.chunk != STEP_END and isinstance(item.instruction, Gather):
            operation = next_operation(program.body, position + 1)
            assert operation is not None
            yield _GatherPoint(position, operation, item.instruction)


def next_operation(body: Sequence[Do | Call], position: int) -> Operation | None:
    """The operation that the first work at or after a position belongs to."""
    for item in body[position:]:
        if isinstance(item, Call):
            return item.chunk, item.phase
        if isinstance(item.instruction, Embed | Loss):
            return item.chunk, "forward"
        if isinstance(item.instruction, LossBackward | EmbedBackward):
            return item.chunk, "backward"
    return None
