"""A case: damaged files in a folder, and the commands that have to cope with them. Decided by seed and number alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from file_damage import sound
from file_damage.gguf_damage import damage_gguf
from file_damage.safetensors_damage import INDEX, damage_folder
from file_damage.special_files import ODD_NAMES, SPECIAL
from file_damage.text_damage import damage_json, damage_log, damage_script, damage_yaml

KINDS = ("gguf", "safetensors", "json", "yaml", "log", "special")
# The share of each kind. Weights have the most ways to be wrong.
_TURNS = ("gguf", "json", "log", "gguf", "safetensors", "yaml", "gguf", "log", "safetensors", "gguf",
          "json", "special", "gguf", "safetensors", "log", "gguf", "json", "yaml", "safetensors", "gguf")  # fmt: skip
_JSON_FILES = (
    ("config.json",) * 4 + ("tokenizer.json",) * 2 + ("tokenizer_config.json", "generation_config.json", INDEX)
)
_PROMPT = "a b"


@dataclass(frozen=True)
class Command:
    """`role` is doctor, generate or extra: only the first two have to agree."""

    role: str
    arguments: tuple[str, ...]


@dataclass
class Case:
    number: int
    kind: str
    folder: Path
    what: str = ""
    commands: list[Command] = field(default_factory=list)


@dataclass(frozen=True)
class SoundModels:
    """Written once for each run: what a damaged model is paired with."""

    gguf: Path
    folder: Path

    @staticmethod
    def write(root: Path) -> SoundModels:
        root.mkdir(parents=True, exist_ok=True)
        models = SoundModels(root / "sound.gguf", root / "sound")
        models.gguf.write_bytes(sound.sound_gguf(0).to_bytes())
        sound.sound_folder().write(models.folder)
        return models


def kind_of(number: int) -> str:
    return _TURNS[number % len(_TURNS)]


def numbers(count: int, kinds: tuple[str, ...]) -> list[int]:
    """The first `count` case numbers of these kinds."""
    wanted = [turn for turn in range(len(_TURNS)) if _TURNS[turn] in kinds]
    return [i // len(wanted) * len(_TURNS) + wanted[i % len(wanted)] for i in range(count)] if wanted else []


def make_case(number: int, seed: int, root: Path, models: SoundModels) -> Case:
    """Writes the files of a case to a new folder."""
    case = Case(number, kind_of(number), root / f"{number:05}-{kind_of(number)}")
    case.folder.mkdir(parents=True)
    _MAKERS[case.kind](case, random.Random(f"{seed}:{number}"), models)
    return case


def sound_cases(root: Path, models: SoundModels) -> list[Case]:
    """Nothing is damaged here: each command has to accept these, and their cost is what a command costs by itself."""
    cases = [Case(-1 - i, kind, root) for i, kind in enumerate(("gguf", "safetensors"))]
    for case, model in zip(cases, (models.gguf, models.folder), strict=True):
        case.what = "not damaged"
        case.commands = [_doctor("--target", model, "--draft", model), _generate("--model", model, "--draft", model)]
        case.commands += [Command("extra", ("show", str(model))), Command("extra", ("plan", "--target", str(model)))]
    return cases


# -- commands ---------------------------------------------------------------------------------------------------------


def _doctor(*arguments: str | Path, as_json: bool = True) -> Command:
    return Command("doctor", ("doctor", *(("--json",) if as_json else ()), *map(str, arguments)))


def _generate(*arguments: str | Path, role: str = "generate") -> Command:
    return Command(role, ("generate", "--threads", "1", "--max-tokens", "2", *map(str, arguments), _PROMPT))


def _examine_model(case: Case, rng: random.Random, model: Path, partner: Path) -> None:
    """As the target, or as the draft of a sound target; the doctor and generate get the same models."""
    as_json, names = rng.random() < 0.7, ("--target", model)
    given: tuple[str | Path, ...] = ("--model", model)
    if rng.random() < 0.25:
        names, given = ("--target", partner, "--draft", model), ("--model", partner, "--draft", model)  # type: ignore[assignment]
    case.commands += [_doctor(*names, as_json=as_json), _generate(*given)]
    if rng.random() < 0.2 and case.kind == "gguf":
        case.commands.append(_generate("--backend", "torch", *given, role="extra"))
    if rng.random() < 0.3:
        other = ("show", str(model)) if rng.random() < 0.5 else ("plan", "--target", str(model))
        case.commands.append(Command("extra", other))


# -- kinds ------------------------------------------------------------------------------------------------------------


def _gguf(case: Case, rng: random.Random, models: SoundModels) -> None:
    kind = rng.randrange(len(sound.GGUF_KINDS))
    content, case.what = damage_gguf(sound.sound_gguf(kind), rng)
    name = "model-00001-of-00002.gguf" if rng.random() < 0.03 else "model.gguf"
    (case.folder / name).write_bytes(content)
    case.what = f"{sound.GGUF_KINDS[kind][0]}: {case.what}"
    _examine_model(case, rng, case.folder / name, models.gguf)


def _safetensors(case: Case, rng: random.Random, models: SoundModels) -> None:
    folder = sound.sound_folder()
    case.what = damage_folder(folder, rng)
    folder.write(case.folder / "model")
    _examine_model(case, rng, case.folder / "model", models.folder)


def _json(case: Case, rng: random.Random, models: SoundModels) -> None:
    if rng.random() < 0.6:
        folder, name = sound.sound_folder(), rng.choice(_JSON_FILES)
        folder.raw[name], what = damage_json(folder.jsons[name], rng)
        case.what = f"{name}: {what}"
        folder.write(case.folder / "model")
        _examine_model(case, rng, case.folder / "model", models.folder)
    else:
        engine, name, tree = rng.choice([each for each in sound.CONFIGS if each[1].endswith(".json")])
        _write_config(case, rng, engine, name, damage_json(tree, rng))


def _yaml(case: Case, rng: random.Random, models: SoundModels) -> None:
    draw = rng.random()
    if draw < 0.5:
        engine, name, tree = rng.choice([each for each in sound.CONFIGS if not each[1].endswith(".json")])
        _write_config(case, rng, engine, name, damage_yaml(tree, rng))
    elif draw < 0.85:
        engine, name, text = rng.choice(sound.SCRIPTS)
        _write_config(case, rng, engine, name, damage_script(text, rng))
    else:
        content, case.what = damage_yaml(sound.SETTINGS, rng)
        (case.folder / "slipstream.yaml").write_bytes(content)
        case.what = f"slipstream.yaml: {case.what}"
        case.commands.append(Command("extra", ("export", rng.choice(("vllm", "llama-server", "tabbyapi")))))


def _write_config(case: Case, rng: random.Random, engine: str, name: str, damaged: tuple[bytes, str]) -> None:
    content, what = damaged
    (case.folder / name).write_bytes(content)
    case.what = f"{engine} {name}: {what}"
    if rng.random() < 0.1:
        engine = "slipstream"
    case.commands.append(_doctor("--engine", engine, "--config", case.folder / name, as_json=rng.random() < 0.6))


def _log(case: Case, rng: random.Random, models: SoundModels) -> None:
    engine, text = rng.choice(sound.logs())
    content, case.what = damage_log(text, rng)
    (case.folder / "engine.log").write_bytes(content)
    case.what = f"log of {engine}: {case.what}"
    known = ("--engine", engine) if engine in sound.ENGINES and rng.random() < 0.8 else ()
    case.commands.append(_doctor(*known, "--log", case.folder / "engine.log", as_json=rng.random() < 0.6))


# -- special files ----------------------------------------------------------------------------------------------------


def _special(case: Case, rng: random.Random, models: SoundModels) -> None:
    draw = rng.random()
    if draw < 0.2:
        _odd_name(case, rng, models)
    elif draw < 0.45:
        _special_text(case, rng)
    else:
        _special_model(case, rng, models)


def _odd_name(case: Case, rng: random.Random, models: SoundModels) -> None:
    name = rng.choice(ODD_NAMES)
    case.what = f"a sound model named {name!a}"
    if rng.random() < 0.5:
        path = case.folder / f"{name}.gguf"
        path.parent.mkdir(exist_ok=True)  # some names have a slash: to a terminal the path looks like markup
        path.write_bytes(models.gguf.read_bytes())
        _examine_model(case, rng, path, models.gguf)
    else:
        sound.sound_folder().write(case.folder / name)
        _examine_model(case, rng, case.folder / name, models.folder)


def _special_text(case: Case, rng: random.Random) -> None:
    what, option = rng.choice(list(SPECIAL)), rng.choice(("--config", "--log"))
    path = case.folder / rng.choice(("config.yml", "serve.sh", "engine.log", "x.json"))
    SPECIAL[what](path)
    case.what = f"{option}: {what}"
    case.commands.append(_doctor("--engine", rng.choice(sound.ENGINES), option, path, as_json=rng.random() < 0.6))


def _special_model(case: Case, rng: random.Random, models: SoundModels) -> None:
    what = rng.choice(list(SPECIAL))
    shard = next(iter(sound.sound_folder().shards))
    name = rng.choice(("model.gguf", "model.gguf", "the folder", shard, shard, "config.json", "tokenizer.json", INDEX))
    if name in ("model.gguf", "the folder"):
        path = case.folder / ("model.gguf" if name == "model.gguf" else "model")
        SPECIAL[what](path)
        partner = models.gguf if name == "model.gguf" else models.folder
    else:
        path, partner = case.folder / "model", models.folder
        sound.sound_folder().write(path)
        (path / name).unlink()
        SPECIAL[what](path / name)
    case.what = f"{what} in place of {name}"
    _examine_model(case, rng, path, partner)


_MAKERS: dict[str, Callable[[Case, random.Random, SoundModels], Any]] = {
    "gguf": _gguf, "safetensors": _safetensors, "json": _json, "yaml": _yaml, "log": _log, "special": _special,
}  # fmt: skip
