"""The shell called in this process: exit code, stdout and stderr of one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hexisolve.cli import main
from hexisolve.plan.io import write_plan
from tests.plans import two_stages


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Outcome]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Call the shell; a traceback anywhere in its output fails the test."""

    def call(*args: object) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as stop:
            code = int(str(stop.code))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Outcome(code, out, err)

    return call


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    """A plan file of 4 ranks in 2 stages, uneven shards and heads."""
    path = tmp_path / "plan.json"
    write_plan(path, *two_stages())
    return path


CLUSTER = """\
schema_version: 1
name: pair
fabrics: {net: {latency: 5 us}}
hosts:
  box:
    count: 1
    devices: {type: H100-SXM-80GB, count: 2}
    inside: {kind: nvswitch, bandwidth: 450 GB/s, latency: 3 us}
    nics: {count: 1, bandwidth: 200 Gbit/s, fabric: net}
"""

MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with a good cluster.yaml, model.json and instance.yaml."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    (tmp_path / "instance.yaml").write_text(
        "cluster: cluster.yaml\nmodel: model.json\n"
        "workload: {context_tokens: 256, batch_sequences: 2, block_tokens: 32}\n"
    )
    return tmp_path
