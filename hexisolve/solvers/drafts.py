"""Plans in the making: what the solver decides, turned into a plan and priced.

A draft leaves out what follows from it: chunks (one sequence each, longest first), 1F1B orders,
and the same recompute counts for every chunk (docs/plan-space.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hexisolve.data.instance import Instance
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Policy,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.price_book import price_book
from hexisolve.plan.schedule import one_f_one_b
from hexisolve.plan.step_memory import stage_memory


@dataclass(frozen=True)
class DraftStage:
    """One stage of a draft.

    Parameters
    ----------
    ring
        Its inside.
    num_layers
        Its layers.
    mode
        Its model states.
    steps
        Steps of recompute: up to l, so many layers are ``layer``; beyond, so many are ``full``.
    """

    ring: tuple[HeadGroup, ...]
    num_layers: int
    mode: StateMode
    steps: int

    @property
    def recompute(self) -> Mapping[Policy, int]:
        """Layers per policy."""
        return recompute_counts(self.num_layers, self.steps)


Draft = tuple[DraftStage, ...]


def recompute_counts(num_layers: int, steps: int) -> Mapping[Policy, int]:
    """Layers per policy after some steps of recompute.

    >>> recompute_counts(4, 1), recompute_counts(4, 6)
    ({'none': 3, 'layer': 1}, {'layer': 2, 'full': 2})
    """
    num_full = max(steps - num_layers, 0)
    num_again = min(steps, num_layers) - num_full
    counts: dict[Policy, int] = {
        "none": num_layers - num_again - num_full, "layer": num_again, "full": num_full
    }  # fmt: skip
    return {policy: count for policy, count in counts.items() if count}


def to_plan(instance: Instance, draft: Draft) -> Plan:
    """Complete a draft."""
    counts = [stage.recompute for stage in draft]
    return make_plan(instance, to_stages(draft), counts)


def make_plan(
    instance: Instance, stages: tuple[Stage, ...], recompute: list[Mapping[Policy, int]]
) -> Plan:
    """The plan of one replica with these stages and recompute counts."""
    lengths = instance.workload.sequence_lengths
    order = sorted(range(len(lengths)), key=lambda idx: (-lengths[idx], idx))
    chunks = tuple(Chunk((Slice(idx, 0, lengths[idx]),)) for idx in order)
    pipeline = Pipeline(
        chunks=chunks,
        schedule=one_f_one_b(len(stages), len(chunks)),
        recompute=tuple((counts,) * len(chunks) for counts in recompute),
    )
    return Plan(Layout((Replica(stages),)), BatchPlan((ReplicaBatch((pipeline,)),)))


def to_stages(draft: Draft) -> tuple[Stage, ...]:
    """The stages of a draft."""
    stages, first = [], 0
    for part in draft:
        stages.append(
            Stage(
                (first, first + part.num_layers),
                part.ring,
                "kv",
                part.mode.zero,
                part.mode.gradients,
            )
        )
        first += part.num_layers
    return tuple(stages)


def step_time_s(instance: Instance, draft: Draft) -> float:
    """Price of a draft; memory is not looked at."""
    return evaluate(instance, to_plan(instance, draft)).step_time_s


def fit_memory(instance: Instance, draft: Draft) -> Draft | None:
    """The draft with as few steps of recompute as memory allows, stage by stage.

    None when some stage does not fit whatever it recomputes.
    """
    return fit_stages(instance, draft, range(len(draft)))


def fit_stages(instance: Instance, draft: Draft, changed: Sequence[int]) -> Draft | None:
    """`fit_memory` for some stages; the others must still fit beside them."""
    fitted = list(draft)
    for idx in changed:
        least = _least_steps(instance, fitted, idx)
        if least is None:
            return None
        fitted[idx] = replace(fitted[idx], steps=least)
    others = {k for idx in changed for k in (idx - 1, idx + 1)} - set(changed)
    for idx in sorted(others & set(range(len(draft)))):
        if not stage_fits(instance, tuple(fitted), idx):
            return None
    return tuple(fitted)


def _least_steps(instance: Instance, stages: list[DraftStage], idx: int) -> int | None:
    """Fewest steps that fit; searched upwards from what is there, then downwards."""
    own = stages[idx]
    most = 2 * own.num_layers

    def fits(steps: int) -> bool:
        trial = (*stages[:idx], replace(own, steps=steps), *stages[idx + 1 :])
        return stage_fits(instance, trial, idx)

    if fits(0):
        return 0
    low, high = 0, most
    if not fits(most):
        # The transient of `full` is larger than that of `layer`: look below as well.
        return own.num_layers if fits(own.num_layers) else None
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def stage_fits(instance: Instance, draft: Draft, idx: int) -> bool:
    """Whether every device of one stage holds what it needs."""
    plan = to_plan(instance, draft)
    memory = stage_memory(
        price_book(instance), plan.layout, 0, idx, plan.batch.replicas[0].pipelines
    )
    devices = [rank.device for group in draft[idx].ring for rank in group.ranks]
    return all(
        items.needed_bytes <= instance.cluster.device(device).memory_bytes - items.reserve
        for items, device in zip(memory, devices, strict=True)
    )


def is_legal(instance: Instance, plan: Plan) -> bool:
    """Whether the independent checker finds nothing."""
    return not check_plan(instance, plan)
