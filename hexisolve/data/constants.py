"""Fixed overheads of the cost model: every default can be replaced in an instance.

Source: estimates of the design (docs/cost-model.md) unless a field says otherwise;
`hexisolve show` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hexisolve.errors import InstanceError, Problem

MIB = 2**20
GIB = 2**30
_MOST = 1e15  # of any constant; beyond, sums of bytes and seconds lose their meaning


@dataclass(frozen=True, kw_only=True)
class CostConstants:
    """Overheads and reserves that belong to no single device or link.

    Parameters
    ----------
    link_efficiency
        Share of a link's nominal bytes/s that transfers reach.
    launch_overhead_s
        Seconds per instruction that launches kernels and per START group.
    launches_per_layer
        Such instructions in one layer's forward (and in its backward), ring hops aside.
    reserve_bytes
        Device memory taken by the context and libraries.
    peer_buffer_bytes
        Device memory per process-group peer.
    usable_fraction
        Share of the remaining memory that fragmentation leaves usable.
    logits_tile_tokens
        Tokens of a tile of the loss.
    accumulator_bytes
        e_acc: bytes of an element of a travelling accumulator.
    gradient_bytes
        Bytes of a parameter's accumulated gradient.
    optimizer_bytes
        Bytes of a parameter's optimizer state (fp32 master, two Adam moments).
    optimizer_traffic_bytes
        Bytes moved per parameter of the own share in an optimizer step.
    """

    link_efficiency: float = 0.85
    launch_overhead_s: float = 15e-6
    launches_per_layer: int = 8
    reserve_bytes: int = 2 * GIB
    peer_buffer_bytes: int = 64 * MIB
    usable_fraction: float = 0.94
    logits_tile_tokens: int = 2048
    accumulator_bytes: int = 4
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    optimizer_traffic_bytes: int = 30

    def __post_init__(self) -> None:
        problems = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _MOST:
                problems.append(
                    Problem(f"cost.{entry.name}", str(value), f"must lie in 0..{_MOST:.0e}")
                )
        for name in ("link_efficiency", "usable_fraction"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not 0 < value <= 1:
                problems.append(
                    Problem(f"cost.{name}", str(value), "must lie above 0 and at most 1")
                )
        if problems:
            raise InstanceError(problems)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, all fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], file: str | None = None) -> CostConstants:
        """Inverse of `to_dict`; missing keys take their default."""
        known = set(cls.__dataclass_fields__)
        unknown = [key for key in document if key not in known]
        if unknown:
            raise InstanceError(
                Problem(f"cost.{key}", str(document[key]), "unknown key",
                        f"use one of {', '.join(sorted(known))}", file)
                for key in unknown
            )  # fmt: skip
        return cls(**document)
