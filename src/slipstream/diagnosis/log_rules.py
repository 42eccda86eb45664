"""Known failures, each with the text that its engine prints. One rule per cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream.findings import Rule, rule


@dataclass(frozen=True, slots=True)
class Pattern:
    """`pieces`: exact texts, one of which is in the line. `matches`: a pattern for the line; its groups fill in the
    rule.

    `engines`: the engines that print it; empty: any. `instead_of`: less precise rules that this one replaces.
    """

    rule: Rule
    pieces: tuple[str, ...]
    matches: re.Pattern[str] | None = None
    engines: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()


PATTERNS: list[Pattern] = []


def _known(
    found: Rule,
    *pieces: str,
    matches: str = "",
    engines: tuple[str, ...] = (),
    instead_of: tuple[str, ...] = (),
) -> Rule:
    PATTERNS.append(Pattern(found, pieces, re.compile(matches) if matches else None, engines, instead_of))
    return found


_known(
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
)
_known(
    rule(
        "log-tensor-read",
        "blocks",
        "A weight could not be read: UntypedStorage",
        "Reading one weight failed between safetensors and torch: the file's header was read, but torch then refused "
        "the bytes of a tensor. Possible causes are the installed torch and safetensors, too little memory to map the "
        "file, or a file that is not what its name says (a pickle, a pointer, a part). Quantisation (AWQ) and the "
        "model's architecture are not the cause.",
        "Check the file: slipstream doctor --draft MODEL (reads its header and one tensor in a clean process). If the "
        "file is good: pip install -U safetensors in the engine's environment, and free memory. If not: download it "
        "again or convert it to safetensors.",
    ),
    "could not determine the shape of object type 'torch.storage.UntypedStorage'",
)
_known(
    rule(
        "log-bfloat16",
        "blocks",
        "The GPU does not support bfloat16",
        "{gpu} has compute capability {capability}; bfloat16 needs 8.0.",
        "Start with --dtype half.",
    ),
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0",
    matches=r"Your (?P<gpu>.{1,80}?) GPU (?:has|does not have a) compute capability ?(?P<capability>[\d.]*)",
)
_known(
    rule(
        "log-flash-attention",
        "note",
        "The GPU does not support FlashAttention 2",
        "FlashAttention 2 needs compute capability 8.0 (Ampere); on Volta and Turing (T4: 7.5) another attention "
        "kernel is used. It is slower, but this is not an error.",
        "Nothing to do. If a backend is set explicitly, use another one: --attention-backend TRITON_ATTN (older "
        "versions: VLLM_ATTENTION_BACKEND=XFORMERS).",
    ),
    "Cannot use FlashAttention",
    matches=r"Cannot use FlashAttention(?:-2)? backend for Volta and Turing GPUs",
)
_known(
    rule(
        "log-flash-attention-forced",
        "blocks",
        "FlashAttention is requested on a GPU below compute capability 8.0",
        "FlashAttention 2 was requested, or is needed by the selected backend, on a GPU below compute capability 8.0.",
        "Use another backend: --attention-backend TRITON_ATTN (older versions: VLLM_ATTENTION_BACKEND=XFORMERS), and "
        "--enforce-eager --dtype half.",
    ),
    "FlashAttention only supports Ampere GPUs or newer",
)
_known(
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
_known(
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
_known(
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
_known(
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
_known(
    rule(
        "log-vocab-vllm",
        "blocks",
        "vLLM: draft and target have vocabularies of different sizes",
        "The target has {target} tokens and the draft {draft}; vLLM needs equal sizes. Sizes may differ only in "
        "padding, with the same tokens.",
        'Use a draft model of that size, or let vLLM use the shared tokens: "use_heterogeneous_vocab": true with '
        '"method": "draft_model". Check the tokens: slipstream doctor --engine vllm --target T --draft D.',
    ),
    "Target and draft model should have the same vocabulary size",
    matches=r"Target model vocab_size=(?P<target>\d+).{0,10}Draft model vocab_size=(?P<draft>\d+)",
)
_known(
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
_known(
    rule(
        "log-cuda-memory",
        "blocks",
        "The GPU ran out of memory",
        "The GPU ran out of memory{amount}. Weights, KV cache and working buffers of both target and draft share the "
        "GPU's memory.",
        "Check the memory plan: slipstream plan --target T --draft D --context N --gpus GB. Then shorten the context, "
        "quantise the KV cache, or use a smaller draft. vLLM: --gpu-memory-utilization, --max-model-len, "
        "--max-num-seqs; llama-server: -c, -ctk q8_0 -ctv q8_0, -ngl.",
    ),
    "CUDA out of memory",
    "CUDA error: out of memory",
    "cudaMalloc failed: out of memory",
    "HIP out of memory",
    "failed to allocate CUDA",
    matches=r"(?:allocating (?P<amount>[\d.]+ MiB).{0,60})?(?:out of memory|failed to allocate)"
    r"(?:.{0,40}?allocate (?P<torch_amount>[\d.]+ [KMGT]iB))?",
)
_known(
    rule(
        "log-kv-memory",
        "blocks",
        "vLLM: not enough memory for the KV cache",
        "After loading the weights, there is too little GPU memory left for the KV cache of one full request.",
        "Lower --max-model-len, raise --gpu-memory-utilization (0.95), or use a smaller model or draft.",
    ),
    "No available memory for the cache blocks",
    "which is larger than the available KV cache",
    "is larger than the maximum number of tokens that can be stored in KV cache",
)
_known(
    rule(
        "log-memory-taken",
        "blocks",
        "vLLM: other processes use the GPU's memory",
        "Another process uses part of the GPU's memory, so the requested share is not free.",
        "Find these processes with nvidia-smi and stop them, or lower --gpu-memory-utilization.",
    ),
    "is less than desired GPU memory utilization",
)
_known(
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
_known(
    rule(
        "log-no-cuda-device",
        "slows",
        "No CUDA device was found",
        "The program was built for CUDA but finds no device, so it falls back to the CPU.",
        "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container start it with --gpus all.",
    ),
    "no CUDA devices found",
    "no CUDA-capable device is detected",
    "failed to initialize CUDA",
    "No CUDA GPUs are available",
)
_known(
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
_known(
    rule(
        "log-port-taken",
        "blocks",
        "The port is in use",
        "Another program already listens on this address, often an earlier start of the same server.",
        "Stop that program, or use another port: --port 8001. `ss -ltnp` shows which program listens.",
    ),
    "address already in use",
    "Address already in use",
    "couldn't bind HTTP server socket",
    "Only one usage of each socket address",
)
_known(
    rule(
        "log-hub-access",
        "blocks",
        "The hub refuses access to the model",
        "The hub requires a login for this model: the model is gated or private, or its name is wrong.",
        "Check the name. Accept the conditions on the model's page, then run `hf auth login` (or set HF_TOKEN) on the "
        "server.",
    ),
    "Cannot access gated repo",
    "gated repo",
    "401 Client Error",
    "Repository Not Found for url",
    "is not a valid model identifier listed on",
)
_known(
    rule(
        "log-hub-offline",
        "blocks",
        "The hub can't be reached",
        "The model is not in the cache, and the hub can't be reached.",
        "Download it on a machine with network access (slipstream pull MODEL, hf download MODEL), or use the path of "
        "a local copy.",
    ),
    "couldn't connect to 'https://huggingface.co'",
    "Cannot find the requested files in the local cache",
    "outgoing traffic has been disabled",
)
_known(
    rule(
        "log-tokenizer-missing",
        "blocks",
        "The tokenizer can't be loaded",
        "The model's folder has no tokenizer that the engine can read.",
        "Put tokenizer.json and tokenizer_config.json of the original model into the folder of the weights, or name a "
        "model that has them: --tokenizer MODEL. For tokenizer.model alone: pip install sentencepiece.",
    ),
    "Can't load tokenizer for",
    "Couldn't instantiate the backend tokenizer",
    "Unable to load tokenizer",
    "cannot find tokenizer merges in model file",
    "cannot find tokenizer vocab in model file",
    "unknown pre-tokenizer type",
)
_known(
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
_known(
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
_known(
    rule(
        "log-file-missing",
        "blocks",
        "A file is missing",
        "The file {path} does not exist.",
        "Check the path from the server's point of view: a container needs a volume (-v /models:/models).",
    ),
    "No such file or directory",
    "failed to open GGUF file",
    matches=r"(?:No such file or directory: '?|failed to open GGUF file '|gguf_init_from_file: failed to open '|"
    r"failed to open |cannot access '?)(?P<path>[^'\n]{1,120}?)(?:'|$|: No such)",
)
_known(
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
    engines=("tabbyapi",),
)
_known(
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
    engines=("tabbyapi",),
)
_known(
    rule(
        "log-draft-context",
        "blocks",
        "ExLlama: the draft's context is shorter than the target's",
        "ExLlama requires that the draft's context is at least as long as the context used for the target. It is "
        "shorter.",
        "Lower max_seq_len and cache_size in the section model of config.yml to the draft's context, extend the "
        "draft's context (draft_rope_alpha: auto), or use a draft with a longer context.",
    ),
    "Draft model seq len must be >= model seq len",
    "Cache and draft cache must be same dimensions",
    engines=("tabbyapi",),
)
_known(
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
_known(
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
_known(
    rule(
        "log-runner-ended",
        "blocks",
        "Ollama: the process that runs the model ended",
        "The process that runs the model ended: {reason}. The lines before it show the cause, most often too little "
        "memory.",
        "Look at `journalctl -u ollama` above this line. Lower num_ctx or num_gpu, use a smaller model, or update "
        "Ollama if the model is newer than Ollama.",
    ),
    "llama runner process has terminated",
    "llama runner process no longer running",
    matches=r"llama runner process (?:has terminated|no longer running):? ?(?P<reason>.{0,100})",
)
_known(
    rule(
        "log-option-unknown",
        "blocks",
        "The engine does not have this command line option",
        "The engine does not accept {option}: it was removed, renamed, or misspelt.",
        "Check the whole command: slipstream doctor --config FILE (or `-` for standard input) names the successor.",
    ),
    "unrecognized arguments:",
    "error: invalid argument:",
    "the argument has been removed",
    matches=r"(?:unrecognized arguments: |invalid argument: |(?=.*the argument has been removed))(?P<option>\S{0,60})",
)
_known(
    rule(
        "log-suffix-missing",
        "blocks",
        "vLLM: the package for suffix decoding is missing",
        "The method suffix needs the package arctic-inference, which is not installed.",
        "pip install arctic-inference==0.1.1 in vLLM's environment, or use the method ngram.",
    ),
    "Arctic Inference is required for suffix decoding",
)
