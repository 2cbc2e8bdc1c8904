"""The price of one chunk on one stage: forward and backward seconds and what is behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    head_forward_flop,
)
from hexisolve.data.cluster import Edge
from hexisolve.data.instance import Instance
from hexisolve.plan.gathered_chain import ChainBlock, Pass, chained_s
from hexisolve.plan.layer_price import LayerPass, LayerPrice, LayerWork, PerRank, Rates, layer_work
from hexisolve.plan.plan import POLICY_ORDER, Chunk, Policy, Stage, layer_policies
from hexisolve.plan.price_book import EdgeBytes, PriceBook, add_edges, price_book
from hexisolve.plan.tokens import ChunkShape, StageTokens, chunk_shape, stage_tokens


@dataclass(frozen=True, eq=False)
class StagePrice:
    """One chunk on one stage.

    Parameters
    ----------
    forward_s, backward_s
        Seconds of the F and the B operation.
    layers
        Price of every layer of the stage, in order; gathers are not in them.
    head_forward_s, head_backward_s
        The output projection and loss (last stage only).
    gather_forward_s, gather_backward_s
        Exposed gathers and reduce-scatters of ZeRO-3.
    compute_s
        Per rank, seconds of computing in F and B together.
    forward_passes, backward_passes
        (number of layers, what their pass does); gathers are not in them.
    forward_edges, backward_edges
        Bytes that F and B put on every edge.
    """

    forward_s: float
    backward_s: float
    layers: tuple[LayerPrice, ...]
    head_forward_s: float
    head_backward_s: float
    gather_forward_s: float
    gather_backward_s: float
    compute_s: PerRank
    forward_passes: tuple[tuple[int, LayerPass], ...]
    backward_passes: tuple[tuple[int, LayerPass], ...]
    forward_edges: EdgeBytes
    backward_edges: EdgeBytes

    @cached_property
    def edges(self) -> EdgeBytes:
        """Bytes that F and B together put on every edge."""
        total = dict(self.forward_edges)
        for edge, num_bytes in self.backward_edges.items():
            total[edge] = total.get(edge, 0.0) + num_bytes
        return total

    @property
    def exchange_s(self) -> float:
        """Seconds of F and B in which the stage waits for bytes: exchanges, ring, gathers."""
        exposed = sum(
            phase.all_to_all_s + phase.ring_s
            for layer in self.layers
            for phase in (layer.forward, layer.backward)
        )
        return exposed + self.gather_forward_s + self.gather_backward_s


def price_stage(
    instance: Instance,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    chunk: Chunk,
    recompute: Mapping[Policy, int],
) -> StagePrice:
    """Price F and B of a chunk on a stage; equal questions are answered from memory."""
    book = price_book(instance)
    return stage_price(book, stage, stage_idx, num_stages, chunk_shape(chunk), recompute)


def stage_price(
    book: PriceBook,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    shape: ChunkShape,
    recompute: Mapping[Policy, int],
) -> StagePrice:
    """`price_stage` for a chunk's shape."""
    counts = tuple(recompute.get(policy, 0) for policy in POLICY_ORDER)
    ends = (stage_idx == 0, stage_idx == num_stages - 1)
    position = stage_idx if shape[1] is not None else -1
    key = ("stage", book.stage_key(stage), ends, position, shape, counts)
    price: StagePrice | None = book.entries.get(key)
    if price is None:
        policies = layer_policies(recompute)
        price = _price(book, stage, stage_idx, num_stages, shape, policies)
        book.entries[key] = price
    return price


def tokens_of(book: PriceBook, stage: Stage, stage_idx: int, shape: ChunkShape) -> StageTokens:
    """How a chunk lies on a stage, from memory where it can be."""
    position = stage_idx if shape[1] is not None else -1
    key = ("tokens", stage.ring, position, shape)
    tokens: StageTokens | None = book.entries.get(key)
    if tokens is None:
        tokens = book.entries[key] = stage_tokens(stage, shape, stage_idx)
    return tokens


def stage_rates(instance: Instance, stage: Stage) -> tuple[Rates, ...]:
    """Rates of the stage's devices, rank by rank."""
    devices = [instance.cluster.device(rank.device) for rank in stage.ranks]
    return tuple(
        Rates(
            device.dense_flop_per_s,
            device.attention_forward_flop_per_s,
            device.attention_backward_flop_per_s,
        )
        for device in devices
    )


