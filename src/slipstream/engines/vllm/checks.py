"""vLLM: command lines and the JSON of --speculative-config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from slipstream.catalogue.named_models import different_names
from slipstream.engines.vllm.flags import (
    FLAGS,
    KEYS_OF_METHODS,
    METHODS_BY_NAME,
    MTP_NAMES,
    REFUSED_WITH_OTHERS,
    SPECULATIVE,
)
from slipstream.engines.vllm.methods import METHODS, VllmMethod
from slipstream.engines.vllm.python_script import python_script
from slipstream.findings import Finding, rule
from slipstream.parsing.command_line import Call, Option, Word, parse
from slipstream.parsing.config_checks import (
    CONFLICT,
    DEPRECATED,
    MISSING,
    NO_EFFECT,
    ORDER,
    RANGE,
    TYPE,
    bad_json,
    check_options,
    check_value,
    read_json,
    shorten,
    shown,
    unknown,
)
from slipstream.parsing.configuration import AnyConfiguration, CommandConfiguration
from slipstream.parsing.yaml_flags import yaml_flags

METHOD_IMPLIED = rule(
    "config-method-implied",
    "note",
    "A draft model is given without a method",
    "Without a method, vLLM reads the method from the draft's own config, and uses it as a plain draft model if there "
    "is none. Versions without support for plain draft models refuse it.",
    'Set the method: "method": "draft_model" (or "eagle3", "medusa", "mtp", depending on the model).',
)
DRAFT_DTYPE = rule(
    "config-draft-dtype",
    "blocks",
    "A dtype is set for the draft",
    "vLLM has no dtype setting for the draft: it uses the target's. A bfloat16 draft with a float16 (AWQ, GPTQ) "
    "target is loaded as float16.",
    "Remove the key. Set one dtype for both with --dtype; on GPUs below compute capability 8.0 (T4: 7.5) use "
    "--dtype half.",
)
QUANT_DTYPE = rule(
    "config-quant-dtype",
    "slows",
    "AWQ or GPTQ weights are used with bfloat16",
    "{quantization} kernels are for float16: earlier versions of vLLM refuse bfloat16 with them, and GPUs below "
    "compute capability 8.0 (T4: 7.5) do not support bfloat16.",
    "Use --dtype half.",
)

CANT_START = rule(
    "config-method-cant-start",
    "blocks",
    "The engine lists the method, but can't run it",
    "The method {method} can't start: {why}.",
    "Use another method.",
)

_METHODS = {method.name: method for method in METHODS if not method.variant_of}
_SCHEDULE = "num_speculative_tokens_per_batch_size"
_TOKENS = "num_speculative_tokens"
_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
_SHORT_FLAGS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": _TOKENS}
_FLOAT16_ONLY = ("awq", "gptq")


def lint_json(text: str) -> list[Finding]:
    """Checks the JSON of --speculative-config alone, as in a file."""
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [bad_json(error, shorten(text))]
    return list(_check_speculative(settings, Call([], [])))


def lint_command(words: list[Word]) -> list[Finding]:
    """The words after `vllm serve` or the server's module."""
    call = parse(words, FLAGS, dashes=True)
    plain = [option for option in call.options if not _is_key(option)]
    findings = list(check_options(plain, FLAGS))
    findings += _check_quantisation(call)
    settings, problems = _speculative_settings(call)
    findings += problems
    if settings is not None:
        findings += _check_speculative(settings, call)
    if isinstance(settings, dict) and settings.get("method") in (None, "draft_model"):
        target = call.value("--model") or next((word.text for word in call.positionals), None)
        findings += different_names(target, settings.get("model"))
    return findings


def _is_key(option: Option) -> bool:
    """One key of a JSON option, checked with the others: --speculative-config.method ngram, --spec-method ngram."""
    dotted = "." in option.name and FLAGS.knows(option.name.partition(".")[0])
    return dotted or (option.name in _SHORT_FLAGS and option.value is not None)


