"""transformers: Python scripts whose `generate` drafts with a smaller model, read, not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from slipstream.catalogue.named_models import different_names
from slipstream.findings import Finding
from slipstream.parsing.config_checks import NO_EFFECT, SPECULATION_OFF, shorten
from slipstream.parsing.configuration import NOT_MINE, STARTED, FileConfiguration
from slipstream.parsing.python_script import python_tree

_USES_IT = re.compile(r"(?m)^\s*(?:from|import)\s+transformers\b")
_DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")
_TOKENIZERS = ("tokenizer", "assistant_tokenizer")


def lint_script(text: str) -> list[Finding]:
    tree = python_tree(text)
    if isinstance(tree, Finding):
        return [tree]
    names = dict(_named(tree))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [finding for call in calls for finding in _check_call(call, names)]


def _named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The variables that models are assigned to, and the models' names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not node.value.args:
            continue
        name = node.value.args[0]
        if ast.unparse(node.value.func).endswith(".from_pretrained") and isinstance(name, ast.Constant):
            yield from ((ast.unparse(target), str(name.value)) for target in node.targets)


def _check_call(call: ast.Call, names: dict[str, str]) -> Iterator[Finding]:
    given = {word.arg: word.value for word in call.keywords if word.arg and not _is_none(word.value)}
    if not any(name in given for name in _DRAFTS):
        return
    evidence = f"line {call.lineno}: {shorten(ast.unparse(call))}"
    beams = given.get("num_beams")
    if isinstance(beams, ast.Constant) and isinstance(beams.value, int) and beams.value > 1:
        why, fix = "generate() does not draft with beam search: it warns, and goes on without", "Set num_beams=1"
        yield SPECULATION_OFF.finding(evidence, engine="transformers", why=why, fix=fix)
    with_both = all(name in given for name in _TOKENIZERS)
    if "assistant_model" in given and not with_both:
        target = ast.unparse(call.func).rpartition(".")[0]
        yield from different_names(names.get(target), names.get(ast.unparse(given["assistant_model"])))
    elif "assistant_model" not in given and "assistant_tokenizer" in given:
        why = "there is no assistant_model"
        yield NO_EFFECT.finding(evidence, name="assistant_tokenizer", why=why, fix="Add assistant_model=")


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _likeness(text: str, file_name: str) -> float:
    """Scripts of other engines import transformers too, for its tokenizers."""
    return STARTED if _USES_IT.search(text) and any(f"{name}=" in text for name in _DRAFTS) else NOT_MINE


CONFIGURATION = FileConfiguration(lint_script, _likeness)
