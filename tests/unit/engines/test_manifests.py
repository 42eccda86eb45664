"""Manifests against Kubernetes' own schemas and a compose parser, and what would break on a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import compose_spec
import kubernetes_validate
import pytest
import yaml

from slipstream.engines import find_engine
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.manifests import write_manifest
from slipstream.errors import UsageError
from slipstream.tasks.manifest_models import manifest_models

KUBERNETES = "1.35"
FORMS = ("kubernetes", "compose")
BIG = "org/Model-8B.v1"
CASES = {
    "one GPU": ("vllm", EngineSettings(BIG, method="ngram", port=8000)),
    "plain": ("vllm", EngineSettings(BIG, port=9000)),
    "suffix": ("vllm", EngineSettings(BIG, method="suffix", port=8000)),
    "one machine": (
        "vllm",
        EngineSettings(BIG, method="draft_model", draft="org/small-1B", tensor_parallel=8, port=8000),
    ),
    "two machines": (
        "vllm",
        EngineSettings(
            BIG, method="eagle3", draft="org/head-1B", draft_length=3, draft_streams=64, tensor_parallel=8,
            pipeline_parallel=2, nodes=2, port=8000,
        ),
    ),
    "four machines": ("vllm", EngineSettings(BIG, tensor_parallel=8, pipeline_parallel=4, nodes=4, port=8000)),
    "sglang": (
        "sglang",
        EngineSettings(BIG, method="STANDALONE", draft="org/small-1B", tensor_parallel=2, port=30000),
    ),
    "sglang for others": ("sglang", EngineSettings(BIG, port=30000, host="0.0.0.0")),
    "llama-server": (
        "llama-server",
        EngineSettings("org/m:m-8B-Q4_K_M.gguf", method="draft-simple", draft="/far/d-1B.gguf", port=8080),
    ),
}  # fmt: skip
ON_ONE = [name for name, (_, settings) in CASES.items() if settings.nodes == 1]
ON_SEVERAL = [name for name in CASES if name not in ON_ONE]


def manifest(form: str, engine: str, settings: EngineSettings, **options) -> str:
    image = options.pop("image", None)
    return write_manifest(form, find_engine(engine), settings, manifest_models(engine, settings, **options), image)


def kubernetes(engine: str, settings: EngineSettings, **options) -> list[dict]:
    return list(yaml.safe_load_all(manifest("kubernetes", engine, settings, **options)))


def compose(engine: str, settings: EngineSettings, **options) -> dict:
    return yaml.safe_load(manifest("compose", engine, settings, **options))


def by_kind(documents: list[dict], kind: str) -> list[dict]:
    return [document for document in documents if document["kind"] == kind]


def pods(documents: list[dict]) -> list[dict]:
    return [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("Deployment", "StatefulSet")]


def server(engine: str, settings: EngineSettings, **options) -> dict:
    """The container that serves."""
    return pods(kubernetes(engine, settings, **options))[0]["containers"][0]


def claim_gib(documents: list[dict]) -> int:
    (claim,) = by_kind(documents, "PersistentVolumeClaim")
    return int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))


# -- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_every_object(case: str):
    for document in kubernetes(*CASES[case]):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_validator_would_have_said_something():
    document = by_kind(kubernetes(*CASES["one GPU"]), "Deployment")[0]
    document["spec"]["template"]["spec"]["containers"][0]["comand"] = ["typo"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def interpolated(text: str) -> str:
    """As compose does it before it reads the file: defaults, and a path for variables that must be set."""
    text = re.sub(r"(?<!\$)\$\{\w+:-(\w*)\}", r"\1", text)
    text = re.sub(r"(?<!\$)\$\{\w+:\?[^}]*\}", "/set", text)
    text = re.sub(r"^#.*", "", text, flags=re.M)
    assert "$" not in text.replace("$$", "")
    return text.replace("$$", "$")


@pytest.mark.parametrize("case", CASES)
def test_compose_takes_the_file(case: str):
    text = manifest("compose", *CASES[case])
    parsed = compose_spec.PyCompose.from_yaml(interpolated(text))
    _, settings = CASES[case]
    serving = {"server"} if settings.nodes == 1 else {"head", "worker"}
    assert set(parsed.service_names()) == serving | {"models"}
    for name in serving:
        (gpus,) = yaml.safe_load(text)["services"][name]["deploy"]["resources"]["reservations"]["devices"]
        assert gpus["count"] == settings.tensor_parallel * settings.pipeline_parallel // settings.nodes


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_the_text_is_for_people(form: str, case: str):
    text = manifest(form, *CASES[case])
    assert not re.search(r"[&*]id\d+", text)  # anchors
    assert "# What to do:\n#   1. " in text and "# Arguments:\n" in text


# -- what belongs together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_selectors_volumes_and_ports_meet(case: str):
    documents = kubernetes(*CASES[case])
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
        containers = pod["containers"] + pod["initContainers"]
        assert {mount["name"] for container in containers for mount in container["volumeMounts"]} == names
        used = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
        assert used == claims
    assert all(len(document["metadata"]["name"]) <= 63 for document in documents)


@pytest.mark.parametrize("case", CASES)
def test_no_two_mounts_at_one_place(case: str):
    for pod in pods(kubernetes(*CASES[case])):
        for container in pod["containers"] + pod["initContainers"]:
            places = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(places) == len(set(places))


def test_one_machine_is_a_deployment_that_serves():
    documents = kubernetes(*CASES["one machine"])
    (pod,) = pods(documents)
    (container,) = pod["containers"]
    assert container["command"][:3] == ["vllm", "serve", f"/models/{BIG}"]
    assert container["command"][container["command"].index("--host") + 1] == "0.0.0.0"
    assert container["command"][-2:] == ["--served-model-name", BIG]
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("case", "image", "program"),
    [
        ("plain", "vllm/vllm-openai:v0.32.0", ["vllm", "serve"]),
        ("sglang", "lmsysorg/sglang:v0.5.23", ["sglang", "serve"]),
        ("llama-server", "ghcr.io/ggml-org/llama.cpp:server-cuda", ["/app/llama-server", "--model"]),
    ],
)
def test_each_engine_runs_in_its_public_image(case: str, image: str, program: list[str]):
    container = server(*CASES[case])
    assert container["image"] == image and container["command"][:2] == program
    service = compose(*CASES[case])["services"]["server"]
    assert service["image"] == image and service["entrypoint"][:2] == program
    assert server(*CASES[case], image="registry/own:1")["image"] == "registry/own:1"


def test_bad_use():
    _, plain = CASES["plain"]
    with pytest.raises(UsageError, match="expected engine, kubernetes, compose"):
        manifest("helm", "vllm", plain)
    with pytest.raises(UsageError, match="only written for vllm, llama-server, sglang; for tabbyapi use"):
        manifest("compose", "tabbyapi", plain)
    with pytest.raises(UsageError, match=r"several machines .* not written for sglang"):
        manifest("compose", "sglang", replace(plain, nodes=2, tensor_parallel=2))


# -- the size of the volume -------------------------------------------------------------------------------------------


def test_a_volume_has_room_for_the_weights():
    vllm = find_engine("vllm").name
    large = EngineSettings("meta-llama/Llama-3.1-405B-Instruct", tensor_parallel=8)
    assert 812e9 * 1.1 < claim_gib(kubernetes(vllm, large)) * 2**30 < 812e9 * 1.4
    assert claim_gib(kubernetes(vllm, EngineSettings("org/x-405B-FP8"))) < 600
    assert claim_gib(kubernetes(vllm, EngineSettings("org/unnamed"), weights_gb=100)) == 117


def test_a_volume_has_room_for_files_of_this_disk(tmp_path: Path):
    for name, size in (("big.gguf", 30 << 30), ("small.gguf", 10 << 30)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    settings = EngineSettings(str(tmp_path / "big.gguf"), "draft-simple", draft=str(tmp_path / "small.gguf"))
    assert claim_gib(kubernetes("llama-server", settings)) == 53


def test_an_unknown_size_names_the_option():
    with pytest.raises(UsageError, match=r"size of org/unnamed is unknown.*pass --weights-gb"):
        kubernetes("vllm", EngineSettings("org/unnamed"))
    assert compose("vllm", EngineSettings("org/unnamed"))  # a compose volume has no size


# -- what methods need ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_a_method_needs_is_installed_everywhere(nodes: int):
    settings = replace(CASES["suffix"][1], nodes=nodes, pipeline_parallel=nodes)
    scripts = [pod["containers"][0]["command"][3] for pod in pods(kubernetes("vllm", settings))]
    assert len(scripts) == nodes
    assert all("pip install --quiet --no-deps arctic-inference==0.1.1" in script for script in scripts)
    assert "arctic" not in str(kubernetes("vllm", replace(settings, method="ngram")))
    assert "build an image (FROM vllm/vllm-openai:v0.32.0, RUN" in manifest("compose", "vllm", settings)


@pytest.mark.parametrize("has_it", [True, False])
def test_an_image_that_has_the_package_installs_nothing(has_it: bool, tmp_path: Path):
    """The shell for real, with programs that only say what they were asked."""
    said = _fake_programs(tmp_path, "vllm")
    (tmp_path / "python3").write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {int(not has_it)}\necho "$@" >> {said}\n')
    (tmp_path / "python3").chmod(0o755)
    _run(server(*CASES["suffix"])["command"], tmp_path)
    lines = said.read_text().splitlines()
    assert any(line.startswith("-m pip install") for line in lines) is not has_it
    assert lines[-1].startswith(f"vllm serve /models/{BIG} --host 0.0.0.0")


def _fake_programs(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/said\n')
        (folder / name).chmod(0o755)
    return folder / "said"


def _run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20)


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineSettings:
    """A target and a draft of the same name, in the home of the user who exports."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("big/model", "small/model"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(b"0" * 1000)
    return EngineSettings(str(tmp_path / "big/model"), "draft_model", draft=str(tmp_path / "small/model"), port=8000)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_depends_on_the_machine_that_exports(form: str, folders: EngineSettings, tmp_path: Path):
    assert str(tmp_path) not in manifest(form, "vllm", folders)
    with pytest.raises(UsageError, match=r"--engine-args has .*, which is only on this machine"):
        manifest(form, "vllm", replace(folders, extra=("--chat-template", str(tmp_path / "big"))))


