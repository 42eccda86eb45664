"""Checks of a draft head: its files, its id map, its weights, and whether it belongs to a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError
from slipstream.findings import Finding, rule
from slipstream.model_files.local_models import local_place
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.weight_files import MISSING, TRUNCATED
from slipstream.model_files.weights_safetensors import check_file
from slipstream.models.draft_heads.config import HeadConfig
from slipstream.models.draft_heads.files import (
    HeadCheckpoint,
    id_map_problem,
    nonfinite_tensor,
    read_head,
    target_problems,
)
from slipstream.models.draft_heads.kinds import kind_in_folder

ADVICE = re.compile(r"\s+((?:Use|Convert|Download|Copy|Expected)\b.*)", re.DOTALL)  # how the readers' errors end
AGAIN = "Download the head again, or train it again: slipstream train --target TARGET."
ANOTHER = "Use the head of this target, or make one: slipstream train --target TARGET."

UNSUPPORTED = rule(
    "head-unsupported",
    "blocks",
    "The draft head has a kind or an option that Slipstream can't run",
    "Slipstream runs EAGLE-3 heads of one layer, in safetensors: the original layout and that of speculators and vLLM.",
    "{fix}",
)
HEAD_TRUNCATED = rule(
    "head-truncated",
    "blocks",
    "The weights file of a draft head is truncated",
    "The file is shorter than its own header says: the download, the copy or the training was interrupted.",
    f"{AGAIN} Check that the disk is not full (`df -h`).",
)
INCOMPLETE = rule(
    "head-incomplete",
    "blocks",
    "Tensors of a draft head are missing, or do not fit its configuration",
    "config.json and the weights do not belong together: files of two heads are mixed, or one was edited.",
    AGAIN,
)
ID_MAP = rule(
    "head-id-map",
    "blocks",
    "The id map of a draft head is wrong",
    "A head has a small vocabulary of its own. With a wrong map its drafts are other tokens than it means, and almost "
    "none would be accepted.",
    AGAIN,
)
NAN = rule(
    "head-nan",
    "blocks",
    "Weights of a draft head are NaN or infinite",
    "All that such a head computes is NaN: the file is damaged, or its training failed.",
    AGAIN,
)
OTHER_TARGET = rule(
    "head-other-target",
    "blocks",
    "The draft head was made for another target",
    "A head reads the hidden states of the model that it was trained on. {made_for}",
    ANOTHER,
)
TARGET_NAME = rule(
    "head-target-name",
    "note",
    "The draft head names another target",
    "The sizes fit, so the head works and the text stays the same. On a model that it was not trained on (another "
    "version, a fine-tune) fewer drafts are accepted.",
    "If drafts are rarely accepted, use a head of this very model.",
)
CONTEXT = rule(
    "head-context",
    "slows",
    "The context is longer than the texts that the draft head was trained on",
    "Beyond the length of its training texts, fewer and fewer of a head's drafts are accepted. The answers stay the "
    "same.",
    "Use a head trained on longer texts, or a context of at most {trained} tokens. The drafter suffix has no such "
    "limit.",
)
NOT_A_TARGET = rule(
    "head-as-target",
    "blocks",
    "A draft head was given as the target",
    "A head is one layer that drafts for a whole model. It can't answer alone.",
    "Give the whole model as target, and the head as draft: --target {target} --draft {head} --drafter head",
)


def is_head(spec: str | Path) -> bool:
    """Whether a model on this disk is a draft head, of any kind."""
    try:
        path = local_place(spec).path
    except ModelError:
        return False
    return kind_in_folder(path.parent if path.suffix == ".safetensors" else path) is not None


def check_head(spec: str | Path, target_spec: str | Path | None = None, context: int | None = None) -> list[Finding]:
    """The problems of a head, alone and with its target; empty if there are none. Reads the head's weights, and of the
    target only headers. Raises nothing for bad files.
    """
    try:
        path = local_place(spec).path
    except ModelNotFoundError as error:
        return [MISSING.finding(str(error), meaning="the name or path does not exist.", fix="Check the name or path.")]
    folder = path.parent if path.suffix == ".safetensors" else path
    damaged = [finding for file in sorted(folder.glob("*.safetensors")) for finding in check_file(file).findings]
    if damaged:
        return [HEAD_TRUNCATED.finding(f.evidence) if f.id == TRUNCATED.id else f for f in damaged]
    try:
        head = read_head(folder, folder.name)
        found = list(_check_contents(head))
    except ModelError as error:
        return [_from_error(error)]
    if target_spec is not None:
        found += _check_target(head, target_spec)
    return found + list(check_context(head.config, folder.name, context))


def _check_contents(head: HeadCheckpoint) -> Iterator[Finding]:
    if problem := id_map_problem(head):
        yield ID_MAP.finding(f"{head.path}: {problem}")
    if name := nonfinite_tensor(head):
        yield NAN.finding(f"{head.path}: the tensor {name!r} has NaN or infinity")


def _from_error(error: ModelError) -> Finding:
    evidence, *advice = ADVICE.split(str(error), maxsplit=1)
    if isinstance(error, DamagedModelError):
        return INCOMPLETE.finding(evidence)
    fix = advice[0] if advice else ANOTHER
    if isinstance(error, ModelNotFoundError):
        return MISSING.finding(evidence, meaning="a file that belongs to the head is missing.", fix=fix)
    return UNSUPPORTED.finding(evidence, fix=fix)


def _check_target(head: HeadCheckpoint, target_spec: str | Path) -> list[Finding]:
    try:
        target = describe(target_spec)
    except ModelError:
        return []  # what is wrong with the target is found where the target is checked
    problems = target_problems(head.config, target)
    made_for = head.config.target
    if problems:
        cause = f"This one was made for {made_for}." if made_for else "This one does not fit this target."
        return [OTHER_TARGET.finding(f"{head.name} and {target.name}: {'; '.join(problems)}", made_for=cause)]
    if made_for and not _may_be_the_same(made_for, target, target_spec):
        return [TARGET_NAME.finding(f"{head.name} was made for {made_for}, the target is {target.name}")]
    return []


def _may_be_the_same(made_for: str, target: ModelFacts, spec: str | Path) -> bool:
    """Whether the words of one name are all in the other: quantised copies and short names have fewer or more."""
    wanted = _words(made_for)
    return any(wanted <= words or words <= wanted for words in (_words(target.name), _words(str(spec))))


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9.]+", name.rstrip("/").rpartition("/")[2].lower())) - {""}


def check_context(config: HeadConfig, name: str, context: int | None) -> Iterator[Finding]:
    """Heads that do not state the length of their training texts often have it as their largest position."""
    trained = config.trained_context or config.layer.context_length
    if context is None or context <= trained:
        return
    how = "was trained on texts of up to" if config.trained_context else "has positions for"
    yield CONTEXT.finding(f"{name} {how} {trained:,} tokens; the context is {context:,}", trained=trained)
