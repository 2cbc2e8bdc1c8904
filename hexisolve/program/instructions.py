"""The instruction set: what one rank does, in order, with every size known.

A program is a list of `Do` and `Call`. `Do` runs one instruction for a chunk; `Call` runs a layer
template for each of a range of layers. No instruction holds tensors: buffers are named, and
these are the names.

========================  =====================  ==================================================
buffer                    shape                  what
========================  =====================  ==================================================
*per chunk*
``hidden``                [T, D]                 hidden states of the rank's tokens, between layers
``d_hidden``              [T, D]                 their gradient, between layers
*per chunk and layer*
``x``                     [T, D]                 input of the layer
``q_tokens``              [T, H, a_qk]           all query heads of the rank's own tokens
``k_tokens, v_tokens``    [T, K, a_qk | a_v]     all KV heads of the rank's own tokens
``q``                     [S, h, a_qk]           the rank's query heads, all tokens of its group
``k, v``                  [S, k, a_qk | a_v]     the KV heads its query heads read, same tokens
``out, lse``              [S, h, a_v], [S, h]    attention output and log-sum-exp, same tokens
``attn_tokens``           [T, H, a_v]            attention output, all heads of the own tokens
``pre, post``             -                      autograd records of PRE and POST
``d_*``                   as without ``d_``      gradients of all of the above
``kv_block[b]``           [n, k, a_qk], [n, k,   K and V of block b of another group (n rows)
                          a_v]
``dkv_block[b]``          the same               the dK, dV sum that travels for block b
*per unit of weights*
``weight, gradient``      [parameters]           one flat vector per `unit` (``layer:3``, ...)
========================  =====================  ==================================================

T: tokens of the rank in the chunk; S: tokens of its head group, *in group order*: the rank's
pieces one after another, ranks in order. H, K, a_qk, a_v are the layer's; h and k belong to the
rank. All intervals are half-open. Heads are numbered through the layer, rows from 0 in the buffer.

Sizes are in elements; `dtype` names a role, because a miniature and a unit test run the same
program in float64: ``activation`` (e bytes), ``accumulator`` (e_acc), ``gradient``, ``weight``,
``scalar``.

Equations and the reasons for the order of transfers: docs/programs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Interval: TypeAlias = tuple[int, int]
DtypeRole: TypeAlias = Literal["activation", "accumulator", "gradient", "weight", "scalar"]
TransferBuffer: TypeAlias = Literal[
    "hidden", "d_hidden", "kv_own", "kv_block", "dkv_own", "dkv_block", "gradient"
]
PairKind: TypeAlias = Literal["full", "causal", "window"]
ExchangeKind: TypeAlias = Literal["qkv", "out", "d_out", "d_qkv"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message, seen from one of its two ends.

    The payload is the flattened slice of `buffer`, rows in the order given:

    * ``hidden``, ``d_hidden``: ``[rows, D]``, `rows` counted in the rank's own T tokens.
    * ``kv_own``: ``k[rows, heads]`` flattened, then ``v[rows, heads]``; rows in group order.
    * ``kv_block``: the same out of ``kv_block[block]`` (all its rows; `rows` is ``((0, n),)``).
    * ``dkv_own``, ``dkv_block``: the same layout for ``d_k``, ``d_v`` and ``dkv_block[block]``.
    * ``gradient``: elements `rows` of the flat gradient of `unit`.

    Parameters
    ----------
    channel
        Name of the process group.
    peer
        The other end, as a global rank number.
    is_send
        Direction.
    buffer
        What is read (send) or written (receive).
    num_elements
        Size of the payload.
    dtype
        Role of its element type.
    rows
        Row intervals, concatenated in this order.
    heads
        Global KV head interval (KV and dKV only): slice the buffer at ``heads - kv_heads[0]``.
    block
        Block number (``*_block``); -1 otherwise. ``kv_own`` and ``dkv_own`` carry it for reading.
    unit
        Unit of weights (``gradient``).
    adds
        A receive is *added* to the buffer (which starts as zeros) instead of written.
    """

    channel: str
    peer: int
    is_send: bool
    buffer: TransferBuffer
    num_elements: int
    dtype: DtypeRole
    rows: tuple[Interval, ...]
    heads: Interval = (0, 0)
    block: int = -1
    unit: str = ""
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Post all `transfers` at once and go on; `handle` names them until their `Wait`."""

    handle: str
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Block until every transfer of `handle` is complete; then its receives may be read.

    Buffers that were sent must not be changed before.
    """

    handle: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """All-to-all inside a head group; a collective of all its ranks, empty parts included.

    ===========  ==============================  ==============================================
    kind         reads -> writes                 payload from member i to member j, flattened
    ===========  ==============================  ==============================================
    ``qkv``      ``q_tokens, k_tokens,           ``q_tokens[:, q_heads[j]]``, then
                 v_tokens -> q, k, v``           ``k_tokens[:, kv_heads[j]]``, then ``v_...``
    ``out``      ``out -> attn_tokens``          ``out[rows of j]``
    ``d_out``    ``d_attn_tokens -> d_out``      ``d_attn_tokens[:, q_heads[j]]``
    ``d_qkv``    ``d_q, d_k, d_v -> d_q_tokens,  ``d_q[rows of j]``, ``d_k[rows of j]``,
                 d_k_tokens, d_v_tokens``        ``d_v[rows of j]``; KV heads sent by several
                                                 members are *summed* by the receiver
    ===========  ==============================  ==============================================

    "rows of j" is member j's interval of the group order.

    Parameters
    ----------
    channel
        Process group; empty when the group has one rank (then only the local part moves).
    members
        Global rank numbers of the group, in order.
    member_idx
        Position of this rank among them.
    rows
        T of every member.
    q_heads, kv_heads
        Head intervals of every member; empty ones are (0, 0).
    send_elements, receive_elements
        Per member, the own part included.
    """

    kind: ExchangeKind
    channel: str
    members: tuple[int, ...]
    member_idx: int
    rows: tuple[int, ...]
    q_heads: tuple[Interval, ...]
    kv_heads: tuple[Interval, ...]
    send_elements: tuple[int, ...]
    receive_elements: tuple[int, ...]
    dtype: DtypeRole = "activation"


