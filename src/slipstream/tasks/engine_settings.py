"""Settings of another engine, from the options of a task: the names of its models, and how it drafts.

`drafter` and `policy` mean there what they mean here: a way to draft (the engine's own name for it, or that of a
Slipstream drafter that does about the same), and `fixed(N)` for the draft length.
"""

from __future__ import annotations

import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path

from slipstream.engines import find_folder
from slipstream.engines.driver import ExternalEngine, check_settings, method_like
from slipstream.engines.engine_types import PLAIN, EngineSettings, Method
from slipstream.engines.facts import EngineFacts
from slipstream.engines.secrets import take_secrets
from slipstream.errors import UsageError
from slipstream.models.files import expand_home
from slipstream.models.sources.builtin import BUILTIN_NAMES
from slipstream.models.sources.spec import OLLAMA_PREFIX, locate
from slipstream.tasks.options import EngineChoice, ModelOptions

log = logging.getLogger("slipstream")
_DRAFTER = re.compile(r"(?P<name>[\w.,+-]+)(\((?P<options>[^()]*)\))?")
_P_MIN = re.compile(r"p_min=([0-9.]+)")
_FIXED = re.compile(r"fixed\((\d+)\)")


def engine_settings(choice: EngineChoice, models: ModelOptions, *, fetch: bool = True) -> EngineSettings:
    """Settings of the engine with models as it is given them. `fetch=False` leaves models where they are."""
    engine = choice.find()
    secrets, extra = take_secrets(_words(choice.engine_args), engine.secret_flags)
    if choice.key and "--api-key" in engine.secret_flags:
        secrets.setdefault("--api-key", choice.key)
    settings = EngineSettings(
        model=as_given(choice.name, models.name, fetch),
        context=choice.context,
        streams=choice.streams,
        host=choice.host,
        port=choice.port or engine.default_port,
        tensor_parallel=choice.tensor_parallel,
        pipeline_parallel=choice.pipeline_parallel,
        nodes=choice.nodes,
        program=_absolute(choice.program),
        version=engine.installed_version(choice.program) if fetch else None,
        extra=extra,
        secrets=secrets,
        start_limit_s=choice.start_limit,
    )
    drafter = models.drafter or ("model" if models.draft else _default_drafter(engine))
    if drafter == PLAIN:
        return settings
    draft = as_given(choice.name, models.draft, fetch) if models.draft else None
    if draft and method_like(engine, drafter).draft == "unused":
        raise UsageError(f"{engine.name} {drafter} drafts without a model: remove --draft")
    return with_method(engine, replace(settings, draft_streams=choice.draft_streams), drafter, models.policy, draft)


def _words(engine_args: str) -> list[str]:
    """Keys may be among them: an error does not repeat them."""
    try:
        return shlex.split(engine_args)
    except ValueError as error:
        raise UsageError(f"--engine-args can't be read as on a command line: {error}") from error


def _absolute(program: str | None) -> str | None:
    """A path stays right in another working folder; a name is looked up on PATH."""
    return str(expand_home(program).absolute()) if program and Path(program).name != program else program


def _default_drafter(engine: ExternalEngine) -> str:
    """Without a draft model. Plain decoding, with a warning, if the engine lacks what its kind drafts with."""
    if any(engine.default_drafter in (method.name, *method.like) for method in engine.methods):
        return engine.default_drafter
    known = ", ".join(f"{method.name}{' with --draft' * (method.draft == 'required')}" for method in engine.methods)
    lacks = f"{engine.name} does not have {engine.default_drafter}"
    log.warning("%s: using plain decoding. Its methods for --drafter: %s", lacks, known)
    return PLAIN


def with_method(
    engine: ExternalEngine, settings: EngineSettings, drafter: str, policy: str | None, draft: str | None
) -> EngineSettings:
    """The settings with a way to draft. Raises UsageError for one that the engine does not have or can't have so."""
    match = _DRAFTER.fullmatch(drafter)
    if match is None:
        raise UsageError(f"--drafter {drafter!r} for an engine; expected a name, or a name with (p_min=0.5)")
    method = method_like(engine, match["name"])
    chosen = replace(
        settings,
        method=method.name,
        draft=None if method.draft == "unused" else draft,
        draft_length=_length(policy),
        p_min=None if method.takes_options else _p_min(match["options"] or "", drafter, method),
        options=(match["options"] or "") if method.takes_options else "",
    )
    check_settings(engine, chosen)
    return chosen


def _p_min(options: str, drafter: str, method: Method) -> float | None:
    """Leaves out options of Slipstream's own drafters that the engine does not have, with a warning."""
    found = _P_MIN.fullmatch(options)
    if found and method.takes_p_min:
        return float(found[1])
    if options and drafter.startswith(f"{method.name}("):
        taken = "(p_min=0.5)" if method.takes_p_min else "none"
        raise UsageError(f"options {options!r} of {method.name}; expected {taken}")
    if options:
        log.warning("%s does not have the options of %s: they are ignored", method.name, drafter)
    return None


def _length(policy: str | None) -> int | None:
    if policy in (None, "auto"):
        return None
    match = _FIXED.fullmatch(policy or "")
    if match is None:
        raise UsageError(f"--policy {policy!r} for an engine; expected auto (the engine's own length) or fixed(N)")
    if match[1] == "0":
        raise UsageError("--policy 'fixed(0)' for an engine; expected 1 or more, or --drafter none for plain decoding")
    return int(match[1])


def as_given(engine: str, spec: str, fetch: bool = True) -> str:
    """The model's name for the engine: a file or folder on this disk, or a name that the engine looks up itself.

    Raises UsageError for weights that the engine can't read.
    """
    facts = find_folder(engine).facts
    if spec.startswith(OLLAMA_PREFIX) and facts.name == "ollama":  # a name of its own store
        return spec.removeprefix(OLLAMA_PREFIX)
    on_disk = expand_home(spec)
    is_ours = spec in BUILTIN_NAMES or spec.startswith(OLLAMA_PREFIX)
    if is_ours and facts.has_our_names:  # a file of the built-in model would have no head
        return spec
    if is_ours or (fetch and (on_disk.exists() or spec.endswith(".gguf") or not facts.finds_models)):
        name = str(locate(spec).path.absolute())  # not resolved: the hub's cache links names to blobs without a suffix
    else:
        name = str(on_disk.absolute()) if on_disk.exists() else spec
    _check_weights(facts, spec, name)
    return name


def _check_weights(facts: EngineFacts, spec: str, name: str) -> None:
    if (name.endswith(".gguf") or Path(name).is_file()) and facts.weights == "folder" and not facts.also_gguf:
        how = f"write one with: slipstream convert {spec} FOLDER"
        raise UsageError(f"{facts.name} needs a folder of safetensors; {spec} is not one: {how}")
    if Path(name).is_dir() and facts.weights == "gguf":
        raise UsageError(f"{facts.name} needs a GGUF file; {spec} is not one: pass the path of one")
