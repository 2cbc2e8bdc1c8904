"""Why there is no plan: the device and the bytes that bind."""

from __future__ import annotations

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.formulation.relaxed_table import RelaxedProblem
from hexisolve.formulation.stage_memory_bound import (
    state_bytes_per_device,
    state_modes,
    usable_of,
)
from hexisolve.units import format_bytes


def diagnose(instance: Instance, relaxed: RelaxedProblem, num_stages: int | None = None) -> str:
    """Say which bytes do not fit, for the arrangement that needs least.

    The relaxed memory rows are used, so what is said here is needed in every plan.
    """
    cluster, model = instance.cluster, instance.model
    pricer = relaxed.pricer
    devices = cluster.devices
    usable = usable_of(instance, devices, 0)
    layers = model.parameters
    modes = state_modes(instance, len(devices))
    longest = max(instance.workload.sequence_lengths)
    least_states = min(
        float(state_bytes_per_device(instance, mode, np.array(float(layers)), len(devices)))
        * (len(devices) if mode.zero == 3 else 1)
        for mode in modes
    )
    activations = sum(
        float(pricer.memories[pricer.kinds.index(layer)].kept.min()) * longest
        for layer in model.layers
    )
    transient = min(float(memory.transient.min()) for memory in pricer.memories) * longest
    total = float(usable.sum())
    need = least_states + activations + transient
    worst = int(np.argmin(usable))
    wanted = f" in {num_stages} stages" if num_stages else ""
    if need > total:
        head = (
            f"memory: every plan{wanted} needs at least {format_bytes(need)} over all devices "
            f"(model states {format_bytes(least_states)}, kept activations of one sequence "
            f"{format_bytes(activations)}, one layer's backward {format_bytes(transient)}), "
            f"{len(devices)} devices have {format_bytes(total)}"
        )
    else:
        head = (
            f"memory: no way to cut {model.num_layers} layers into stages{wanted} fits; model "
            f"states {format_bytes(least_states)} and kept activations "
            f"{format_bytes(activations)} would fit over all devices together "
            f"({format_bytes(total)}), but not stage by stage"
        )
    share = need / len(devices)
    tight = max(share, float(least_states) / len(devices))
    return (
        f"{head}; the tightest is {devices[worst].id}: an even share needs "
        f"{format_bytes(tight)}, it has {format_bytes(float(usable[worst]))}"
    )
