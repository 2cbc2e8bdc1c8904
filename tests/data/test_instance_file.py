"""Instance files: sections by name, path or inline; every problem of every section."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import (
    instance_from_dict,
    read_instance,
    resolve_cluster,
    resolve_model,
)
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.workload import Workload
from hexisolve.errors import InstanceError

WORKLOAD = {"context_tokens": 65_536, "batch_sequences": 8}
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
    "tie_word_embeddings": False,
}  # fmt: skip


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


def test_names_mean_bundled_things(tmp_path: Path) -> None:
    file = write(
        tmp_path / "i.yaml",
        {"cluster": "mixed-32", "model": "llama-2-13b", "workload": WORKLOAD | {"zero": [0, 1]}},
    )
    instance = read_instance(file)
    assert instance.cluster == Cluster.read("mixed-32")
    assert (instance.model.name, instance.model.num_layers) == ("llama-2-13b", 40)
    assert instance.workload.zero == (0, 1)


def test_paths_are_relative_to_the_instance(tmp_path: Path) -> None:
    folder = tmp_path / "mein ordner é"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    Cluster.read("localhost").write(folder / "c.yaml")
    file = write(
        folder / "i.yaml",
        {"cluster": "c.yaml", "model": "tiny/config.json", "workload": WORKLOAD},
    )
    instance = read_instance(file)
    assert (instance.cluster.name, instance.model.name) == ("localhost", "tiny")


@pytest.mark.parametrize("model", [CONFIG, {"name": "tiny", "config": CONFIG}])
def test_everything_may_be_inline(model: dict[str, Any]) -> None:
    document = {
        "schema_version": 1, "name": "n", "description": "d", "workload": WORKLOAD, "model": model,
        "cluster": {"hosts": {"a": {"devices": {"type": "A100-SXM-80GB", "count": 2}}}},
        "cost": {"link_efficiency": 0.9},
    }  # fmt: skip
    instance = instance_from_dict(document)
    assert instance.cost.link_efficiency == 0.9
    assert instance.model.hidden_size == 64
    again = Instance.from_dict(json.loads(json.dumps(instance.to_dict())))
    assert again.digest == instance.digest
    assert again.cluster == instance.cluster


def test_problems_of_all_sections_come_together(tmp_path: Path) -> None:
    file = write(
        tmp_path / "i.yaml",
        {
            "cluster": "mixed-33",
            "model": "llama-2-13",
            "workload": {"context_tokens": -1, "batch_sequences": 8, "dtyp": "bf16"},
            "cost": {"link_efficiency": 2.0, "speed": 1},
            "solver": {},
        },
    )
    with pytest.raises(InstanceError) as caught:
        read_instance(file)
    text = str(caught.value)
    for words in ("solver: unknown key", "mixed-32", "llama-2-13b", "workload.dtyp",
                  "workload.context_tokens", "cost.speed"):  # fmt: skip
        assert words in text


@pytest.mark.parametrize("key", ["cluster", "model", "workload"])
@pytest.mark.parametrize("value", ["missing", None, 7, [], ""])
def test_a_section_that_is_missing_or_no_section(key: str, value: Any) -> None:
    document: dict[str, Any] = {"cluster": "mixed-16", "model": CONFIG, "workload": WORKLOAD}
    if value == "missing":
        del document[key]
    else:
        document[key] = value
    with pytest.raises(InstanceError) as caught:
        instance_from_dict(document, "i.yaml")
    assert any(problem.field.startswith(key) for problem in caught.value.problems)


def test_unknown_names_list_the_nearest() -> None:
    with pytest.raises(InstanceError, match="mixed-128"):
        resolve_cluster("mixed-127")
    with pytest.raises(InstanceError, match=r"llama-3\.1-70b"):
        resolve_model("llama-3.1-72b")


def test_bf16_on_cards_without_it_is_refused_and_fp16_is_a_choice(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "cluster": {"hosts": {"a": {"devices": {"type": "V100-SXM-32GB", "count": 4}}}},
        "model": CONFIG,
        "workload": WORKLOAD | {"dtype": "bf16"},
    }
    with pytest.raises(InstanceError, match="V100-SXM-32GB do not compute in bf16") as caught:
        read_instance(write(tmp_path / "i.yaml", document))
    assert "write `dtype: fp16`" in str(caught.value)
    document["workload"]["dtype"] = "fp16"
    assert read_instance(write(tmp_path / "i.yaml", document)).workload.dtype == "fp16"


def test_an_instance_made_by_hand_is_checked_too() -> None:
    cluster = Cluster.from_dict({"hosts": {"a": {"devices": {"type": "T4-16GB"}}}})
    with pytest.raises(InstanceError, match="T4-16GB do not compute in bf16"):
        Instance(cluster, ModelSpec.from_config(CONFIG), Workload(**WORKLOAD))