def _speculative_settings(call: Call) -> tuple[Any, list[Finding]]:
    """The settings from all options that can set them; None if there are none."""
    settings: Any = None
    findings: list[Finding] = []
    given = call.last("--speculative-config")
    if given and given.value and not given.value.text.startswith("$"):
        settings, findings = read_json(given.value, given.written, "vLLM", _EXAMPLE)
    elif given and given.value is None:
        findings.append(TYPE.finding(shown(given), name=given.name, expected="a JSON object"))
    for option in call.options:
        key = _SHORT_FLAGS.get(option.name) or _dotted_key(option)
        if key is None or option.value is None or findings:
            continue
        if settings is None:
            settings = {}
        if isinstance(settings, dict) and key in settings:
            why = f"{option.written} and the key {key!r} of --speculative-config set the same value"
            findings.append(CONFLICT.finding(shown(option), why=why, fix=f"Keep one of them, {key!r} in the JSON"))
        elif isinstance(settings, dict):
            settings[key] = _json_or_text(option.value.text)
    return settings, findings


def _dotted_key(option: Option) -> str | None:
    head, dot, key = option.name.partition(".")
    return key.replace("-", "_") if dot and head in ("--speculative-config", "-sc") else None


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_quantisation(call: Call) -> Iterator[Finding]:
    quantization = call.value("--quantization")
    dtype = call.last("--dtype")
    if quantization in _FLOAT16_ONLY and dtype and dtype.value and dtype.value.text == "bfloat16":
        yield QUANT_DTYPE.finding(f"{shown(dtype)}, --quantization {quantization}", quantization=quantization)


def _check_speculative(settings: object, call: Call) -> Iterator[Finding]:
    if not isinstance(settings, dict):
        yield TYPE.finding(shorten(json.dumps(settings)), name="--speculative-config", expected="a JSON object")
        return
    settings = {key.replace("-", "_"): value for key, value in settings.items() if value is not None}
    for key, value in settings.items():
        yield from _check_key(key, value)
    yield from _check_method(settings, call)
    yield from _check_lookup(settings)
    yield from _check_synthetic(settings)
    yield from _check_schedule(settings, call)
    yield from _check_parallel(settings, call)


def _check_key(key: str, value: object) -> Iterator[Finding]:
    evidence = shorten(f'"{key}": {json.dumps(value)}')
    flag = SPECULATIVE.flag(key)
    if flag:
        yield from check_value(flag, value, evidence, SPECULATIVE, converts=True)
    elif key in ("dtype", "draft_dtype"):
        yield DRAFT_DTYPE.finding(evidence)
    elif not SPECULATIVE.knows(key):
        yield unknown(key, SPECULATIVE, evidence)


def _check_method(settings: dict[str, Any], call: Call) -> Iterator[Finding]:
    name, model = settings.get("method"), settings.get("model")
    if name is None:
        if model is None:
            yield MISSING.finding(
                _shown(settings),
                what="The method",
                why="there is neither a method nor a model",
                fix='"method": "ngram" (no model), or "method": "draft_model" with "model"',
            )
        elif model not in ("ngram", "[ngram]"):
            yield METHOD_IMPLIED.finding(_shown(settings, "model"))
        name = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    if name in MTP_NAMES:
        version = SPECULATIVE.version
        yield DEPRECATED.finding(_shown(settings, "method"), name=name, version=version, successor='"method": "mtp"')
        name = "mtp"
    method = _METHODS.get(str(name))
    if method and (model is not None or "method" in settings):
        yield from _check_needs(settings, method)
        yield from _check_keys(settings, method)
        yield from _check_async(settings, method, call)


