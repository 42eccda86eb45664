"""A replacement for the llama-server binary: llama.cpp's own HTTP server from the xllamacpp wheel, in the foreground.

    python -m slipstream.engines.llama_server.xllamacpp_server -m model.gguf --port 8080 …

Accepts the flags of llama-server that the wheel supports, and refuses the others: ignoring a flag silently could turn
speculation off.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.engines.llama_server.flags import FLAGS
from slipstream.errors import MissingDependencyError, SlipstreamError, UsageError
from slipstream.extras import install_command


@dataclass(frozen=True, slots=True)
class _Target:
    """The attributes of CommonParams that a flag sets, and how to parse its value."""

    path: str
    read: Callable[[str], Any] = str


def _layers(text: str) -> int:
    return {"auto": -1, "all": 999}.get(text) or int(text)


def _list_of(text: str) -> list[str]:
    return text.split(",")


def _lines_of_file(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError as error:
        raise UsageError(f"can't read --api-key-file {path}: {error.strerror}") from error


def _cache_type(text: str) -> Any:
    from xllamacpp import ggml_type

    return getattr(ggml_type, f"GGML_TYPE_{text.upper()}")


def _attention(text: str) -> Any:
    from xllamacpp import llama_flash_attn_type as kinds

    if text == "auto":
        return kinds.LLAMA_FLASH_ATTN_TYPE_AUTO
    is_on = text in ("on", "1", "true", "enabled")
    return kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if is_on else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED


def _spec_types(text: str) -> list[Any]:
    from xllamacpp import common_speculative_type as kinds

    return [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}") for name in text.split(",")]


_DRAFT = "speculative.draft"
_VALUES = {
    "--model": _Target("model.path"),
    "--host": _Target("hostnames", _list_of),
    "--port": _Target("port", int),
    "--api-key": _Target("api_keys", _list_of),
    "--api-key-file": _Target("api_keys", _lines_of_file),
    "--hf-token": _Target("hf_token"),
    "--alias": _Target("model_alias", lambda text: set(text.split(","))),
    "--ctx-size": _Target("n_ctx", int),
    "--parallel": _Target("n_parallel", int),
    "--batch-size": _Target("n_batch", int),
    "--ubatch-size": _Target("n_ubatch", int),
    "--gpu-layers": _Target("n_gpu_layers", _layers),
    "--threads": _Target("cpuparams.n_threads", int),
    "--threads-batch": _Target("cpuparams_batch.n_threads", int),
    "--cache-type-k": _Target("cache_type_k", _cache_type),
    "--cache-type-v": _Target("cache_type_v", _cache_type),
    "--flash-attn": _Target("flash_attn_type", _attention),
    "--verbosity": _Target("verbosity", int),
    "--spec-type": _Target("speculative.types", _spec_types),
    "--spec-draft-model": _Target(f"{_DRAFT}.mparams.path"),
    "--spec-draft-n-max": _Target(f"{_DRAFT}.n_max", int),
    "--spec-draft-n-min": _Target(f"{_DRAFT}.n_min", int),
    "--spec-draft-p-min": _Target(f"{_DRAFT}.p_min", float),
    "--spec-draft-p-split": _Target(f"{_DRAFT}.p_split", float),
    "--spec-draft-ngl": _Target(f"{_DRAFT}.n_gpu_layers", _layers),
    "--spec-draft-threads": _Target(f"{_DRAFT}.cpuparams.n_threads", int),
    "--spec-draft-threads-batch": _Target(f"{_DRAFT}.cpuparams_batch.n_threads", int),
    "--spec-draft-type-k": _Target(f"{_DRAFT}.cache_type_k", _cache_type),
    "--spec-draft-type-v": _Target(f"{_DRAFT}.cache_type_v", _cache_type),
    "--spec-ngram-mod-n-match": _Target("speculative.ngram_mod.n_match", int),
    "--spec-ngram-mod-n-min": _Target("speculative.ngram_mod.n_min", int),
    "--spec-ngram-mod-n-max": _Target("speculative.ngram_mod.n_max", int),
    **{
        f"--spec-{kind}-{name}": _Target(f"speculative.{kind.replace('-', '_')}.{name.replace('-', '_')}", int)
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
        for name in ("size-n", "size-m", "min-hits")
    },
}
_SWITCHES = {
    "--metrics": ("endpoint_metrics", True),
    "--slots": ("endpoint_slots", True),
    "--no-slots": ("endpoint_slots", False),
    "--no-warmup": ("warmup", False),
    "--warmup": ("warmup", True),
    "--jinja": ("use_jinja", True),
    "--no-jinja": ("use_jinja", False),
    "--kv-unified": ("kv_unified", True),
    "--no-kv-unified": ("kv_unified", False),
    "--no-cache-prompt": ("cache_prompt", False),
    "--offline": ("offline", True),
}


def read_arguments(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Attributes of CommonParams and their values. Raises UsageError for a flag that the wheel does not support."""
    remaining = iter(words)
    for word in remaining:
        flag = FLAGS.flag(word)
        name = flag.name if flag else word
        if name in _SWITCHES:
            yield _SWITCHES[name]
        elif name in _VALUES:
            text = next(remaining, None)
            if text is None:
                raise UsageError(f"{word} needs a value")
            target = _VALUES[name]
            try:
                yield target.path, target.read(text)
            except (ValueError, AttributeError):
                raise UsageError(f"{word} is {text!r}, which is not valid for llama-server") from None
        else:
            raise UsageError(f"xllamacpp does not support {word}: install llama.cpp's own llama-server to use it")


def _secrets_of_environment() -> list[str]:
    """Secrets from environment variables, as llama-server reads them, so that they are not on the command line."""
    variables = {"--api-key": "LLAMA_API_KEY", "--hf-token": "HF_TOKEN"}
    return [word for flag, name in variables.items() if (value := os.environ.get(name)) for word in (flag, value)]


def serve(words: list[str]) -> None:
    """Loads the model, listens, and runs until a signal stops the process."""
    settings = list(read_arguments([*_secrets_of_environment(), *words]))
    try:
        import xllamacpp
    except ImportError as error:
        raise MissingDependencyError(
            f"xllamacpp is not installed ({error}). Run: {install_command('llama-server')}"
        ) from error
    params = xllamacpp.CommonParams()
    for path, value in settings:
        *owners, name = path.split(".")
        holder: Any = params
        for owner in owners:
            holder = getattr(holder, owner)
        setattr(holder, name, value)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise SlipstreamError(f"llama.cpp's server did not start: {error}") from error
    print(f"main: server is listening on {server.listening_address}", flush=True)
    signal.pause()


def main() -> None:
    try:
        serve(sys.argv[1:])
    except SlipstreamError as error:
        print(f"error: {error}", flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
