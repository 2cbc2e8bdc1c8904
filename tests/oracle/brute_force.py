"""Every plan of the layout's plan space on tiny instances, and the best of them by `evaluate`.

Written from the rules of `check_plan` and the published plan space; it knows no formulation. The
space: one replica; whole sequences, one a chunk, longest first; 1F1B; contiguous layers; any
devices in any order, cut into stages, rings and head groups wherever one likes; token weights that
are multiples of the block; every contiguous range of query heads for every rank, empty ones too;
one ZeRO mode a stage with even state shares; recompute equal for all chunks.

Nothing is assumed symmetric: the order of groups and ranks decides odd tokens, ring neighbours and
the rings of collectives. An *empty* head range is written as (0, 0) only, because no price and no
memory depends on where nothing begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise, permutations, product
from math import comb, inf, perm
from typing import NamedTuple

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Policy,
    Rank,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.price_book import price_book
from hexisolve.plan.schedule import one_f_one_b
from hexisolve.plan.stage_price import price_stage
from hexisolve.plan.synchronise import step_end

Policies = tuple[tuple[Policy, int], ...]
Zero = tuple[int, str]
# (devices in order, layers) of every stage.
Skeleton = tuple[tuple[tuple[str, ...], tuple[int, int]], ...]
POLICIES: tuple[Policy, ...] = ("none", "layer", "full")
# A plan is left unpriced only when its lower bound exceeds the best price by more than rounding.
_ROUNDING = 1e-9


class StageOption(NamedTuple):
    """One way to run a stage: the stage and its recompute policies."""

    stage: Stage
    policies: Policies


class BruteForce(NamedTuple):
    """The best plan of the whole space (None when none is legal) and how many there are."""

    best_s: float
    plan: Plan | None
    number: int


@dataclass(frozen=True)
class Sizes:
    """What the number of plans depends on; `mixed` counts several policies within a stage."""

    num_devices: int
    num_layers: int
    num_heads: int
    num_blocks: int
    num_zero: int = 1
    mixed: bool = True

    @cached_property
    def num_plans(self) -> int:
        """Number of plans: ordered devices, times the ways to cut and fill the order."""
        ways = [[0] * (self.num_layers + 1) for _ in range(self.num_devices + 1)]
        ways[0][0] = 1
        for used in range(1, self.num_devices + 1):
            for layers in range(1, self.num_layers + 1):
                ways[used][layers] = sum(
                    ways[used - size][layers - own] * self._stages(size, own)
                    for size in range(1, used + 1)
                    for own in range(1, layers + 1)
                )
        return sum(
            perm(self.num_devices, used) * ways[used][self.num_layers]
            for used in range(1, self.num_devices + 1)
        )

    def _stages(self, size: int, layers: int) -> int:
        """Stages of `layers` layers on `size` devices in a given order."""
        tokens = comb(self.num_blocks + size - 1, size - 1)
        rings = [1]
        for ranks in range(1, size + 1):
            rings.append(
                sum(
                    rings[ranks - group] * len(head_ranges(self.num_heads, group))
                    for group in range(1, ranks + 1)
                )
            )
        policies = comb(layers + 2, 2) if self.mixed else 3
        return tokens * rings[size] * self.num_zero * policies


def sizes_of(instance: Instance, *, mixed: bool = True) -> Sizes:
    """The sizes of an instance whose devices all reach one another."""
    model = instance.model
    heads = {layer.attention.num_q_heads for layer in model.layers}
    assert len(heads) == 1, "the oracle knows models with one number of heads"
    return Sizes(
        len(instance.cluster.devices), model.num_layers, heads.pop(), num_blocks(instance),
        len(zero_options(instance)), mixed,
    )  # fmt: skip


def count_plans(instance: Instance, *, mixed: bool = True) -> int:
    """Number of plans of the space, those that do not fit in memory included."""
    return sizes_of(instance, mixed=mixed).num_plans


def num_blocks(instance: Instance) -> int:
    """Token blocks of the longest sequence."""
    longest, block = max(instance.workload.sequence_lengths), instance.workload.block_tokens
    assert longest % block == 0, "the oracle's contexts are whole blocks"
    return longest // block


def zero_options(instance: Instance) -> tuple[Zero, ...]:
    """ZeRO modes allowed; ZeRO-3 with gradients reduced per step and per chunk."""
    return tuple(
        (mode, gradients)
        for mode in sorted(set(instance.workload.zero))
        for gradients in (("step", "chunk") if mode == 3 else ("step",))
    )


def compositions(total: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    """Tuples of `num_parts` numbers of at least 0 with that sum, in lexical order."""
    if num_parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, num_parts - 1):
            yield (first, *rest)


def cuts(length: int, num_parts: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges 0..length cut in `num_parts` that are not empty."""
    for sizes in compositions(length - num_parts, num_parts):
        yield tuple(pairwise(accumulate((size + 1 for size in sizes), initial=0)))


