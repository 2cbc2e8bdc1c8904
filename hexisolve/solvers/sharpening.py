"""Closing in from both sides on the stages that a relaxed optimum uses."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import numpy as np

from hexisolve.formulation.arrangement import Arrangement
from hexisolve.formulation.host_memory import StagePlace
from hexisolve.formulation.pipeline_table import Configuration
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.relaxed_table import RealPrices, RelaxedProblem, joined, sharpened
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.solvers.incumbent import RealPool, real_problem
from hexisolve.solvers.real_stages import real_stages
from hexisolve.solvers.suggested_stages import add_suggested, add_suited, first_stages

_NEAR_ENOUGH = 0.003  # below real stages, bounds need not rise
_NEAR_PASS = 0.01  # the same for F and B apart, which matter less
_SUIT_S = 0.25  # for shares that suit gathers, where they are looked for by moves

Units = tuple[int, ...]
Spot = tuple[Units, StateMode, StagePlace]


class Sharpener:
    """Arranges columns and raises their prices; keeps what it has arranged.

    Parameters
    ----------
    pool
        Real stages by unit multiset; it grows.
    """

    def __init__(self, pool: RealPool) -> None:
        self.pool = pool
        self._optimise: Optimise | None = None

    @property
    def optimise(self) -> Optimise:
        """The solver of small programs; its library is loaded when it is first needed."""
        if self._optimise is None:
            from hexisolve.solvers.small_optimum import SmallOptimiser

            self._optimise = SmallOptimiser()
        return self._optimise

    def arrange(self, pricer: StagePricer, shape: ColumnShape) -> Sequence[Arrangement]:
        """Real stages of a column: as its bounds suggest where there are bundles, else by moves."""
        if pricer.bounds.bundles_say_all(shape):
            return first_stages(pricer, shape, self.optimise)
        return real_stages(pricer, shape, time.monotonic() + _SUIT_S)

    def sharper(
        self, relaxed: RelaxedProblem, least: Sequence[Configuration], step: float, until: float
    ) -> RelaxedProblem | None:
        """The problem with prices raised where configurations use them; None: none can be.

        The same problem where time ran out before a price rose.

        Parameters
        ----------
        step
            About how much prices of layers should rise, as a share.
        until
            What is not worked out by then, on `time.monotonic`, stays as it is.
        """
        spots = list(dict.fromkeys(spot for own in least for spot in _spots(relaxed, own)))
        units = {own for own, _, _ in spots}
        fresh = sorted(units - set(self.pool))
        if fresh:
            real_problem(relaxed, fresh, until, self.pool, self.arrange)
        wanted = {(own, mode) for own, mode, _ in spots}
        add_suggested(relaxed, wanted, self.pool, self.optimise)
        sharper = sharpened(relaxed, wanted, self.optimise, until, self._enough_s(units), step)
        add_suggested(relaxed, wanted, self.pool, self.optimise)
        if sharper is not None:
            return sharper
        if time.monotonic() > until:
            return relaxed
        closer, found = joined(
            relaxed, self._enough_s(units), self._real_s(spots), self.optimise, until
        )
        add_suited(relaxed, found, self.pool)
        return relaxed if closer is None and time.monotonic() > until else closer

    def _enough_s(self, wanted: Collection[Units]) -> dict[Units, RealPrices]:
        """Prices of real stages, a little less: bounds need not exceed them."""
        enough = {}
        for units in wanted:
            stages = {id(e.column.stage): e.column.stage for e in self.pool.get(units, ())}
            if not stages:
                continue
            every = zip(*(stage.layer_s for stage in stages.values()), strict=True)
            passes = [
                np.concatenate(
                    [own.forward_s[:, :, None], own.layer_s[0] - own.forward_s[:, :, None]], axis=2
                )
                for own in stages.values()
            ]
            enough[units] = RealPrices(
                tuple(np.min(own, axis=0) * (1 - _NEAR_ENOUGH) for own in every),
                np.min(passes, axis=0) * (1 - _NEAR_PASS),
            )
        return enough

    def _real_s(self, spots: Collection[Spot]) -> dict[Spot, float]:
        """What real stages take there, a little less."""
        found = {}
        for units, mode, place in spots:
            real_s = min(
                (
                    float(real.prices.time_s[place])
                    for real in self.pool.get(units, ())
                    if real.column.mode == mode
                ),
                default=np.inf,
            )
            found[units, mode, place] = real_s * (1.0 - _NEAR_ENOUGH)
        return found


def _spots(relaxed: RelaxedProblem, configuration: Configuration) -> list[Spot]:
    """Units, mode and place of every stage."""
    found = []
    for idx, choice in enumerate(configuration):
        column = relaxed.columns[choice.column]
        after = len(configuration) - 1 - idx
        place = StagePlace(after, int(choice.first_layer == 0), choice.num_layers)
        found.append((column.units, column.mode, place))
    return found
