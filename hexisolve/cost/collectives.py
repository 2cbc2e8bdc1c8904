"""Bytes of weight and gradient collectives (equation 9 of docs/cost-model.md).

Every collective is priced as a ring over the ranks that hold the layer, in rank order: a rank
receives its bytes from the rank before it.
"""

from __future__ import annotations

from collections.abc import Sequence


def shares_of(weights: Sequence[int]) -> tuple[float, ...]:
    """Shares in proportion to `weights`.

    >>> shares_of([1, 3])
    (0.25, 0.75)
    """
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def gather_bytes(share: float, parameters: int, e: int) -> float:
    """``(1 - share) W e``: weights a rank receives in an all-gather."""
    return (1.0 - share) * parameters * e


def reduce_scatter_bytes(share: float, parameters: int, gradient_bytes: int = 4) -> float:
    """``(1 - share) W 4``: partial gradients a rank receives in a reduce-scatter."""
    return (1.0 - share) * parameters * gradient_bytes


def all_reduce_bytes(num_ranks: int, parameters: int, gradient_bytes: int = 4) -> float:
    """``2 (N - 1) / N W 4``: what a rank receives in an all-reduce over N ranks."""
    return 2.0 * (num_ranks - 1) / num_ranks * parameters * gradient_bytes


def ring_traffic(
    devices: Sequence[str], received_bytes: Sequence[float]
) -> dict[tuple[str, str], float]:
    """(sender, receiver) -> bytes when rank r receives ``received_bytes[r]`` from rank r - 1."""
    if len(devices) < 2:
        return {}
    return {
        (devices[idx - 1], device): num_bytes
        for idx, (device, num_bytes) in enumerate(zip(devices, received_bytes, strict=True))
        if num_bytes > 0
    }


def optimizer_s(own_parameters: float, memory_bytes_per_s: float, traffic_bytes: int = 30) -> float:
    """Seconds of an optimizer step on a rank: 30 bytes moved per parameter it updates."""
    return own_parameters * traffic_bytes / memory_bytes_per_s
