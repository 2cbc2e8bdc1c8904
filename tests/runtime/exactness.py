"""What the exactness tests share: plans of one stage, and the comparison with one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec
from hexisolve.plan.plan import BatchPlan, Chunk, Layout, Plan, Slice, Stage, ZeroMode
from hexisolve.runtime.verify import Verification, verify_virtual
from tests.plans import TWO_STAGES, cluster, make, tiny_model

TOLERANCE = 1e-10
# Few blocks: small sequences would otherwise travel token by token.
RING_BLOCKS = 4


def assert_exact(proof: Verification) -> None:
    """Loss and every gradient within 1e-10 of one process, and something was compared."""
    assert proof.max_loss_difference <= TOLERANCE
    assert proof.max_gradient_difference <= TOLERANCE, proof.worst_parameter
    assert proof.ok()
    assert proof.num_parameters > 0


def assert_virtually_exact(case: tuple[Instance, Plan], seed: int | None = 1) -> Verification:
    """Run a case in the virtual executor, ranks in random order."""
    proof = verify_virtual(*case, rank_order_seed=seed, ring_blocks=RING_BLOCKS)
    assert_exact(proof)
    return proof


def head_cuts(*counts: int) -> list[tuple[int, int]]:
    """Consecutive head intervals of the given sizes; (0, 0) for none."""
    cuts, first = [], 0
    for count in counts:
        cuts.append((first, first + count) if count else (0, 0))
        first += count
    return cuts


def one_group(
    tokens: Sequence[int], heads: Sequence[int], lengths: Sequence[int], model: ModelSpec,
) -> tuple[Instance, Plan]:  # fmt: skip
    """All ranks in one head group, one chunk per sequence."""
    group = list(zip(tokens, head_cuts(*heads), strict=True))
    packs = [[idx] for idx in range(len(lengths))]
    return make([((0, model.num_layers), [group])], packs, lengths, model=model)


def one_ring(
    tokens: Sequence[int], lengths: Sequence[int], model: ModelSpec | None = None
) -> tuple[Instance, Plan]:
    """All ranks in one ring of single ranks, all sequences in one chunk."""
    model = model or tiny_model(num_layers=2)
    num_heads = model.layers[0].attention.num_q_heads
    groups = [[(count, (0, num_heads))] for count in tokens]
    return make(
        [((0, model.num_layers), groups)], [list(range(len(lengths)))], lengths, model=model
    )


def replicas(
    num_single: int = 1, *, is_tied: bool = False, zero: ZeroMode = 0
) -> tuple[Instance, Plan]:
    """A pipeline of two stages beside replicas of one uneven head group each."""
    model = tiny_model(tied_embeddings=is_tied)
    lengths = [17, 9, *(11 + 4 * idx for idx in range(num_single))]
    instance, first = make(TWO_STAGES, [[0], [1]], lengths[:2], model=model, zero=zero)
    _, single = make(
        [((0, 4), [[(1, (0, 2)), (2, (2, 6))]])], [[0]], lengths[2:3], model=model, zero=zero
    )
    net = cluster(4 + 2 * num_single)
    devices = sorted(net.device_index, key=net.device_index.__getitem__)
    (shape,), (batch,) = single.layout.replicas, single.batch.replicas
    all_replicas, all_batches = list(first.layout.replicas), list(first.batch.replicas)
    for idx in range(num_single):
        own = devices[4 + 2 * idx : 6 + 2 * idx]
        all_replicas.append(replace(shape, stages=(_on(shape.stages[0], own),)))
        chunk = Chunk((Slice(2 + idx, 0, lengths[2 + idx]),))
        pipeline = replace(batch.pipelines[0], chunks=(chunk,))
        all_batches.append(replace(batch, pipelines=(pipeline,)))
    workload = replace(instance.workload, lengths=tuple(lengths))
    plan = Plan(Layout(tuple(all_replicas)), BatchPlan(tuple(all_batches)))
    return replace(instance, cluster=net, workload=workload), plan


def _on(stage: Stage, devices: Sequence[str]) -> Stage:
    """The stage of one group with other devices."""
    (group,) = stage.ring
    ranks = tuple(
        replace(rank, device=device) for rank, device in zip(group.ranks, devices, strict=True)
    )
    return replace(stage, ring=(replace(group, ranks=ranks),))
