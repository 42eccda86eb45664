"""A Layout as Kubernetes objects: a Deployment on one machine, a head and workers as StatefulSets on several."""

from __future__ import annotations

from typing import Any

from slipstream.engines.manifests_layout import HUB_CACHE, MODELS, SHM_BYTES, Layout
from slipstream.engines.vllm.driver import RAY_ENV, RAY_PORT

Object = dict[str, Any]

CACHE_SIZE = "200Gi"
CPUS_EACH_GPU, MEMORY_EACH_GPU = 4, 24  # cores and GiB of main memory: loading needs them; an assumption
START_LIMIT_S = 3600  # the first start downloads the weights
PERIOD_S = 10


def kubernetes_documents(layout: Layout) -> list[Object]:
    """The objects in the order in which they are needed."""
    claims = [_claim(layout, "cache", "ReadWriteMany" if layout.nodes > 1 else "ReadWriteOnce")]
    if layout.mounts:
        claims.append(_claim(layout, "models", "ReadOnlyMany"))
    if layout.nodes == 1:
        return [*claims, _service(layout, layout.name), _deployment(layout)]
    head, workers = f"{layout.name}-head", f"{layout.name}-worker"
    return [
        *claims,
        _service(layout, head),
        _headless(layout, head, publish=True),
        _headless(layout, workers, publish=False),
        _stateful_set(layout, head, 1, layout.head_command),
        _stateful_set(layout, workers, layout.nodes - 1, layout.worker_command(f"{head}-0.{head}-peers")),
    ]


def _labels(layout: Layout, role: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": layout.name, "app.kubernetes.io/component": role}


def _object(kind: str, api: str, name: str, layout: Layout, spec: Object) -> Object:
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": layout.name}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _claim(layout: Layout, what: str, access: str) -> Object:
    spec = {"accessModes": [access], "resources": {"requests": {"storage": CACHE_SIZE}}}
    return _object("PersistentVolumeClaim", "v1", f"{layout.name}-{what}", layout, spec)


def _service(layout: Layout, role: str) -> Object:
    spec = {
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
        "strategy": {"type": "Recreate"},  # a second copy would wait for GPUs that the first one holds
        "selector": {"matchLabels": _labels(layout, layout.name)},
        "template": _pod(layout, layout.name, layout.command, serves=True),
    }
    return _object("Deployment", "apps/v1", layout.name, layout, spec)


def _stateful_set(layout: Layout, role: str, replicas: int, command: tuple[str, ...]) -> Object:
    pod = _pod(layout, role, command, serves=role.endswith("-head"))
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


def _pod(layout: Layout, role: str, command: tuple[str, ...], *, serves: bool) -> Object:
    resources = {"cpu": str(CPUS_EACH_GPU * layout.gpus_each), "memory": f"{MEMORY_EACH_GPU * layout.gpus_each}Gi"}
    container: Object = {
        "name": "vllm",
        "image": layout.image,
        "command": list(command),
        "env": _environment(layout),
        "resources": {"requests": resources, "limits": {"nvidia.com/gpu": str(layout.gpus_each)}},
        "volumeMounts": _mounts(layout),
    }
    if serves:
        container |= {"ports": [{"name": "http", "containerPort": layout.port}], **_probes()}
    return {
        "metadata": {"labels": _labels(layout, role)},
        "spec": {
            "enableServiceLinks": False,  # they would set variables that begin with VLLM_, which vLLM reads as its own
            "terminationGracePeriodSeconds": 60,
            "containers": [container],
            "volumes": _volumes(layout),
        },
    }


def _probes() -> Object:
    asked = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PERIOD_S, "timeoutSeconds": 5}
    return {
        "startupProbe": asked | {"failureThreshold": START_LIMIT_S // PERIOD_S},
        "readinessProbe": asked | {"failureThreshold": 3},
        "livenessProbe": asked | {"failureThreshold": 6},
    }


def _environment(layout: Layout) -> list[Object]:
    hub = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    entries: list[Object] = [{"name": "HF_TOKEN", "valueFrom": hub}]
    entries += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": layout.secret_name, "key": name}}}
        for name in layout.secrets
    ]
    if layout.nodes == 1:
        return entries
    token = {"secretKeyRef": {"name": f"{layout.name}-ray", "key": "token"}}
    plain = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", **RAY_ENV}
    return [
        *entries,
        {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
        {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *({"name": name, "value": value} for name, value in plain.items()),
    ]


def _mounts(layout: Layout) -> list[Object]:
    mounts: list[Object] = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": HUB_CACHE}]
    return mounts + ([{"name": "models", "mountPath": MODELS, "readOnly": True}] if layout.mounts else [])


def _volumes(layout: Layout) -> list[Object]:
    names = ["cache", *(["models"] if layout.mounts else [])]
    claimed = [{"name": name, "persistentVolumeClaim": {"claimName": f"{layout.name}-{name}"}} for name in names]
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_BYTES >> 30}Gi"}}, *claimed]
