"""What the exactness tests share: plans of one stage, and the comparison with one process."""

from __future__ import annotations

from collections.abc import Sequence

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec
from hexisolve.plan.plan import Plan
from hexisolve.runtime.verify import Verification, verify_virtual
from tests.plans import make, tiny_model

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
