"""Every token counts once: targets at shard edges, packed documents, masked ranks, weighting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Plan
from hexisolve.program.compile import compile_plan
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.buffers import ChunkBuffers, open_chunk
from hexisolve.runtime.corpus import IGNORED, Batch, batch_of, random_batch
from hexisolve.runtime.interpreter import Interpreter, RunSettings
from hexisolve.runtime.reference import reference_gradients, reference_logits
from hexisolve.runtime.verify import compare_gradients
from hexisolve.runtime.virtual import VirtualRun
from hexisolve.runtime.weights import initial_weights
from tests.plans import CASES, make, tiny_model
from tests.runtime.exactness import RING_BLOCKS, TOLERANCE, one_ring

SETTINGS = RunSettings(dtype=torch.float64, style="probe", keeps_gradients=True)


def opened_chunks(programs: Programs, batch: Batch) -> Iterator[tuple[int, int, ChunkBuffers]]:
    """(stage, rank, tokens and targets it holds) of every chunk."""
    architecture = Architecture.of(programs.instance.model)
    for program in programs.ranks:
        for shard in program.shards:
            opened = open_chunk(architecture, shard, batch, torch.float64, torch.device("cpu"))
            yield program.stage, program.rank, opened


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_supervised_tokens_in_are_supervised_tokens_counted(degree: int) -> None:
    """For every length 1..64; contiguous pieces of a head group and zig-zag pieces of a ring."""
    model = tiny_model(1, 4, 2, hidden_size=8, head_dim=2)
    for length in range(1, 65):
        batch = random_batch([length], 64, seed=length)
        heads = [(idx, idx + 1) if idx < degree - 1 else (idx, 4) for idx in range(degree)]
        in_group = make([((0, 1), [[(1, cut) for cut in heads]])], [[0]], [length], model=model)
        for instance, plan in (one_ring([1] * degree, [length], model), in_group):
            programs = compile_plan(instance, plan, ring_blocks=1)
            chunks = [chunk for _, _, chunk in opened_chunks(programs, batch)]
            assert sum(chunk.num_rows for chunk in chunks) == length
            counted = sum(int((chunk.targets_L != IGNORED).sum()) for chunk in chunks)
            assert counted == length - 1 == programs.supervised_tokens == batch.num_supervised


@pytest.mark.parametrize("name", ["packed_documents", "tiny_shards", "ring_of_groups"])
def test_target_at_every_shard_edge_is_the_next_token(name: str) -> None:
    instance, plan = CASES[name]()
    programs = compile_plan(instance, plan)
    batch = batch_of([torch.arange(length) for length in programs.sequence_lengths])
    edges = 0
    for program in programs.ranks:
        for shard, chunk in zip(
            program.shards,
            [c for _, rank, c in opened_chunks(programs, batch) if rank == program.rank],
            strict=True,
        ):
            first = 0
            for piece in shard.pieces:
                last = first + piece.num_tokens - 1
                ends = piece.stop == programs.sequence_lengths[piece.sequence]
                assert int(chunk.tokens_L[first]) == piece.start
                assert int(chunk.targets_L[last]) == (IGNORED if ends else piece.stop)
                edges += not ends
                first = last + 1
    assert edges > 3


@dataclass
class HeadInputs:
    """What every rank's head saw: (sequence, position) -> hidden state."""

    hidden: dict[tuple[int, int], Tensor] = field(default_factory=dict)


def run_and_watch(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Instance, Plan], batch: Batch
) -> HeadInputs:
    """Run one step and keep the input of the head, token by token."""
    seen = HeadInputs()
    original = Interpreter._loss

    def watched(interpreter: Interpreter, chunk: ChunkBuffers) -> None:
        assert chunk.hidden is not None
        number = next(idx for idx, own in interpreter._chunks.items() if own is chunk)
        places = [
            (piece.sequence, position)
            for piece in interpreter.program.shards[number].pieces
            for position in range(piece.start, piece.stop)
        ]
        for place, row in zip(places, chunk.hidden, strict=True):
            seen.hidden[place] = row.clone()
        original(interpreter, chunk)

    monkeypatch.setattr(Interpreter, "_loss", watched)
    VirtualRun(compile_plan(*case, ring_blocks=RING_BLOCKS), SETTINGS).step(batch)
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize(
    "packs",
    [[[0, 1, 2]], [[0, 1], [2]]],
    ids=["one chunk", "two chunks"],
)
@pytest.mark.parametrize("tokens", [(1,), (2, 1), (3, 3, 1)])
def test_changing_document_1_leaves_document_2_bit_identical(
    monkeypatch: pytest.MonkeyPatch, packs: list[list[int]], tokens: tuple[int, ...]
) -> None:
    """Also for a document cut across ranks (lengths 17, 30, 9 on shares 2:1 and 3:3:1)."""
    lengths = [17, 30, 9]
    groups = [[(count, (0, 6))] for count in tokens]
    case = make([((0, 4), groups)], packs, lengths)
    batch = random_batch(lengths, 64, seed=1)
    changed_tokens = (torch.flip(batch.tokens[0], (0,)) + 1) % 64
    changed = batch_of([changed_tokens, *batch.tokens[1:]])
    before = run_and_watch(monkeypatch, case, batch)
    after = run_and_watch(monkeypatch, case, changed)
    for (sequence, position), row in before.hidden.items():
        same = torch.equal(row, after.hidden[sequence, position])
        if sequence != 0:
            assert same, (sequence, position)
        elif position == 0:
            assert not same
    assert len(before.hidden) == sum(lengths)