@lru_cache(maxsize=256)
def head_ranges(num_heads: int, num_ranks: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Every way to give each rank of a group a contiguous range, in whatever order they lie."""
    found = set()
    for order in permutations(range(num_ranks)):
        for counts in compositions(num_heads, num_ranks):
            own = [(0, 0)] * num_ranks
            stops = accumulate(counts, initial=0)
            for rank, (first, stop) in zip(order, pairwise(stops), strict=True):
                if stop > first:
                    own[rank] = (first, stop)
            found.add(tuple(own))
    return tuple(sorted(found))


def policy_counts(num_layers: int, *, mixed: bool = True) -> Iterator[Policies]:
    """Recompute of a stage: one policy for all layers, or any numbers of layers of the three."""
    for counts in compositions(num_layers, len(POLICIES)):
        if mixed or num_layers in counts:
            yield tuple(pair for pair in zip(POLICIES, counts, strict=True) if pair[1])


def rings(
    devices: Sequence[str], tokens: Sequence[int], num_heads: int
) -> Iterator[tuple[HeadGroup, ...]]:
    """Devices in order cut into head groups, with every choice of head ranges."""
    for num_groups in range(1, len(devices) + 1):
        for groups in cuts(len(devices), num_groups):
            choices = (head_ranges(num_heads, stop - first) for first, stop in groups)
            for ranges in product(*choices):
                yield tuple(
                    HeadGroup(tuple(map(Rank, devices[a:b], tokens[a:b], own)))
                    for (a, b), own in zip(groups, ranges, strict=True)
                )


def stage_options(
    instance: Instance, devices: Sequence[str], layers: tuple[int, int], *, mixed: bool = True
) -> Iterator[StageOption]:
    """Every stage of these layers on these devices in this order."""
    block = instance.workload.block_tokens
    num_heads = instance.model.layers[layers[0]].attention.num_q_heads
    for blocks in compositions(num_blocks(instance), len(devices)):
        for ring in rings(devices, [count * block for count in blocks], num_heads):
            for zero, gradients in zero_options(instance):
                stage = Stage(layers, ring, "kv", zero, gradients)  # type: ignore[arg-type]
                for policies in policy_counts(layers[1] - layers[0], mixed=mixed):
                    yield StageOption(stage, policies)


def skeletons(instance: Instance) -> Iterator[Skeleton]:
    """Devices in any order, as long as they reach one another, cut into stages, and the layers."""
    cluster, num_layers = instance.cluster, instance.model.num_layers
    names = [device.id for device in cluster.devices]
    for num_used in range(1, len(names) + 1):
        for order in permutations(names, num_used):
            if not all(cluster.connected(a, b) for a in order for b in order if a != b):
                continue
            for num_stages in range(1, min(num_used, num_layers) + 1):
                for parts in cuts(num_used, num_stages):
                    own = [order[first:stop] for first, stop in parts]
                    for layers in cuts(num_layers, num_stages):
                        yield tuple(zip(own, layers, strict=True))


def whole_chunks(instance: Instance) -> tuple[Chunk, ...]:
    """One chunk per sequence, longest first."""
    lengths = instance.workload.sequence_lengths
    order = sorted(range(len(lengths)), key=lambda idx: (-lengths[idx], idx))
    return tuple(Chunk((Slice(idx, 0, lengths[idx]),)) for idx in order)


def plan_of(instance: Instance, options: Sequence[StageOption]) -> Plan:
    """The plan with these stages."""
    chunks = whole_chunks(instance)
    pipeline = Pipeline(
        chunks,
        one_f_one_b(len(options), len(chunks)),
        tuple((dict(option.policies),) * len(chunks) for option in options),
    )
    layout = Layout((Replica(tuple(option.stage for option in options)),))
    return Plan(layout, BatchPlan((ReplicaBatch((pipeline,)),)))


def enumerate_plans(
    instance: Instance, limit: int = 100_000, *, mixed: bool = True
) -> Iterator[Plan]:
    """Every plan of the space, the first `limit` of them; memory is not looked at."""
    plans = (
        plan_of(instance, options)
        for skeleton in skeletons(instance)
        for options in product(
            *(stage_options(instance, *stage, mixed=mixed) for stage in skeleton)
        )
    )
    return islice(plans, limit)


def brute_force(instance: Instance, *, mixed: bool = True) -> BruteForce:
    """The plan of least `evaluate` among those `check_plan` accepts.

    Plans are priced in the order of a lower bound on their price, until the bound of the next one
    reaches the best price: no other can be better. Only theorems of `evaluate` itself are used.

    * With 1F1B every operation of stage p lies between the first forward and the last backward of
      the stages before it, so the pipeline takes at least
      ``sum_{q<p} (F_q,first + B_q,last) + sum_k (F_p,k + B_p,k)``.
    * Layers add up within a stage (`_Search._seconds`).
    * What follows the pipeline depends on layers, devices and ZeRO modes, not on tokens, heads or
      recompute; `step_end` says it once for all of these.
    * Whether a stage fits depends on the stage, its place and the number of ranks beside it.
    """
    search = _Search(instance, mixed)
    candidates = sorted(search.candidates(), key=lambda candidate: candidate[0])
    best_s, best = inf, None
    for bound_s, options in candidates:
        if bound_s * (1.0 - _ROUNDING) >= best_s:
            break
        if not search.fits(options):
            continue
        plan = plan_of(instance, options)
        price_s = evaluate(instance, plan).step_time_s
        if price_s < best_s:
            best_s, best = price_s, plan
    if best is not None:
        assert not check_plan(instance, best)
    return BruteForce(best_s, best, len(candidates))


class _Search:
    """What `brute_force` remembers about one instance."""

    def __init__(self, instance: Instance, mixed: bool) -> None:
        self.instance = instance
        self.mixed = mixed
        self.chunks = whole_chunks(instance)
        self.by_length = {chunk.num_tokens: chunk for chunk in self.chunks}
        self.options: dict[object, list[StageOption]] = {}
        self.priced: dict[object, list[tuple[StageOption, Zero, float, float]]] = {}
        self.fitting: dict[object, bool] = {}

    def candidates(self) -> Iterator[tuple[float, tuple[StageOption, ...]]]:
        """(lower bound in seconds, stages) of every plan."""
        book = price_book(self.instance)
        for skeleton in skeletons(self.instance):
            num_stages = len(skeleton)
            rows = [
                self._priced(*stage, stage_idx == 0, stage_idx == num_stages - 1)
                for stage_idx, stage in enumerate(skeleton)
            ]
            ends: dict[tuple[Zero, ...], float] = {}
            for entries in product(*rows):
                zeros = tuple(entry[1] for entry in entries)
                options = tuple(entry[0] for entry in entries)
                end_s = ends.get(zeros)
                if end_s is None:
                    layout = Layout((Replica(tuple(option.stage for option in options)),))
                    end = step_end(book, layout)
                    end_s = ends[zeros] = end.synchronisation_s + end.optimizer_s
                before_s = pipeline_s = 0.0
                for _, _, busy_s, around_s in entries:
                    pipeline_s = max(pipeline_s, before_s + busy_s)
                    before_s += around_s
                yield pipeline_s + end_s, options

    def _priced(
        self, devices: tuple[str, ...], layers: tuple[int, int], is_first: bool, is_last: bool
    ) -> list[tuple[StageOption, Zero, float, float]]:
        """(option, ZeRO mode, seconds of all operations, first forward + last backward)."""
        key = (devices, layers, is_first, is_last)
        found = self.priced.get(key)
        if found is None:
            # Prices ask only whether a stage is the first or the last.
            stage_idx = 0 if is_first else 1
            num_stages = stage_idx + (1 if is_last else 2)
            pure: dict[object, tuple[float, float]] = {}
            found = []
            for option in self._options(devices, layers):
                zero = (option.stage.zero, option.stage.zero3_gradients)
                seconds = self._seconds(option, stage_idx, num_stages, pure)
                found.append((option, zero, *seconds))
            self.priced[key] = found
        return found

    def _seconds(
        self,
        option: StageOption,
        stage_idx: int,
        num_stages: int,
        pure: dict[object, tuple[float, float]],
    ) -> tuple[float, float]:
        """(seconds of all operations, first forward + last backward) of a stage.

        Equal layers add up outside ZeRO-3, so several policies take the mean of what each of them
        takes alone; ZeRO-0 and 1 take the same. `pure` remembers those of one policy.
        """
        stage = option.stage
        if stage.zero == 3 or len(set(self.instance.model.layers[slice(*stage.layers)])) > 1:
            return self._exact_seconds(option, stage_idx, num_stages)
        busy_s = around_s = 0.0
        for policy, count in option.policies:
            known = pure.get((stage.ring, policy))
            if known is None:
                alone = StageOption(stage, ((policy, stage.num_layers),))
                known = self._exact_seconds(alone, stage_idx, num_stages)
                pure[stage.ring, policy] = known
            busy_s += count / stage.num_layers * known[0]
            around_s += count / stage.num_layers * known[1]
        return busy_s, around_s

    def _exact_seconds(
        self, option: StageOption, stage_idx: int, num_stages: int
    ) -> tuple[float, float]:
        policies = dict(option.policies)
        by_length = {
            num_tokens: price_stage(
                self.instance, option.stage, stage_idx, num_stages, chunk, policies
            )
            for num_tokens, chunk in self.by_length.items()
        }
        prices = [by_length[chunk.num_tokens] for chunk in self.chunks]
        busy_s = sum(price.forward_s + price.backward_s for price in prices)
        return busy_s, prices[0].forward_s + prices[-1].backward_s

    def _options(self, devices: tuple[str, ...], layers: tuple[int, int]) -> list[StageOption]:
        key = (devices, layers)
        found = self.options.get(key)
        if found is None:
            options = stage_options(self.instance, devices, layers, mixed=self.mixed)
            found = self.options[key] = list(options)
        return found

    def fits(self, options: tuple[StageOption, ...]) -> bool:
        """Whether `check_plan` accepts the plan; it is asked only about stages not seen before."""
        sizes = [len(option.stage.ranks) for option in options]
        keys = [
            (idx, len(options), sum(sizes[max(idx - 1, 0) : idx + 2]), id(option))
            for idx, option in enumerate(options)
        ]
        known = [self.fitting.get(key) for key in keys]
        if False in known:
            return False
        if None not in known:
            return True
        violations = check_plan(self.instance, plan_of(self.instance, options))
        assert all(violation.rule == "memory" for violation in violations), violations
        for idx, key in enumerate(keys):
            place = f"replica 0, stage {idx} on "
            self.fitting[key] = not any(v.where.startswith(place) for v in violations)
        return not violations
