"""`show`: what was understood of a cluster, a model, an instance, a plan."""

from __future__ import annotations

from pathlib import Path

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance_file import resolve_model


def test_show_cluster_json_has_every_device_link_and_class(shell) -> None:
    document = shell("show", "mixed-32", "--json").json
    cluster = Cluster.read("mixed-32")
    assert [entry["id"] for entry in document["devices"]] == [d.id for d in cluster.devices]
    assert {"type", "host", "memory_bytes"} <= document["devices"][0].keys()
    assert len(document["links"]) == cluster.graph.number_of_edges()
    assert all(link["bytes_per_s"] > 0 for link in document["links"])
    assert sum(map(len, document["classes"])) == 32


def test_show_cluster_names_kinds_memory_and_sources(shell) -> None:
    text = shell("show", "mixed-32").out
    for word in ("H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB", "GiB", "TFLOP/s", "estimate"):
        assert word in text


def test_show_model_json_has_the_promised_keys(shell) -> None:
    document = shell("show", "llama-2-13b", "--json").json
    assert document["name"] == "llama-2-13b"
    assert document["parameters"] == 13_015_864_320
    assert document["num_layers"] == len(document["layers"]) == 40
    assert document["hidden_size"] == 5120
    assert document["num_q_heads"] == document["num_kv_heads"] == 40
    assert document["head_dim"] == 128
    assert document["vocab_size"] == 32000
    assert document["active_parameters"] == document["parameters"]
    assert document["tied_embeddings"] is False


def test_show_model_joins_like_layers(shell) -> None:
    text = shell("show", "deepseek-v2-lite").out
    assert "15,706,484,224" in text
    assert "1-26" in text


def test_show_a_config_file_the_user_has(shell, inputs: Path) -> None:
    outcome = shell("show", inputs / "model.json", "--json")
    assert outcome.json["num_layers"] == 4
    assert outcome.json["parameters"] == resolve_model(inputs / "model.json").parameters


def test_show_instance(shell, inputs: Path) -> None:
    document = shell("show", inputs / "instance.yaml", "--json").json
    assert document["workload"]["context_tokens"] == 256
    assert document["cluster"]["name"] == "pair"
    text = shell("show", inputs / "instance.yaml").out
    assert "link_efficiency" in text
    assert "tokens in a step" in text


def test_show_plan_says_why(shell, plan_path: Path) -> None:
    text = shell("show", plan_path).out
    for word in (
        "tokens/s", "share of peak", "compute", "exchange", "idle", "states",
        "activations", "K and V", "buffers", "logits", "reserve", "recompute",
    ):  # fmt: skip
        assert word in text, word


def test_show_plan_json_prices_every_device(shell, plan_path: Path) -> None:
    document = shell("show", plan_path, "--json").json
    price = document["price"]
    assert document["violations"] == []
    assert len(price["devices"]) == 4
    for entry in price["devices"]:
        total = entry["compute_s"] + entry["exchange_s"] + entry["idle_s"]
        assert total >= price["step_time_s"] * (1 - 1e-9)
        assert set(entry["memory"]) == {
            "states", "activations", "kv", "transient", "buffers", "logits", "reserve"
        }  # fmt: skip
    assert price["stages"][0]["recomputed_layers"] == {"none": [3, 3]}


def test_a_name_of_nothing_gets_the_nearest_names(shell) -> None:
    outcome = shell("show", "mixed32")
    assert outcome.code == 2
    assert "mixed-32" in outcome.err


def test_a_file_of_nothing_known_is_refused(shell, tmp_path: Path) -> None:
    path = tmp_path / "thing.yaml"
    path.write_text("colour: blue\n")
    outcome = shell("show", path)
    assert outcome.code == 2
    assert "--as" in outcome.err


def test_as_overrides_the_guess(shell, inputs: Path) -> None:
    outcome = shell("show", inputs / "model.json", "--as", "cluster")
    assert outcome.code == 2
    assert "unknown key" in outcome.err


def test_show_of_nothing_lists_what_is_bundled(shell) -> None:
    from hexisolve.data.library import bundled_names

    document = shell("show", "--json").json
    assert document == {
        "clusters": list(bundled_names("clusters")),
        "models": list(bundled_names("llm")),
        "instances": list(bundled_names("instances")),
    }
    text = shell("show").out
    for names in document.values():
        for name in names:
            assert name in text


def test_show_of_nothing_as_one_kind_lists_that_kind(shell) -> None:
    assert list(shell("show", "--as", "model", "--json").json) == ["models"]
    outcome = shell("show", "--as", "plan")
    assert outcome.code == 2
    assert "PLAN" in outcome.err