def _check_needs(settings: dict[str, Any], method: VllmMethod) -> Iterator[Finding]:
    model, tokens = settings.get("model"), settings.get(_TOKENS)
    if method.missing:
        yield CANT_START.finding(_shown(settings, "method"), method=method.name, why=method.missing)
        return
    if method.model == "required" and model is None:
        why = f"the method {method.name} needs one"
        yield MISSING.finding(_shown(settings), what="The draft's model", why=why, fix='"model": "..."')
    if method.model == "unused" and model not in (None, method.name, "[ngram]"):
        why = f"the method {method.name} drafts without a model, so {model!r} is never loaded"
        fix = 'Remove "model", or set "method": "draft_model" to draft with it'
        yield CONFLICT.finding(_shown(settings, "method", "model"), why=why, fix=fix)
    if method.tokens == "required" and tokens is None:
        why = f"the method {method.name} has no default number of draft tokens"
        yield MISSING.finding(_shown(settings), what=_TOKENS, why=why, fix=f'"{_TOKENS}": 5')
    if method.needs_model_or_tokens and model is None and tokens is None:
        why = f"the method {method.name} needs a model or the number of draft tokens"
        yield MISSING.finding(_shown(settings), what=_TOKENS, why=why, fix=f'"{_TOKENS}": 5, or "model": "..."')
    if method.most_tokens and isinstance(tokens, int) and tokens > method.most_tokens:
        expected = f"{method.most_tokens} with the method {method.name}"
        yield RANGE.finding(_shown(settings, _TOKENS), name=_TOKENS, expected=expected)
    yield from _check_name(settings, method)


def _check_name(settings: dict[str, Any], method: VllmMethod) -> Iterator[Finding]:
    """vLLM looks for names of methods in the draft's path, in this order."""
    path = str(settings.get("model")).lower()
    other = next((name for part, name in METHODS_BY_NAME.items() if part in path), None)
    ignored = method.model != "unused" and method.name not in (*METHODS_BY_NAME.values(), "custom_class")
    if other and ignored and "method" in settings:
        why = f"the draft's name says {other}, and vLLM goes by the name"
        fix = f'Set "method": "{other}", or rename the draft if it is of another kind'
        yield NO_EFFECT.finding(
            _shown(settings, "method", "model"), name=f'"method": "{method.name}"', why=why, fix=fix
        )


def _check_keys(settings: dict[str, Any], method: VllmMethod) -> Iterator[Finding]:
    for key, methods in KEYS_OF_METHODS.items():
        if key not in settings or settings[key] is False or method.name in methods:
            continue
        fix = f'Remove {key}, or set "method": "{methods[0]}"'
        if key in REFUSED_WITH_OTHERS:
            why = f"{key} works with the method {' or '.join(methods)} only, not with {method.name}"
            yield CONFLICT.finding(_shown(settings, key, "method"), why=why, fix=fix)
        else:
            why = f"only the method {' or '.join(methods)} uses it"
            yield NO_EFFECT.finding(_shown(settings, key), name=key, why=why, fix=fix)
    if settings.get("use_heterogeneous_vocab") is True and settings.get("draft_sample_method", "greedy") != "greedy":
        evidence = _shown(settings, "use_heterogeneous_vocab", "draft_sample_method")
        why = "use_heterogeneous_vocab needs a greedy draft"
        yield CONFLICT.finding(evidence, why=why, fix='Set "draft_sample_method": "greedy"')


def _check_async(settings: dict[str, Any], method: VllmMethod, call: Call) -> Iterator[Finding]:
    """Without the flag, vLLM turns async scheduling off by itself."""
    option = call.last("--async-scheduling")
    if option and not method.is_asynchronous:
        instead = ', or use "method": "ngram_gpu"' if method.name == "ngram" else ""
        why = f"vLLM has no async scheduling with the method {method.name}"
        yield CONFLICT.finding(shown(option), why=why, fix=f"Remove {option.written}{instead}")
    elif option and settings.get("disable_padded_drafter_batch") is True:
        why = "vLLM has no async scheduling with disable_padded_drafter_batch"
        yield CONFLICT.finding(shown(option), why=why, fix="Remove one of them")


