"""Rules of the batch plan: tokens, slices, schedules, recompute, explicit pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from hexisolve.cost.pipeline import DeadlockError, step_length_s
from hexisolve.data.instance import Instance
from hexisolve.plan.offload import host_path
from hexisolve.plan.plan import POLICY_ORDER, Chunk, Pipeline, Plan, Replica, Slice, Stage
from hexisolve.plan.schedule import parse_operation
from hexisolve.plan.violation import Violation, is_whole

_NUM_SHOWN = 8


def check_batch(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Every violation of a batch plan."""
    replicas, batches = plan.layout.replicas, plan.batch.replicas
    if len(replicas) != len(batches):
        message = f"{len(batches)} replicas have chunks, the layout has {len(replicas)}"
        yield Violation("batch-shape", "batch", message)
    for replica_idx, (replica, batch) in enumerate(zip(replicas, batches, strict=False)):
        if not batch.pipelines:
            yield Violation("batch-shape", f"replica {replica_idx}", "has no pipeline")
        for pipeline_idx, pipeline in enumerate(batch.pipelines):
            where = f"replica {replica_idx}, pipeline {pipeline_idx}"
            yield from _pipeline(instance, where, replica, pipeline)
    yield from _coverage(instance, plan)


def _pipeline(
    instance: Instance, where: str, replica: Replica, pipeline: Pipeline
) -> Iterator[Violation]:
    num_chunks = len(pipeline.chunks)
    if not num_chunks:
        yield Violation("batch-shape", where, "has no chunk")
    for chunk_idx, chunk in enumerate(pipeline.chunks):
        place = f"{where}, chunk {chunk_idx}"
        yield from _chunk(instance, place, chunk)
        if chunk.pieces is not None:
            yield from _pieces(place, replica, chunk)
    yield from _table_shapes(where, replica, pipeline)
    yield from _schedules(where, replica, pipeline)
    for stage_idx, stage in enumerate(replica.stages):
        place = f"{where}, stage {stage_idx}"
        for chunk_idx, counts in enumerate(_row(pipeline.recompute, stage_idx)):
            yield from _recompute(f"{place}, chunk {chunk_idx}", stage, counts)
        yield from _offload(instance, place, stage, _row(pipeline.offload, stage_idx))


def _row(table: Sequence[Sequence[object]], idx: int) -> Sequence[object]:
    return table[idx] if idx < len(table) else ()


def _chunk(instance: Instance, where: str, chunk: Chunk) -> Iterator[Violation]:
    """Slices within their sequences; at most one of them of a cut sequence."""
    lengths = instance.workload.sequence_lengths
    if not chunk.slices:
        yield Violation("chunks", where, "holds no tokens; give it a slice or leave it out")
    cut = []
    for part in chunk.slices:
        if not is_whole(part.sequence) or part.sequence >= len(lengths):
            message = f"sequence {part.sequence} is none of the {len(lengths)} of the workload"
            yield Violation("chunks", where, message)
            continue
        length = lengths[part.sequence]
        is_range = is_whole(part.start) and is_whole(part.stop)
        if not is_range or not part.start < part.stop <= length:
            message = f"{_shown(part)} is no part of a sequence of {length} tokens"
            yield Violation("chunks", where, message)
        elif part.num_tokens < length:
            cut.append(part)
    if cut and instance.workload.attention == "full":
        message = f"full attention needs whole sequences, {_shown(cut[0])} is a slice"
        yield Violation("full-attention", where, message)
    if len(cut) > 1:
        message = (
            f"holds {len(cut)} slices of cut sequences ({', '.join(map(_shown, cut))}); "
            "one is the most"
        )
        yield Violation("one-slice", where, message)


def _shown(part: Slice) -> str:
    return f"sequence {part.sequence} tokens {part.start}..{part.stop}"


