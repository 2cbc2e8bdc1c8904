"""A lower bound on the step of a layout for every choice of chunks: one linear program.

Equation E7 of docs/elastic.md, with the proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.cost.exchange import heads_to_tokens_bytes, tokens_to_heads_bytes
from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    head_forward_flop,
)
from hexisolve.cost.memory import RankShare, attention_gradient_bytes, mlp_gradient_bytes
from hexisolve.data.cluster import Edge
from hexisolve.data.model_spec import AttentionSpec, LayerSpec
from hexisolve.errors import NoPlanError
from hexisolve.formulation.chunk_bytes import stage_budget
from hexisolve.formulation.chunk_load import Window, prefix_pairs, windows_of
from hexisolve.formulation.linear_model import LinearModel, Variable
from hexisolve.plan.attention_traffic import num_kv_heads
from hexisolve.plan.plan import HeadGroup, Layout, Stage
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.stage_price import stage_rates

_PROBE_TOKENS = 1_000_000
Terms = list[tuple[Variable, float]]


@dataclass(frozen=True, eq=False)
class _Totals:
    """Tokens and pairs of the whole batch; variables of the model are shares of them."""

    tokens: int
    pairs: Mapping[Window, float]
    least_tokens: int


@dataclass(frozen=True, eq=False)
class _Replica:
    """Variables of one replica: its share of tokens and of pairs, its number of chunks."""

    tokens: Variable
    pairs: Mapping[Window, Variable]
    num_chunks: Variable


def batch_bound_model(book: PriceBook, layout: Layout) -> LinearModel:
    """Seconds that the pipelines of a layout take at least, whatever the chunks are.

    Raises
    ------
    NoPlanError
        When the model states of some stage leave no room for any token.
    """
    model = LinearModel("batch bound")
    totals = _totals(book)
    horizon = _horizon_s(book, layout, totals)
    makespan = model.add_variable("makespan", 0.0, horizon, False)
    shares: list[_Replica] = []
    for replica_idx, replica in enumerate(layout.replicas):
        own = _add_replica(book, layout, replica_idx, model, totals)
        shares.append(own)
        fill_s = 0.0
        for p, stage in enumerate(replica.stages):
            name = f"{replica_idx},{p}"
            work, ranks = _add_stage(book, model, name, stage, own, totals, horizon)
            if p == len(replica.stages) - 1:
                work += _add_head(book, model, name, stage, ranks, totals, horizon)
            overhead_s = _overhead_s(book, stage)
            terms = [(makespan, 1.0), *((v, -f) for v, f in work), (own.num_chunks, -overhead_s)]
            model.add_row(f"stage[{replica_idx},{p}]", terms, ">=", fill_s)
            fill_s += overhead_s + _least_chunk_s(book, stage, totals.least_tokens)
    model.add_row("all tokens", [(own.tokens, 1.0) for own in shares], "==", 1.0)
    for window in totals.pairs:
        model.add_row(f"all pairs[{window}]", [(s.pairs[window], 1.0) for s in shares], "==", 1.0)
    model.minimise([(makespan, 1.0)])
    return model


def _totals(book: PriceBook) -> _Totals:
    lengths = np.array(book.instance.workload.sequence_lengths, dtype=np.int64)
    pairs = {
        window: float(prefix_pairs(lengths, window, book.is_causal).sum())
        for window in windows_of(book.instance)
    }
    least = 1 if book.is_causal else int(lengths.min())
    return _Totals(int(lengths.sum()), pairs, least)


def _horizon_s(book: PriceBook, layout: Layout, totals: _Totals) -> float:
    """More than the program's optimum: every stage's slowest rank does everything, and more."""
    seconds = 0.0
    layers = book.instance.model.layers
    for _, _, stage in layout.stages():
        rates = stage_rates(book.instance, stage)
        dense = min(rate.dense for rate in rates)
        attention = min(min(r.attention_forward, r.attention_backward) for r in rates)
        for layer in layers[slice(*stage.layers)]:
            spec = layer.attention
            flop = 3.0 * dense_forward_flop(layer.matmul_parameters, totals.tokens)
            forward, backward = _attention_flop(spec, spec.num_q_heads)
            pairs = totals.pairs[spec.window_tokens]
            seconds += flop / dense + (forward + backward) * pairs / attention
            for edges in _exchange_edges(book, stage, layer):
                for coefficients in edges.values():
                    seconds += 2.0 * sum(coefficients) * totals.tokens
        head = head_forward_flop(book.instance.model.hidden_size, book.instance.model.vocab_size,
                                 totals.tokens)  # fmt: skip
        seconds += 3.0 * head / dense + _overhead_s(book, stage) * (totals.tokens + 1)
    return 2.0 * seconds + 1.0


def _attention_flop(spec: AttentionSpec, num_heads: int) -> tuple[float, float]:
    """FLOP per pair, forward and backward, of so many heads."""
    widths = (spec.qk_head_dim, spec.v_head_dim)
    return (
        float(attention_forward_flop(*widths, num_heads, 1)),
        float(attention_backward_flop(*widths, num_heads, 1)),
    )


def _add_replica(
    book: PriceBook, layout: Layout, replica_idx: int, model: LinearModel, totals: _Totals
) -> _Replica:
    """Its shares, and the fewest chunks that memory allows."""
    most = min(
        _most_chunk_tokens(book, layout, replica_idx, p)
        for p in range(len(layout.replicas[replica_idx].stages))
    )
    if most < 1.0:
        raise NoPlanError(
            f"model states leave some stage of replica {replica_idx} no room for a single token; "
            "give it fewer layers or more devices"
        )
    fewest = totals.tokens / most
    is_only = len(layout.replicas) == 1
    least = max(1.0, float(np.ceil(fewest - 1e-9))) if is_only else 1.0
    chunks = model.add_variable(f"chunks[{replica_idx}]", least, max(fewest, least), False)
    tokens = model.add_variable(f"tokens[{replica_idx}]", 0.0, 1.0, False)
    pairs = {
        window: model.add_variable(f"pairs[{replica_idx},{window}]", 0.0, 1.0, False)
        for window in totals.pairs
    }
    model.add_row(f"chunks[{replica_idx}]", [(chunks, 1.0), (tokens, -fewest)], ">=", 0.0)
    return _Replica(tokens, pairs, chunks)


def _most_chunk_tokens(book: PriceBook, layout: Layout, replica_idx: int, stage_idx: int) -> float:
    """No chunk of more tokens passes a stage: its own backward's transients, all ranks together."""
    room = sum(max(rest, 0) for rest in stage_budget(book, layout, replica_idx, stage_idx))
    stage = layout.replicas[replica_idx].stages[stage_idx]
    hidden, e = book.instance.model.hidden_size, book.e
    per_token = 0
    for layer in dict.fromkeys(book.instance.model.layers[slice(*stage.layers)]):
        spec = layer.attention
        # One device with everything: heads of a group add up to all, K and V are held at least
        # once, and each maximum of a rank is at least either of its parts.
        whole = RankShare(1, 1, spec.num_q_heads, spec.num_kv_heads)
        e_acc = book.instance.cost.accumulator_bytes
        per_token = max(
            per_token,
            mlp_gradient_bytes(whole, layer, hidden, e),
            attention_gradient_bytes(whole, layer, hidden, e, e_acc),
        )
    return room / per_token


