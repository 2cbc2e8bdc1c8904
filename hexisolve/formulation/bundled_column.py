"""All layers of a column of several hosts, priced by the bundles of its hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.bundle_hosts import hosts_of, margins_of
from hexisolve.formulation.bundled_work import BundledWork, Ends, HostMemory
from hexisolve.formulation.bundles import BundledLayer
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.work import POLICIES, REPEATS, layer_load
from hexisolve.plan.plan import Policy


def launches_s(instance: Instance) -> FloatArray:
    """``[policy]`` launches of a layer, F and B, without hops of the ring."""
    cost = instance.cost
    per_pass = cost.launch_overhead_s * cost.launches_per_layer
    return np.array([per_pass * (1.0 + REPEATS[policy][5]) for policy in POLICIES])


def moved_bytes(
    instance: Instance, kind: LayerSpec, mode: StateMode, num_devices: int
) -> tuple[float, float]:
    """Bytes into a device beside the forward and the backward of a layer in ZeRO-3."""
    if mode.zero != 3 or len(set(instance.model.layers)) > 1:
        return 0.0, 0.0
    absent = kind.parameters * (1 - 1 / num_devices)
    gather = absent * instance.workload.element_bytes
    scatter = absent * instance.cost.gradient_bytes * (mode.gradients == "chunk")
    return gather, gather + scatter


def bundled_work(
    instance: Instance,
    kind: LayerSpec,
    num_tokens: int,
    column: ColumnShape,
    mode: StateMode,
    weights: Mapping[Policy, float],
    memory: HostMemory | None = None,
    known: dict[object, Any] | None = None,
    forwards: float | None = None,
    ends: Ends | None = None,
) -> BundledWork:
    """Layers of one kind and one length on a column; `weights` of each policy."""
    load = layer_load(instance, kind, num_tokens, column.devices)
    longest = max(instance.workload.sequence_lengths)
    # Shares are whole blocks of the longest sequence, the others are dealt by the token.
    block = instance.workload.block_tokens if num_tokens == longest else 1
    launch_s = instance.cost.launch_overhead_s
    return BundledWork(
        load=load,
        weights=weights,
        hosts={policy: hosts_of(load, policy, column) for policy in weights},
        margins=margins_of(column, num_tokens, instance.workload.block_tokens, longest),
        num_blocks=-(-num_tokens // block),
        moved=moved_bytes(instance, kind, mode, len(column.devices)),
        hop_s={policy: launch_s * (2 + REPEATS[policy][4]) for policy in weights},
        pass_launch_s=launch_s * instance.cost.launches_per_layer,
        forwards=forwards,
        ends=ends,
        memory=memory,
        known={} if known is None else known,
    )  # fmt: skip


def is_bundled(column: ColumnShape) -> bool:
    """Whether R8 says anything about the column: several hosts of equal devices each."""
    return len(column.hosts) >= 2 and column.has_like_hosts


def bundled_layer(
    instance: Instance,
    kind: LayerSpec,
    num_tokens: int,
    column: ColumnShape,
    mode: StateMode,
    policy: Policy,
    optimise: Optimise,
    plain: BundledLayer | None = None,
) -> BundledLayer:
    """A layer under one policy; no slower than on the fastest host alone.

    `plain` is the same with nothing beside it: no bundles are faster with something.
    """
    work = bundled_work(instance, kind, num_tokens, column, mode, {policy: 1.0})
    return BundledLayer(work, optimise, _alone_s(work), None if plain is None else plain.bound_of)


def bundled_pass(
    instance: Instance,
    kind: LayerSpec,
    num_tokens: int,
    column: ColumnShape,
    policy: Policy | None,
    optimise: Optimise,
) -> BundledLayer:
    """The forward of a layer alone, or its backward under a policy; nothing moves beside it."""
    own: Policy = policy or "none"
    work = bundled_work(
        instance, kind, num_tokens, column, StateMode(0, "step"),
        {own: float(policy is not None)}, forwards=float(policy is None),
    )  # fmt: skip
    return BundledLayer(work, optimise, _alone_s(work))


def _alone_s(work: BundledWork) -> float:
    """A column without the other hosts is no slower than the fastest: nobody asks for more.

    0 where pairs are not in proportion to tokens, and R8 says nothing.
    """
    if not work.load.is_proportional:
        return 0.0
    return min(float(hosts.alone_s(policy).min()) for policy, hosts in work.hosts.items())