def _coverage(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Every token of the workload in exactly one chunk; a sequence in one pipeline."""
    lengths = instance.workload.sequence_lengths
    parts: list[list[tuple[int, int]]] = [[] for _ in lengths]
    homes: list[set[tuple[int, int]]] = [set() for _ in lengths]
    for replica_idx, batch in enumerate(plan.batch.replicas):
        for pipeline_idx, pipeline in enumerate(batch.pipelines):
            for part in (part for chunk in pipeline.chunks for part in chunk.slices):
                if is_whole(part.sequence) and part.sequence < len(lengths):
                    parts[part.sequence].append((part.start, part.stop))
                    homes[part.sequence].add((replica_idx, pipeline_idx))
    num_shown = 0
    for sequence, length in enumerate(lengths):
        if len(homes[sequence]) > 1:
            message = f"its slices are in {len(homes[sequence])} pipelines; put them into one"
            yield Violation("one-pipeline", f"sequence {sequence}", message)
        end = 0
        for start, stop in sorted((*parts[sequence], (length, length))):
            if start != end and num_shown < _NUM_SHOWN:
                num_shown += 1
                fault = "on no chunk" if start > end else "in two chunks"
                message = f"tokens {min(start, end)}..{max(start, end)} of {length} are {fault}"
                yield Violation("tokens-covered", f"sequence {sequence}", message)
            end = max(end, stop)


def _table_shapes(where: str, replica: Replica, pipeline: Pipeline) -> Iterator[Violation]:
    """One row per stage and one column per chunk in every table."""
    num_stages, num_chunks = len(replica.stages), len(pipeline.chunks)
    tables: tuple[tuple[str, Sequence[Sequence[object]]], ...] = (
        ("recompute", pipeline.recompute),
        ("offload", pipeline.offload),
    )
    if len(pipeline.schedule) != num_stages:
        message = f"schedule has {len(pipeline.schedule)} rows for {num_stages} stages"
        yield Violation("batch-shape", where, message)
    for name, table in tables:
        if name == "offload" and not table:
            continue
        if len(table) != num_stages:
            message = f"{name} has {len(table)} rows for {num_stages} stages"
            yield Violation("batch-shape", where, message)
        for stage_idx, row in enumerate(table):
            if len(row) != num_chunks:
                message = f"{name} of stage {stage_idx} has {len(row)} entries for {num_chunks}"
                yield Violation("batch-shape", where, f"{message} chunks")


def _schedules(where: str, replica: Replica, pipeline: Pipeline) -> Iterator[Violation]:
    """Every F and B once; F before B; slices forward in order and backward in reverse."""
    num_chunks = len(pipeline.chunks)
    followers = _slice_pairs(pipeline)
    rows = []
    is_complete = len(pipeline.schedule) == len(replica.stages)
    for stage_idx, row in enumerate(pipeline.schedule):
        place = f"{where}, stage {stage_idx}"
        operations, problems = _parsed(row, num_chunks)
        for message in problems:
            yield Violation("schedule", place, message)
        if problems:
            is_complete = False
            continue
        rows.append(operations)
        position = {operation: idx for idx, operation in enumerate(operations)}
        for chunk_idx in range(num_chunks):
            if position["B", chunk_idx] < position["F", chunk_idx]:
                message = f"B{chunk_idx} stands before F{chunk_idx}"
                yield Violation("forward-first", place, message)
                is_complete = False
        for earlier, later, sequence in followers:
            if position["F", later] < position["F", earlier]:
                message = (
                    f"F{later} stands before F{earlier}, which holds an earlier slice of "
                    f"sequence {sequence}"
                )
                yield Violation("slice-order", place, message)
            if position["B", earlier] < position["B", later]:
                message = (
                    f"B{earlier} stands before B{later}, which holds a later slice of "
                    f"sequence {sequence}; backward runs in reverse"
                )
                yield Violation("backward-order", place, message)
    if is_complete and rows:
        zeros = [[0.0] * num_chunks for _ in rows]
        try:
            step_length_s(rows, zeros, zeros, zeros, zeros)
        except DeadlockError as error:
            yield Violation("deadlock", where, str(error))


def _parsed(row: Sequence[object], num_chunks: int) -> tuple[list[tuple[str, int]], list[str]]:
    """The operations of one stage, and what is wrong with them."""
    operations, problems = [], []
    for text in row:
        try:
            operations.append(parse_operation(str(text)))
        except ValueError as error:
            problems.append(str(error))
    expected = {(kind, idx) for kind in "FB" for idx in range(num_chunks)}
    counts = Counter(operations)
    for kind, idx in sorted(expected - counts.keys()):
        problems.append(f"{kind}{idx} is missing; every chunk needs its F and its B once")
    for kind, idx in sorted(counts.keys() - expected):
        problems.append(f"{kind}{idx} names none of the {num_chunks} chunks")
    for kind, idx in sorted(op for op in expected if counts[op] > 1):
        problems.append(f"{kind}{idx} stands there {counts[kind, idx]} times")
    return operations, problems


def _slice_pairs(pipeline: Pipeline) -> list[tuple[int, int, int]]:
    """(chunk, chunk with the next slice of the same sequence, sequence) of every cut sequence."""
    holders: dict[int, list[tuple[int, int]]] = {}
    for chunk_idx, chunk in enumerate(pipeline.chunks):
        for part in chunk.slices:
            holders.setdefault(part.sequence, []).append((part.start, chunk_idx))
    pairs = []
    for sequence, held in holders.items():
        ordered = [chunk_idx for _, chunk_idx in sorted(held)]
        pairs += [
            (earlier, later, sequence) for earlier, later in pairwise(ordered) if earlier != later
        ]
    return pairs


def _recompute(where: str, stage: Stage, counts: object) -> Iterator[Violation]:
    """Known policies whose layers sum to those of the stage."""
    if not isinstance(counts, Mapping):
        yield Violation("recompute", where, f"recompute {counts!r} must map policies to layers")
        return
    for policy, count in counts.items():
        if policy not in POLICY_ORDER:
            known = ", ".join(POLICY_ORDER)
            message = f"recompute policy {policy!r} is unknown; use one of {known}"
            yield Violation("policy", where, message)
        if not is_whole(count):
            message = f"{count!r} layers with policy {policy!r}; give a whole number"
            yield Violation("recompute", where, message)
    total = sum(count for count in counts.values() if is_whole(count))
    num_layers = _num_layers(stage)
    if total != num_layers:
        message = f"recompute policies name {total} layers, the stage has {num_layers}"
        yield Violation("recompute", where, message)


def _num_layers(stage: Stage) -> int:
    """Layers of a stage; 0 when its range is no range."""
    is_range = len(stage.layers) == 2 and all(is_whole(bound) for bound in stage.layers)
    return stage.num_layers if is_range else 0


def _offload(
    instance: Instance, where: str, stage: Stage, counts: Sequence[object]
) -> Iterator[Violation]:
    """No more layers than there are, and a way to host memory."""
    most = _num_layers(stage)
    wrong = [count for count in counts if not is_whole(count) or count > most]  # type: ignore[operator]
    if wrong:
        message = f"offload of {wrong[0]!r} layers; give a number from 0 to {most}"
        yield Violation("offload", where, message)
    elif any(counts):
        for rank in stage.ranks:
            known = rank.device in instance.cluster.device_index
            if known and not host_path(instance.cluster, rank.device):
                message = f"device {rank.device} has no link to host memory, nothing can wait there"
                yield Violation("offload", where, message)


def _pieces(where: str, replica: Replica, chunk: Chunk) -> Iterator[Violation]:
    """Explicit pieces: on every stage every token of the chunk with exactly one rank."""
    given = chunk.pieces or ()
    if len(given) != len(replica.stages):
        message = f"pieces are given for {len(given)} of {len(replica.stages)} stages"
        yield Violation("pieces", where, message)
    for stage_idx, (stage, own) in enumerate(zip(replica.stages, given, strict=False)):
        place = f"{where}, stage {stage_idx}"
        if len(own) != len(stage.ranks):
            message = f"pieces are given for {len(own)} of {len(stage.ranks)} ranks"
            yield Violation("pieces", place, message)
        spans: dict[int, list[tuple[int, int]]] = {part.sequence: [] for part in chunk.slices}
        strange = set()
        for piece in (piece for pieces in own for piece in pieces):
            if piece.sequence in spans:
                spans[piece.sequence].append((piece.start, piece.stop))
            else:
                strange.add(piece.sequence)
        for part in chunk.slices:
            end = part.start
            for start, stop in (*sorted(spans[part.sequence]), (part.stop, part.stop)):
                if start != end or stop < start:
                    message = (
                        f"pieces of {_shown(part)} leave a gap or overlap at "
                        f"{min(start, end)}..{max(start, end)}"
                    )
                    yield Violation("pieces", place, message)
                    break
                end = stop
        if strange:
            message = f"pieces name sequence {min(strange)}, which the chunk does not hold"
            yield Violation("pieces", place, message)