class Block(NamedTuple):
    """Parameters that are gathered and reduced together: a layer, the embedding, the head.

    Parameters
    ----------
    parameters
        Those the stage holds under this name.
    gathered
        Those it needs to run the block in ZeRO-3: a tied head reads the embedding's table again.
    """

    name: str
    parameters: int
    gathered: int


def stage_blocks(
    instance: Instance, stage: Stage, stage_idx: int, num_stages: int
) -> tuple[Block, ...]:
    """The parameter blocks of a stage, in the order of forward.

    The first stage holds everything before the first layer, the last one the final norm and the
    head; a tied head on a stage of its own is a second copy of the table.
    """
    model = instance.model
    blocks = []
    if stage_idx == 0:
        blocks.append(Block("embedding", model.embedding_parameters, model.embedding_parameters))
    for idx in range(*stage.layers):
        parameters = model.layers[idx].parameters
        blocks.append(Block(f"layer {idx}", parameters, parameters))
    if stage_idx == num_stages - 1:
        own = model.head_parameters + model.final_norm_parameters
        table = model.hidden_size * model.vocab_size if model.tied_embeddings else 0
        blocks.append(Block("head", own + table * (stage_idx > 0), own + table))
    return tuple(blocks)


def layer_works(
    book: PriceBook, stage: Stage, stage_idx: int, shape: ChunkShape
) -> Iterator[LayerWork]:
    """The work of every layer of a stage; layers of one kind share one object."""
    known: dict[int, LayerWork] = {}
    for idx in range(*stage.layers):
        kind = book.layer_kinds[idx]
        if kind not in known:
            known[kind] = _layer_work(book, stage, stage_idx, shape, kind)
        yield known[kind]


def _layer_work(
    book: PriceBook, stage: Stage, stage_idx: int, shape: ChunkShape, kind: int
) -> LayerWork:
    position = stage_idx if shape[1] is not None else -1
    key = ("layer", stage.ring, stage.ring_kind, position, shape, kind)
    work: LayerWork | None = book.entries.get(key)
    if work is None:
        tokens = tokens_of(book, stage, stage_idx, shape)
        rates = stage_rates(book.instance, stage)
        work = layer_work(book, stage, tokens, book.kind_layers[kind], rates)
        book.entries[key] = work
    return work


def _price(
    book: PriceBook,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    shape: ChunkShape,
    policies: tuple[Policy, ...],
) -> StagePrice:
    works = _per_kind(book, stage, stage_idx, shape)
    kinds = [book.layer_kinds[idx] for idx in range(*stage.layers)]
    pairs = list(zip(kinds, policies, strict=True))
    counts = Counter(pairs)
    forward_passes = tuple((count, works[kind].forward_pass) for (kind, _), count in counts.items())
    backward_passes = tuple(
        (count, works[kind].backward_pass(policy)) for (kind, policy), count in counts.items()
    )
    priced = {
        pair: LayerPrice(forward.phase, backward.phase)
        for pair, (_, forward), (_, backward) in zip(
            counts, forward_passes, backward_passes, strict=True
        )
    }
    layers = tuple(priced[pair] for pair in pairs)
    forward_edges: dict[Edge, float] = {}
    backward_edges: dict[Edge, float] = {}
    compute = [0.0] * len(stage.ranks)
    for passes, edges in ((forward_passes, forward_edges), (backward_passes, backward_edges)):
        for count, layer_pass in passes:
            for exchange in layer_pass.moves:
                add_edges(edges, exchange, count)
    for (kind, policy), count in counts.items():
        for idx, seconds in enumerate(works[kind].compute_s(policy)):
            compute[idx] += count * seconds
    head_s = 0.0
    if stage_idx == num_stages - 1:
        own = _head_s(book, stage, stage_idx, shape)
        head_s = max(own)
        compute = [seconds + 3.0 * head for seconds, head in zip(compute, own, strict=True)]
    gather_forward_s = gather_backward_s = 0.0
    total_forward_s = sum(layer.forward.total_s for layer in layers) + head_s
    total_backward_s = sum(layer.backward.total_s for layer in layers) + 2.0 * head_s
    if stage.zero == 3 and len(stage.ranks) > 1:
        blocks = _chain_blocks(book, stage, stage_idx, num_stages, shape, priced, pairs, head_s)
        forward_chain, backward_chain = chained_s(
            book, stage, blocks, forward_edges, backward_edges
        )
        gather_forward_s = forward_chain - total_forward_s
        gather_backward_s = backward_chain - total_backward_s
        total_forward_s, total_backward_s = forward_chain, backward_chain
    return StagePrice(
        forward_s=total_forward_s,
        backward_s=total_backward_s,
        layers=layers,
        head_forward_s=head_s,
        head_backward_s=2.0 * head_s,
        gather_forward_s=gather_forward_s,
        gather_backward_s=gather_backward_s,
        compute_s=tuple(compute),
        forward_passes=forward_passes,
        backward_passes=backward_passes,
        forward_edges=forward_edges,
        backward_edges=backward_edges,
    )


