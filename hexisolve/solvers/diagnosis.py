"""Why there is no plan: the device and the bytes that bind."""

from __future__ import annotations

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.formulation.relaxed_table import RelaxedProblem
from hexisolve.formulation.stage_memory_bound import (
    StateMode,
    gathered_bytes,
    state_bytes_per_device,
    state_modes,
    usable_of,
)
from hexisolve.formulation.work import POLICIES
from hexisolve.units import format_bytes


def diagnose(instance: Instance, relaxed: RelaxedProblem, num_stages: int | None = None) -> str:
    """Say which bytes do not fit, for the arrangement that needs least.

    The sums over all devices are needed in every plan; the device that is named is the tightest
    one when a single stage spans all devices evenly.
    """
    devices = instance.cluster.devices
    usable = usable_of(instance, devices, 0)
    states, gathered = _least_states(instance)
    activations, transient = _least_activations(instance, relaxed)
    total, need = float(usable.sum()), states * len(devices) + activations + transient
    wanted = f" in {num_stages} stages" if num_stages and num_stages > 1 else ""
    parts = (
        f"model states {format_bytes(states * len(devices))}, kept activations of one sequence "
        f"{format_bytes(activations)}, one layer's backward {format_bytes(transient)}"
    )
    if need > total:
        head = (
            f"every plan{wanted} needs at least {format_bytes(need)} over all devices ({parts}), "
            f"{len(devices)} devices have {format_bytes(total)}"
        )
    else:
        head = (
            f"no way to cut {instance.model.num_layers} layers into stages{wanted} fits every "
            f"device; over all of them {format_bytes(need)} ({parts}) of {format_bytes(total)} "
            "would be enough"
        )
    own = states + gathered + (activations + transient) / len(devices)
    worst = int(np.argmin(usable))
    return (
        f"memory: {head}; with even shares {devices[worst].id} needs {format_bytes(own)} "
        f"({int(own)} bytes), it has {format_bytes(float(usable[worst]))} "
        f"({int(usable[worst])} bytes)"
    )


def _least_states(instance: Instance) -> tuple[float, float]:
    """(model states, gathered weights) of each device, all layers on all devices."""
    model, num_devices = instance.model, len(instance.cluster.devices)
    parameters = np.array(float(model.parameters))
    largest = np.array(float(max(layer.parameters for layer in model.layers)))

    def both(mode: StateMode) -> tuple[float, float]:
        states = state_bytes_per_device(instance, mode, parameters, num_devices)
        gathered = gathered_bytes(instance, mode, 2 * largest, largest, num_devices)
        return float(states), float(gathered)

    return min((both(mode) for mode in state_modes(instance, num_devices)), key=sum)


def _least_activations(instance: Instance, relaxed: RelaxedProblem) -> tuple[float, float]:
    """(kept, during a backward) bytes of the longest sequence with everything recomputed."""
    longest = max(instance.workload.sequence_lengths)
    pricer = relaxed.pricer
    full = POLICIES.index("full")
    kept = sum(
        float(pricer.memories[pricer.kinds.index(layer)].kept[full]) * longest
        for layer in instance.model.layers
    )
    transient = min(float(memory.transient.min()) for memory in pricer.memories) * longest
    return kept, transient
