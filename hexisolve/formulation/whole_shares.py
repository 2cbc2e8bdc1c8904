"""Whole parts of a number."""

from __future__ import annotations

import numpy as np

from hexisolve.formulation.pipeline_table import FloatArray, IntArray


def evenly(total: int, parts: int) -> list[int]:
    """Whole parts that differ by at most one; the first ones have more.

    >>> evenly(7, 3)
    [3, 2, 2]
    """
    return [total // parts + (idx < total % parts) for idx in range(parts)]


def largest_remainder(weights: FloatArray, total: int) -> IntArray:
    """Whole parts of `total` in proportion to each row of weights, by the largest remainders.

    >>> largest_remainder(np.array([[1.0, 1.0, 2.0]]), 5).tolist()
    [[1, 1, 3]]
    """
    shares = weights / weights.sum(axis=1, keepdims=True) * total
    # Shares that are whole but for rounding stay what they are.
    parts: IntArray = np.floor(shares + 1e-9).astype(np.int64)
    missing = total - parts.sum(axis=1, keepdims=True)
    order = np.argsort(parts - shares, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None, :], axis=1)
    parts += place < missing
    return parts