def test_hidden_states_give_the_reference_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the loss: the last hidden state of every token, whoever holds it."""
    instance, plan = CASES["packed_documents"]()
    architecture = Architecture.of(instance.model)
    batch = random_batch(instance.workload.sequence_lengths, 64, seed=3)
    weights = initial_weights(architecture, architecture.shapes(range(4)), 0, "probe")
    seen = run_and_watch(monkeypatch, (instance, plan), batch)
    for sequence, tokens in enumerate(batch.tokens):
        expected = reference_logits(architecture, weights, tokens)
        hidden = torch.stack([seen.hidden[sequence, idx] for idx in range(tokens.numel())])
        normed = torch.nn.functional.rms_norm(
            hidden, hidden.shape[-1:], weights["model.norm.weight"], architecture.norm_eps
        )
        assert (normed @ weights["lm_head.weight"].T - expected).abs().max() < TOLERANCE


def test_rank_whose_tokens_are_all_masked_has_loss_0_and_finite_gradients() -> None:
    """Two head groups; every target in the pieces of the second is masked."""
    case = one_ring([1, 1], [16])
    programs = compile_plan(*case, ring_blocks=RING_BLOCKS)
    (batch,) = (random_batch([16], 64, seed=0),)
    targets = batch.targets[0].clone()
    for piece in programs.ranks[1].shards[0].pieces:
        targets[piece.start : piece.stop] = IGNORED
    masked = replace(batch, targets=(targets,))
    assert 0 < masked.num_supervised < 15
    run = VirtualRun(programs, SETTINGS)
    loss = run.step(masked)
    assert run.ranks[1]._loss_sum == 0.0
    architecture = Architecture.of(case[0].model)
    weights = initial_weights(architecture, architecture.shapes(range(2)), 0, "probe")
    expected_loss, expected = reference_gradients(
        architecture, weights, masked.tokens, masked.targets
    )
    worst, _, _ = compare_gradients(
        architecture, expected, [rank.step_gradients for rank in run.ranks]
    )
    assert abs(loss - expected_loss) < TOLERANCE
    assert worst < TOLERANCE


def test_batch_without_any_target_gives_loss_0_and_zero_gradients() -> None:
    batch = random_batch([5, 8], 64, seed=0)
    nothing = replace(
        batch, targets=tuple(torch.full_like(targets, IGNORED) for targets in batch.targets)
    )
    run = VirtualRun(compile_plan(*one_ring([2, 1], [5, 8])), SETTINGS)
    assert run.step(nothing) == 0.0
    for rank in run.ranks:
        assert all(not gradient.any() for gradient in rank.step_gradients.values())


def test_token_weighted_mean_is_the_same_for_every_degree_and_share() -> None:
    """Unequal lengths and unequal shards: a mean of per-rank means would differ."""
    lengths = [31, 4, 12]
    batch = random_batch(lengths, 64, seed=2)
    losses, gradients = [], []
    for tokens in ((1,), (1, 1), (5, 1), (1, 2, 3, 1)):
        run = VirtualRun(compile_plan(*one_ring(tokens, lengths), ring_blocks=2), SETTINGS)
        losses.append(run.step(batch))
        gradients.append(run.ranks[0].step_gradients)
    assert max(losses) - min(losses) < 1e-13
    for other in gradients[1:]:
        for part, gradient in gradients[0].items():
            assert (gradient - other[part]).abs().max() < 1e-13
