"""Random tables of relaxed prices, and the slow way to minimise over one."""

from __future__ import annotations

import numpy as np

from hexisolve.formulation.pipeline_table import Choice, Configuration, PipelineTable, usage_states


def random_table(
    seed: int, classes: tuple[int, ...] = (2, 1), num_layers: int = 4
) -> PipelineTable:
    """A table with holes, unequal layers and prices that depend on everything they may."""
    rng = np.random.default_rng(seed)
    units = usage_states(classes)[1:]
    num_columns, num_stages = len(units), 3
    speed = rng.uniform(0.5, 2, num_columns) * units.sum(axis=1)
    time_s = np.full((num_stages, num_columns, num_layers + 1, num_layers + 1), np.inf)
    for j in range(num_stages):
        for after in range(num_layers):
            for layers in range(1, num_layers - after + 1):
                prices = layers / speed * (1 + 0.1 * j) + rng.uniform(0, 0.3, num_columns)
                prices[rng.random(num_columns) < 0.2] = np.inf
                time_s[j, :, after, layers] = prices
    num_chunks = int(rng.integers(1, 7))
    known_s = np.where(np.isfinite(time_s), time_s, 0.0)
    forward = rng.uniform(0.1, 0.5, (num_columns, 1, 1))
    return PipelineTable(
        available=classes,
        units=units,
        time_s=time_s,
        entry_s=rng.uniform(0, 0.3, num_columns),
        finish_s=rng.uniform(0, 0.5, (num_columns, num_layers + 1, num_layers + 1)),
        num_chunks=num_chunks,
        total_s=num_chunks * time_s,
        forward_s=forward * known_s,
        backward_s=(0.8 - forward) * known_s,
    )


def least_value_s(table: PipelineTable, num_stages: int | None = None) -> float:
    """The least value over every configuration, one by one."""
    best = np.inf

    def extend(chosen: Configuration, used: np.ndarray, covered: int) -> None:
        nonlocal best
        if covered == table.num_layers:
            if num_stages in (None, len(chosen)):
                best = min(best, table.value_s(chosen))
            return
        if len(chosen) == table.max_stages:
            return
        for column in range(table.num_columns):
            together = used + table.units[column]
            if (together <= np.array(table.available)).all():
                for layers in range(1, table.num_layers - covered + 1):
                    extend((*chosen, Choice(column, covered, layers)), together, covered + layers)

    extend((), np.zeros(len(table.available), dtype=int), 0)
    return best