def test_ray_of_this_machine_is_not_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _fake_programs(tmp_path, "vllm", "ray")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert str(tmp_path) not in manifest("kubernetes", *CASES["two machines"])


def test_models_of_the_same_name_are_in_different_places(folders: EngineSettings):
    words = server("vllm", folders)["command"]
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert (words[2], config["model"]) == ("/models/model", "/models/draft-model")


def test_a_models_folder_is_a_variable_in_compose(folders: EngineSettings):
    (volume,) = compose("vllm", folders)["services"]["server"]["volumes"]
    assert volume["source"] == "${MODELS:?folder that has model and draft-model}"
    assert (volume["target"], volume["read_only"], volume["bind"]) == ("/models", True, {"create_host_path": False})
    assert "export MODELS=FOLDER, the folder that has model, draft-model" in manifest("compose", "vllm", folders)
    services = compose(*CASES["one machine"])["services"]
    assert services["server"]["volumes"] == ["${MODELS:-models}:/models:ro"]  # of the hub: a volume, or a folder
    assert services["models"]["volumes"] == ["${MODELS:-models}:/models"]
    assert services["server"]["depends_on"]["models"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize("case", CASES)
def test_the_claim_is_filled_before_the_server_reads_it(case: str):
    for pod in pods(kubernetes(*CASES[case])):
        (fill,), (container,) = pod["initContainers"], pod["containers"]
        mounts = {m["mountPath"]: m.get("readOnly", False) for m in fill["volumeMounts"]}
        assert mounts == {"/models": False, "/tmp": False}
        (reads,) = (m for m in container["volumeMounts"] if m["mountPath"] == "/models")
        assert reads["readOnly"] is True


def _fill(settings: EngineSettings, folder: Path, engine: str = "vllm") -> subprocess.CompletedProcess[str]:
    """Runs the init container's script on a folder instead of /models, with a hub that writes down what it is asked."""
    hub = "def snapshot_download(repo, **kw):\n    open(kw['local_dir'] + '.asked', 'a').write(repo + repr(kw))\n"
    (folder / "huggingface_hub.py").write_text(hub)
    _fake_programs(folder, "pip")
    (folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec python3 "$@"\n')
    (folder / "python").chmod(0o755)
    (folder / "models/org").mkdir(parents=True, exist_ok=True)
    command = pods(kubernetes(engine, settings))[0]["initContainers"][0]["command"]
    return _run([word.replace("/models", f"{folder}/models") for word in command], folder)


def test_models_of_the_hub_are_downloaded_once(tmp_path: Path):
    settings = EngineSettings("org/a-8B@v2", "draft_model", draft="org/b-1B")
    for _ in range(2):
        done = _fill(settings, tmp_path)
        assert done.returncode == 0, done.stderr
    asked = (tmp_path / "models/org/a-8B.asked").read_text()
    assert asked.count("org/a-8B{") == 1 and "'revision': 'v2'" in asked and "'*/*'" in asked
    assert (tmp_path / "models/org/b-1B.complete").exists()


def test_all_parts_of_a_gguf_are_downloaded(tmp_path: Path):
    settings = EngineSettings("org/m:m-70B-Q4_K_M-00001-of-00003.gguf")
    (tmp_path / "models/org/m").mkdir(parents=True)
    assert _fill(settings, tmp_path, "llama-server").returncode == 0
    assert "'allow_patterns': 'm-70B-Q4_K_M-*-of-00003.gguf'" in (tmp_path / "models/org/m.asked").read_text()
    words = server("llama-server", settings)["command"]
    assert words[words.index("--model") + 1] == "/models/org/m/m-70B-Q4_K_M-00001-of-00003.gguf"


def test_a_failed_download_is_not_taken_for_a_model(tmp_path: Path):
    (tmp_path / "false").symlink_to("/bin/false")
    settings = EngineSettings("org/a-8B")
    command = pods(kubernetes("vllm", settings))[0]["initContainers"][0]["command"]
    (tmp_path / "pip").symlink_to("/bin/false")
    (tmp_path / "models/org").mkdir(parents=True)
    done = _run([word.replace("/models", f"{tmp_path}/models") for word in command], tmp_path)
    assert done.returncode != 0 and not (tmp_path / "models/org/a-8B.complete").exists()


def test_a_local_model_is_copied_by_the_command_at_the_top(folders: EngineSettings, tmp_path: Path):
    """The command for real, with a kubectl that runs what it is told on this machine."""
    text = manifest("kubernetes", "vllm", folders)
    (line,) = re.findall(r"Copy model from the folder that has it: (.*)", text)
    assert "kubectl exec -i deployment/vllm-model -c models -- sh -c" in line
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "kubectl").write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    (tmp_path / "kubectl").chmod(0o755)
    here = f"cd {tmp_path}/big && {line.replace('/models', str(inside))}"
    assert _run(["sh", "-c", here], tmp_path).returncode == 0
    assert (inside / "model/model.safetensors").stat().st_size == 1000
    assert (inside / "model.complete").exists()
    script = pods(kubernetes("vllm", folders))[0]["initContainers"][0]["command"][3]
    assert "until [ -e /models/model.complete ]" in script and "until [ -e /models/draft-model.complete ]" in script


# -- who can connect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ON_ONE)
def test_compose_publishes_on_this_machine_only_or_wants_a_key(case: str):
    engine, settings = CASES[case]
    (published,) = compose(engine, replace(settings, host="127.0.0.1"))["services"]["server"]["ports"]
    assert published == f"127.0.0.1:{settings.port}:{settings.port}"
    file = compose(engine, replace(settings, host="0.0.0.0"))
    assert file["services"]["server"]["ports"] == [f"0.0.0.0:{settings.port}:{settings.port}"]
    required = json.dumps([file["services"]["server"]["environment"], file.get("secrets")])
    assert re.search(r"\$\{(VLLM_API_KEY|LLAMA_API_KEY|KEYS):\?", required)


@pytest.mark.parametrize("case", ON_SEVERAL)
def test_compose_on_several_machines_listens_on_this_machine_only(case: str):
    engine, settings = CASES[case]
    words = compose(engine, settings)["services"]["head"]["entrypoint"]
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "VLLM_API_KEY" in compose(engine, replace(settings, host="0.0.0.0"))["services"]["head"]["environment"]


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_always_wants_a_key_from_a_secret(case: str):
    documents = kubernetes(*CASES[case])
    assert by_kind(documents, "Secret") == []
    assert {s["spec"].get("type", "ClusterIP") for s in by_kind(documents, "Service")} == {"ClusterIP"}
    pod = pods(documents)[0]
    container, name = pod["containers"][0], f"{documents[1]['metadata']['name']}-keys"
    references = {e["name"]: e.get("valueFrom", {}).get("secretKeyRef", {}) for e in container["env"]}
    variables = {variable for variable, reference in references.items() if reference.get("name") == name}
    files = [v["secret"] for v in pod["volumes"] if "secret" in v]
    assert variables & {"VLLM_API_KEY", "LLAMA_API_KEY"} or files[0]["secretName"] == name
    assert f"kubectl create secret generic {name} --from-" in manifest("kubernetes", *CASES[case])


def test_sglang_reads_its_key_from_a_file():
    container = server(*CASES["sglang"])
    assert container["command"][container["command"].index("--config") + 1] == "/run/keys/secrets.yml"
    assert {"name": "keys", "mountPath": "/run/keys", "readOnly": True} in container["volumeMounts"]
    file = compose(*CASES["sglang for others"])
    assert file["secrets"] == {"secrets.yml": {"file": "${KEYS:?folder with secrets.yml}/secrets.yml"}}
    assert file["services"]["server"]["secrets"] == [{"source": "secrets.yml", "target": "/run/keys/secrets.yml"}]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ["plain", "sglang", "llama-server", "two machines"])