def _overhead_s(book: PriceBook, stage: Stage) -> float:
    """Launches of F and B of one chunk."""
    cost = book.instance.cost
    return 2.0 * stage.num_layers * cost.launches_per_layer * cost.launch_overhead_s


def _least_chunk_s(book: PriceBook, stage: Stage, num_tokens: int) -> float:
    """Dense work of the smallest chunk, F of one and B of another, on all devices together."""
    rate = sum(rates.dense for rates in stage_rates(book.instance, stage))
    layers = book.instance.model.layers[slice(*stage.layers)]
    flop = sum(dense_forward_flop(layer.matmul_parameters, num_tokens) for layer in layers)
    return 3.0 * flop / rate


def _add_stage(
    book: PriceBook, model: LinearModel, name: str, stage: Stage, own: _Replica, totals: _Totals,
    horizon: float,
) -> tuple[Terms, list[Variable]]:  # fmt: skip
    """Variables and rows of one stage; the terms of its F and B together, the ranks' shares."""
    rates = stage_rates(book.instance, stage)
    ranks = [
        model.add_variable(f"share[{name},{idx}]", 0.0, 1.0, False) for idx in range(len(rates))
    ]
    model.add_row(f"tokens[{name}]", [*((v, 1.0) for v in ranks), (own.tokens, -1.0)], "==", 0.0)
    groups: dict[Window, list[Variable]] = {}
    layers = book.instance.model.layers[slice(*stage.layers)]
    work: Terms = []
    for layer in dict.fromkeys(layers):
        window = layer.attention.window_tokens
        if window not in groups:
            groups[window] = [
                model.add_variable(f"pairs[{name},{window},{g}]", 0.0, 1.0, False)
                for g in range(len(stage.ring))
            ]
            terms = [*((v, 1.0) for v in groups[window]), (own.pairs[window], -1.0)]
            model.add_row(f"pairs[{name},{window}]", terms, "==", 0.0)
        label = f"{name},{len(work)}"
        count = float(layers.count(layer))
        seconds = _add_layer(
            book, model, label, stage, layer, ranks, groups[window], totals, horizon
        )
        work += [(variable, count) for variable in seconds]
    return work, ranks


