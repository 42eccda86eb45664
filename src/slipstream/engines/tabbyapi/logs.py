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

_FAILURES.add(
    rule(
        "log-exllama-memory",
        "blocks",
        "ExLlama: model and cache do not fit the GPUs",
        "Weights, cache and draft do not fit the memory that the split gives them.",
        "Lower cache_size, use cache_mode: Q4 or Q8, a smaller model or draft, or a split that gives the full GPU "
        "more room (gpu_split, autosplit_reserve); MoE models: raise cpu_moe_offload_layers. slipstream plan computes "
        "what fits.",
    ),
    "Insufficient VRAM",
    "Insufficient space on device",
    "Insufficient memory on device",
    matches=r"(?:Error|Exception|ERROR|assert).{0,100}Insufficient (?:VRAM|space|memory)|^\s*Insufficient VRAM",
)
_FAILURES.add(
    rule(
        "log-exllama-flash-attention",
        "blocks",
        "ExLlama needs a newer FlashAttention",
        "ExLlama's generator with paged attention needs Flash Attention {version} or later, which is missing or older.",
        "pip install -U flash-attn in TabbyAPI's environment (a wheel for your torch and CUDA). GPUs below compute "
        "capability 8.0 can't use it: there set no_flash_attn and one request at a time in older versions.",
    ),
    "Paged attention required Flash Attention",
    matches=r"required Flash Attention (?P<version>[\d.]+)",
)
_FAILURES.add(
    rule(
        "log-exllama-architecture",
        "slows",
        "ExLlama does not know the model's architecture",
        "This version of ExLlama does not know the architecture {name} and loads the model as Llama. That fails, or "
        "the answers make no sense.",
        "Update ExLlama and TabbyAPI (start with --update-deps). If the newest does not know it either, use another "
        "model or engine.",
    ),
    "unknown architecture: ",
    "nknown architecture ",
    matches=r"(?:Warning|Error|ERROR|WARNING).{0,60}nknown architecture:? '?(?P<name>\w{1,80})",
)
_FAILURES.add(
    rule(
        "log-exllama-split",
        "blocks",
        "ExLlama: a manual split and a reserve are given at once",
        "ExLlamaV3 got a manual split (gpu_split) together with a reserve, and takes only one of the two.",
        "Remove autosplit_reserve or gpu_split from config.yml. If only gpu_split is set, update TabbyAPI.",
    ),
    "Cannot specify both memory usage and memory reserve",
)
_FAILURES.add(
    rule(
        "log-draft-mode",
        "blocks",
        "TabbyAPI does not know the draft mode",
        "The draft mode {mode} in config.yml is none of those that the backend knows.",
        "Set draft_mode in the section draft_model to model, mtp, ngram or disabled.",
    ),
    "Unknown exllamav3 draft mode",
    matches=r"draft mode: (?P<mode>\S{1,40})",
)
_FAILURES.add(
    rule(
        "log-tabby-backend",
        "blocks",
        "TabbyAPI can't load this kind of model",
        "This version of TabbyAPI has only the backend ExLlamaV3: {reason}.",
        "Use an EXL3 version of the model (remove backend: from config.yml), or an older TabbyAPI for EXL2 and GPTQ.",
    ),
    "The exllamav2 backend is no longer supported",
    "require the exllamav2 backend",
    "Invalid backend '",
    "required dependencies are not installed",
    matches=r"(?P<reason>The exllamav2 backend is no longer supported|Models quantized with .{0,60}backend|Invalid "
    r"backend '.{0,40}|The \w+ backend is selected, but required dependencies are not installed)",
)
_FAILURES.add(
    rule(
        "log-tabby-config",
        "blocks",
        "TabbyAPI can't read config.yml",
        "TabbyAPI can't read its config file: {reason}.",
        "Correct it as the message says: slipstream doctor --engine tabbyapi --config config.yml. Indent with spaces, "
        "and put a space after each colon.",
    ),
    "couldn't load because of",
    "Either fix your config.yml and restart",
    matches=r"(?P<reason>The YAML config from .{0,120})|fix your config.yml",
)
_FAILURES.add(
    rule(
        "log-exllama-draft",
        "blocks",
        "ExLlama: the draft does not fit the target",
        "The draft was made for another target: {reason}.",
        "Use a draft made for this target, or an ordinary draft model of its family: slipstream pairs --target TARGET.",
    ),
    "does not match target vocabulary size",
    "does not match target hidden size",
    "outside the target",
    "has no compatible LM head",
    "does not define a 'mtp' component",
    "does not define a 'draft' component",
    matches=r"Error: (?P<reason>.{0,160})",
)
_FAILURES.add(
    rule(
        "log-cache-tokens",
        "blocks",
        "ExLlama: the cache is too small for the prompt",
        "The prompt needs {need} tokens of cache, more than there are.",
        "Raise cache_size (a multiple of 256) in the section model of config.yml, or send a shorter prompt.",
    ),
    "Initial job allocation requires",
    matches=r"Initial job allocation requires (?P<need>\d+) cache tokens",
)
_FAILURES.add(
    rule(
        "log-cache-multiple",
        "blocks",
        "ExLlama: the cache size is not a multiple of 256",
        "The cache is divided into pages of 256 tokens, and its size is not a multiple of that.",
        "Set cache_size (and max_seq_len) to a multiple of 256.",
    ),
    "must be a multiple of 256",
    matches=r"(?:Error|Exception|ERROR).{0,120}must be a multiple of 256",
)
_FAILURES.add(
    rule(
        "log-tabby-path",
        "slows",
        "TabbyAPI does not find the model's folder",
        "TabbyAPI looks for the model in {path}, and there is none; it runs without that model.",
        "Set model_dir and model_name (draft_model_dir and draft_model_name) in config.yml so that together they are "
        "the folder.",
    ),
    "Could not find model path",
    matches=r"Could not find model path (?P<path>\S{1,120})",
)

LOG = EngineLog(START, tuple(_FAILURES))