def _per_kind(
    book: PriceBook, stage: Stage, stage_idx: int, shape: ChunkShape
) -> dict[int, LayerWork]:
    kinds = {book.layer_kinds[idx] for idx in range(*stage.layers)}
    return {kind: _layer_work(book, stage, stage_idx, shape, kind) for kind in sorted(kinds)}


def _head_s(book: PriceBook, stage: Stage, stage_idx: int, shape: ChunkShape) -> list[float]:
    """Equation 7: output projection forward on every rank of the last stage."""
    model = book.instance.model
    tokens = tokens_of(book, stage, stage_idx, shape)
    counts = [count for group in tokens.rank_tokens for count in group]
    return [
        head_forward_flop(model.hidden_size, model.vocab_size, count) / rate.dense
        for count, rate in zip(counts, stage_rates(book.instance, stage), strict=True)
    ]


def _chain_blocks(
    book: PriceBook,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    shape: ChunkShape,
    priced: Mapping[tuple[int, Policy], LayerPrice],
    pairs: Sequence[tuple[int, Policy]],
    head_s: float,
) -> list[ChainBlock]:
    """The stage's blocks with their passes; embedding and head move nothing themselves."""
    works = _per_kind(book, stage, stage_idx, shape)
    position = stage_idx if shape[1] is not None else -1
    nothing = Pass((), 0.0)
    own = {
        (kind, policy): (
            Pass((position, shape, kind), price.forward.total_s, works[kind].forward_exchanges),
            Pass(
                (position, shape, kind, policy),
                price.backward.total_s,
                works[kind].backward_exchanges(policy),
            ),
        )
        for (kind, policy), price in priced.items()
    }
    passes = [own[pair] for pair in pairs]
    if stage_idx == 0:
        passes.insert(0, (nothing, nothing))
    if stage_idx == num_stages - 1:
        passes.append((Pass((), head_s), Pass((), 2.0 * head_s)))
    blocks = stage_blocks(book.instance, stage, stage_idx, num_stages)
    return [
        # The gradient of a table look-up needs no weights.
        ChainBlock(*both, b.gathered, 0 if b.name == "embedding" else b.gathered, b.parameters)
        for both, b in zip(passes, blocks, strict=True)
    ]


def useful_flop(
    book: PriceBook, stage: Stage, stage_idx: int, num_stages: int, shape: ChunkShape
) -> PerRank:
    """FLOP of F and B of one chunk on every rank, repeated work left out."""
    model = book.instance.model
    tokens = tokens_of(book, stage, stage_idx, shape)
    counts = [book.layer_kinds[idx] for idx in range(*stage.layers)]
    head = 3 if stage_idx == num_stages - 1 else 0
    flop = [
        float(head * head_forward_flop(model.hidden_size, model.vocab_size, count))
        for group in tokens.rank_tokens
        for count in group
    ]
    for kind in set(counts):
        layer, times = book.kind_layers[kind], counts.count(kind)
        attention = layer.attention
        widths = (attention.qk_head_dim, attention.v_head_dim)
        pairs = tokens.pairs(attention.window_tokens, book.is_causal)
        index = 0
        for group, own, group_pairs in zip(stage.ring, tokens.rank_tokens, pairs, strict=True):
            for rank, count in zip(group.ranks, own, strict=True):
                heads = rank.num_q_heads
                flop[index] += times * (
                    3 * dense_forward_flop(layer.matmul_parameters, count)
                    + attention_forward_flop(*widths, heads, group_pairs)
                    + attention_backward_flop(*widths, heads, group_pairs)
                )
                index += 1
    return tuple(flop)