def test_no_key_is_written(form: str, case: str):
    engine, settings = CASES[case]
    assert "s3cr3t" not in manifest(form, engine, replace(settings, secrets={"--api-key": "s3cr3t"}))


# -- GPUs, probes, memory, rights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_pods_go_to_nodes_with_gpus(case: str):
    _, settings = CASES[case]
    for pod in pods(kubernetes(*CASES[case])):
        assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        gpus = settings.tensor_parallel * settings.pipeline_parallel // settings.nodes
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": str(gpus)}


@pytest.mark.parametrize("case", CASES)
def test_probes_ask_for_health(case: str):
    container = server(*CASES[case])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}


def test_a_large_model_has_the_time_to_start():
    def window_s(model: str, method: str = "none") -> int:
        probe = server("vllm", EngineSettings(model, method))["startupProbe"]
        return probe["failureThreshold"] * probe["periodSeconds"]

    assert 900 <= window_s("org/x-1B") < 1000
    assert window_s("org/x-405B") > 810e9 / 250e6  # at 250 MB/s
    assert window_s("org/x-1B", "suffix") > 900 + 1200  # arctic-inference is compiled
    (deployment,) = by_kind(kubernetes("vllm", EngineSettings("org/x-405B")), "Deployment")
    assert deployment["spec"]["progressDeadlineSeconds"] > 810e9 / 50e6  # the download


