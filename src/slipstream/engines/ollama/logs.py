"""Ollama's log: its own failures, and those of the llama.cpp in it."""

from __future__ import annotations

from slipstream.engines.llama_server.logs import FAILURES as LLAMA_CPP_FAILURES
from slipstream.findings import rule
from slipstream.parsing.log_patterns import EngineLog, Patterns, Stage, StartLog

START = StartLog(
    "/api/version",
    (Stage("listening", ("Listening on",)),),
    marks=("ollama", "source=sched.go", "source=server.go", "source=runner.go", "source=routes.go", "[GIN]"),
    begins=('msg="starting llama server"', 'msg="starting runner"', 'msg="starting go runner"'),
    ready=('msg="Listening on', "llama runner started in"),
    works=(("| 200 |", "/api/chat"), ("| 200 |", "/api/generate"), ("| 200 |", "/v1/")),
    verbose="OLLAMA_DEBUG=1",
)

_FAILURES = Patterns()
_FAILURES.add_general(
    rule(
        "log-runner-ended",
        "blocks",
        "Ollama: the process that runs the model ended",
        "The process that runs the model ended: {reason}. The lines before it show the cause, most often too little "
        "memory.",
        "Look at `journalctl -u ollama` above this line. Lower num_ctx or num_gpu, use a smaller model, or update "
        "Ollama if the model is newer than Ollama.",
    ),
    "model failed to load, this may be due to",
    "an error was encountered while running the model",
    "POST predict: ",
    "llama runner process has terminated",
    "llama runner process no longer running",
    "llama-server process has terminated",
    "llama runner terminated",
    matches=r"(?:llama runner|llama-server) (?:process )?(?:has terminated|no longer running|terminated)\"?:? "
    r"?(?P<reason>.{0,100})|(?P<reason_2>model failed to load, this may be due to.{0,60}|an error was encountered "
    r"while running the model.{0,80}|POST predict: .{0,100})",
)
_FAILURES.add(
    rule(
        "log-intel-driver",
        "blocks",
        "The Intel GPU driver aborted",
        "The compute layer of the Intel GPU driver aborted, and with it the process that runs the model.",
        "Use a driver and a container image that fit the GPU and the kernel of the host (/dev/dri must be passed in), "
        "or run on the CPU (num_gpu 0).",
    ),
    "llama runner process has terminated",
    only_with=("neo/shared/source",),
    instead_of=("log-runner-ended",),
)
_FAILURES.add(
    rule(
        "log-request-ended",
        "blocks",
        "Ollama: a request ran for minutes and got no answer",
        "A request ran for {time} and ended with status 500, without an answer. The client gave up, or the process "
        "that runs the model hangs. A model that never ends its answer looks the same.",
        "Limit the answer (num_predict 1000), stream it, and raise the client's time limit. ollama ps shows whether "
        "the model runs on the CPU; OLLAMA_DEBUG=1 shows what the process does.",
    ),
    "| 500 |",
    matches=r"\| 500 \| +(?P<time>(?:\d+h)?\d+m[\d.]+s)",
    instead_of=("log-runner-ended",),
)
_FAILURES.add(
    rule(
        "log-one-stream",
        "note",
        "Ollama answers one request at a time with this architecture",
        "Ollama ignores OLLAMA_NUM_PARALLEL for models of the architecture {name}: requests wait for each other.",
        "Expect no more throughput from several requests at the same time, or run the model with llama-server.",
    ),
    "model architecture does not currently support parallel requests",
    matches=r'architecture="?(?P<name>[\w.-]{1,60})',
)

