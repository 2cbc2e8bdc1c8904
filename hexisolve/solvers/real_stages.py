"""Arrangements of a column that are worth pricing as real stages."""

from __future__ import annotations

from hexisolve.formulation.arrangement import Arrangement, arrange, even_rings
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.solvers.realise import leaning_rings, real_rings

_NUM_FAST = 2  # fastest rings of a column that are priced
_NUM_LEANING = 4  # and of those that lean to memory


def real_stages(pricer: StagePricer, shape: ColumnShape) -> list[Arrangement]:
    """Arrangements of a column: the fastest, then some that trade speed for room in memory."""
    devices = [device.id for device in shape.devices]
    if pricer.has_bundles and shape.is_uniform:
        return [arrange(pricer, ring) for ring in even_rings(pricer.instance, devices)]
    fast = real_rings(pricer.instance, devices)[:_NUM_FAST]
    leaning = leaning_rings(pricer.instance, devices)
    leaning = leaning[:: -(-len(leaning) // _NUM_LEANING) or 1]
    return [arrange(pricer, ring) for ring in (*fast, *leaning)]