@dataclass(frozen=True, slots=True)
class Embed:
    """``hidden`` := rows of the embedding table for the rank's `num_rows` tokens."""

    num_rows: int


@dataclass(frozen=True, slots=True)
class EmbedBackward:
    """Adds ``d_hidden`` to the gradient of the embedding table; frees it."""

    num_rows: int


@dataclass(frozen=True, slots=True)
class Pre:
    """Norm, q/k/v projections, rotary positions: writes ``q_tokens, k_tokens, v_tokens``.

    Parameters
    ----------
    num_rows
        T.
    again
        False: the input is the chunk's ``hidden``, which becomes the layer's ``x``. True
        (recompute): the input is the kept ``x``.
    record
        Keep the autograd record ``pre`` for `PreBackward`.
    """

    num_rows: int
    again: bool
    record: bool


@dataclass(frozen=True, slots=True)
class Post:
    """Output projection, residuals, MLP on ``x`` and ``attn_tokens``.

    Parameters
    ----------
    num_rows
        T.
    again
        False: the result becomes the chunk's ``hidden``. True (recompute): only the record counts.
    record
        Keep the autograd record ``post`` for `PostBackward`.
    """

    num_rows: int
    again: bool
    record: bool


@dataclass(frozen=True, slots=True)
class PostBackward:
    """From ``d_hidden`` through ``post``: ``d_attn_tokens``, ``d_x`` (residual part), gradients."""

    num_rows: int


