"""Seconds of one layer on a stage (equation 6 of docs/cost-model.md)."""

from __future__ import annotations

from collections.abc import Sequence


def layer_s(
    dense_s: Sequence[float], all_to_all_s: float, attention_s: Sequence[float], ring_s: float
) -> float:
    """``max( max_g [dense_g + a2a + attention_g], max_g [dense_g + a2a] + ring )``.

    There is no barrier between the head groups of a stage, so each group's own sum counts. The
    ring hides under attention and under nothing else. Backward has the same form.

    Parameters
    ----------
    dense_s, attention_s
        Seconds of every head group: the slowest of its ranks.
    all_to_all_s
        Both exchanges, tokens to heads and heads to tokens.
    ring_s
        The ring exchange of the stage.

    >>> layer_s([1.0, 2.0], 0.5, [3.0, 1.0], 1.2)
    4.5
    """
    with_attention = max(map(sum, zip(dense_s, attention_s, strict=True)))
    return max(with_attention, max(dense_s) + ring_s) + all_to_all_s


def chain_s(
    work_s: Sequence[float],
    fetch_s: Sequence[float],
    store_s: Sequence[float],
    edge_s: Sequence[float] = (),
) -> float:
    """``fetch_0 + sum_i max(work_i, fetch_{i+1} + store_{i-1}, edge_i) + store_last``.

    Weights of the next layer are gathered while the present one runs (ZeRO-3), and gradients of
    the layer before are scattered in the same time when they are kept sharded.

    Parameters
    ----------
    work_s, fetch_s, store_s
        Seconds per layer in the order of execution: its work, the gather before it, the
        reduce-scatter after it.
    edge_s
        Seconds that the busiest edge needs for what layer i moves itself and what moves beside it.

    >>> chain_s([2.0, 2.0], [0.5, 3.0], [0.0, 0.0])
    5.5
    >>> chain_s([2.0, 2.0], [0.5, 1.5], [0.0, 0.0], [3.0, 0.5])
    5.5
    """
    if not work_s:
        return 0.0
    total = fetch_s[0]
    beside_s = zip([*fetch_s[1:], 0.0], [0.0, *store_s[:-1]], strict=True)
    busiest_s = edge_s or [0.0] * len(work_s)
    for own_s, (fetched_s, stored_s), moved_s in zip(work_s, beside_s, busiest_s, strict=True):
        total += max(own_s, fetched_s + stored_s, moved_s)
    return total + store_s[-1]
