"""Checks that the weights of a model are complete and valid, in any format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.errors import DamagedModelError, ModelError, ModelNotFoundError, UnsupportedModelError
from slipstream.findings import Finding, rule
from slipstream.model_files.head_checks import check_head
from slipstream.model_files.local_models import local_place
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.tensor_probe import load_one_tensor
from slipstream.model_files.weight_files import DAMAGED, MISSING, from_error, plain_file_problem
from slipstream.model_files.weights_gguf import check_gguf, parts
from slipstream.model_files.weights_safetensors import FileReport, check_file, check_index
from slipstream.models.files import read_json
from slipstream.models.head_kinds import kind_in_folder
from slipstream.models.safetensors import INDEX, PICKLES, SINGLE

__all__ = ["ModelFacts", "check_weights", "describe", "load_one_tensor"]

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
    "config.json is missing or can't be read",
    "config.json says what the tensors are (layers, heads, vocabulary); without it no engine can use them.",
    "Copy config.json of the same model into the folder: hf download ORG/NAME config.json --local-dir FOLDER",
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


def check_weights(spec: str | Path) -> list[Finding]:
    """The problems of a model's files; empty if there are none. Reads headers only. Never raises for bad files."""
    try:
        path = local_place(spec).path
        if path.is_dir() and not path.name.endswith((".gguf", ".safetensors")):
            return _check_folder(path)
        if path.suffix == ".safetensors":
            return check_file(path).findings
        return check_gguf(path) or _check_as_model(path)
    except ModelNotFoundError as error:
        return [MISSING.finding(str(error), meaning="the name or path does not exist.", fix="Check the name or path.")]
    except Exception as error:  # last resort: damaged files can make readers fail in unforeseen ways
        return [DAMAGED.finding(f"{spec}: reading it failed with {type(error).__name__}: {str(error)[:300]}")]


def _check_folder(folder: Path) -> list[Finding]:
    if kind_in_folder(folder):
        return check_head(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not (folder / INDEX).exists():
        return _check_other_folder(folder)
    findings = [*_check_config(folder), *_safetensors_report(folder, weights).findings]
    return findings or _check_as_model(folder)


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
        return [*_check_config(folder), MISSING.finding(_contents(folder), meaning=meaning, fix=fix)]
    problems = (plain_file_problem(path) for path in pickles)
    pickled = PICKLED.finding(f"{folder} has only pickled weights: {pickles[0].name}", folder=folder)
    return [pickled, *_check_config(folder), *(problem for problem in problems if problem)]


def _contents(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f"{folder} has {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else f"{folder} is empty"


def _check_config(folder: Path) -> Iterator[Finding]:
    path = folder / "config.json"
    if not path.is_file():
        yield CONFIG.finding(f"{folder} has no config.json" if not path.exists() else f"{path} is not a file")
        return
    try:
        read_json(path)
    except ModelError as error:
        yield CONFIG.finding(str(error))


def _check_as_model(path: Path) -> list[Finding]:
    """Opens valid files as a model, to find missing tensors. Unsupported architectures can't be checked this way."""
    from slipstream.models.gguf import open_gguf
    from slipstream.models.safetensors import open_folder

    try:
        (open_folder if path.is_dir() else open_gguf)(path, path.name)
    except UnsupportedModelError:
        return []
    except DamagedModelError as error:
        return [INCOMPLETE.finding(from_error(error).evidence)]
    except ModelNotFoundError as error:
        return [
            MISSING.finding(
                str(error), meaning="a file that belongs to the weights is missing.", fix="Copy it into the folder."
            )
        ]
    return []
