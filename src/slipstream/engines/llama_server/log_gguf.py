"""llama.cpp's failures with files, settings and memory, and its assertions."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import Patterns

_OLD_MAGICS = ("tjgg", "fmgg", "lmgg", "algg", "ggjt", "ggmf", "ggml", "ggla")  # of formats before GGUF
GGUF = Patterns()
GGUF.add(
    rule(
        "log-gguf-architecture",
        "blocks",
        "llama.cpp does not know the model's architecture",
        "This build of llama.cpp does not know the architecture {name}: it is newer than the build, llama.cpp does not "
        "support it at all, or (without a name) the file was not made for llama.cpp.",
        "Update llama.cpp (llama-cpp-python: pip install -U; Ollama, LM Studio, KoboldCpp: a newer release). If the "
        "newest does not know it either, use another model or another engine.",
    ),
    'unsupported architecture "',
    "unknown model architecture",
    "unsupported model architecture",
    matches=r"un(?:known|supported) model architecture: '(?P<name>[^']{0,60})'|Error: unsupported architecture "
    r"\"(?P<name_2>[^\"]{0,60})",
)
GGUF.add(
    rule(
        "log-gguf-damaged",
        "blocks",
        "The file is not a complete GGUF file",
        "The file is not a GGUF file, or only part of one: the download was interrupted, the file is a Git LFS "
        "pointer, or it has another format (safetensors, an older GGML file).",
        "Check it: slipstream doctor --target FILE. Then download it again; a safetensors model must be converted to "
        "GGUF first.",
    ),
    "invalid file magic",
    "invalid magic characters",
    "invalid magic number",
    "tensor data is not within the file bounds",
    "data is not within the file bounds",
    "is corrupted or incomplete",
    "unexpectedly reached end of file",
    "failed to read magic",
    "failed to read tensor",
    "failed to read key-value pairs",
    "failed to read header",
    "has invalid data",
    "tensors with invalid data",
    "corrupted model:",
    "is duplicated",
    "exceeds remaining file size",
    "has invalid GGUF type",
    matches=r"(?i)gguf|invalid file magic|tensor|error loading model|llama_model_load",
)
GGUF.add(
    rule(
        "log-gguf-format",
        "blocks",
        "The file has another version of the format than the program reads",
        "File and program are of different times: a GGUF file in a program from before GGUF (August 2023), an old "
        "GGML file in a newer one, or a GGUF version that this build does not read.",
        "Update the program (llama-cpp-python: pip install -U; a newer container image). For an old .bin file, "
        "download the model as GGUF.",
    ),
    "unknown (magic, version) combination",
    "is this really a GGML file?",
    "GGUFv1 is no longer supported",
    "but this software only supports up to version",
    "bad GGUF version",
    "this GGUF file version",
    "has invalid ggml type",
    "unsupported file format",
    *(f"invalid magic characters{between}'{magic}'" for between in (": ", " ") for magic in _OLD_MAGICS),
    matches=r"\(magic, version\)|GGML file|GGUF|invalid ggml type|error.{0,40}unsupported file format|magic characters",
    instead_of=("log-gguf-damaged",),
)
GGUF.add(
    rule(
        "log-gguf-parts",
        "blocks",
        "Only a part of the model file was loaded",
        "The name of the file says that it is one of several parts, cut without llama.cpp's own tool. Such parts must "
        "be joined before they are loaded.",
        "Join them in order: cat MODEL.gguf.part* > MODEL.gguf (Windows: copy /b PART1 + PART2 MODEL.gguf). Or use a "
        "model whose parts are named …-00001-of-0000N.gguf: these are loaded by the first one.",
    ),
    "data is not within the file bounds",
    "is corrupted or incomplete",
    only_with=(".part1of", ".part-1", ".part01", ".gguf.part", ".gguf-part", ".gguf-split-"),
    instead_of=("log-gguf-damaged",),
)
GGUF.add(
    rule(
        "log-gguf-split",
        "blocks",
        "A split GGUF file is not loaded by its first part",
        "The model consists of several files, and they were not given as llama.cpp needs them: {reason}.",
        "Give the first part (…-00001-of-0000N.gguf), with all parts in the same folder under their original names.",
    ),
    "illegal split file idx",
    "invalid split file",
    "invalid split count",
    "failed to load GGUF split",
    "must be loaded with the first split",
    matches=r"(?P<reason>(?:illegal split file idx|invalid split (?:file|count)|failed to load GGUF split).{0,120})",
    instead_of=("log-gguf-damaged", "log-file-missing"),
)
GGUF.add(
    rule(
        "log-gguf-tensors",
        "blocks",
        "The tensors in the file are not those that llama.cpp expects",
        "The file does not fit what this build expects of its architecture: {reason}. It was made by another version "
        "of the converter, the build is too old for this model, or it is not a whole model (a draft head, a "
        "projector). For a wrong shape of attn_k or wk the number of key-value heads is missing in the file.",
        "Update llama.cpp, and use a file converted with the same version. For an old GGML file of Llama 2 70B set "
        "n_gqa=8, or use GGUF. A draft head (MTP, EAGLE) needs its own --spec-type.",
    ),
    "wrong number of tensors",
    "missing tensor '",
    "has wrong shape; expected",
    "too many tensors created",
    "key not found in model",
    "error loading model hyperparameters",
    "has wrong array length",
    "' not found",
    "is not found in the model",
    matches=r"(?:error loading model|llama_model_load|llama\.cpp|check_tensor_dims|llama_model_loader|E "
    r"\w+).{0,60}?(?P<reason>(?:wrong number of tensors|missing tensor|tensor '[^']{1,80}' (?:has wrong shape|not "
    r"found)|too many tensors|key not found in model|error loading model hyperparameters|key .{1,60} has wrong array "
    r"length).{0,100})",
)
GGUF.add(
    rule(
        "log-mtp-as-draft",
        "blocks",
        "The program can't load or use this draft",
        "The program expects another kind of draft or file. Either the draft is a head for multi-token prediction "
        "(MTP) that the program treats as an ordinary draft model, or its llama.cpp does not fit the file.",
        "Update the program (LM Studio: its runtime). An MTP head: llama-server -m TARGET -md DRAFT --spec-type "
        "draft-mtp. An ordinary draft: try it alone, or use another one (slipstream pairs --target TARGET).",
    ),
    "failed to process speculative batch",
    "invalid vector subscript",
    "vector::_M_range_check",
    matches=r"failed to process speculative batch|error loading model: (?:invalid vector subscript|"
    r".{0,10}_M_range_check)",
    instead_of=("log-gguf-tensors",),
)
GGUF.add(
    rule(
        "log-gguf-projector",
        "blocks",
        "A vision projector was given as the model",
        "The file is the projector for images (mmproj), not the language model.",
        "Give the language model with -m, and this file with --mmproj.",
    ),
    "CLIP cannot be used as main model",
    "unknown model architecture: 'clip'",
    instead_of=("log-gguf-architecture",),
)
GGUF.add(
    rule(
        "log-v-cache",
        "blocks",
        "A quantised V cache needs flash attention",
        "The values of the KV cache were set to a quantised type, and flash attention is off, or the model or the "
        "type of the K cache can't use it.",
        "Switch flash attention on (-fa on; llama-cpp-python flash_attn=True; OLLAMA_FLASH_ATTENTION=1) and use the "
        "same type for K and V; or leave the V cache at f16 (remove -ctv, OLLAMA_KV_CACHE_TYPE).",
    ),
    "V cache quantization requires flash_attn",
    "but this requires Flash Attention",
    "Using --quantkv requires --flashattention",
    instead_of=("log-file-missing",),
)
GGUF.add(
    rule(
        "log-context-other",
        "slows",
        "The draft needs the main model's context",
        "The draft shares the context of the main model, and this build did not hand it over. During memory fitting "
        "at the start the message is normal; if nothing follows, this build does not support such a draft.",
        "Look for `draft acceptance` after an answer. If it is missing, update the program, or use llama-server with "
        "--spec-type draft-mtp.",
    ),
    "requires ctx_other to be set",
)
GGUF.add(
    rule(
        "log-kv-slot",
        "blocks",
        "The KV cache is full",
        "llama.cpp found no place in the KV cache for the next tokens: prompt, answer and draft are longer than the "
        "context, or several sequences share it.",
        "Raise -c (llama-cpp-python: n_ctx), use fewer slots (--parallel), or shorten prompt and draft.",
    ),
    "KV cache is full",
    "failed to decode the batch",
    "Check your context buffer sizes",
    "could not find a KV slot for the batch",
    "llama_decode returned 1",
    "failed to find a memory slot for batch",
    matches=r"(?i)(?:error|fail|\bE\b|could not find a KV slot|KV cache is full|context buffer sizes|returned 1\b)",
    instead_of=("log-context-exceeded",),
)
GGUF.add(
    rule(
        "log-slot-positions",
        "blocks",
        "llama-server's cache and its record of it differ",
        "The server wants to continue at a position that the KV cache of the sequence does not have. This is a fault "
        "of the server, met with reused prompts, several slots or drafts; the model is not the cause.",
        "Restart the server and update it. Until then try --parallel 1, and requests with cache_prompt false.",
    ),
    "Invalid input batch",
    "have inconsistent sequence positions",
    instead_of=("log-kv-slot",),
)
GGUF.add(
    rule(
        "log-batch-size",
        "blocks",
        "A batch is too large for a kernel",
        "One tensor of the computation is larger than 2 GiB, which this kernel can't copy: the batch is too large for "
        "such a long context.",
        "Use a smaller batch: -b 2048 -ub 512.",
    ),
    "<= INT_MAX) failed",
    "< INT_MAX) failed",
)
GGUF.add(
    rule(
        "log-batch-empty",
        "blocks",
        "llama.cpp got an empty batch",
        "llama.cpp was asked to compute nothing. Either the batch size is 0 (-b, -ub), or it is a fault of the "
        "program: llama-speculative does this with some models.",
        "Give a batch size of at least 1. For speculation use llama-server or llama-speculative-simple, or a newer "
        "build.",
    ),
    "GGML_ASSERT(n_outputs >= 1) failed",
    "GGML_ASSERT(batch.n_tokens > 0) failed",
    "GGML_ASSERT(n_tokens > 0) failed",
    "GGML_ASSERT(n_tokens_all > 0) failed",
    "decode: n_tokens == 0",
)
GGUF.add_general(
    rule(
        "log-draft-load",
        "blocks",
        "The draft model can't be loaded",
        "llama.cpp can't load the draft model {path}. The lines before it may say why: memory, a damaged file, or a "
        "kind of draft that this build does not know.",
        "Check it: slipstream doctor --draft FILE. Start without -md to see whether the target alone works; lower -c "
        "or use a smaller draft.",
    ),
    "ailed to load draft model",
    "failed to create draft context",
    "failed to create MTP context",
    "failed to load speculative decoding draft model",
    matches=r"ailed to load (?:speculative decoding )?draft model,? ?'?(?P<path>[^'\n]{0,120})|failed to create "
    r"(?:MTP|draft) context",
)
GGUF.add(
    rule(
        "log-download",
        "blocks",
        "llama.cpp can't download the model",
        "The download failed: {reason}. The name of the repository or file is wrong, a login is needed, or the "
        "network is not reachable.",
        "Check the name (-hf user/model:quant), log in with HF_TOKEN, or download the file and give its path with -m.",
    ),
    "download received non-successful status code",
    "download failed",
    "failed to download model",
    "failed with status code:",
    "required file is not available in cache",
    "error from HF API",
    matches=r"(?P<reason>(?:download received non-successful status code|download failed after|failed to download "
    r"model|Download '.{0,120}' failed with status code|required file is not available in cache|error from HF "
    r"API).{0,100})",
    instead_of=("log-model-incomplete",),
)
GGUF.add_general(
    rule(
        "log-gguf-load",
        "blocks",
        "llama.cpp can't load the model",
        "llama.cpp can't load the model: {reason}. It is damaged, made by another version, or too large for the "
        "memory.",
        "Check the file: slipstream doctor --target FILE. Update the program, and try a shorter context (-c 4096) and "
        "fewer layers on the GPU (-ngl).",
    ),
    "unable to load model",
    "failed to load model",
    "assert self.ctx is not None",
    "assert self.model is not None",
    "Unknown Model, cannot load",
    "error loading model",
    "Failed to load model from file",
    "Model path does not exist",
    "Failed to create llama_context",
    "failed to initialize the context",
    "Load Text Model OK: False",
    "Could not load text model",
    matches=r"(?P<reason>error loading model(?: \w+)?: .{3,160}|Failed to load model from file.{0,120}|Model path "
    r"does not exist.{0,120}|Failed to create llama_context|failed to initialize the context: .{0,160}|Load Text "
    r"Model OK: False|(?:unable|failed) to load model.{0,120}|assert self\.(?:ctx|model) is not None|Unknown Model, "
    r"cannot load|Could not load text model.{0,120})",
)
GGUF.add_general(
    rule(
        "log-ggml-assert",
        "blocks",
        "A check inside llama.cpp failed",
        "A check inside llama.cpp failed: {check}. It is a fault of this version, or the program is older than the "
        "model file needs; rarely a setting.",
        "Update llama.cpp, or the Ollama, LM Studio or KoboldCpp that brings it (another program may have its own old "
        "copy). Start once without the draft and with default settings to see what triggers it.",
    ),
    "GGML_ASSERT(",
    "GGML_ABORT(",
    "fatal error",
    matches=r"(?P<check>GGML_A(?:SSERT|BORT)\(.{1,120}?\)(?: failed)?)|\.(?:cpp|cu|c|h|m):\d+: fatal error",
    instead_of=("log-runner-ended",),
)
GGUF.add(
    rule(
        "log-batch-input",
        "blocks",
        "An input is larger than the batch",
        "The input must be computed in one batch, and it is longer than the physical batch size (-ub).",
        "Raise -ub and -b to the longest input.",
    ),
    "increase the physical batch size",
)
GGUF.add(
    rule(
        "log-jinja",
        "blocks",
        "Tools need the model's chat template",
        "The request uses tools, and llama-server was started without --jinja.",
        "Start llama-server with --jinja.",
    ),
    "requires --jinja flag",
)
GGUF.add(
    rule(
        "log-draft-required",
        "blocks",
        "No draft model was given",
        "The program needs a draft model, and none was given.",
        "Give one with -md DRAFT.gguf, or use llama-server, which runs without.",
    ),
    "--model-draft is required",
    "requires a draft context",
    instead_of=("log-speculation-off",),
)