def _add_layer(
    book: PriceBook, model: LinearModel, name: str, stage: Stage, layer: LayerSpec,
    ranks: Sequence[Variable], pairs: Sequence[Variable], totals: _Totals, horizon: float,
) -> list[Variable]:  # fmt: skip
    """Forward, backward and four exchanges of one layer kind."""
    rates = stage_rates(book.instance, stage)
    dense_flop = float(dense_forward_flop(layer.matmul_parameters, totals.tokens))
    total_pairs = totals.pairs[layer.attention.window_tokens]
    forward = model.add_variable(f"forward[{name}]", 0.0, horizon, False)
    backward = model.add_variable(f"backward[{name}]", 0.0, horizon, False)
    first = 0
    for group, share in zip(stage.ring, pairs, strict=True):
        own = range(first, first + len(group.ranks))
        first += len(group.ranks)
        dense = model.add_variable(f"dense[{name},{own.start}]", 0.0, horizon, False)
        there = back = 0.0
        for idx, rank in zip(own, group.ranks, strict=True):
            seconds = dense_flop / rates[idx].dense
            model.add_row(f"dense[{name},{idx}]", [(dense, 1.0), (ranks[idx], -seconds)], ">=", 0.0)
            flop = _attention_flop(layer.attention, rank.num_q_heads)
            there = max(there, flop[0] * total_pairs / rates[idx].attention_forward)
            back = max(back, flop[1] * total_pairs / rates[idx].attention_backward)
        for one, times, attention_s in ((forward, 1.0, there), (backward, 2.0, back)):
            terms = [(one, 1.0), (dense, -times), (share, -attention_s)]
            model.add_row(f"{one.name},{own.start}", terms, ">=", 0.0)
    result = [forward, backward]
    for idx, edges in enumerate(_exchange_edges(book, stage, layer)):
        exchange = model.add_variable(f"exchange[{name},{idx}]", 0.0, horizon, False)
        for edge, coefficients in edges.items():
            terms = [(exchange, 1.0)]
            terms += [
                (rank, -seconds * totals.tokens)
                for rank, seconds in zip(ranks, coefficients, strict=True)
                if seconds
            ]
            model.add_row(f"exchange[{name},{idx}] {edge}", terms, ">=", 0.0)
        result.append(exchange)
    return result


def _add_head(
    book: PriceBook, model: LinearModel, name: str, stage: Stage, ranks: Sequence[Variable],
    totals: _Totals, horizon: float,
) -> Terms:  # fmt: skip
    """The output projection, forward and twice that backward, on the shares of the stage."""
    spec = book.instance.model
    flop = float(head_forward_flop(spec.hidden_size, spec.vocab_size, totals.tokens))
    head = model.add_variable(f"head[{name}]", 0.0, horizon, False)
    for rank, rate in zip(ranks, stage_rates(book.instance, stage), strict=True):
        terms = [(head, 1.0), (rank, -flop / rate.dense)]
        model.add_row(f"head[{rank.name}]", terms, ">=", 0.0)
    return [(head, 3.0)]


def _exchange_edges(
    book: PriceBook, stage: Stage, layer: LayerSpec
) -> list[dict[Edge, list[float]]]:
    """Edge -> seconds per token of every rank: before and after attention, and both reversed."""
    tables: list[dict[Edge, list[float]]] = [{} for _ in range(4)]
    num_ranks = len(stage.ranks)
    first = 0
    for group in stage.ring:
        for position, rank in enumerate(group.ranks):
            for other, before, after in _flows(group, position, layer, book.e):
                there, back = (rank.device, other), (other, rank.device)
                flows = ((there, before), (back, after), (back, before), (there, after))
                for table, (pair, num_bytes) in zip(tables, flows, strict=True):
                    for edge in book.route(*pair).edges:
                        row = table.setdefault(edge, [0.0] * num_ranks)
                        row[first + position] += num_bytes
        first += len(group.ranks)
    for table in tables:
        for edge, row in table.items():
            per_byte = book.edge_seconds({edge: 1.0})[edge]
            table[edge] = [num_bytes * per_byte / _PROBE_TOKENS for num_bytes in row]
    return tables


def _flows(
    group: HeadGroup, position: int, layer: LayerSpec, e: int
) -> list[tuple[str, float, float]]:
    """(receiver, bytes before, bytes after) that a rank's tokens cause with every other rank."""
    flows = []
    for idx, other in enumerate(group.ranks):
        if idx != position and other.num_q_heads:
            k_q = num_kv_heads(other, layer.attention)
            before = tokens_to_heads_bytes(
                _PROBE_TOKENS, other.num_q_heads, k_q, layer.attention, e
            )
            after = heads_to_tokens_bytes(_PROBE_TOKENS, other.num_q_heads, layer.attention, e)
            flows.append((other.device, float(before), float(after)))
    return flows
