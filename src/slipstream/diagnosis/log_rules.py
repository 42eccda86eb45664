"""Known failures that any engine may print. Those of one engine are in its folder, in `logs.py`."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import Patterns

PATTERNS = Patterns()
PATTERNS.add(
    rule(
        "log-tensor-read",
        "blocks",
        "A weight could not be read: UntypedStorage",
        "Reading one weight failed between safetensors and torch, after the file's header was read. A sound file gives "
        "exactly this message if it is read while torch is in fake-tensor mode (tensors without data, as torch.compile "
        "and memory estimates use them), so the engine's process may be the cause, or its versions of torch and "
        "safetensors. The file probably is not: a pickle, a Git LFS pointer or a web page fails earlier ('header too "
        "large'), an empty file with 'header too small', a truncated one with 'incomplete metadata'. Quantisation "
        "(AWQ) and the model's architecture are not the cause.",
        "Check the file: slipstream doctor --draft MODEL (reads its header and one tensor in a clean process). If the "
        "file is good, start the engine without compiling (vLLM: --enforce-eager), or upgrade the engine in a new "
        "environment, with the torch and safetensors that it selects. If not, download it again.",
    ),
    "could not determine the shape of object type 'torch.storage.UntypedStorage'",
)
PATTERNS.add(
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
PATTERNS.add(
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
PATTERNS.add(
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
PATTERNS.add(
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
PATTERNS.add(
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
PATTERNS.add(
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
PATTERNS.add(
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
PATTERNS.add(
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
