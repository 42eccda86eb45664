"""The models of a manifest: where containers get them, and how large they are.

A size comes from the files on this disk, else from the hub cache, else from the model's name: `405B` at 16 bits per
weight, or at what the name says (`FP8`, `AWQ`, `Q4_K_M`). Nothing is downloaded.
"""

from __future__ import annotations

import re
from pathlib import Path

from slipstream.catalogue.families import member_named
from slipstream.engines import find_folder
from slipstream.engines.engine_types import EngineSettings
from slipstream.engines.manifests import ManifestModels
from slipstream.engines.manifests.models import MODELS, ModelSource
from slipstream.errors import ModelError, UsageError
from slipstream.model_files.model_facts import describe
from slipstream.model_files.weights_gguf import parts
from slipstream.models.sources.spec import HUB_SPEC, OLLAMA_PREFIX, looks_like_path

_BEFORE, _AFTER = r"(?<![a-z0-9.])", r"(?![a-z0-9])"
_PARAMETERS = re.compile(rf"{_BEFORE}(?:(\d+)x)?(\d+(?:\.\d+)?)([bm]){_AFTER}", re.I)  # 405B, 8x7B, 135M
_EXPERTS = re.compile(rf"{_BEFORE}\d+e{_AFTER}", re.I)  # 17B-16E: the first number is not that of all weights
_BITS = (  # the first that is found
    (re.compile(r"(?<![a-z0-9])i?q([2-8])_", re.I), None),
    (re.compile(r"fp8|int8|w8a|8bit|8-bit", re.I), 8),
    (re.compile(r"awq|gptq|int4|w4a|4bit|4-bit|fp4", re.I), 4),
)
_EXTRA_BITS = 1  # scales, and tensors that are not quantised


def manifest_models(engine: str, settings: EngineSettings, weights_gb: float | None = None) -> ManifestModels:
    """`weights_gb`: the size of all together, for models whose size is unknown. Raises UsageError."""
    if weights_gb is not None and weights_gb <= 0:
        raise UsageError(f"--weights-gb is {weights_gb:g}; expected more than 0")
    _check_paths(settings.extra)
    sources: dict[str, ModelSource] = {}
    for spec in filter(None, (settings.model, settings.draft)):
        taken = {source.path for key, source in sources.items() if key != spec}
        sources[spec] = model_source(engine, spec, taken)
    sizes = [source.num_bytes for source in sources.values()]
    known = None if None in sizes else sum(size or 0 for size in sizes)
    return ManifestModels(sources, int(weights_gb * 1e9) if weights_gb else known)


def _check_paths(words: tuple[str, ...]) -> None:
    """Raises UsageError for a path in the user's home, which containers don't have."""
    for word in words:
        path = Path(word.partition("=")[2] or word)
        if path.is_relative_to(Path.home()) and path.exists():
            raise UsageError(
                f"--engine-args has {path}, which is only on this machine: copy it to the models, and pass "
                f"{MODELS}/{path.name}"
            )


def model_source(engine: str, spec: str, taken: set[str]) -> ModelSource:
    """A model of the hub, or one that the operator copies. `taken` are paths of other models."""
    hub = None if Path(spec).exists() or looks_like_path(spec) else HUB_SPEC.fullmatch(spec)
    if spec.startswith(OLLAMA_PREFIX):
        raise UsageError(f"{spec} is in Ollama's store on this machine; pass a .gguf file or a hub id for a manifest")
    if hub is None:
        source = ModelSource(Path(spec).name, _bytes_of(Path(spec)))
    elif find_folder(engine).facts.weights == "gguf" and not hub["file"]:
        raise UsageError(f"{engine} needs a GGUF file; name one in the repository: {spec}:FILE.gguf")
    else:
        source = ModelSource(hub["repo"], _hub_bytes(spec), hub["repo"], hub["revision"], hub["file"])
    if source.path not in taken:
        return source
    return ModelSource(f"draft-{source.folder}", source.num_bytes, source.repo, source.revision, source.file)


def _bytes_of(path: Path) -> int | None:
    """All files of a folder, or all parts of a GGUF file; what the name says if nothing is there."""
    files = path.rglob("*") if path.is_dir() else parts(path)
    size = sum(file.stat().st_size for file in files if file.is_file())
    return size or named_bytes(path.name)


def _hub_bytes(spec: str) -> int | None:
    """The largest of what the cache has, which may be incomplete, what the config says, and what the name says."""
    try:
        facts = describe(spec)
    except ModelError:
        return named_bytes(spec)
    by_config = 2 * (facts.num_parameters or 0) if facts.quantisation in (None, "none") else 0
    return max(facts.weight_bytes or 0, by_config, named_bytes(spec) or 0) or None


def named_bytes(name: str) -> int | None:
    """The size of the weights according to a model's name; None if it does not say."""
    member = member_named(name)
    if member:
        return int(member.params_b * 2e9)
    found = _PARAMETERS.findall(name)
    if not found or _EXPERTS.search(name):
        return None
    units = {"b": 1e9, "m": 1e6}
    parameters = max(int(experts or 1) * float(number) * units[unit.lower()] for experts, number, unit in found)
    return int(parameters * _bits(name) / 8)


def _bits(name: str) -> float:
    for pattern, bits in _BITS:
        if match := pattern.search(name):
            return (bits or int(match[1])) + _EXTRA_BITS
    return 16