@dataclass(frozen=True, slots=True)
class PreBackward:
    """From ``d_{q,k,v}_tokens`` through ``pre``: ``d_hidden := d_x + ...``, gradients.

    After it nothing of the (chunk, layer) is needed: the executor frees it all.
    """

    num_rows: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Final norm, head and cross entropy of ``hidden``, in token tiles, *summed* over tokens.

    The target of position i is token i + 1 of the same sequence; a sequence's last position has
    none. The sum goes into the step's loss; division is by `Programs.supervised_tokens`.
    """

    num_rows: int


@dataclass(frozen=True, slots=True)
class LossBackward:
    """After it ``d_hidden`` and the gradients of final norm and head are complete.

    Already divided by `Programs.supervised_tokens`. An executor may have done the work in `Loss`.
    """

    num_rows: int


@dataclass(frozen=True, slots=True)
class AttnPair:
    """A rectangle of (query rows, key rows) of one kind.

    Parameters
    ----------
    block
        Keys are rows of ``kv_block[block]``; of the own ``k, v`` when -1.
    q_rows, k_rows
        Row intervals, neither empty; in a ``causal`` pair they are the same tokens.
    kind
        ``full``: all pairs; ``causal``: key index <= query index; ``window``: query i and key j
        with ``0 <= offset + i - j < window``.
    offset
        Position of the first query minus position of the first key (0 when causal).
    window
        Width of the sliding window (0 when not of that kind).
    """

    block: int
    q_rows: Interval
    k_rows: Interval
    kind: PairKind
    offset: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class AttnOpen:
    """Begin attention: running output, maximum and sum for all `num_rows` x heads of the rank.

    Parameters
    ----------
    num_rows
        S.
    q_heads, kv_heads
        Head intervals of the rank; query head i reads KV head ``i // heads_per_kv``.
    heads_per_kv
        H // K.
    """

    num_rows: int
    q_heads: Interval
    kv_heads: Interval
    heads_per_kv: int


@dataclass(frozen=True, slots=True)
class AttnBlock:
    """Attention of the pairs, merged into the running result."""

    pairs: tuple[AttnPair, ...]


@dataclass(frozen=True, slots=True)
class AttnClose:
    """Writes ``out`` and ``lse``. A row no pair touched has out 0."""


@dataclass(frozen=True, slots=True)
class AttnBackwardOpen:
    """delta = sum(out x d_out); ``d_q, d_k, d_v`` start as zeros (accumulator type)."""

    num_rows: int
    q_heads: Interval
    kv_heads: Interval
    heads_per_kv: int


@dataclass(frozen=True, slots=True)
class AttnBackwardBlock:
    """Backward of the pairs: adds to ``d_q`` and to ``d_k, d_v`` or ``dkv_block[block]``."""

    pairs: tuple[AttnPair, ...]


@dataclass(frozen=True, slots=True)
class AttnBackwardClose:
    """``d_q, d_k, d_v`` are complete (own sums); frees ``q, k, v, out, lse``."""


@dataclass(frozen=True, slots=True)
class Keep:
    """End of a layer's forward: of the (chunk, layer) only `buffers` survive until backward."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Free ``buffer[block]`` of these blocks; all were used and sent on."""

    buffer: Literal["kv_block", "dkv_block"]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offload:
    """Move kept `buffers` of the (chunk, layer) to host memory."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring offloaded `buffers` back."""

    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """All-gather of uneven shares of one unit; a collective of all `members`.

    ``weight``: each member contributes its share of the updated (ZeRO-1) or only stored (ZeRO-3)
    weights; in ZeRO-3 the whole is freed after use. ``gradient``: each contributes its reduced
    share of the gradient (ZeRO-0, after other holders were added).

    Parameters
    ----------
    unit
        Unit of weights; ``layer`` inside a template stands for the layer being run.
    counts
        Elements contributed per member; they are consecutive in the flat vector.
    """

    unit: str
    buffer: Literal["weight", "gradient"]
    channel: str
    members: tuple[int, ...]
    counts: tuple[int, ...]
    dtype: DtypeRole


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum the ``gradient`` of one unit over `members`; a collective of all of them.

    ``all_reduce``: everyone gets everything (counts sum to the size). ``reduce_scatter``: member i
    gets the sum of its `counts[i]` consecutive elements, the rest of its vector is void.
    ``is_per_chunk`` (ZeRO-3): runs after every chunk; the result is *added* to the member's share
    of the step's gradient and the vector is cleared. ``layer`` inside a template stands for the
    layer being run.
    """

    unit: str
    op: Literal["all_reduce", "reduce_scatter"]
    channel: str
    members: tuple[int, ...]
    counts: tuple[int, ...]
    is_per_chunk: bool = False
    dtype: DtypeRole = "gradient"


@dataclass(frozen=True, slots=True)
class Norm:
    """All-reduce of two scalars: sum of squares of the gradient, sum of the loss.

    Parameters
    ----------
    parts
        (unit, start, stop): elements this rank counts; over all ranks every parameter once.
    """

    channel: str
    members: tuple[int, ...]
    parts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Optimizer update of elements ``start..stop`` of each unit; then gradients are cleared."""

    parts: tuple[tuple[str, int, int], ...]


Collective: TypeAlias = Exchange | Gather | Reduce | Norm
Instruction: TypeAlias = (
    Start
    | Wait
    | Exchange
    | Embed
    | EmbedBackward
    | Pre
    | Post
    | PreBackward
    | PostBackward
    | Loss
    | LossBackward
    | AttnOpen
    | AttnBlock
    | AttnClose
    | AttnBackwardOpen
    | AttnBackwardBlock
    | AttnBackwardClose
    | Keep
    | Drop
    | Offload
    | Fetch
    | Gather
    | Reduce
    | Norm
    | Step
)