_FAILURES.add(
    rule(
        "log-ollama-memory",
        "blocks",
        "Ollama: the model needs more memory than there is",
        "The model needs {needed} of main memory, and {free} are free.",
        "Use a smaller model or quantisation, lower num_ctx, or free memory. slipstream plan --target MODEL computes "
        "what fits.",
    ),
    "requires more system memory",
    matches=r"requires more system memory \((?P<needed>[^)]{1,20})\) than is available \((?P<free>[^)]{1,20})\)",
)
_FAILURES.add(
    rule(
        "log-ollama-timeout",
        "blocks",
        "Ollama: loading the model took too long",
        "The process that loads the model was not ready in the time allowed (5 minutes): the disk is slow, memory is "
        "short, or the process hangs.",
        "Put the model on a fast local disk (OLLAMA_MODELS), raise OLLAMA_LOAD_TIMEOUT (15m), lower num_ctx or "
        "num_gpu.",
    ),
    "timed out waiting for llama",
    "waiting for llama-server to start",
    matches=r"timed out waiting for llama",
    instead_of=("log-ollama-vram",),
)
_FAILURES.add(
    rule(
        "log-registry-offline",
        "blocks",
        "Ollama can't reach its registry",
        "Ollama can't download from its registry: {reason}. The name server, proxy or firewall does not let it "
        "through; in a container its own network may be at fault.",
        "Test with curl -I https://registry.ollama.ai. Behind a proxy set HTTPS_PROXY for the server, in Docker check "
        "DNS (--dns 1.1.1.1). Or import a GGUF file: ollama create with FROM ./FILE.",
    ),
    "dial tcp",
    "TLS handshake timeout",
    "max retries exceeded: ",
    "i/o timeout",
    matches=r"(?:[Ee]rror|pull|download).{0,300}?(?P<reason>dial tcp.{0,120}|TLS handshake timeout|max retries "
    r"exceeded: .{0,80}|i/o timeout)",
)
_FAILURES.add(
    rule(
        "log-ollama-name",
        "blocks",
        "Ollama does not have this model",
        "There is no model of this name or tag on this machine, or in the registry.",
        "Check the name and tag on ollama.com/library, then ollama pull NAME:TAG. `ollama list` shows what is here.",
    ),
    "pull model manifest: file does not exist",
    "not found, try pulling it first",
    "couldn't find model \"",
    instead_of=("log-registry-offline",),  # the registry answered
)
_FAILURES.add(
    rule(
        "log-ollama-old",
        "blocks",
        "Ollama is too old for the model",
        "The model needs a newer version of Ollama than the one that runs.",
        "Update Ollama and restart its server; `ollama -v` shows both versions. Another program may bring its own old "
        "copy.",
    ),
    "not supported by your version of Ollama",
    "requires a newer version of Ollama",
    "may be incompatible with your version of Ollama",
    "no longer compatible with your version of Ollama",
    instead_of=("log-gguf-architecture",),
)
_FAILURES.add(
    rule(
        "log-ollama-driver",
        "slows",
        "Ollama: the driver is too old, the GPU is not used",
        "The GPU's driver is older than Ollama needs, so the model runs on the CPU.",
        "Update the driver and restart Ollama.",
    ),
    "NVIDIA driver too old",
    "AMD driver is too old",
    "driver is too old",
)
_FAILURES.add(
    rule(
        "log-ollama-server",
        "blocks",
        "The Ollama server does not run",
        "The command could not reach the Ollama server.",
        "Start it: ollama serve, or systemctl start ollama. OLLAMA_HOST must be the same for both.",
    ),
    ":11434: connect",
    "could not connect to ollama server",
    "could not connect to ollama app",
    "could not connect to a running Ollama instance",
    matches=r"(?:Error|error).{0,40}could not connect|dial tcp \S{1,40}:11434: connect",
    instead_of=("log-registry-offline",),
)
_FAILURES.add(
    rule(
        "log-draft-file",
        "blocks",
        "Ollama refuses the DRAFT of the Modelfile",
        "Ollama refuses the draft: {reason}.",
        "DRAFT takes a local file with an MTP or DFlash head for this model, another file than FROM. For an ordinary "
        "draft model use llama-server -md DRAFT --spec-type draft-simple.",
    ),
    "DRAFT must not reference",
    "DRAFT cannot be used",
    "MTP draft safetensors",
    "draft quantization requires",
    "is not a supported safetensors model directory",
    "load draft model metadata",
    matches=r"(?P<reason>(?:DRAFT (?:must|cannot)|MTP draft|draft quantization|draft \S{1,80} is not|load draft "
    r"model).{0,120})",
)
_FAILURES.add(
    rule(
        "log-ollama-capability",
        "blocks",
        "Ollama: the model can't do what the request asks",
        "The model does not support {what}, which the request asks for.",
        "Use a model that has it (its page on ollama.com/library names tools, thinking, vision), or leave it out.",
    ),
    "does not support ",
    matches=r"\"? does not support (?P<what>tools|thinking|generate|chat|insert|completion|embeddings?|vision)\b",
)
_FAILURES.add(
    rule(
        "log-ollama-truncated",
        "slows",
        "Ollama cuts prompts that are longer than num_ctx",
        "A prompt of {tokens} tokens is longer than num_ctx ({limit}), so Ollama dropped its beginning: answers miss "
        "it.",
        "Raise num_ctx (PARAMETER num_ctx in the Modelfile, or OLLAMA_CONTEXT_LENGTH), if the memory allows it.",
    ),
    "truncating input prompt",
    matches=r"truncating input prompt\" limit=(?P<limit>\d+) prompt=(?P<tokens>\d+)",
)
_FAILURES.add(
    rule(
        "log-ollama-vram",
        "slows",
        "Ollama: GPU memory was not free in time",
        "The memory of the model before was not free again in time, so Ollama may put fewer layers on the GPU or wait.",
        "Check nvidia-smi for other programs on the GPU; unload models with ollama stop NAME, or set "
        "OLLAMA_MAX_LOADED_MODELS=1.",
    ),
    "gpu VRAM usage didn't recover within timeout",
)

LOG = EngineLog(START, (*LLAMA_CPP_FAILURES, *_FAILURES))
