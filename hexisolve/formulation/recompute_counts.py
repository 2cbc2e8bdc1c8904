"""How many equal layers are ``layer`` and ``full`` when memory is short, at the least seconds."""

from __future__ import annotations

import numpy as np

from hexisolve.formulation.pipeline_table import FloatArray, IntArray


def best_counts(
    kept: FloatArray,
    transient: FloatArray,
    dearer: FloatArray,
    layers: IntArray,
    rooms: FloatArray,
    live: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Numbers of ``layer`` and of ``full`` layers that fit everywhere and cost least.

    Parameters
    ----------
    kept, transient
        ``[rank, policy]`` bytes of a layer between F and B (per unit of `live`), and during a B.
        One row for the sum over all ranks gives the least that pooled memory allows.
    dearer
        Seconds of ``layer`` above ``none``, of ``full`` above ``layer``.
    layers
        ``[place, layers]`` layers of the stage.
    rooms
        ``[rank, place, layers]`` bytes left for activations.
    live
        ``[j, 1, 1]`` what is in flight.

    Returns
    -------
    tuple[IntArray, IntArray]
        ``[j, place, layers]``; the first is -1 where nothing fits.
    """
    best_s = np.full((len(live), *layers.shape), np.inf)
    again, full = np.full(best_s.shape, -1, dtype=np.int64), np.zeros_like(best_s, dtype=np.int64)
    # Fewest ``full`` layers when all others are ``layer``. One more saves room for a few layers
    # without recompute, so only some more can pay, because of whole layers.
    over = layers[None, None] * kept[:, 1, None, None, None] * live[None]
    over = over + transient[:, 2, None, None, None] - rooms[:, None]
    saved = np.maximum(kept[:, 1] - kept[:, 2], 1e-9)[:, None, None, None] * live[None]
    need = np.ceil(over / saved - 1e-9).max(axis=0)
    fewest = np.clip(need, 1, layers.max() + 1).astype(np.int64)
    saving = float(((kept[:, 1] - kept[:, 2]) / np.maximum(kept[:, 0] - kept[:, 1], 1e-9)).max())
    slope = float(dearer[1]) - saving * float(dearer[0])
    most = int(layers.max())
    more = most if slope <= 0 else min(int(dearer[0] / slope) + 1, most)
    for num_full in (np.zeros_like(fewest), *(fewest + count for count in range(more + 1))):
        bare = _fewest_again(kept, transient, layers, rooms, live, num_full, False)
        some = _fewest_again(kept, transient, layers, rooms, live, num_full, True)
        number = np.where(bare == 0, 0, some)
        seconds = num_full * dearer.sum() + number * dearer[0]
        better = (number >= 0) & (seconds < best_s) & (num_full <= layers)
        best_s = np.where(better, seconds, best_s)
        again, full = np.where(better, number, again), np.where(better, num_full, full)
    return again, full


def _fewest_again(
    kept: FloatArray, transient: FloatArray, layers: IntArray, rooms: FloatArray, live: FloatArray,
    num_full: IntArray, has_again: bool,
) -> IntArray:  # fmt: skip
    """Least number of ``layer`` layers beside `num_full` ones; -1: none fits.

    0 without `has_again` (then the transient of ``layer`` is not needed), else at least 1.
    """
    needed = transient[:, :, None, None, None]
    none, layer, full = (kept[:, idx, None, None, None] * live[None] for idx in range(3))
    rest = np.maximum(layers - num_full, 0)
    working = np.maximum(needed[:, 0], needed[:, 1] if has_again else 0.0)
    working = np.where(num_full > 0, np.maximum(working, needed[:, 2]), working)
    over = rest * none + num_full * full + working - rooms[:, None]
    need = np.ceil(over / np.maximum(none - layer, 1e-9) - 1e-9).max(axis=0)
    fewest: IntArray = np.clip(need, int(has_again), layers.max() + 1).astype(np.int64)
    return np.where(fewest <= rest, fewest, -1)
