"""llama.cpp's log: the stages of a start, and its own failures."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import EngineLog, LinePlace, Patterns, Stage, StartLog

_VERBOSE = "start with --verbose to see what it waits for"
START = StartLog(
    marks=(
        *("llama_model", "llama_load", "llama_init", "llama_new_context", "llama_context", "llama_perf", "llama_print"),
        *("llama_kv", "llama_decode", "llama_cpp", "llama_server", "llm_load", "ggml_", "GGML_", "common_speculative"),
        *("srv  ", "slot print_timing", "slot update_slots", "slot launch_slot", "main: loading model"),
    ),
    begins=("main: loading model", "main: build = ", "system_info: n_threads"),
    # "HTTP server is listening" alone comes before the model is loaded.
    ready=(
        *("main: model loaded", "llama_server: model loaded", "server is listening on", "listening on http"),
        *("all slots are idle", "Application startup complete"),
    ),
    works=(
        *(("eval time =",), ("slot      release",), ("decoded ", "speed:"), ("llama_print_timings:", "total time")),
        ("generate: n_ctx =",),
    ),
    verbose="--verbose",
    stages=(
        Stage(
            "loading the weights",
            ("loading model tensors",),
            "The file is being read.",
            ("copy it to a local disk", "try --load-mode none", _VERBOSE),
        ),
        Stage(
            "loading the draft",
            ("loading draft model",),
            "The target is loaded, the draft is not.",
            ("start without -md to see whether the draft is the cause", _VERBOSE),
        ),
        Stage(
            "loading the model", ("loading model",), "The file is being read.", ("copy it to a local disk", _VERBOSE)
        ),
        Stage(
            "creating the context",
            ("initializing, n_slots", "new slot"),
            "The KV cache is being allocated.",
            ("lower -c or --parallel", _VERBOSE),
        ),
        Stage("warming up", ("warming up",), "The first forward pass hangs.", ("try --no-warmup", _VERBOSE)),
        Stage("listening", ("server is listening", "listening on")),
    ),
)

FAILURES = Patterns()
FAILURES.add(
    rule(
        "log-draft-object",
        "blocks",
        "A model was passed as draft_model= to llama-cpp-python",
        "A model object was passed as draft_model=. llama-cpp-python calls draft_model with the array of tokens so "
        "far (here {rows}) and expects drafted tokens back. A Llama object treats the array as a prompt and adds an "
        "empty list to it, which fails. The tokenizers are not the cause.",
        "Pass a drafter that returns tokens: draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10), or run a draft "
        "model with llama-server -m TARGET -md DRAFT --spec-type draft-simple, or with Slipstream.",
    ),
    "could not be broadcast together with shapes (0,)",
    matches=r"operands could not be broadcast together with shapes \(0,\) \((?P<rows>\d+),\)",
    place=LinePlace(frames=("llama_cpp",)),  # any program with numpy may print this line
)
FAILURES.add(
    rule(
        "log-vocab-type",
        "slows",
        "Draft and target have different tokenizer types",
        "The tokenizers are of different types (draft {draft}, target {target}: 1 is SentencePiece, 2 byte-level BPE, "
        "3 WordPiece), so the draft's tokens can't be used for the target. llama-server continues without speculation.",
        "Use a draft model of the target's family: slipstream pairs --target TARGET.",
    ),
    "draft model vocab type must match target model to use speculation but",
    matches=r"vocab_type_dft = (?P<draft>\d+) while vocab_type_tgt = (?P<target>\d+)",
    instead_of=("log-speculation-off",),
)
FAILURES.add(
    rule(
        "log-vocab-special",
        "slows",
        "Draft and target have different special tokens",
        "The {which} tokens of draft and target differ (in id, or in whether they are added), so llama.cpp refuses "
        "the pair. llama-server continues without speculation.",
        "Use a draft model with the target's special tokens, or correct the draft's metadata if only the flag "
        "differs: --override-kv tokenizer.ggml.add_bos_token=bool:false. Check: slipstream doctor --target T --draft "
        "D.",
    ),
    "tokens must match target model to use speculation",
    matches=r"draft model (?P<which>bos|eos|special) tokens must match",
    instead_of=("log-speculation-off",),
)
FAILURES.add(
    rule(
        "log-vocab-size",
        "slows",
        "Draft and target differ too much in vocabulary size",
        "The target has {target} tokens and the draft {draft}: llama.cpp accepts a difference of at most 128. "
        "llama-server continues without speculation.",
        "Use a draft model of the target's family (slipstream pairs --target TARGET), or Slipstream's drafter "
        "`translate`.",
    ),
    "target vocab size",
    matches=r"target vocab size (?P<target>\d+) does not match draft vocab size (?P<draft>\d+)",
    instead_of=("log-speculation-off",),
)
FAILURES.add(
    rule(
        "log-vocab-token",
        "slows",
        "A token has different text in the draft",
        "Token {token} is {target} in the target and {draft} in the draft: the vocabularies are similar, but not the "
        "same. llama-server continues without speculation.",
        "Use a draft model of the target's family: slipstream pairs --target TARGET. slipstream doctor --target T "
        "--draft D lists the tokens that differ.",
    ),
    "content differs",
    matches=r"token (?P<token>\d+) content differs(?: - target '(?P<target>.{0,60}?)', draft '(?P<draft>.{0,60}?)')?",
    instead_of=("log-speculation-off",),
)
FAILURES.add(
    rule(
        "log-speculation-off",
        "slows",
        "llama-server runs without speculation",
        "The draft could not be used, and llama-server runs without it: {reason}. Answers are correct, but no faster "
        "than without a draft. The message names the vocabulary type for any mismatch; the line before it has the "
        "real reason.",
        "Look for `draft acceptance` in later lines: if it is missing, nothing is drafted. slipstream doctor --target "
        "T --draft D shows the differences; slipstream pairs --target T lists drafts that work.",
    ),
    "failed to initialize speculative decoding context",
    "the target and draft vocabs are not compatible",
    "is not compatible with the target model",
    matches=r"(?P<reason>failed to initialize speculative decoding context.{0,100}|the target and draft vocabs are not "
    r"compatible|the draft model .{0,100} is not compatible with the target model)",
)
FAILURES.add(
    rule(
        "log-no-layers-on-gpu",
        "slows",
        "No layer of the model is on the GPU",
        "0 of {layers} layers are on the GPU: the whole model runs on the CPU, with or without a draft.",
        "Set -ngl 99 (llama-cpp-python: n_gpu_layers=-1; Ollama: PARAMETER num_gpu 99). If that is set already, the "
        'build has no GPU support: CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir '
        "llama-cpp-python.",
    ),
    "offloaded 0/",
    matches=r"offloaded 0/(?P<layers>[1-9]\d*) layers to GPU",
)
FAILURES.add(
    rule(
        "log-no-gpu-build",
        "slows",
        "The build has no GPU support",
        "This build has no GPU support: settings such as n_gpu_layers are ignored, and the model runs on the CPU.",
        'Install a build with GPU support: CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir '
        "llama-cpp-python (Metal: -DGGML_METAL=on), or a llama-server built for the GPU.",
    ),
    "not compiled with GPU offload support",
    "compiled without support for GPU offload",
    "compiled without GPU support",
    "no usable GPU found, --gpu-layers",
    "no usable GPU found, --n-gpu-layers",
)
FAILURES.add(
    rule(
        "log-gguf-architecture",
        "blocks",
        "llama.cpp does not support the model's architecture",
        "This build of llama.cpp is older than the architecture {name}.",
        "Update llama.cpp (llama-cpp-python: pip install -U; Ollama: a newer release).",
    ),
    "unknown model architecture",
    matches=r"unknown model architecture: '(?P<name>[^']{1,60})'",
)
FAILURES.add(
    rule(
        "log-gguf-damaged",
        "blocks",
        "The file is not a complete GGUF file",
        "The file is not a GGUF file, or only part of one: the download was interrupted, or the file is a Git LFS "
        "pointer.",
        "Check it: slipstream doctor --target FILE. Then download it again.",
    ),
    "invalid magic characters",
    "invalid magic number",
    "tensor data is not within the file bounds",
    "is corrupted or incomplete",
    matches=r"(?i)gguf|tensor|llama_model_load",
)
FAILURES.add(
    rule(
        "log-context-trained",
        "slows",
        "The context is longer than a model was trained for",
        "A model trained for {trained} positions is used with {asked}. If it is the draft, answers stay correct, but "
        "its tokens are almost always rejected beyond {trained} tokens. If it is the target, the answers get worse.",
        "Set -c to at most {trained}, or use a draft with a longer context.",
    ),
    "possible training context overflow",
    matches=r"n_ctx_(?:per_)?seq \((?P<asked>\d+)\) > n_ctx_train \((?P<trained>\d+)\)",
)
FAILURES.add(
    rule(
        "log-no-mtp-layers",
        "blocks",
        "The draft has no MTP layers",
        "draft-mtp needs a model with layers for multi-token prediction, and this one has none. Ollama uses draft-mtp "
        "for every DRAFT except DFlash files, so an ordinary draft model does not load there.",
        "For an ordinary draft model use llama-server -m TARGET -md DRAFT --spec-type draft-simple; in a Modelfile for "
        "Ollama, remove DRAFT.",
    ),
    "model doesn't contain MTP layers",
)
FAILURES.add(
    rule(
        "log-draft-unused",
        "slows",
        "llama-server loads a draft but never uses it",
        "The draft model is loaded, but no type of speculation is selected, so llama-server runs without it. A "
        "draft model (-md) alone is not enough.",
        "Add --spec-type draft-simple (an EAGLE-3 head: draft-eagle3; prediction layers: draft-mtp).",
    ),
    "no implementations specified for speculative decoding",
    only_with=("loading draft model",),  # without a draft the warning is harmless
)

LOG = EngineLog(START, tuple(FAILURES))
