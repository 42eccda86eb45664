"""Before anything is loaded: whether a model's files can be used, and whether it fits in memory.

The doctor says the same in advance.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.backends import AUTO, BACKENDS, choose_backend
from slipstream.errors import CapacityError, ModelError, UnsupportedModelError, UsageError
from slipstream.findings import Finding, blocks, refuse, rule
from slipstream.host import IGNORE_MEMORY, ignores_memory
from slipstream.model_files.local_models import local_place
from slipstream.model_files.model_facts import describe
from slipstream.model_files.weight_files import without_advice
from slipstream.model_files.weights import check_files, finding_of
from slipstream.models.sources.builtin import BUILTIN_NAMES
from slipstream.models.sources.spec import locate
from slipstream.predict.memory import MemoryRoom, Need
from slipstream.predict.own_memory import own_engine
from slipstream.predict.placement import check, plan
from slipstream.predict.sizes import KvType, Sizes

if TYPE_CHECKING:
    from slipstream.backends import BackendOptions
    from slipstream.models.text.tokenizer import Tokenizer

log = logging.getLogger("slipstream")
_KV_TYPES: dict[str, KvType] = {"q8_0": "q8", "q4_0": "q4"}  # llama.cpp's names

UNSUPPORTED = rule(
    "weights-unsupported",
    "blocks",
    "Slipstream can't run this model",
    "The files are sound, but the model has an architecture, a value or a tensor that Slipstream's own backends can't "
    "run; other engines may.",
    "Use another engine (--engine vllm, llama-server, …), a GGUF file with the llama.cpp backend (--backend llamacpp), "
    "or another model.",
)
CHAT_TEMPLATE = rule(
    "weights-chat-template",
    "blocks",
    "The chat template of a model is missing or can't be used",
    "A chat template turns messages into the text that the model was trained on. Without one, a model can continue "
    "text (--raw), but not answer messages: `slipstream chat`, and `generate` without --raw, refuse.",
    "A base model has none: use --raw, or the model's instruct variant. For others, download the tokenizer again: hf "
    "download ORG/NAME --include 'tokenizer*' 'chat_template*' --local-dir FOLDER. A GGUF file has to be downloaded or "
    "converted again.",
)


def check_model(spec: str | Path, backend: str = AUTO, *, answers: bool = False) -> list[Finding]:
    """What stands in the way of loading a model that is on this disk. `load_model` refuses with the same words.

    Reads headers, the vocabulary and samples of the weights. Bad files raise nothing. `answers`: it is the one that
    gets the messages, so its chat template is tried too.
    """
    try:
        path = local_place(spec).path
        found = _check_named(path)
        if not blocks(found):
            opened = BACKENDS[choose_backend(path, backend).backend].open(path)
            found += _check_template(opened.tokenizer) if answers else []
        return found
    except UnsupportedModelError as error:
        return [UNSUPPORTED.finding(without_advice(error))]
    except ModelError as error:
        return [finding_of(error)]


def _check_template(tokenizer: Tokenizer) -> list[Finding]:
    """Renders one plain message, as generating does. A model without a template is no fault of its files."""
    if tokenizer.chat_template is None:
        return [CHAT_TEMPLATE.finding("the model has no chat template", "note")]
    try:
        tokenizer.chat_ids([{"role": "user", "content": "Hello"}])
    except UsageError as error:
        return [CHAT_TEMPLATE.finding(without_advice(error))]
    return []


@dataclass(frozen=True, slots=True)
class ModelToLoad:
    """A model by its spec, and the backend's options; None: the backend that suits it."""

    spec: str | Path
    options: BackendOptions | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.spec, str | Path):
            kind = type(self.spec).__name__
            raise UsageError(f"got a {kind} as model; expected a spec, a path or a LoadedModel (see load_model)")
        if self.options is not None and not hasattr(self.options, "backend"):
            kind = type(self.options).__name__
            raise UsageError(f"options is a {kind}; expected TorchOptions or LlamaCppOptions, or none")

    @property
    def backend(self) -> str:
        return self.options.backend if self.options else choose_backend(self.spec).backend


def refuse_too_large(target: ModelToLoad, draft: ModelToLoad | None = None) -> None:
    """Raises CapacityError, with the doctor's finding, for models that do not fit in memory. Reads headers only.

    A file that can't be read passes: loading it says what is wrong with it.
    """
    try:
        sizes, helper = _sizes(target), _sizes(draft) if draft else None
    except ModelError:
        return
    room = BACKENDS[target.backend].room(target.options)
    asked = target.options.context_length if target.options else None
    context = min(asked, sizes.context_length or asked) if asked else None
    kv = _KV_TYPES.get(getattr(target.options, "kv_type", ""), "f16")
    engine = own_engine(
        target.backend, room.weight_bytes, keeps_codes=room.keeps_codes, offloads=bool(room.gpus and room.main)
    )
    made = plan(sizes, helper, Need.of(sizes, context, kv), MemoryRoom(room.gpus, room.main), engine)
    for finding in check(made) if made.is_refused else ():
        message = f"{finding.id}: {finding.evidence}. {finding.cause} {finding.fix}"
        if not ignores_memory():
            raise CapacityError(f"{message} To load it all the same, set {IGNORE_MEMORY}=1.")
        log.warning("loaded all the same: %s", message)


def _sizes(model: ModelToLoad) -> Sizes:
    return Sizes.of(describe(locate(model.spec).path))


def _check_named(path: Path) -> list[Finding]:
    """A single safetensors file stands for its folder."""
    is_file = path.suffix == ".safetensors" and path.is_file()
    return check_files(path) or (check_files(path.parent) if is_file else [])


def refuse_damaged(spec: str | Path) -> None:
    """Raises BlockedError with what is wrong with the files. Built-in ones pass: their hash was checked."""
    if str(spec) in BUILTIN_NAMES:
        return
    is_file = str(spec).endswith(".safetensors")
    refuse(_check_named((local_place(spec) if is_file else locate(spec)).path))
