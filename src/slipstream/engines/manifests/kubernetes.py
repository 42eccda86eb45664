"""A Layout as Kubernetes objects: a Deployment on one machine, a head and workers as StatefulSets on several.

The models are in one volume claim. Before the server starts, an init container downloads them into it, or waits until
they were copied. Keys are in a Secret that the operator creates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.engines.manifests.layout import KEYS, Layout
from slipstream.engines.manifests.models import FETCH_IMAGE, FETCH_USER, MODELS, ModelSource
from slipstream.engines.vllm.driver import RAY_PORT

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
GPU_NODES = {"nvidia.com/gpu.present": "true"}  # the label that NVIDIA's GPU operator sets
CPUS_EACH_GPU, MEMORY_EACH_GPU = 4, 24  # cores and GiB of main memory: loading needs them; an assumption
PERIOD_S = 10
_CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def kubernetes_documents(layout: Layout) -> list[Object]:
    """The objects in the order in which they are needed. Raises UsageError if the size of the models is unknown."""
    claim = _claim(layout)
    if layout.nodes == 1:
        return [claim, _service(layout, layout.name), _deployment(layout)]
    head, workers = f"{layout.name}-head", f"{layout.name}-worker"
    joins = layout.worker_command(f"{head}-0.{head}-peers")
    return [
        claim,
        _service(layout, head),
        _headless(layout, head, publish=True),
        _headless(layout, workers, publish=False),
        _stateful_set(layout, head, 1, _serving_pod(layout, head)),
        _stateful_set(layout, workers, layout.nodes - 1, _pod(layout, workers, joins, ModelSource.wait)),
    ]


def kubernetes_hints(layout: Layout) -> list[str]:
    """What the operator has to do, in order."""
    hub = [model for model in layout.models if model.repo]
    lines = _secret_hints(layout)
    if hub:
        names = " and ".join(model.name for model in hub)
        lines.append(
            f"If {names} is gated: kubectl create secret generic hf-token --from-literal=token=TOKEN (it is "
            "downloaded into the claim before the first start)"
        )
    lines.append(
        f"Without NVIDIA's GPU operator, which labels the nodes: kubectl label node NODE {'='.join(*GPU_NODES.items())}"
    )
    if layout.nodes > 1:
        lines.append("Set storageClassName of the claim, unless the default class supports ReadWriteMany.")
    lines.append("kubectl apply -f THIS_FILE")
    workload = f"statefulset/{layout.name}-head" if layout.nodes > 1 else f"deployment/{layout.name}"
    for model in layout.models:
        if model.repo is None:
            inside = f"tar x -C {MODELS} && chmod -R a+rX {MODELS}/{model.files} && touch {model.done}"
            lines.append(
                f"Copy {model.folder} from the folder that has it: tar c {model.files} | kubectl exec -i {workload} "
                f"-c models -- sh -c '{inside}'"
            )
    return [*lines, f"To reach it: kubectl port-forward service/{layout.name} {layout.port}"]


def _secret_hints(layout: Layout) -> list[str]:
    values = [f"--from-literal={name}=$(openssl rand -hex 32)" for name in layout.secrets]
    values += [f"--from-file={name}" for name in layout.secret_files]
    files = [f'Write {name}, with mode 600 and the line api-key: "KEY".' for name in layout.secret_files]
    return [
        *files,
        f"Create the keys, which are not in this file: kubectl create secret generic {layout.secret_name} "
        + " ".join(values),
    ]


def _labels(layout: Layout, role: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": layout.name, "app.kubernetes.io/component": role}


def _object(kind: str, api: str, name: str, layout: Layout, spec: Object) -> Object:
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": layout.name}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _claim(layout: Layout) -> Object:
    spec = {
        "accessModes": ["ReadWriteMany" if layout.nodes > 1 else "ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{layout.claim_gib}Gi"}},
    }
    return _object("PersistentVolumeClaim", "v1", f"{layout.name}-models", layout, spec)


def _service(layout: Layout, role: str) -> Object:
    spec = {
        "type": "ClusterIP",
        "selector": _labels(layout, role),
        "ports": [{"name": "http", "port": layout.port, "targetPort": "http"}],
    }
    return _object("Service", "v1", layout.name, layout, spec)


def _headless(layout: Layout, role: str, *, publish: bool) -> Object:
    """Gives pods names of their own. The head is found before it is ready: workers have to join it first."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": publish,
        "selector": _labels(layout, role),
        "ports": [{"name": "ray", "port": RAY_PORT}],
    }
    return _object("Service", "v1", f"{role}-peers", layout, spec)


