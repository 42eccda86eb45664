"""Failures of programs around llama.cpp: llama-cpp-python, LM Studio (also with MLX) and KoboldCpp."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import LinePlace, Patterns

WRAPPERS = Patterns()
WRAPPERS.add(
    rule(
        "log-split-devices",
        "blocks",
        "llama-cpp-python: the build knows fewer devices than the split",
        "A split over several GPUs was asked for (tensor_split), and this build knows {devices} device. It was built "
        "without GPU support.",
        'Install a build with CUDA (CMAKE_ARGS="-DGGML_CUDA=on" pip install --force-reinstall --no-cache-dir '
        "llama-cpp-python), or leave out tensor_split.",
    ),
    "Attempt to split tensors that exceed maximum supported devices",
    matches=r"exceed maximum supported devices(?:.{0,40}MAX_DEVICES=(?P<devices>\d+))?",
)
WRAPPERS.add(
    rule(
        "log-context-overrun",
        "blocks",
        "llama-cpp-python: the answer ran over the end of the context",
        "Prompt and answer are longer than the {size} tokens of the context (n_ctx), and llama-cpp-python wrote "
        "beyond its end.",
        "Raise n_ctx, or lower max_tokens so that prompt, answer and draft fit.",
    ),
    "is out of bounds for axis 0 with size",
    matches=r"index (?P<size>\d+) is out of bounds for axis 0 with size (?P=size)\b",
    place=LinePlace(frames=("llama_cpp",)),
)
WRAPPERS.add(
    rule(
        "log-mlx-batched",
        "blocks",
        "LM Studio: no speculation for MLX models in batches",
        "LM Studio's MLX engine runs models in batches since 0.4, and speculation does not exist there.",
        "Use a GGUF pair, or switch parallel requests off for the model; else an older MLX runtime.",
    ),
    "Speculative decoding is not supported for batched MLX models",
    instead_of=("log-spec-method",),
)
WRAPPERS.add(
    rule(
        "log-mlx-draft",
        "blocks",
        "LM Studio: the draft does not fit the model",
        "The draft's vocabulary has another size than the main model's, so LM Studio's MLX engine refuses the pair.",
        "Use a draft of the same family: slipstream pairs --target TARGET. Check: slipstream doctor --target T "
        "--draft D.",
    ),
    "Draft model is not compatible with main model",
)
WRAPPERS.add(
    rule(
        "log-lmstudio-memory",
        "blocks",
        "LM Studio: not enough memory for these settings",
        "LM Studio refuses to load the model because its estimate is larger than the free memory.",
        "Lower the context length or the layers on the GPU, unload other models, use a smaller quantisation; or "
        "change the guardrails in the settings if the estimate is wrong. slipstream plan computes what fits.",
    ),
    "due to insufficient system resources",
    "ot enough resources to load the model",
)
WRAPPERS.add(
    rule(
        "log-lmstudio-runtime",
        "blocks",
        "LM Studio: no runtime for this model",
        "LM Studio has no runtime for this model's format or this machine, or it is damaged.",
        "Open Runtimes in the settings, update or reinstall the runtime for this format (GGUF, MLX), and select it.",
    ),
    "No LM Runtime found",
    "Failed to load LLM engine from path",
    "Unsupported model type",
    "Model type ",
    matches=r"No LM Runtime found|Failed to load LLM engine|Error: Model type \S{1,60} not supported",
)
WRAPPERS.add(
    rule(
        "log-lmstudio-stopped",
        "unknown",
        "LM Studio: the server stopped before it listened",
        "The server stopped, and the log does not say that it listened before. The log does not tell why; the port "
        "may be in use by another program.",
        "Use another port in the server's settings (lms server start --port 1235), and switch verbose logs on.",
    ),
    "[LM STUDIO SERVER] Stopping server",
    unless=("listening on port", "Success! HTTP server", "Server started", "Received request"),
)
WRAPPERS.add_general(
    rule(
        "log-lmstudio-crash",
        "blocks",
        "LM Studio: the engine's process crashed",
        "The process that runs the model crashed (exit code {code}), and LM Studio does not say why. Usual causes are "
        "too little memory, a runtime that does not fit the GPU, or a model that is newer than the runtime.",
        "Read the engine's own log (lms log stream, or Developer Logs). Try a shorter context, fewer layers on the "
        "GPU, no draft, and the newest or the CPU runtime.",
    ),
    "(Exit code:",
    "model has crashed without additional information",
    matches=r"\(Exit code: ?(?P<code>\S{1,24}?)\)|crashed without additional information",
)
WRAPPERS.add(
    rule(
        "log-kobold-draft",
        "slows",
        "KoboldCpp: the draft can't be used",
        "KoboldCpp can't use the draft and runs without it: {reason}",
        "Use a draft that is an ordinary transformer of the target's family, with the same vocabulary: slipstream "
        "pairs --target TARGET.",
    ),
    "Error: Speculative decoding cannot be used",
    "peculative decoding cannot be used!",
    "raft model vocab of",
    matches=r"(?:Error|WARNING): (?P<reason>(?:Speculative decoding cannot be used|Draft model vocab of).{0,140})|"
    r"(?P<reason_2>[^\n]{0,120}peculative decoding cannot be used!)",
    instead_of=("log-vocab-size",),
)
WRAPPERS.add(
    rule(
        "log-scores-shape",
        "blocks",
        "llama-cpp-python: tokens do not fit its arrays",
        "llama-cpp-python could not store tokens or scores. The prompt may be longer than the context (n_ctx), or "
        "scores for all positions are needed and were not kept.",
        "Raise n_ctx or shorten the prompt; with a draft or logprobs create the model with logits_all=True. Update "
        "llama-cpp-python.",
    ),
    "could not broadcast input array from shape",
    matches=r"ValueError: could not broadcast input array from shape",
    place=LinePlace(frames=("llama_cpp",)),
)
WRAPPERS.add(
    rule(
        "log-kobold-context",
        "slows",
        "KoboldCpp: requests ask for more context than there is",
        "A request asks for a context of {asked} tokens, and KoboldCpp was started with {have}: older text is cut off.",
        "Start with --contextsize {asked}, or lower the context in the client.",
    ),
    "exceeds allocated context size of",
    matches=r"max_context_length=(?P<asked>\d+) exceeds allocated context size of (?P<have>\d+)",
)
