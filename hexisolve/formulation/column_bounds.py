"""Bounds on the layers of a column that are raised while a search goes on.

They start as R1-R7 and R1; where a column has several hosts joined in bundles they rise to R8
(docs/formulation.md, section 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.bundled_column import (
    bundled_layer,
    bundled_pass,
    is_bundled,
    launches_s,
)
from hexisolve.formulation.bundles import MAX_HOSTS, BundledLayer
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import ColumnShape, least_layer_s, two_work_bound_s
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_sizes import Lengths
from hexisolve.formulation.units import MAX_SINGLE_DEVICES
from hexisolve.formulation.work import POLICIES, REPEATS, layer_load

PLAIN = StateMode(0, "step")


def beside(mode: StateMode) -> int:
    """Number of what moves beside a layer: 0 nothing, 1 gathers, 2 gradient sums as well."""
    return 0 if mode.zero != 3 else 1 + (mode.gradients == "chunk")


class ColumnBounds:
    """Bounds on layers, by column and what moves beside them.

    Parameters
    ----------
    instance, lengths, kinds
        Whose layers: their lengths and kinds.
    """

    def __init__(self, instance: Instance, lengths: Lengths, kinds: tuple[LayerSpec, ...]) -> None:
        self.instance, self.lengths, self.kinds = instance, lengths, kinds
        self.has_bundles = len(instance.cluster.devices) > MAX_SINGLE_DEVICES
        self._layer_s: dict[object, FloatArray] = {}
        self._bundled: dict[object, list[BundledLayer]] = {}
        self._pass_s: dict[object, FloatArray] = {}
        self._passes: dict[object, list[BundledLayer]] = {}
        self._rows: dict[object, dict[object, Any]] = {}

    @property
    def is_simple(self) -> bool:
        """Whether one kind of layer and one length of chunks are all there is."""
        return len(self.kinds) == 1 and len(self.lengths.tokens) == 1

    def bundles_say_all(self, shape: ColumnShape) -> bool:
        """Whether stages of the column are bounded by bundles of few hosts, memory included."""
        is_known = self.is_simple and self.has_bundles and is_bundled(shape)
        if not is_known or len(shape.hosts) > MAX_HOSTS:
            return False
        # The group with the front of a sequence has fewer pairs where a window cuts the others.
        load = layer_load(self.instance, self.kinds[0], self.lengths.tokens[0], shape.devices)
        return load.is_proportional

    def layer_s(self, shape: ColumnShape, mode: StateMode = PLAIN) -> FloatArray:
        """``[length, kind, policy]`` least F + B seconds of a layer with gathers beside it."""
        key = signature(shape)
        known = self._layer_s.get((key, beside(mode)))
        if known is None and mode != PLAIN:
            return self.layer_s(shape)
        if known is None:
            cost = self.instance.cost
            known = np.array(
                [
                    [
                        [least_layer_s(load, policy, shape, cost, tokens) for policy in POLICIES]
                        for load in (
                            layer_load(self.instance, kind, tokens, shape.devices)
                            for kind in self.kinds
                        )
                    ]
                    for tokens in self.lengths.tokens
                ]
            )
            self._layer_s[key, beside(PLAIN)] = known
        return known

    def pass_s(self, shape: ColumnShape) -> FloatArray:
        """``[length, kind, 1 + policy]`` least F, and least B of every policy, each on its own."""
        key = signature(shape)
        if key not in self._pass_s:
            values = np.empty((len(self.lengths.tokens), len(self.kinds), 1 + len(POLICIES)))
            for length, tokens in enumerate(self.lengths.tokens):
                for idx, kind in enumerate(self.kinds):
                    load = layer_load(self.instance, kind, tokens, shape.devices)
                    values[length, idx, 0] = two_work_bound_s(
                        load.dense_s, load.attention_forward_s
                    )
                    for k, policy in enumerate(POLICIES):
                        dense, attention, *_ = REPEATS[policy]
                        values[length, idx, 1 + k] = two_work_bound_s(
                            (2 + dense) * load.dense_s,
                            load.attention_backward_s + attention * load.attention_forward_s,
                        )
            self._pass_s[key] = values
        return self._pass_s[key]

    def bundled_layers(
        self, shape: ColumnShape, mode: StateMode, optimise: Optimise
    ) -> list[BundledLayer]:
        """One for every length, kind and policy; none where bundles say nothing."""
        if not self.has_bundles or not is_bundled(shape):
            return []
        key = (signature(shape), beside(mode))
        if key not in self._bundled:
            plain: list[BundledLayer] = []
            if beside(mode):
                plain = self.bundled_layers(shape, PLAIN, optimise)
            every = [
                (tokens, kind, policy)
                for tokens in self.lengths.tokens
                for kind in self.kinds
                for policy in POLICIES
            ]
            self._bundled[key] = [
                bundled_layer(
                    self.instance, kind, tokens, shape, mode, policy, optimise,
                    plain[number] if plain else None,
                )
                for number, (tokens, kind, policy) in enumerate(every)
            ]  # fmt: skip
        return self._bundled[key]

    def sharpen(
        self,
        shape: ColumnShape,
        mode: StateMode,
        optimise: Optimise,
        deadline: float = np.inf,
        enough_s: FloatArray | None = None,
        step: float = np.inf,
    ) -> bool:
        """Price layers by the bundles of the column's hosts as well (R8); False if that is done.

        It costs far more than the other rows, so only columns that matter are sharpened, and each
        time only by about `step` of its price. Prices above `enough_s`, ``[length, kind, policy]``,
        are not asked for.
        """
        layers = self.bundled_layers(shape, mode, optimise)
        if not layers:
            return False
        launches = launches_s(self.instance)
        known = self.layer_s(shape, mode)
        if enough_s is not None:
            for layer, limit_s in zip(layers, (enough_s - launches).ravel().tolist(), strict=True):
                layer.expect(limit_s)
        pauses = ((known - launches).ravel() * (1.0 + step)).tolist()
        # `full` last: few stages need it.
        is_full = [number % len(POLICIES) == 2 for number in range(len(layers))]
        for later in (False, True):
            turn = [k for k, own in enumerate(is_full) if own == later and not layers[k].is_done]
            for k in turn:
                layers[k].run(pauses[k], deadline)
            if turn and np.isfinite(step):
                break
        bounds = np.array([layer.bound_s for layer in layers]).reshape(known.shape)
        sharper = np.maximum(known, bounds + launches)
        if (sharper <= known * (1.0 + 1e-9)).all() and all(layer.is_done for layer in layers):
            return False
        self._layer_s[signature(shape), beside(mode)] = sharper
        return True

    def sharpen_passes(
        self, shape: ColumnShape, optimise: Optimise, deadline: float, enough_s: FloatArray
    ) -> bool:
        """The least F and B by bundles, up to `enough_s` as in `pass_s`; whether they rise."""
        if not self.bundles_say_all(shape):
            return False
        key, known = signature(shape), self.pass_s(shape)
        if key not in self._passes:
            self._passes[key] = [
                bundled_pass(
                    self.instance, self.kinds[0], self.lengths.tokens[0], shape, policy, optimise
                )
                for policy in (None, *POLICIES)
            ]
        bounds = []
        for own, limit_s in zip(self._passes[key], enough_s.ravel().tolist(), strict=True):
            own.expect(limit_s)
            own.run(np.inf, deadline)
            bounds.append(own.bound_s)
        sharper = np.maximum(known, np.array(bounds).reshape(known.shape))
        is_sharper = bool((sharper > known * (1 + 1e-6)).any())
        if is_sharper:
            self._pass_s[key] = sharper
        return is_sharper

    def rows(self, shape: ColumnShape, mode: StateMode) -> dict[object, Any]:
        """Rows of bundles that were written before for a column and what moves beside a layer."""
        return self._rows.setdefault((signature(shape), beside(mode)), {})


def signature(shape: ColumnShape) -> object:
    """Equal for columns whose layers have equal relaxed prices."""
    order: dict[str, int] = {}
    devices = tuple(
        (order.setdefault(d.host, len(order)), d.dense_flop_per_s, d.attention_forward_flop_per_s,
         d.attention_backward_flop_per_s, d.memory_bytes)
        for d in shape.devices
    )  # fmt: skip
    cuts = tuple((c.inside, c.in_bytes_per_s, c.out_bytes_per_s) for c in shape.cuts)
    return devices, cuts, shape.device_bytes_per_s