def _deployment(layout: Layout) -> Object:
    spec = {
        "replicas": 1,
        "progressDeadlineSeconds": layout.fill_s + layout.start_s,
        "strategy": {"type": "Recreate"},  # a second copy would wait for GPUs that the first one holds
        "selector": {"matchLabels": _labels(layout, layout.name)},
        "template": _serving_pod(layout, layout.name),
    }
    return _object("Deployment", "apps/v1", layout.name, layout, spec)


def _stateful_set(layout: Layout, role: str, replicas: int, pod: Object) -> Object:
    pod["spec"]["affinity"] = _apart(layout)
    spec = {
        "replicas": replicas,
        "serviceName": f"{role}-peers",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": _labels(layout, role)},
        "template": pod,
    }
    return _object("StatefulSet", "apps/v1", role, layout, spec)


def _apart(layout: Layout) -> Object:
    """No two pods of this server on one machine."""
    term = {
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": layout.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


# -- pods -------------------------------------------------------------------------------------------------------------


def _serving_pod(layout: Layout, role: str) -> Object:
    pod = _pod(layout, role, layout.command, ModelSource.fill)
    ports = [{"name": "http", "containerPort": layout.port}]
    pod["spec"]["containers"][0] |= {"ports": ports, **_probes(layout)}
    return pod


def _pod(layout: Layout, role: str, command: tuple[str, ...], step: Callable[[ModelSource], str]) -> Object:
    """`step` is what the init container does for each model."""
    return {
        "metadata": {"labels": _labels(layout, role)},
        "spec": {
            "enableServiceLinks": False,  # they would set variables that begin with VLLM_, which vLLM reads as its own
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 60,
            "nodeSelector": GPU_NODES,
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "securityContext": {
                "fsGroup": FETCH_USER,  # so that the init container can write to the claim
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_models_container(layout, step)],
            "containers": [_engine_container(layout, command)],
            "volumes": _volumes(layout),
        },
    }


def _models_container(layout: Layout, step: Callable[[ModelSource], str]) -> Object:
    token = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    user = {"runAsNonRoot": True, "runAsUser": FETCH_USER, "runAsGroup": FETCH_USER, "readOnlyRootFilesystem": True}
    return {
        "name": "models",
        "image": FETCH_IMAGE,
        "command": ["sh", "-e", "-c", "\n".join(step(model) for model in layout.models)],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_TOKEN", "valueFrom": token}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
        "securityContext": _CONFINED | user,
        "volumeMounts": [{"name": "models", "mountPath": MODELS}, {"name": "tmp", "mountPath": "/tmp"}],
    }


def _engine_container(layout: Layout, command: tuple[str, ...]) -> Object:
    user, group = layout.engine.user, layout.engine.group
    resources = {"cpu": str(CPUS_EACH_GPU * layout.gpus_each), "memory": f"{MEMORY_EACH_GPU * layout.gpus_each}Gi"}
    runs_as = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": group} if user else {}
    return {
        "name": "server",
        "image": layout.image,
        "command": list(command),
        "env": _environment(layout),
        "resources": {"requests": resources, "limits": {GPU: str(layout.gpus_each)}},
        "securityContext": _CONFINED | runs_as,
        "volumeMounts": _mounts(layout),
    }


def _probes(layout: Layout) -> Object:
    asked = {"httpGet": {"path": layout.health, "port": "http"}, "periodSeconds": PERIOD_S, "timeoutSeconds": 5}
    return {
        "startupProbe": asked | {"failureThreshold": -(-layout.start_s // PERIOD_S)},
        "readinessProbe": asked | {"failureThreshold": 3},
        "livenessProbe": asked | {"failureThreshold": 6},
    }


def _environment(layout: Layout) -> list[Object]:
    entries: list[Object] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": layout.secret_name, "key": name}}}
        for name in layout.secrets
    ]
    entries += [{"name": name, "value": value} for name, value in layout.all_env.items()]
    if layout.nodes > 1:
        entries.append({"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        entries += [{"name": name, "value": "eth0"} for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")]
    return entries


def _mounts(layout: Layout) -> list[Object]:
    mounts: list[Object] = [
        {"name": "models", "mountPath": MODELS, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    return mounts + ([{"name": "keys", "mountPath": KEYS, "readOnly": True}] if layout.secret_files else [])


def _volumes(layout: Layout) -> list[Object]:
    volumes: list[Object] = [
        {"name": "models", "persistentVolumeClaim": {"claimName": f"{layout.name}-models"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{layout.shm_gib}Gi"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    items = [{"key": name, "path": name} for name in layout.secret_files]
    keys = {"name": "keys", "secret": {"secretName": layout.secret_name, "items": items, "defaultMode": 0o440}}
    return volumes + ([keys] if items else [])
