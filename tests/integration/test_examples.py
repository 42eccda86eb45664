"""Every script of examples/ runs and shows what it promises; the package in CONTRIBUTING.md works as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tokenizers
import torch

import slipstream
from contract import tiny_models

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# What the output must match. The built-in model always gives the same text; two_vocabularies has a test of its own.
EXPECTED = {
    "first_answer": r"Paris[\s\S]*<Generation '.*', \d+ tokens, \w+>",
    "streaming": r"\[[\s\S]*[1-9]\d* of \d+ drafted tokens accepted[\s\S]*left after 5 tokens: cancelled",
    "chat": r"\(0 of \d+ prompt tokens[\s\S]*\([1-9]\d* of \d+ prompt tokens[\s\S]*\([1-9]\d* of \d+ prompt tokens",
    "own_drafter": r"[1-9]\d* of \d+ drafted tokens accepted[\s\S]*same text: True",
    "own_policy": r"[1-9]\d* of \d+ drafted tokens accepted\nrounds that drafted .*: \[\d+, \d+",
    "benchmark": r"suffix: .* tokens/s, .*x, same text: True\n<BenchResult ",
    "doctor": r"(?m)^(works|no problems found)[\s\S]*do: ",
    "many_requests": r"ant: [\s\S]*\n\d+ tokens in [1-4]\d forward passes",
    "async_answers": r"What is a comet\? \w+[\s\S]*the story took too long, and was cancelled\n\w+",
}


def run(command: list[str], folder: Path, path: Path | None = None) -> str:
    """In a folder of its own; what it prints. Python looks for packages in `path` too."""
    entries = [str(ROOT / "src"), *([str(path)] if path else []), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, entries))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_every_example_has_a_test() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*EXPECTED, "two_vocabularies"])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_public_names_only(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 72
    imported = re.findall(r"^from slipstream import (.*)$", text, re.M)
    used = {name for line in imported for name in line.split(", ")} | set(re.findall(r"\bslipstream\.(\w+)", text))
    assert used <= set(slipstream.__all__)
    assert not re.search(r"^(from|import) slipstream\.", text, re.M)


@pytest.mark.real_model
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    output = run([sys.executable, str(EXAMPLES / f"{name}.py")], tmp_path)
    assert re.search(EXPECTED[name], output), output


@pytest.fixture(scope="module")
def two_vocabularies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model, and the same one with other ids for the same characters: a perfect draft, once translated."""
    model = tiny_models.make_model("llama2-mha")
    with torch.no_grad():
        model.get_output_embeddings().weight[97:] = 0  # ids without a text, which can't be translated
    target, draft = (tmp_path_factory.mktemp(name) for name in ("target", "draft"))
    tiny_models.save_folder(model, target)
    ids = torch.arange(model.config.vocab_size)
    ids[:96] = ids[:96].flip(0)  # the characters; the end token stays
    with torch.no_grad():
        for weight in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            weight.copy_(weight[ids].clone())
    tiny_models.save_folder(model, draft)
    settings = json.loads(tiny_models.character_tokenizer().to_str())
    settings["model"]["vocab"] = {character: 95 - i for character, i in settings["model"]["vocab"].items() if i < 96}
    tokenizers.Tokenizer.from_str(json.dumps(settings)).save(str(draft / "tokenizer.json"))
    return target, draft


def test_the_example_of_two_vocabularies(two_vocabularies: tuple[Path, Path], tmp_path: Path) -> None:
    output = run([sys.executable, str(EXAMPLES / "two_vocabularies.py"), *map(str, two_vocabularies)], tmp_path)
    ours, theirs = (json.loads(line) for line in output.splitlines()[:2])
    assert [95 - token for token in ours] == theirs
    accepted, drafted = map(int, re.search(r"(\d+) of (\d+) drafted tokens accepted", output).groups())
    assert accepted > 20 and accepted > 0.9 * drafted
    assert "same text: True" in output


@pytest.fixture
def contributed(tmp_path: Path) -> Path:
    """The package of CONTRIBUTING.md as pip would install it, in a folder."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    files = dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", page, re.S))
    project = tomllib.loads(files["pyproject.toml"])["project"]
    site = tmp_path / "site"
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (site / "slipstream_mine.py").write_text(files["slipstream_mine.py"])
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return site


@pytest.mark.real_model
def test_the_package_of_the_contributing_page(contributed: Path, tmp_path: Path) -> None:
    ask = [sys.executable, "-m", "slipstream", "generate", "--json", "--max-tokens", "32"]
    question = "Count from one to ten, then count again."
    drafted = json.loads(run([*ask, "--drafter", "mine", "--policy", "mine(6)", question], tmp_path, contributed))
    plain = json.loads(run([*ask, "--drafter", "none", question], tmp_path))
    assert (drafted["drafter"], drafted["policy"]["policy"], drafted["policy"]["budget"]) == ("mine", "mine", 6)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["stats"]["num_accepted"] > 0 and drafted["stats"]["policy_error"] is None
    assert drafted["stats"]["drafter_error"] is None
