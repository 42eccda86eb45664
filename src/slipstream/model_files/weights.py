"""Checks that the weights of a model are complete and valid, in any format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slipstream.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.findings import Finding, blocks, refuse, rule
from slipstream.model_files.head_checks import check_head
from slipstream.model_files.local_models import local_place
from slipstream.model_files.nonfinite import sampled_safetensors
from slipstream.model_files.weight_files import MISSING, NOT_HERE, from_error, plain_file_problem, without_advice
from slipstream.model_files.weights_gguf import check_gguf, parts
from slipstream.model_files.weights_safetensors import FileReport, check_file, check_index
from slipstream.models.draft_heads.kinds import kind_in_folder
from slipstream.models.files import damage_in, read_config
from slipstream.models.hf.checkpoint import INDEX, PICKLES, SINGLE
from slipstream.models.hf.config import check_sizes
from slipstream.models.hf.safetensors_file import read_file_header

MAX_LISTED = 3  # pieces of evidence in one finding
NOT_WEIGHTS = re.compile(r"training_args\.bin|optimizer.*|scheduler.*|rng_state.*|adapter_model\..*")

PICKLED = rule(
    "weights-pickle",
    "blocks",
    "The weights are pickled (.bin, .pt)",
    "Loading a pickle can run code, so Slipstream, ExLlama and llama.cpp don't read it. vLLM and transformers do, "
    "with restrictions of their own.",
    'Convert it once: python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\" and copy the tokenizer's files there.",
)
CONFIG = rule(
    "weights-config",
    "blocks",
    "The configuration of a model is missing, can't be read, or has impossible values",
    "The configuration (config.json, or the metadata of a GGUF file) says what the tensors are: layers, heads, "
    "vocabulary. Without it no engine can use them.",
    "Copy config.json of the same model into the folder: hf download ORG/NAME config.json --local-dir FOLDER. A GGUF "
    "file has to be downloaded or converted again.",
)
TOKENIZER = rule(
    "weights-tokenizer",
    "blocks",
    "The tokenizer of a model is missing or damaged",
    "Without its tokenizer a model can read no text and write none.",
    "Copy the tokenizer's files of the same model into the folder: hf download ORG/NAME --include 'tokenizer*' "
    "--local-dir FOLDER. A GGUF file has to be downloaded or converted again.",
)
NO_INDEX = rule(
    "weights-no-index",
    "blocks",
    "The folder has several safetensors files and no index",
    "The index says which files belong to the model. Without it, engines load all of them or refuse the folder.",
    "Copy {index} of the same model into the folder, and move files of other models away.",
)
INCOMPLETE = rule(
    "weights-incomplete",
    "blocks",
    "Required tensors are missing or have the wrong shape",
    "The files are complete, but do not match the model's configuration: files of two models are mixed, or one was "
    "edited.",
    "Download configuration and weights together again: hf download ORG/NAME",
)


# By the part of a model that could not be read (`ModelError.part`).
_PARTS = {"config": CONFIG, "tensors": INCOMPLETE, "tokenizer": TOKENIZER}


def check_weights(spec: str | Path) -> list[Finding]:
    """The problems of a model's files, for any engine; empty if there are none. Never raises for bad files."""
    try:
        path = local_place(spec).path
    except ModelNotFoundError as error:
        return [finding_of(error)]
    found = check_files(path)
    return found if blocks(found) else found + _check_as_model(path)


def check_files(path: Path) -> list[Finding]:
    """The problems of a folder or file in itself: what a download or a copy can do to it. Reads headers and samples of
    the weights. Never raises. Loading a model refuses with these findings too.
    """
    try:
        with damage_in(path):
            return _once(_check_path(path))
    except ModelError as error:
        return [finding_of(error)]


def refuse_incomplete(path: Path) -> None:
    """Raises BlockedError for files that are not whole. Pickled weights may be, though not every engine reads them."""
    refuse(finding for finding in check_files(path) if finding.id != PICKLED.id)


def finding_of(error: ModelError) -> Finding:
    """The finding for a model that could not be opened."""
    known = _PARTS.get(error.part)
    if isinstance(error, ModelNotFoundError) and known is None:
        return NOT_HERE.finding(str(error))
    found = from_error(error)
    return known.finding(found.evidence) if known else found


