"""What a layer really keeps between forward and backward, against the cost model, byte for byte."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hexisolve.cost.memory import Policy, RankShare, kept_bytes
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.program.compile import compile_plan
from hexisolve.program.instructions import Keep
from hexisolve.program.rank_program import Programs, expand
from hexisolve.runtime.corpus import random_batch
from hexisolve.runtime.interpreter import Interpreter, Requests, RunSettings
from hexisolve.runtime.virtual import run_virtual
from tests.plans import make

MODEL = llama_like("one layer", 24, 1, 6, 3, 40, 64, head_dim=8)


class Holder:
    """Stands for a saved tensor inside the graph; gone when the graph is."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Watch:
    """Measures what one rank holds when a layer's forward has ended."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.holders: list[weakref.ref[Holder]] = []
        self.kept_bytes: dict[int, int] = {}

    def pack(self, tensor: Tensor) -> Holder:
        holder = Holder(tensor)
        self.holders.append(weakref.ref(holder))
        return holder

    def run(self, stream: Requests) -> Requests:
        """The rank's stream, its saved tensors watched."""
        while True:
            with saved_tensors_hooks(self.pack, lambda holder: holder.tensor):
                request = next(stream, None)
            if request is None:
                return
            yield request

    def tensors(self, chunk_idx: int) -> Iterator[Tensor]:
        """Everything alive: kept buffers, leaves and what the graphs saved."""
        for holder in self.holders:
            found = holder()
            if found is not None:
                yield found.tensor
        for layer in self.interpreter._chunks[chunk_idx].layers.values():
            yield from layer.tensors.values()
            for record in layer.records.values():
                yield from record.inputs
            for pair in layer.blocks.values():
                yield from pair

    def measure(self, chunk_idx: int) -> int:
        """Bytes of distinct storages, parameters and rotation tables left out."""
        known = [*self.interpreter.flat.weights.values()]
        known += self.interpreter._chunks[chunk_idx].rotation
        excluded = {tensor.untyped_storage().data_ptr() for tensor in known}
        sizes = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in self.tensors(chunk_idx)
        }
        return sum(size for pointer, size in sizes.items() if pointer not in excluded)


def measured(programs: Programs, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Per rank, what it holds right after KEEP of the only layer of the only chunk."""
    watches = [
        Watch(Interpreter(programs, program.rank, RunSettings(dtype=dtype)))
        for program in programs.ranks
    ]
    by_interpreter = {id(watch.interpreter): watch for watch in watches}
    original = Interpreter._run_in_layer

    def watched(self: Interpreter, instruction: object, chunk: object, layer: int) -> None:
        original(self, instruction, chunk, layer)  # type: ignore[arg-type]
        if isinstance(instruction, Keep):
            watch = by_interpreter[id(self)]
            watch.kept_bytes[layer] = watch.measure(0)

    monkeypatch.setattr(Interpreter, "_run_in_layer", watched)
    batch = random_batch(programs.sequence_lengths, 64, seed=0)
    run_virtual([watch.run(watch.interpreter.run_step(batch)) for watch in watches])
    return [watch.kept_bytes[0] for watch in watches]


def predicted(
    programs: Programs, model: ModelSpec, policy: Policy, element_bytes: int
) -> list[int]:
    found = []
    for program in programs.ranks:
        shard = program.shards[0]
        first, stop = programs.plan.layout.ranks[program.rank].q_heads
        kv_heads = len({model.layers[0].attention.kv_head_of(head) for head in range(first, stop)})
        share = RankShare(shard.num_rows, shard.num_group_rows, stop - first, kv_heads)
        found.append(kept_bytes(policy, share, model.layers[0], model.hidden_size, element_bytes))
    return found


GROUPS = {
    "one device": [[(1, (0, 6))]],
    "uneven head group": [[(5, (0, 4)), (2, (4, 6))]],
    "split KV group": [[(2, (0, 3)), (3, (3, 6))]],
    "rank without tokens or heads": [[(5, (0, 6)), (0, (6, 6))]],
    "ring of groups": [[(3, (0, 4)), (2, (4, 6))], [(2, (0, 6))]],
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("policy", ["none", "mlp", "layer", "full"])
@pytest.mark.parametrize(("dtype", "element_bytes"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_kept_bytes_equal_the_cost_model(
    groups: str, policy: Policy, dtype: torch.dtype, element_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    case = make([((0, 1), GROUPS[groups])], [[0]], [32], model=MODEL, recompute=policy)
    programs = compile_plan(*case, ring_blocks=4)
    assert any(isinstance(item, Keep) for item, _, _ in expand(programs.ranks[0]))
    found = measured(programs, dtype, monkeypatch)
    assert found == predicted(programs, MODEL, policy, element_bytes)
