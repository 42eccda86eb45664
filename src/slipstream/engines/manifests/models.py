"""ModelSource: a model of a manifest, where it comes from, and the shell commands that put it under /models."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

MODELS = "/models"  # inside every container
FETCH_IMAGE = "python:3.12-slim"
FETCH_USER = 1000
_FIRST_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")
# Second copies of the weights, and pickles, which can run code.
_IGNORED = json.dumps(["*/*", "consolidated*", "*.bin", "*.pt", "*.pth", "*.gguf"])
_FETCH = f"""import sys
from huggingface_hub import snapshot_download
repo, revision, folder, wanted = sys.argv[1:]
snapshot_download(repo, revision=revision or None, local_dir=folder, allow_patterns=wanted or None,
                  ignore_patterns=None if wanted else {_IGNORED})
"""
_INSTALL_HUB = "pip install --quiet --no-cache-dir --target /tmp/hub huggingface_hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """`repo` None: a file or folder that the operator copies. `file`: the GGUF file in a repository."""

    folder: str  # under /models; of a model that is copied, its own name
    num_bytes: int | None  # None: unknown
    repo: str | None = None
    revision: str | None = None
    file: str | None = None

    @property
    def path(self) -> str:
        """Inside the containers."""
        return f"{MODELS}/{self.folder}" + (f"/{self.file}" if self.file else "")

    @property
    def name(self) -> str:
        """In the API."""
        return self.repo or self.folder

    @property
    def files(self) -> str:
        """A pattern for what to copy under /models: with all parts, if a GGUF file is split."""
        return _all_parts(self.folder)

    @property
    def done(self) -> str:
        """This file says that the model is complete."""
        return f"{self.path}.complete"

    def wait(self) -> str:
        """Waits until the model is there."""
        text = shlex.quote(f"waiting for {self.path} (see the top of the manifest)")
        return f"until [ -e {shlex.quote(self.done)} ]; do echo {text}; sleep 10; done"

    def fill(self) -> str:
        """Downloads the model if it is not there; waits for a model that is copied."""
        if self.repo is None:
            return self.wait()
        wanted = _all_parts(self.file) if self.file else ""
        words = ("python", "-c", _FETCH, self.repo, self.revision or "", f"{MODELS}/{self.folder}", wanted)
        done = shlex.quote(self.done)
        steps = (_INSTALL_HUB, f"PYTHONPATH=/tmp/hub {shlex.join(words)}", f"touch {done}")
        return "\n".join((f"if [ ! -e {done} ]; then", *steps, "fi"))


def _all_parts(file: str) -> str:
    return _FIRST_PART.sub(r"-*-of-\1.gguf", file)
