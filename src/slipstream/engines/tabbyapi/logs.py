"""TabbyAPI's log: the stages of a start, and its own failures."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import WHILE_SERVING, EngineLog, Patterns, Stage, StartLog

START = StartLog(
    stages=(
        Stage("loading the draft", ("Loading draft modules", "Using draft model:")),
        Stage("loading the model", ("Loading model:", "Loading model modules")),
        Stage("listening", ("Uvicorn running on", "Developer documentation")),
    ),
    marks=("tabbyAPI", "TabbyAPI", "tabbyapi", "exllama", "Exllama", "ExLlama"),
    begins=("ExllamaV2 version:", "exllamav3 version:"),
    ready=("Application startup complete", "Uvicorn running on", "Model successfully loaded"),
    works=(('"POST /', '" 200'), ("Metrics (ID:",)),
)

_FAILURES = Patterns()
_FAILURES.add(
    rule(
        "log-cache-too-small",
        "blocks",
        "ExLlama: the cache is too small for the request",
        "A request needs {need} pages of cache (256 tokens each), but there are {have}. Prompt, answer and draft must "
        "fit.",
        "Raise cache_size (a multiple of 256) in the section model of config.yml, or request fewer tokens.",
    ),
    "cannot be enqueued",
    matches=r"Job requires (?P<need>\d+) pages \(only (?P<have>\d+) available\)",
    place=WHILE_SERVING,
)
_FAILURES.add(
    rule(
        "log-context-limited",
        "slows",
        "TabbyAPI: the context is limited to the cache size",
        "max_seq_len {asked} is larger than the cache, so the context of target and draft is limited to the cache "
        "size (4,096 tokens if cache_size is not set).",
        "Set cache_size in the section model of config.yml to at least max_seq_len.",
    ),
    "given max_seq_len (",
    matches=r"given max_seq_len \((?P<asked>\d+)\) is larger",
)
_FAILURES.add(
    rule(
        "log-draft-context",
        "blocks",
        "ExLlama: the draft's context is shorter than the target's",
        "ExLlama requires that the draft's context is at least as long as the context used for the target. It is "
        "shorter.",
        "Lower max_seq_len and cache_size in the section model of config.yml to the draft's context, extend the "
        "draft's context (draft_rope_alpha: 2.0), or use a draft with a longer context.",
    ),
    "Draft model seq len must be >= model seq len",
    "Cache and draft cache must be same dimensions",
)
_FAILURES.add(
    rule(
        "log-draft-disabled",
        "slows",
        "TabbyAPI: the draft is disabled because it has no name",
        "TabbyAPI found no draft_model_name in the section draft_model, so it runs without a draft. Sections with "
        "other names (`draft:`) are ignored.",
        "Set draft_model: draft_model_name in config.yml. To check the file: slipstream doctor --engine tabbyapi "
        "--config config.yml.",
    ),
    "Draft model is disabled because a model name",
)

LOG = EngineLog(START, tuple(_FAILURES))