@pytest.mark.parametrize(("gpus", "gib"), [(1, 8), (8, 32)])
def test_shared_memory_grows_with_the_gpus(gpus: int, gib: int):
    settings = replace(CASES["plain"][1], tensor_parallel=gpus)
    (pod,) = pods(kubernetes("vllm", settings))
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{gib}Gi"}}
    assert shm in pod["volumes"] and {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]
    assert compose("vllm", settings)["services"]["server"]["shm_size"] == f"{gib}gb"


@pytest.mark.parametrize("case", CASES)
def test_containers_have_few_rights(case: str):
    engine, _ = CASES[case]
    for pod in pods(kubernetes(*CASES[case])):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"] + pod["initContainers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
            assert context.get("runAsNonRoot", False) is (engine != "sglang" or container["name"] == "models")
    for service in compose(*CASES[case])["services"].values():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]


# -- several machines -------------------------------------------------------------------------------------------------


def test_several_machines_have_a_head_and_workers_apart():
    documents = kubernetes(*CASES["two machines"])
    head, workers = by_kind(documents, "StatefulSet")
    assert (head["spec"]["replicas"], workers["spec"]["replicas"]) == (1, 1)
    (claim,) = by_kind(documents, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for workload in (head, workers):
        pod = workload["spec"]["template"]["spec"]
        assert pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        environment = {entry["name"] for entry in pod["containers"][0]["env"]}
        assert {"RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "VLLM_HOST_IP", "NCCL_SOCKET_IFNAME"} <= environment
    pod = workers["spec"]["template"]["spec"]
    assert "snapshot_download" not in pod["initContainers"][0]["command"][3]  # the head downloads
    address = f"{head['metadata']['name']}-0.{head['spec']['serviceName']}"
    assert f"ray start --address={address}:6379 --block" in pod["containers"][0]["command"][-1]


def test_the_heads_command_runs_to_vllm(tmp_path: Path):
    """The shell for real, with programs that only say what they were asked."""
    said = _fake_programs(tmp_path, "ray", "vllm")
    assert _run(server(*CASES["two machines"])["command"], tmp_path).returncode == 0
    lines = said.read_text().splitlines()
    assert lines[1].startswith("ray start --head") and lines[2].startswith(f"vllm serve /models/{BIG} --host 0.0.0.0")


def test_a_worker_without_the_heads_address_says_so(tmp_path: Path):
    worker = compose(*CASES["two machines"])["services"]["worker"]
    said = _fake_programs(tmp_path, "ray")
    command = [word.replace("$$", "$") for word in worker["entrypoint"]]
    for missing in ({}, {"RAY_HEAD": ""}):
        failed = _run(command, tmp_path, **missing)
        assert failed.returncode != 0 and "RAY_HEAD: set it to the address of the first machine" in failed.stderr
    assert not said.exists()
    assert worker["environment"]["RAY_HEAD"] == "${RAY_HEAD:-}"  # compose would also want it on the first machine
    assert _run(command, tmp_path, RAY_HEAD="10.0.0.1").returncode == 0
    assert said.read_text() == "ray start --address=10.0.0.1:6379 --block\n"


def test_the_text_says_why_and_what_to_do():
    text = manifest("kubernetes", *CASES["two machines"])
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("drafts with eagle3; with more than 64 requests" in line for line in comments)
    assert any("--from-literal=RAY_AUTH_TOKEN=$(openssl" in line for line in comments)
    assert any("supports ReadWriteMany" in line for line in comments)


@pytest.mark.parametrize("form", FORMS)
def test_speculation_survives_the_quoting(form: str):
    text = manifest(form, *CASES["two machines"])
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


def test_compose_leaves_the_shells_dollars_alone():
    script = compose(*CASES["two machines"])["services"]["head"]["entrypoint"][3]
    assert 'exec "$$@"' in script and "$$RAY_ADDRESS" in script


def test_a_line_break_in_an_argument_stays_in_the_comment():
    settings = replace(CASES["plain"][1], extra=("--chat-template", "a\nextra: key"))
    assert "extra" not in kubernetes("vllm", settings)[0]
    assert server("vllm", settings)["command"].count("a\nextra: key") == 1
