"""llama-cpp-python: Python scripts that make a `Llama` object, checked without running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from slipstream.findings import Finding, rule
from slipstream.parsing.config_checks import TYPE, shorten, unknown
from slipstream.parsing.configuration import NOT_MINE, SHAPED, FileConfiguration
from slipstream.parsing.flag_table import Flag, Table, names_in
from slipstream.parsing.python_script import calls_of, is_call_of, python_tree

DRAFT_OBJECT = rule(
    "config-draft-object",
    "blocks",
    "A model is passed as draft_model= to llama-cpp-python",
    "{what} is passed as draft_model=. llama-cpp-python calls draft_model with the array of tokens so far and expects "
    "drafted tokens back; a model object fails there with `operands could not be broadcast together with shapes (0,) "
    "(N,)`. The tokenizers are not the cause. llama-cpp-python has no drafting with a second model.",
    "Draft without a model: draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10) of llama_cpp.llama_speculative. "
    "With a draft model: llama-server -m TARGET -md DRAFT --spec-type draft-simple, or slipstream generate --model "
    "TARGET --draft DRAFT.",
)
ON_CPU = rule(
    "config-no-gpu-layers",
    "slows",
    "The script puts no layer on the GPU",
    "{what}, so llama-cpp-python runs the whole model on the CPU.",
    "If this machine has a GPU: n_gpu_layers=-1 (all layers), with a build that has GPU support.",
)
GPU_UNPROVEN = rule(
    "config-gpu-layers-unproven",
    "note",
    "n_gpu_layers is set, which alone does not prove that the GPU is used",
    "n_gpu_layers={layers} is ignored silently by a build of llama-cpp-python without GPU support, which is what pip "
    "installs by default.",
    "Check the build: python -c 'import llama_cpp; print(llama_cpp.llama_supports_gpu_offload())' must print True, and "
    'with verbose=True the log must say `offloaded N/N layers to GPU`. If not: CMAKE_ARGS="-DGGML_CUDA=on" pip install '
    "--force-reinstall --no-cache-dir llama-cpp-python.",
)
PARAMETERS = Table(
    engine="llama-cpp-python",
    version="llama-cpp-python 0.3.36",
    source="the signature of llama_cpp.Llama in the wheel",
    flags=(Flag("n_gpu_layers", "int", at_least=-1), Flag("n_ctx", "int", at_least=0), Flag("draft_model")),
    others=names_in(Path(__file__).with_name("llama_parameters.txt")),
)
_CLASS = "Llama"
_USES_IT = re.compile(r"(?m)^\s*(?:from|import)\s+llama_cpp\b|\bLlama(?:\.from_pretrained)?\(")


def lint_script(text: str) -> list[Finding]:
    tree = python_tree(text)
    if isinstance(tree, Finding):
        return [tree]
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and is_call_of(node.value, _CLASS)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = [finding for call in calls_of(tree, _CLASS) for finding in _check_call(call, names)]
    return list({finding.id + finding.cause: finding for finding in reversed(found)}.values())[
        ::-1
    ]  # once for all models


def _check_call(call: ast.Call, models: set[str]) -> Iterator[Finding]:
    given = {word.arg: word.value for word in call.keywords if word.arg}
    for name, value in given.items():
        if not PARAMETERS.knows(name):
            yield unknown(name, PARAMETERS, _shown(call, name, value), dropped=True)
    if (draft := given.get("draft_model")) is not None:
        yield from _check_draft(call, draft, models)
    if "vocab_only" not in given:
        yield from _check_layers(call, given)


def _check_draft(call: ast.Call, draft: ast.expr, models: set[str]) -> Iterator[Finding]:
    evidence = _shown(call, "draft_model", draft)
    if is_call_of(draft, _CLASS) or (isinstance(draft, ast.Name) and draft.id in models):
        yield DRAFT_OBJECT.finding(evidence, what="A Llama object")
    elif isinstance(draft, ast.Constant) and isinstance(draft.value, str):
        yield DRAFT_OBJECT.finding(evidence, what="The name of a model")


def _check_layers(call: ast.Call, given: dict[str, ast.expr]) -> Iterator[Finding]:
    value = given.get("n_gpu_layers")
    if value is None and any(word.arg is None for word in call.keywords):
        return  # in **settings, perhaps
    try:
        layers = 0 if value is None else ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):  # a variable
        return
    evidence = _shown(call, "n_gpu_layers", value) if value else f"line {call.lineno}: {shorten(ast.unparse(call))}"
    if layers == 0:
        yield ON_CPU.finding(
            evidence, what="n_gpu_layers is 0" if value else "n_gpu_layers is missing (its default is 0)"
        )
    elif isinstance(layers, int):
        yield GPU_UNPROVEN.finding(evidence, layers=layers)
    else:
        yield TYPE.finding(evidence, name="n_gpu_layers", expected="a whole number")


def _shown(call: ast.Call, name: str, value: ast.expr) -> str:
    return f"line {getattr(value, 'lineno', call.lineno)}: {shorten(f'{name}={ast.unparse(value)}')}"


def _likeness(text: str, file_name: str) -> float:
    return SHAPED if _USES_IT.search(text) and not text.lstrip().startswith("{") else NOT_MINE


CONFIGURATION = FileConfiguration(lint_script, _likeness)