def _check_lookup(settings: dict[str, Any]) -> Iterator[Finding]:
    low, high = settings.get("prompt_lookup_min"), settings.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield ORDER.finding(
            _shown(settings, "prompt_lookup_min", "prompt_lookup_max"),
            low="prompt_lookup_min",
            low_value=low,
            high="prompt_lookup_max",
            high_value=high,
        )


def _check_synthetic(settings: dict[str, Any]) -> Iterator[Finding]:
    """Accepted tokens can be made up, to measure: by their rates or by their mean number."""
    keys = [key for key in ("synthetic_acceptance_rates", "synthetic_acceptance_length") if key in settings]
    is_synthetic = settings.get("rejection_sample_method") == "synthetic"
    if keys and not is_synthetic:
        why = f'{" and ".join(keys)} need "rejection_sample_method": "synthetic"'
        yield CONFLICT.finding(_shown(settings, *keys), why=why, fix=f"Remove {' and '.join(keys)}")
    elif is_synthetic and len(keys) != 1:
        why = "it needs one of synthetic_acceptance_rates and synthetic_acceptance_length"
        evidence = _shown(settings, "rejection_sample_method", *keys)
        fix = 'Set one of them, for example "synthetic_acceptance_length": 3'
        yield CONFLICT.finding(evidence, why=f'"rejection_sample_method": "synthetic": {why}', fix=fix)


def _check_schedule(settings: dict[str, Any], call: Call) -> Iterator[Finding]:
    """num_speculative_tokens_per_batch_size: [first batch size, last, tokens] in increasing order."""
    key, schedule = _SCHEDULE, settings.get(_SCHEDULE)
    if not isinstance(schedule, list):
        return
    if (call.number("--data-parallel-size") or 1) > 1:
        why = f"with data parallelism vLLM always drafts {_TOKENS}"
        yield NO_EFFECT.finding(_shown(settings, key), name=key, why=why, fix="Remove it")
    last_end = 0
    for entry in schedule or [None]:
        numbers = isinstance(entry, list) and len(entry) == 3 and all(type(number) is int for number in entry)
        if not numbers:
            expected = "a list of [first batch size, last batch size, tokens]"
            yield TYPE.finding(_shown(settings, key), name=key, expected=expected)
            return
        start, end, tokens = entry
        if start <= last_end or end < start or tokens < 0:
            why = (
                f"the entry {entry} overlaps the one before it, ends before it begins, or has a negative number of "
                "tokens"
            )
            fix = f'Use increasing ranges: "{key}": [[1, 8, 5], [9, 32, 2]]'
            yield CONFLICT.finding(_shown(settings, key), why=why, fix=fix)
        last_end = end


def _check_parallel(settings: dict[str, Any], call: Call) -> Iterator[Finding]:
    if not call.options:  # the JSON alone
        return
    draft, whole = settings.get("draft_tensor_parallel_size"), call.number("--tensor-parallel-size") or 1
    if isinstance(draft, int) and draft not in (1, whole):
        why = f"the draft uses {draft} GPUs and the target {whole:g}; a draft must use 1 GPU or as many as the target"
        fix = f'Set "draft_tensor_parallel_size" to 1 or {whole:g}'
        yield CONFLICT.finding(_shown(settings, "draft_tensor_parallel_size"), why=why, fix=fix)


def _shown(settings: dict[str, Any], *keys: str) -> str:
    picked = {key: settings[key] for key in keys if key in settings} if keys else settings
    return shorten(json.dumps(picked))


_COMMAND = CommandConfiguration(
    "vllm",
    re.compile(r"(.*/)?vllm(\.exe)?$|vllm\.entrypoints[\w.]*$|.*vllm/vllm-openai(:[\w.-]+)?$"),
    FLAGS,
    lint_command,
    ("serve", "bench", "run-batch"),
    check_json=lint_json,
    json_table=SPECULATIVE,
)
CONFIGURATION = AnyConfiguration((_COMMAND, python_script(lint_command), yaml_flags(FLAGS, lint_command)))