def _check_path(path: Path) -> list[Finding]:
    if path.is_dir() and not path.name.endswith((".gguf", ".safetensors")):
        return _check_folder(path)
    if path.suffix == ".safetensors":
        return check_file(path).findings or _sampled(path, [path])
    return check_gguf(path)


def _once(findings: list[Finding]) -> list[Finding]:
    """One finding for each problem, also if many files or tensors have it."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.id, finding.cause, finding.fix), []).append(finding)
    return [replace(same[0], evidence=_listed([f.evidence for f in same])) for same in alike.values()]


def _listed(evidence: list[str]) -> str:
    more = f"; and {len(evidence) - MAX_LISTED} more" if len(evidence) > MAX_LISTED else ""
    return "; ".join(evidence[:MAX_LISTED]) + more


def _check_folder(folder: Path) -> list[Finding]:
    if kind_in_folder(folder):
        return check_head(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not (folder / INDEX).exists():
        return _check_other_folder(folder)
    report = _safetensors_report(folder, weights)
    return [*_check_config(folder), *report.findings] or _sampled(folder, report.files)


def _sampled(path: Path, files: list[Path]) -> list[Finding]:
    try:
        tensors = {name: tensor for file in files for name, tensor in read_file_header(file).items()}
    except ModelError:  # a type of the format that the reader does not know
        return []
    return sampled_safetensors(path, tensors)


def _safetensors_report(folder: Path, weights: list[Path]) -> FileReport:
    """Selects files like the reader does: the single file, the index, the only file."""
    if (folder / SINGLE) in weights:
        return check_file(folder / SINGLE)
    if (folder / INDEX).exists():
        return check_index(folder / INDEX)
    if len(weights) > 1:
        names = ", ".join(path.name for path in weights[:3])
        return FileReport({}, [NO_INDEX.finding(f"{folder} has {len(weights)} files ({names}, …)", index=INDEX)])
    return check_file(weights[0])


def _check_other_folder(folder: Path) -> list[Finding]:
    """A folder without safetensors: one GGUF model, pickled weights, or no weights."""
    ggufs = [path for path in sorted(folder.glob("*.gguf")) if path == parts(path)[0]]
    if len(ggufs) == 1:
        return check_gguf(ggufs[0])
    if ggufs:
        names = ", ".join(path.name for path in ggufs[:5])
        meaning, fix = (
            ("the folder has several GGUF files, so it does not name one model."),
            f"Pass the path of one: {ggufs[0]}",
        )
        return [MISSING.finding(f"{folder} has {len(ggufs)} GGUF files: {names}", meaning=meaning, fix=fix)]
    pickles = [p for pattern in PICKLES for p in sorted(folder.glob(pattern)) if not NOT_WEIGHTS.fullmatch(p.name)]
    if not pickles:
        meaning = "the folder has no safetensors, GGUF or pickled weights."
        fix = "Download them (hf download ORG/NAME --local-dir FOLDER), or pass another path."
        return [MISSING.finding(_contents(folder), meaning=meaning, fix=fix)]
    problems = (plain_file_problem(path) for path in pickles)
    pickled = PICKLED.finding(f"{folder} has only pickled weights: {pickles[0].name}", folder=folder)
    return [pickled, *_check_config(folder), *(problem for problem in problems if problem)]


def _contents(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f"{folder} has {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else f"{folder} is empty"


def _check_config(folder: Path) -> Iterator[Finding]:
    path = folder / "config.json"
    if not path.exists():
        yield CONFIG.finding(f"{folder} has no config.json")
        return
    try:
        check_sizes(read_config(path), path)
    except ModelError as error:
        yield CONFIG.finding(without_advice(error))


def _check_as_model(path: Path) -> list[Finding]:
    """Opens valid files as a model, to find missing tensors. Unsupported architectures can't be checked this way, nor
    can a single file of a folder.
    """
    from slipstream.models.gguf.checkpoint import open_gguf
    from slipstream.models.hf.checkpoint import open_folder

    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    if path.suffix == ".safetensors" or len(ggufs) > 1:
        return []
    path = ggufs[0] if ggufs else path
    try:
        (open_folder if path.is_dir() else open_gguf)(path, path.name)
    except UnsupportedModelError:
        return []
    except ModelError as error:
        return [finding_of(error)]
    return []
