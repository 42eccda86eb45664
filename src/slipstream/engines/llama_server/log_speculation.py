"""llama.cpp's failures with drafts, vocabularies and the GPU."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import LinePlace, Patterns

SPECULATION = Patterns()
SPECULATION.add(
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
SPECULATION.add(
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
SPECULATION.add(
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
SPECULATION.add(
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
    instead_of=("log-speculation-off", "log-vocab-token"),
)
SPECULATION.add(
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
SPECULATION.add(
    rule(
        "log-speculation-off",
        "slows",
        "llama.cpp runs without speculation",
        "The draft could not be used, and llama.cpp runs without it: {reason}. Answers are correct, but no faster "
        "than without a draft. The message names the vocabulary type for any mismatch; the line before it has the "
        "real reason.",
        "Look for `draft acceptance` in later lines: if it is missing, nothing is drafted. slipstream doctor --target "
        "T --draft D shows the differences; slipstream pairs --target T lists drafts that work. KoboldCpp up to 1.114 "
        "had a looser check.",
    ),
    "peculative decode is not supported",
    "failed to initialize speculative decoding context",
    "the target and draft vocabs are not compatible",
    "is not compatible with the target model",
    "draft model vocab type must match target model to use speculation (",
    matches=r"(?P<reason>failed to initialize speculative decoding context.{0,100}|the target and draft vocabs are "
    r"not compatible|the draft model .{0,100} is not compatible with the target model|draft model vocab type must "
    r"match.{0,100}|speculative decod\w+ (?:is )?not supported.{0,60})",
)
SPECULATION.add(
    rule(
        "log-draft-kind",
        "slows",
        "llama.cpp: the draft is of another kind than --spec-type",
        "The type of speculation that was asked for does not fit the draft: {reason}. llama.cpp runs without "
        "speculation.",
        "An ordinary draft model needs --spec-type draft-simple, an EAGLE-3 head draft-eagle3, a model with layers for "
        "multi-token prediction draft-mtp. Or use a draft of the type that was asked for.",
    ),
    "draft model is not ",
    matches=r"(?P<reason>draft model is not (?!comp|support).{3,100})",
    instead_of=("log-speculation-off",),
)
SPECULATION.add(
    rule(
        "log-context-no-rollback",
        "slows",
        "llama.cpp: the target can't take back drafted tokens",
        "The cache of the target can't forget single tokens (a recurrent or hybrid model such as Mamba, a sliding "
        "window, or the settings of the cache), so rejected drafts can't be removed. llama.cpp runs without "
        "speculation.",
        "Update llama.cpp: newer builds keep checkpoints for such models. Else use a target with an ordinary KV "
        "cache; with a sliding window try --swa-full.",
    ),
    "speculative decoding not supported by this context",
    "does not support partial sequence removal",
    instead_of=("log-speculation-off",),
)
SPECULATION.add(
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
SPECULATION.add(
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
SPECULATION.add(
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
SPECULATION.add(
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
SPECULATION.add(
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
