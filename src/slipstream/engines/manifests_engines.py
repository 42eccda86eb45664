"""What a manifest needs to know about an engine's container image.

One entry for each engine; to be moved to the engine's own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.engines.engine import ExternalEngine
from slipstream.engines.engine_types import EngineSettings
from slipstream.errors import UsageError


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that the image does not have. `check` is a shell command that succeeds if it is installed."""

    pip: str
    check: str
    install_s: int  # an estimate
    pip_options: str = ""

    @property
    def install(self) -> str:
        return " ".join(("python3 -m pip install --quiet", *self.pip_options.split(), self.pip))

    @property
    def ensure(self) -> str:
        """A shell command that installs it if it is missing. A user other than root gets it in ~/.local."""
        return f"{self.check} > /dev/null 2>&1 || {self.install}"


@dataclass(frozen=True, slots=True)
class EngineImage:
    image: str  # {version} is that of the flags table
    program: str  # inside the image
    name_flag: str  # sets the model's name in the API
    user: int | None = None  # None: the image runs as root only
    group: int | None = None
    home: str | None = None  # of `user`
    packages: Mapping[str, Package] = field(default_factory=dict)  # by method
    ray: Package | None = None  # None: no manifests for several machines
    note: str = ""

    def named(self, version: str) -> str:
        """The image for a version as the flags table has it, for example `vLLM 0.32.0`."""
        return self.image.format(version=version.split()[-1])


# The version of arctic-inference is the one that vLLM 0.32.0 asks for. It is compiled when it is installed. Without
# --no-deps it could replace vLLM's torch. vLLM's image has no Ray since 0.19. Users: vLLM's docs name 2000:0 for its
# image; llama.cpp's server writes nothing; SGLang's image has caches under /root.
IMAGES = {
    "vllm": EngineImage(
        "vllm/vllm-openai:v{version}",
        "vllm",
        "--served-model-name",
        user=2000,
        group=0,
        home="/home/vllm",
        packages={
            "suffix": Package("arctic-inference==0.1.1", "python3 -c 'import arctic_inference'", 1800, "--no-deps")
        },
        ray=Package("ray==2.60.0", "command -v ray", 120),
    ),
    "sglang": EngineImage("lmsysorg/sglang:v{version}", "sglang", "--served-model-name"),
    "llama-server": EngineImage(
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "/app/llama-server",
        "--alias",
        user=1000,
        group=1000,
        home="/tmp",
        note="The tag server-cuda moves with llama.cpp. To stay at one build, pass --image "
        "ghcr.io/ggml-org/llama.cpp:server-cuda-bNUMBER.",
    ),
}


def image_of(engine: ExternalEngine, settings: EngineSettings) -> EngineImage:
    """Raises UsageError if there is no image for the engine, or none that can run these settings."""
    found = IMAGES.get(engine.name)
    if found is None:
        raise UsageError(
            f"manifests are only written for {', '.join(IMAGES)}; for {engine.name} use --format engine, and your own "
            "image"
        )
    if found.ray is None and settings.nodes * settings.pipeline_parallel > 1:
        raise UsageError(
            f"manifests for several machines or a pipeline are only written for vllm, not for {engine.name}: remove "
            "--nodes and --pipeline-parallel"
        )
    return found
