"""One rank's program, run as a generator that yields what it wants from other ranks.

The same interpreter serves the virtual executor (all ranks in one process) and the distributed
one (a process per rank): they differ only in who answers its requests.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hexisolve.errors import RuntimeMismatchError, UnsupportedPlanError
from hexisolve.program import instructions as ins
from hexisolve.program.rank_program import STEP_END, Programs, RankProgram, expand
from hexisolve.runtime import attend
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.buffers import ChunkBuffers, LayerBuffers, open_chunk
from hexisolve.runtime.corpus import Batch
from hexisolve.runtime.flat import FlatStage
from hexisolve.runtime.optimizer import AdamWSettings, ShareOptimizer, clip_scale
from hexisolve.runtime.requests import AllGather, AllToAll, Complete, Request, Sum, ranges
from hexisolve.runtime.segments import run_backward, run_segment
from hexisolve.runtime.stage import StageModule
from hexisolve.runtime.transfers import Transfers, role_dtype, unit_name
from hexisolve.runtime.weights import Style, initial_weights

Requests = Generator[Request, None, None]
WeightRange = tuple[str, int, int]
"""(unit, start, stop): elements of a unit's flat vector."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How programs are executed.

    Parameters
    ----------
    dtype
        Of weights and activations; accumulation is in float32 or wider.
    device
        Where tensors live.
    seed, style
        Of the initial weights.
    optimizer
        Settings of AdamW.
    keeps_gradients
        Copy every gradient at STEP into `Interpreter.step_gradients` (for verification).
    """

    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    style: Style = "training"
    optimizer: AdamWSettings = field(default_factory=AdamWSettings)
    keeps_gradients: bool = False


class Interpreter:
    """State of one rank across steps; `run_step` executes its program once.

    Parameters
    ----------
    programs
        Of the whole plan.
    rank
        Which of them to run.

    Raises
    ------
    UnsupportedPlanError
        When the program uses a part that is not executed; names it.
    """

    def __init__(self, programs: Programs, rank: int, settings: RunSettings) -> None:
        self.program = programs.ranks[rank]
        self.settings = settings
        self.architecture = Architecture.of(programs.instance.model)
        _refuse_unsupported(self.program)
        self.module = StageModule(
            self.architecture, range(*self.program.layers), settings.dtype,
            is_first=self.program.stage == 0,
            is_last=self.program.stage == self.program.num_stages - 1,
        ).to(settings.device)  # fmt: skip
        self.module.load(
            initial_weights(self.architecture, self.module.shapes, settings.seed, settings.style)
        )
        self.flat = FlatStage(self.architecture, self.module, self.program.units)
        self.loss = 0.0
        self.squared_norm = 0.0
        self.step_gradients: dict[WeightRange, Tensor] = {}
        self._tile_tokens = max(programs.instance.cost.logits_tile_tokens, 1)
        self._optimizers: dict[WeightRange, ShareOptimizer] = {}
        self._chunks: dict[int, ChunkBuffers] = {}
        self._chunk_sums: dict[str, Tensor] = {}
        self._loss_sum = 0.0
        self._num_supervised = 1
        self._transfers = Transfers(
            rank, self.flat, _kv_heads(self.architecture, programs, rank),
            self.architecture.hidden_size, self.architecture.head_dim,
            settings.dtype, settings.device,
        )  # fmt: skip
        self._release_weights(*self.flat.weights)

    def run_step(self, batch: Batch) -> Requests:
        """Execute the program once on a batch; afterwards `loss` holds the global mean."""
        self._num_supervised = max(batch.num_supervised, 1)
        self._loss_sum = 0.0
        self.step_gradients.clear()
        layer_in_hand = -1
        for instruction, chunk_idx, layer_idx in expand(self.program):
            if layer_idx != layer_in_hand:
                if layer_in_hand >= 0:
                    self._release_weights(f"layer:{layer_in_hand}")
                layer_in_hand = layer_idx
            chunk = None
            if chunk_idx == STEP_END:
                self._restore_chunk_sums()
            else:
                chunk = self._chunk(chunk_idx, batch)
            yield from self._run(instruction, chunk, layer_idx)
        self._chunks.clear()
        if self._transfers.open_handles:
            raise RuntimeMismatchError(
                f"rank {self.program.rank} never waited for "
                f"{', '.join(self._transfers.open_handles)}"
            )

    def _run(
        self, instruction: ins.Instruction, chunk: ChunkBuffers | None, layer_idx: int
    ) -> Requests:
        match instruction:
            case ins.Start():
                yield self._transfers.start(instruction, chunk, layer_idx)
            case ins.Wait(handle=handle):
                yield Complete(handle)
                self._transfers.finish(handle)
            case ins.Gather():
                unit = unit_name(instruction.unit, layer_idx)
                is_weight = instruction.buffer == "weight"
                flat = self.flat.weights if is_weight else self.flat.gradients
                yield AllGather(
                    instruction.channel, instruction.members, flat[unit], instruction.counts
                )
            case ins.Reduce():
                yield from self._reduce(instruction, unit_name(instruction.unit, layer_idx))
            case ins.Norm():
                yield from self._norm(instruction)
            case ins.Step():
                self._step(instruction)
            case _ if chunk is None:
                raise RuntimeMismatchError(f"{type(instruction).__name__} needs a chunk")
            case _ if layer_idx < 0:
                self._run_outside_layers(instruction, chunk)
            case ins.Exchange():
                yield from self._exchange(instruction, chunk.layer(layer_idx))
            case _:
                self._run_in_layer(instruction, chunk, layer_idx)

    # Local instructions.

    def _run_outside_layers(self, instruction: ins.Instruction, chunk: ChunkBuffers) -> None:
        match instruction:
            case ins.Embed():
                with torch.no_grad():
                    chunk.hidden = self.module.embed(chunk.tokens_L)
                self._release_weights("embedding")
            case ins.EmbedBackward():
                table = self.flat.gradients["embedding"].view(
                    self.architecture.vocab_size, self.architecture.hidden_size
                )
                d_hidden_LD = self._transfers.boundary(chunk, "d_hidden")
                table.index_add_(0, chunk.tokens_L, d_hidden_LD.to(table.dtype))
                chunk.d_hidden = None
            case ins.Loss():
                self._loss(chunk)
                self._release_weights("final_norm", "head", "embedding")
            case ins.LossBackward():
                # The work was done tile by tile in LOSS, while the logits were there.
                chunk.d_hidden, chunk.d_loss = chunk.d_loss, None
                self._release_weights("final_norm", "head", "embedding")
            case _:
                raise RuntimeMismatchError(
                    f"{type(instruction).__name__} stands outside of a layer"
                )

    def _run_in_layer(
        self, instruction: ins.Instruction, chunk: ChunkBuffers, layer_idx: int
    ) -> None:
        buffers = chunk.layer(layer_idx)
        match instruction:
            case ins.Pre():
                self._pre(instruction, chunk, buffers, layer_idx)
            case ins.Post():
                self._post(instruction, chunk, buffers, layer_idx)
            case ins.PostBackward():
                d_hidden_LD = self._transfers.boundary(chunk, "d_hidden")
                tensors = buffers.tensors
                tensors["d_attn_tokens"], tensors["d_x"] = run_backward(
                    buffers.record("post"), (d_hidden_LD,), self.flat
                )
                chunk.d_hidden = None
            case ins.PreBackward():
                gradients = [buffers.tensor(f"d_{name}_tokens") for name in ("q", "k", "v")]
                (d_x_LD,) = run_backward(buffers.record("pre"), gradients, self.flat)
                chunk.d_hidden = buffers.tensor("d_x") + d_x_LD
                del chunk.layers[layer_idx]
            case ins.AttnOpen():
                attend.attention_open(buffers, instruction)
            case ins.AttnBlock():
                attend.attention_block(buffers, instruction)
            case ins.AttnClose():
                attend.attention_close(buffers)
            case ins.AttnBackwardOpen():
                attend.attention_backward_open(buffers, instruction)
            case ins.AttnBackwardBlock():
                attend.attention_backward_block(buffers, instruction)
            case ins.AttnBackwardClose():
                for name in ("q", "k", "v", "out", "lse", "d_out"):
                    buffers.tensors.pop(name, None)
            case ins.Keep(buffers=names):
                buffers.keep(names)
            case ins.Drop(buffer=name, blocks=blocks):
                for block in blocks:
                    buffers.blocks.pop((name, block), None)
            case _:
                raise RuntimeMismatchError(f"{type(instruction).__name__} stands in a layer")

    def _pre(
        self, pre: ins.Pre, chunk: ChunkBuffers, buffers: LayerBuffers, layer_idx: int
    ) -> None:
        if not pre.again:
            buffers.tensors["x"] = self._transfers.boundary(chunk, "hidden")
            chunk.hidden = None
        layer = self.module.layer(layer_idx)
        outputs, record = run_segment(
            layer.pre, (buffers.tensor("x"),), chunk.rotation, layer.pre_parameters(),
            record=pre.record,
        )  # fmt: skip
        for name, output in zip(("q", "k", "v"), outputs, strict=True):
            buffers.tensors[f"{name}_tokens"] = output
        if record is not None:
            buffers.records["pre"] = record

    def _post(
        self, post: ins.Post, chunk: ChunkBuffers, buffers: LayerBuffers, layer_idx: int
    ) -> None:
        layer = self.module.layer(layer_idx)
        (output_LD,), record = run_segment(
            layer.post, (buffers.tensor("attn_tokens"), buffers.tensor("x")), (),
            layer.post_parameters(), record=post.record,
        )  # fmt: skip
        if not post.again:
            chunk.hidden = output_LD
        if record is not None:
            buffers.records["post"] = record

    def _loss(self, chunk: ChunkBuffers) -> None:
        """Forward and backward of the head, one token tile after another."""
        hidden_LD = self._transfers.boundary(chunk, "hidden")
        chunk.hidden, chunk.d_loss = None, torch.empty_like(hidden_LD)
        parameters = self.module.head_parameters()
        for first in range(0, chunk.num_rows, self._tile_tokens):
            rows = slice(first, first + self._tile_tokens)
            leaf_LD = hidden_LD[rows].detach().requires_grad_()
            with torch.enable_grad():
                loss = self.module.loss_sum(leaf_LD, chunk.targets_L[rows])
            d_leaf_LD, *gradients = torch.autograd.grad(
                loss, (leaf_LD, *parameters), torch.full_like(loss, 1 / self._num_supervised)
            )
            chunk.d_loss[rows] = d_leaf_LD
            self.flat.accumulate(parameters, gradients)
            self._loss_sum += float(loss.detach())

    # Instructions that communicate.

    def _exchange(self, exchange: ins.Exchange, buffers: LayerBuffers) -> Requests:
        send = attend.exchange_send(
            buffers, exchange, role_dtype(exchange.dtype, self.settings.dtype)
        )
        received = send
        if exchange.channel:
            received = send.new_empty(sum(exchange.receive_elements))
            yield AllToAll(
                exchange.channel, exchange.members, send, exchange.send_elements,
                received, exchange.receive_elements,
            )  # fmt: skip
        attend.exchange_store(
            buffers, exchange, received, self.architecture.num_q_heads,
            self.architecture.num_kv_heads, self.architecture.head_dim,
        )  # fmt: skip

    def _reduce(self, reduce: ins.Reduce, unit: str) -> Requests:
        gradient = self.flat.gradients[unit]
        yield Sum(reduce.channel, reduce.members, reduce.op, gradient, reduce.counts)
        if reduce.is_per_chunk:
            own = ranges(reduce.counts)[reduce.members.index(self.program.rank)]
            share = gradient[own].clone()
            earlier = self._chunk_sums.get(unit)
            self._chunk_sums[unit] = share if earlier is None else earlier + share
            gradient.zero_()

    def _restore_chunk_sums(self) -> None:
        """ZeRO-3 per chunk: the own share of the step's gradient goes where STEP looks for it."""
        for unit, share in self._chunk_sums.items():
            start, stop = self._share(unit)
            self.flat.gradients[unit][start:stop] = share
        self._chunk_sums.clear()

    def _norm(self, norm: ins.Norm) -> Requests:
        squares = sum(
            float(self.flat.gradients[unit][start:stop].double().square().sum())
            for unit, start, stop in norm.parts
        )
        scalars = torch.tensor(
            [squares, self._loss_sum], dtype=torch.float64, device=self.settings.device
        )
        if norm.channel:
            yield Sum(norm.channel, norm.members, "all_reduce", scalars, (2,))
        self.squared_norm = float(scalars[0])
        self.loss = float(scalars[1]) / self._num_supervised

    def _step(self, step: ins.Step) -> None:
        settings = self.settings.optimizer
        scale = clip_scale(self.squared_norm, settings.max_gradient_norm)
        for part in step.parts:
            unit, start, stop = part
            gradient = self.flat.gradients[unit][start:stop]
            if self.settings.keeps_gradients:
                self.step_gradients[part] = gradient.clone()
            weight = self.flat.weights[unit]
            if part not in self._optimizers:
                self._optimizers[part] = ShareOptimizer(weight, start, stop, settings)
            self._optimizers[part].step(weight, gradient, scale)
        self.flat.clear_gradients()

    # Small helpers.

    def _chunk(self, chunk_idx: int, batch: Batch) -> ChunkBuffers:
        if chunk_idx not in self._chunks:
            self._chunks[chunk_idx] = open_chunk(
                self.architecture, self.program.shards[chunk_idx], batch,
                self.settings.dtype, self.settings.device,
            )  # fmt: skip
        return self._chunks[chunk_idx]

    def _share(self, unit: str) -> ins.Interval:
        return next(entry.share for entry in self.program.units if entry.name == unit)

    def _release_weights(self, *units: str) -> None:
        """ZeRO-3: all but the own share of a unit is void until it is gathered again.

        The virtual executor shows that the gathers suffice: what is void is not a number.
        """
        if self.program.zero != 3:
            return
        for unit in units:
            weight = self.flat.weights.get(unit)
            if weight is not None:
                start, stop = self._share(unit)
                weight[:start] = float("nan")
                weight[stop:] = float("nan")


def _kv_heads(architecture: Architecture, programs: Programs, rank: int) -> ins.Interval:
    """KV heads that the query heads of a rank read."""
    first, stop = programs.plan.layout.ranks[rank].q_heads
    heads_per_kv = architecture.num_q_heads // architecture.num_kv_heads
    if first == stop:
        return (0, 0)
    return (first // heads_per_kv, (stop - 1) // heads_per_kv + 1)


def _refuse_unsupported(program: RankProgram) -> None:
    """Name the first part of the program that no executor runs."""
    bodies = [template.instructions for template in program.templates.values()]
    if any(isinstance(item, ins.Offload | ins.Fetch) for body in bodies for item in body):
        raise UnsupportedPlanError("offload to host memory is planned but not executed")
