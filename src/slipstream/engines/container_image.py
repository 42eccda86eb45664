"""EngineImage: what a manifest needs to know about an engine's container image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
