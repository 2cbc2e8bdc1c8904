"""Optimizer steps: AdamW against torch's, ZeRO modes against each other and one process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Plan, ZeroMode
from hexisolve.program.compile import compile_plan
from hexisolve.runtime.architecture import EMBEDDING, Architecture
from hexisolve.runtime.corpus import random_batch
from hexisolve.runtime.interpreter import RunSettings
from hexisolve.runtime.launch import ReferenceTrainer
from hexisolve.runtime.optimizer import AdamWSettings, ShareOptimizer, clip_scale
from hexisolve.runtime.virtual import VirtualRun
from tests.plans import CASES, make, ring_of_groups, tied, tiny_model
from tests.runtime.exactness import RING_BLOCKS, replicas

OPTIMIZER = AdamWSettings(learning_rate=1e-2, weight_decay=0.1, max_gradient_norm=0.5)
SETTINGS = RunSettings(dtype=torch.float64, style="probe", optimizer=OPTIMIZER)


def trained(case: tuple[Instance, Plan], settings: RunSettings, num_steps: int = 3) -> VirtualRun:
    """The ranks of a plan after some steps on random batches."""
    programs = compile_plan(*case, ring_blocks=RING_BLOCKS)
    run = VirtualRun(programs, settings)
    for step in range(num_steps):
        run.step(random_batch(programs.sequence_lengths, 64, seed=step))
    return run


def reference_after(case: tuple[Instance, Plan], num_steps: int = 3) -> dict[str, Tensor]:
    """Weights of one process after the same steps."""
    instance, _ = case
    reference = ReferenceTrainer(Architecture.of(instance.model), SETTINGS)
    for step in range(num_steps):
        reference.step(random_batch(instance.workload.sequence_lengths, 64, seed=step))
    return reference.weights


def largest_difference(run: VirtualRun, expected: dict[str, Tensor]) -> float:
    return max(
        float((weight - expected[name].detach()).abs().max())
        for rank in run.ranks
        for name, weight in rank.flat.named(rank.flat.weights).items()
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_share_optimizer_equals_torch_adamw(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator, dtype=dtype)
    theirs = start.clone().requires_grad_()
    settings = AdamWSettings(learning_rate=1e-2, weight_decay=0.1)
    reference = torch.optim.AdamW(
        [theirs], lr=1e-2, betas=settings.betas, eps=settings.eps, weight_decay=0.1
    )
    weights = start.clone()
    optimizers = [ShareOptimizer(weights, *share, settings) for share in ((0, 7), (7, 50))]
    for _ in range(5):
        gradient = torch.randn(50, generator=generator, dtype=dtype)
        theirs.grad = gradient.clone()
        reference.step()
        for optimizer in optimizers:
            optimizer.step(weights, gradient[optimizer.start : optimizer.stop])
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    assert (weights - theirs.detach()).abs().max() < tolerance


def test_bfloat16_weights_follow_a_float32_master() -> None:
    """Updates far below the spacing of bfloat16 must add up, not vanish."""
    weights = torch.ones(4, dtype=torch.bfloat16)
    optimizer = ShareOptimizer(weights, 0, 4, AdamWSettings(learning_rate=1e-4))
    for _ in range(100):
        optimizer.step(weights, torch.ones(4))
    assert optimizer.master.dtype == torch.float32
    assert optimizer.master[0] == pytest.approx(0.99, abs=1e-4)
    assert float(weights[0]) == pytest.approx(0.99, abs=4e-3)
    assert float(weights[0]) < 1.0


def test_clip_scale() -> None:
    assert clip_scale(25.0, None) == 1.0
    assert clip_scale(25.0, 10.0) == 1.0
    assert clip_scale(25.0, 1.0) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "name", ["one_rank", "two_stages", "idle_rank", "packed_documents", "zero_1", "zero_3", "tied"]
)
def test_three_steps_equal_one_process(name: str) -> None:
    """Clipped AdamW with decay: the global norm must count every parameter once."""
    case = CASES[name]()
    expected = reference_after(case)
    run = trained(case, SETTINGS)
    if name == "zero_3":
        # Outside its share a rank holds nothing between steps.
        differences = [
            float((rank.flat.weights[unit.name][slice(*unit.share)] - flat).abs().max())
            for rank in run.ranks
            for unit in rank.program.units
            for flat in [_flat(rank.flat.spans[unit.name], expected)[slice(*unit.share)]]
            if flat.numel()
        ]
        assert max(differences) < 1e-10
    else:
        assert largest_difference(run, expected) < 1e-10


def _flat(spans: tuple, expected: dict[str, Tensor]) -> Tensor:  # type: ignore[type-arg]
    return torch.cat([expected[span.name].detach().reshape(-1) for span in spans])


@pytest.fixture(scope="module")
def plain() -> VirtualRun:
    """Three steps in ZeRO-0."""
    return trained(ring_of_groups(), SETTINGS)


@pytest.mark.parametrize("shares", [[3, 1, 0, 2], [0, 0, 0, 1], [1, 1, 1, 1]])
def test_zero_1_step_equals_zero_0_step(shares: list[int], plain: VirtualRun) -> None:
    sharded = trained(ring_of_groups(zero=1, state_shares=[shares, [1]]), SETTINGS)
    for one, other in zip(plain.ranks, sharded.ranks, strict=True):
        for unit, weight in one.flat.weights.items():
            assert torch.equal(weight, other.flat.weights[unit])


def test_zero_1_keeps_optimizer_state_of_the_own_share_only() -> None:
    run = trained(ring_of_groups(zero=1, state_shares=[[3, 1, 0, 2], [1]]), SETTINGS, 1)
    for rank in run.ranks:
        held = sum(optimizer.first_moment.numel() for optimizer in rank._optimizers.values())
        assert held == sum(unit.share[1] - unit.share[0] for unit in rank.program.units)
    assert not run.ranks[2]._optimizers


@pytest.mark.parametrize("zero", [0, 1])
def test_tied_embeddings_stay_bit_equal_on_both_stages(zero: int) -> None:
    case = tied(zero=zero, state_shares=[[1, 2], [5, 3]]) if zero else tied()
    run = trained(case, SETTINGS)
    copies = [rank.flat.named(rank.flat.weights)[EMBEDDING] for rank in run.ranks]
    assert len(copies) == 4
    for copy in copies[1:]:
        assert torch.equal(copy, copies[0])
    expected = reference_after(case)
    assert (copies[0] - expected[EMBEDDING].detach()).abs().max() < 1e-10


@pytest.mark.parametrize("zero", [0, 1])
def test_copies_on_unlike_replicas_stay_bit_equal(zero: ZeroMode) -> None:
    """Four holders of the tied table: a sum in each one's own order would drift apart."""
    case = replicas(2, is_tied=True, zero=zero)
    run = trained(case, SETTINGS)
    expected = reference_after(case)
    assert largest_difference(run, expected) < 1e-10
    copies: dict[str, Tensor] = {}
    for rank in run.ranks:
        for name, weight in rank.flat.named(rank.flat.weights).items():
            assert torch.equal(weight, copies.setdefault(name, weight)), name


def test_bfloat16_training_brings_the_loss_down() -> None:
    case = make([((0, 2), [[(2, (0, 4)), (1, (4, 6))]])], [[0]], [48], model=tiny_model(2))
    programs = compile_plan(*case)
    settings = RunSettings(dtype=torch.bfloat16, optimizer=AdamWSettings(learning_rate=1e-2))
    run = VirtualRun(programs, settings)
    batch = random_batch([48], 64, seed=0)
    losses = [run.step(batch) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5
    assert all(rank.flat.gradients["layer:0"].dtype == torch.float32 for rank in run.ranks)
