"""Known failures, each with the words that its engine really prints. One rule, one cause."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream.findings import Rule, rule


@dataclass(frozen=True, slots=True)
class Pattern:
    """`pieces`: exact text of which one is in the line. `matches`: what the line must match; its groups fill the rule.

    `engines`: those that print it; empty for any. `instead_of`: rules that this one says better.
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
        "llama-cpp-python was given a model as draft_model=",
        "A model object was passed as draft_model=. llama-cpp-python calls what it is given with the array of tokens "
        "so far (here {rows}) and wants drafted tokens back; a Llama object takes the array for a prompt and adds an "
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
        "a weight that could not be read: UntypedStorage",
        "Reading one weight failed between safetensors and torch: the file's header was read, and torch then refused "
        "the bytes of a tensor. That comes from the torch and safetensors in use, from too little memory to map the "
        "file, or from a file that is not what its name says (a pickle, a pointer, a part). Quantisation (AWQ) is not "
        "the cause, and neither is the model's architecture.",
        "Check the file: slipstream doctor --draft MODEL (reads its header and one tensor in a clean process). If it "
        "is sound: pip install -U safetensors in the engine's environment and free memory; if not, fetch it again or "
        "convert it to safetensors.",
    ),
    "could not determine the shape of object type 'torch.storage.UntypedStorage'",
)
_known(
    rule(
        "log-bfloat16",
        "blocks",
        "bfloat16 on a GPU that has none",
        "{gpu} has compute capability {capability}, and bfloat16 begins at 8.0.",
        "Start with --dtype half.",
    ),
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0",
    matches=r"Your (?P<gpu>.{1,80}?) GPU (?:has|does not have a) compute capability ?(?P<capability>[\d.]*)",
)
_known(
    rule(
        "log-flash-attention",
        "note",
        "FlashAttention 2 on a GPU below compute capability 8.0",
        "FlashAttention 2 needs compute capability 8.0 (Ampere); on Volta and Turing (T4: 7.5) another attention "
        "kernel is used. That is slower and no failure.",
        "Nothing to do. If a backend is forced, take another: --attention-backend TRITON_ATTN (older versions: "
        "VLLM_ATTENTION_BACKEND=XFORMERS).",
    ),
    "Cannot use FlashAttention",
    matches=r"Cannot use FlashAttention(?:-2)? backend for Volta and Turing GPUs",
)
_known(
    rule(
        "log-flash-attention-forced",
        "blocks",
        "FlashAttention forced on a GPU below compute capability 8.0",
        "FlashAttention 2 was asked for, or chosen by a backend that needs it, on a GPU below compute capability 8.0.",
        "Take another backend: --attention-backend TRITON_ATTN (older versions: VLLM_ATTENTION_BACKEND=XFORMERS), and "
        "--enforce-eager --dtype half.",
    ),
    "FlashAttention only supports Ampere GPUs or newer",
)
_known(
    rule(
        "log-vocab-type",
        "slows",
        "draft and target have different kinds of tokenizer",
        "The tokenizers are of different kinds (draft {draft}, target {target}: 1 is SentencePiece, 2 byte-level BPE, "
        "3 WordPiece), so no token of the draft can be one of the target. llama-server goes on without speculation.",
        "Take a draft of the target's family: slipstream pairs --target TARGET.",
    ),
    "draft model vocab type must match target model to use speculation but",
    matches=r"vocab_type_dft = (?P<draft>\d+) while vocab_type_tgt = (?P<target>\d+)",
    instead_of=("log-speculation-off",),
)
_known(
    rule(
        "log-vocab-special",
        "slows",
        "draft and target have different special tokens",
        "The {which} tokens of draft and target differ (added or not, or other ids), and llama.cpp then refuses the "
        "pair. llama-server goes on without speculation.",
        "Take a draft with the target's special tokens, or correct the draft's metadata if only the flag differs: "
        "--override-kv tokenizer.ggml.add_bos_token=bool:false. Check: slipstream doctor --target T --draft D.",
    ),
    "tokens must match target model to use speculation",
    matches=r"draft model (?P<which>bos|eos|special) tokens must match",
    instead_of=("log-speculation-off",),
)
_known(
    rule(
        "log-vocab-size",
        "slows",
        "draft and target differ too much in vocabulary size",
        "The target has {target} tokens and the draft {draft}: llama.cpp takes a difference of 128 at most. "
        "llama-server goes on without speculation.",
        "Take a draft of the target's family (slipstream pairs --target TARGET), or one that is translated: "
        "Slipstream's drafter `translate`.",
    ),
    "target vocab size",
    matches=r"target vocab size (?P<target>\d+) does not match draft vocab size (?P<draft>\d+)",
    instead_of=("log-speculation-off",),
)
_known(
    rule(
        "log-vocab-token",
        "slows",
        "a token has another text in the draft",
        "Token {token} is {target} in the target and {draft} in the draft: the vocabularies only look alike. "
        "llama-server goes on without speculation.",
        "Take a draft of the target's family: slipstream pairs --target TARGET. slipstream doctor --target T --draft D "
        "lists the tokens that differ.",
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
        "The target has {target} tokens and the draft {draft}; vLLM takes equal sizes only. Sizes can differ by "
        "padding alone, with the same tokens.",
        'Take a draft of that size, or let vLLM use the shared tokens: "use_heterogeneous_vocab": true with "method": '
        '"draft_model". Check the tokens: slipstream doctor --engine vllm --target T --draft D.',
    ),
    "Target and draft model should have the same vocabulary size",
    matches=r"Target model vocab_size=(?P<target>\d+).{0,10}Draft model vocab_size=(?P<draft>\d+)",
)
_known(
    rule(
        "log-speculation-off",
        "slows",
        "llama-server runs on without speculation",
        "The draft could not be used, and llama-server keeps serving without it: {reason}. Answers are right, and no "
        "faster than without a draft. The message names the vocabulary's type for any mismatch; the line before it has "
        "the real one.",
        "Look for `draft acceptance` in later lines: without it nothing is drafted. slipstream doctor --target T "
        "--draft D says what differs; slipstream pairs --target T lists drafts that work.",
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
        "the GPU's memory ran out",
        "The GPU's memory ran out{amount}. Weights, both KV caches and working buffers share it, and a draft adds its "
        "own.",
        "Plan it: slipstream plan --target T --draft D --context N --gpus GB. Then shorten the context, quantise the "
        "KV cache, or take a smaller draft; vLLM: --gpu-memory-utilization, --max-model-len, --max-num-seqs; "
        "llama-server: -c, -ctk q8_0 -ctv q8_0, -ngl.",
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
        "vLLM: no room for the KV cache",
        "After the weights there is too little GPU memory left for the KV cache of one full request.",
        "Lower --max-model-len, raise --gpu-memory-utilization (0.95), or take a smaller model or draft.",
    ),
    "No available memory for the cache blocks",
    "which is larger than the available KV cache",
    "is larger than the maximum number of tokens that can be stored in KV cache",
)
_known(
    rule(
        "log-memory-taken",
        "blocks",
        "vLLM: other processes hold the GPU's memory",
        "Another process holds part of the GPU's memory, so that the share asked for is not free.",
        "Look with nvidia-smi and end what is left over, or lower --gpu-memory-utilization.",
    ),
    "is less than desired GPU memory utilization",
)
_known(
    rule(
        "log-no-layers-on-gpu",
        "slows",
        "no layer of the model is on the GPU",
        "0 of {layers} layers were put on the GPU: the CPU does all the work, with or without a draft.",
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
        "no CUDA device was found",
        "The program was built for CUDA and finds no device, so that it falls back to the CPU.",
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
        "a build without GPU support",
        "This build has no GPU support: settings such as n_gpu_layers are ignored, and the CPU does all the work.",
        'Install one that has: CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir '
        "llama-cpp-python "
        "(Metal: -DGGML_METAL=on), or a llama-server built for the GPU.",
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
        "the port is in use",
        "Another program listens on this address already, often an earlier start of the same server.",
        "End it, or take another port: --port 8001. `ss -ltnp` says who listens.",
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
        "the hub refuses the model",
        "The hub wants a login for this model: it is gated or private, or its name is wrong.",
        "Accept its conditions on its page, then `hf auth login` (or set HF_TOKEN) where the server runs. Check the "
        "name.",
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
        "the hub can't be reached",
        "The model is not in the cache, and the hub can't be reached.",
        "Fetch it where there is a network (slipstream pull MODEL, hf download MODEL), or give the path of a local "
        "copy.",
    ),
    "couldn't connect to 'https://huggingface.co'",
    "Cannot find the requested files in the local cache",
    "outgoing traffic has been disabled",
)
_known(
    rule(
        "log-tokenizer-missing",
        "blocks",
        "the tokenizer can't be loaded",
        "The model's folder has no tokenizer that the engine can read.",
        "Put tokenizer.json and tokenizer_config.json of the original model beside the weights, or point at them: "
        "--tokenizer MODEL. For tokenizer.model alone: pip install sentencepiece.",
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
        "llama.cpp doesn't know the model's architecture",
        "This build of llama.cpp is older than the architecture {name}.",
        "Update it (llama-cpp-python: pip install -U; Ollama: a newer release).",
    ),
    "unknown model architecture",
    matches=r"unknown model architecture: '(?P<name>[^']{1,60})'",
)
_known(
    rule(
        "log-gguf-damaged",
        "blocks",
        "a GGUF file that is none, or not all of it",
        "The file is no GGUF file, or only part of one: an interrupted download, or a pointer in place of the file.",
        "Check it: slipstream doctor --target FILE. Then fetch it again.",
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
        "a file is not where it was said to be",
        "There is no file {path}.",
        "Check the path as the server sees it: inside a container it needs a volume (-v /models:/models).",
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
        "A request needs {need} pages of cache and there are {have} (256 tokens each): prompt, answer and draft must "
        "fit.",
        "Raise cache_size (a multiple of 256) in the section model of config.yml, or ask for fewer tokens.",
    ),
    "cannot be enqueued",
    matches=r"Job requires (?P<need>\d+) pages \(only (?P<have>\d+) available\)",
    engines=("tabbyapi",),
)
_known(
    rule(
        "log-context-limited",
        "slows",
        "TabbyAPI: the context is cut to the cache",
        "max_seq_len {asked} is larger than the cache, so the context is cut to the cache's size (4,096 tokens when "
        "cache_size is not set), for target and draft.",
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
        "ExLlama wants the draft to know at least as many positions as the target uses, and the draft knows fewer.",
        "Lower max_seq_len and cache_size in the section model of config.yml to the draft's context, stretch the draft "
        "(draft_rope_alpha: auto), or take a draft with a longer context.",
    ),
    "Draft model seq len must be >= model seq len",
    "Cache and draft cache must be same dimensions",
    engines=("tabbyapi",),
)
_known(
    rule(
        "log-context-trained",
        "slows",
        "the context is longer than a model was trained for",
        "A model trained for {trained} positions is used with {asked}. For a draft the answers stay right, and its "
        "guesses are noise beyond {trained} tokens; for a target the answers suffer.",
        "Set -c to at most {trained}, or take a draft with a longer context.",
    ),
    "possible training context overflow",
    matches=r"n_ctx_(?:per_)?seq \((?P<asked>\d+)\) > n_ctx_train \((?P<trained>\d+)\)",
)
_known(
    rule(
        "log-draft-disabled",
        "slows",
        "TabbyAPI: the draft is disabled for want of a name",
        "TabbyAPI found no draft_model_name in the section draft_model, so it runs without a draft. A section of "
        "another name (`draft:`) is not read.",
        "Set draft_model: draft_model_name in config.yml. Check the file: slipstream doctor --engine tabbyapi --config "
        "config.yml.",
    ),
    "Draft model is disabled because a model name",
)
_known(
    rule(
        "log-runner-ended",
        "blocks",
        "Ollama: the process that runs the model ended",
        "The process that runs the model ended: {reason}. The reason stands in the lines before it: most often memory.",
        "Look at `journalctl -u ollama` above this line. Lower num_ctx or num_gpu, take a smaller model, or update "
        "Ollama when the model is newer than it.",
    ),
    "llama runner process has terminated",
    "llama runner process no longer running",
    matches=r"llama runner process (?:has terminated|no longer running):? ?(?P<reason>.{0,100})",
)
_known(
    rule(
        "log-option-unknown",
        "blocks",
        "a command line option that the engine doesn't take",
        "The engine doesn't take {option}: it was removed, renamed, or misspelt.",
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
        "vLLM: suffix decoding without its package",
        "The method suffix needs the package arctic-inference, which is not installed.",
        "pip install arctic-inference==0.1.1 in vLLM's environment, or use the method ngram.",
    ),
    "Arctic Inference is required for suffix decoding",
)
