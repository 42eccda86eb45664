"""Known failures that any engine may print. Those of one engine are in its folder, in `logs.py`.

Here: options, ports, files and the hub. `log_machine` has memory, GPUs and libraries, `log_packages` Python packages
and the weights of models.
"""

from __future__ import annotations

from slipstream.diagnosis.log_machine import MACHINE
from slipstream.diagnosis.log_packages import PACKAGES
from slipstream.findings import rule
from slipstream.parsing.log_patterns import WHILE_SERVING, WHILE_STARTING, Patterns

PATTERNS = Patterns([*MACHINE, *PACKAGES])
PATTERNS.add(
    rule(
        "log-port-taken",
        "blocks",
        "The port is in use",
        "Another program already listens on this address, often an earlier start of the same server.",
        "Stop that program, or use another port: --port 8001. `ss -ltnp` shows which program listens.",
    ),
    "ddress already in use",
    "couldn't bind HTTP server socket",
    "Only one usage of each socket address",
    "are in use by different services",
    matches=r"(?i)(?<!IPv6: )(?:address already in use|couldn't bind|only one usage of each socket|Ports \d+ and \d+)",
    instead_of=("log-distributed-timeout", "log-nccl"),
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
    "403 Client Error",
    "Repository Not Found for url",
    "is not a valid model identifier listed on",
    "is not a local folder or a valid repository name",
    "Invalid username or password",
    instead_of=("log-model-incomplete",),
)
PATTERNS.add(
    rule(
        "log-hub-limit",
        "blocks",
        "The hub limits downloads",
        "The hub refuses further requests for a while: too many came from this address, or without a login.",
        "Log in (`hf auth login`, or HF_TOKEN), wait some minutes, and download once: hf download MODEL. Then start "
        "with HF_HUB_OFFLINE=1.",
    ),
    "429 Client Error",
    "Too Many Requests for url",
)
PATTERNS.add(
    rule(
        "log-hub-certificate",
        "blocks",
        "The certificate of the hub is not trusted",
        "The connection is refused because the certificate can't be verified. Most often a proxy of the company "
        "replaces certificates, or the clock of the machine is wrong.",
        "Give the proxy's certificate (REQUESTS_CA_BUNDLE=FILE, SSL_CERT_FILE=FILE), check the date, or copy the model "
        "to this machine and use its path.",
    ),
    "CERTIFICATE_VERIFY_FAILED",
    "certificate verify failed",
    "x509: certificate",
    instead_of=("log-hub-offline", "log-registry-offline"),
)
PATTERNS.add(
    rule(
        "log-hub-offline",
        "blocks",
        "The hub can't be reached",
        "The model is not in the cache, and the hub can't be reached.",
        "Download it on a machine with network access (slipstream pull MODEL, hf download MODEL), or use the path of "
        "a local copy. Behind a proxy set HTTPS_PROXY; a mirror is set with HF_ENDPOINT.",
    ),
    "couldn't connect to 'https://h",
    "annot find the requested files in the local cache",
    "annot find the appropriate snapshot folder",
    "outgoing traffic has been disabled",
    "Error: HTTPSConnectionPool(host=",
    "Error: HTTPConnectionPool(host=",
    "Timeout: HTTPSConnectionPool(host=",
    "Temporary failure in name resolution",
    "Name or service not known",
    "getaddrinfo failed",
    matches=r"(?:Error|Timeout|Exception)\b(?:: |.{0,40}\bErrno)|couldn't connect|local cache|snapshot folder|disabled",
)
PATTERNS.add(
    rule(
        "log-tokenizer-missing",
        "blocks",
        "The tokenizer can't be loaded",
        "The model's folder has no tokenizer that the engine can read, or it is newer than the engine.",
        "Put tokenizer.json and tokenizer_config.json of the original model into the folder of the weights, or name a "
        "model that has them: --tokenizer MODEL. For tokenizer.model alone: pip install sentencepiece. A GGUF file: "
        "update llama.cpp, or convert the model again.",
    ),
    "Can't load tokenizer for",
    "Couldn't instantiate the backend tokenizer",
    "Unable to load tokenizer",
    "cannot find tokenizer merges in model file",
    "cannot find tokenizer vocab in model file",
    "unknown pre-tokenizer type",
    "unknown tokenizer: '",
    "error loading model vocabulary",
    "ModelWrapper",
    "does not exist or is not currently imported.",
    matches=r"(?i)tokenizer|vocab|variant of untagged enum ModelWrapper",
    place=WHILE_STARTING,
)
PATTERNS.add(
    rule(
        "log-file-missing",
        "blocks",
        "A file is missing",
        "The file {path} does not exist, or may not be read.",
        "Check the path from the server's point of view: a container needs a volume (-v /models:/models).",
    ),
    "Model path does not exist: ",
    "No such file or directory",
    "failed to open GGUF file",
    "annot find text model file",
    matches=r"(?:No such file or directory: '?|failed to open GGUF file '|gguf_init_from_file: failed to open '|"
    r"failed to open |cannot access '?|Cannot find text model file: |Model path does not exist: "
    r")(?P<path>[^'\n]{1,120}?)(?:'|$|: No such)",
)
PATTERNS.add(
    rule(
        "log-permission",
        "blocks",
        "A file may not be read or written",
        "The program's user has no right to {path}.",
        "Check owner and rights (ls -l). In a container: run with the user that owns the folder, or set the cache to a "
        "folder that it can write (HF_HOME).",
    ),
    "Permission denied",
    "permission denied",
    "PermissionError",
    matches=r"(?:PermissionError.{0,40}denied: '?|open |mkdir |Permission denied: '?)(?P<path>/[^'\n:]{1,120})|"
    r"PermissionError at |[Ff]ailed.{0,200}ermission denied",
)
PATTERNS.add(
    rule(
        "log-disk-full",
        "blocks",
        "The disk is full",
        "There is no space left on a disk that the engine writes to: the cache of models, /tmp or /dev/shm.",
        "Check with df -h. Free space, or move the cache to a larger disk (HF_HOME=DIR, OLLAMA_MODELS=DIR). For "
        "/dev/shm in a container: --shm-size 16g.",
    ),
    "No space left on device",
    "no space left on device",
    "[Errno 28]",
    "not enough space on the disk",
    matches=r"(?i)error|fail|write|panic|disk|Errno",
)
PATTERNS.add(
    rule(
        "log-option-unknown",
        "blocks",
        "The engine does not have this command line option",
        "The engine does not accept {option}: it was removed, renamed, or misspelt, or this version is older than the "
        "option.",
        "Check the whole command: slipstream doctor --config FILE (or `-` for standard input) names the successor.",
    ),
    "unrecognized arguments:",
    "error: invalid argument:",
    "the argument has been removed",
    "error: unknown argument",
    "error: unexpected argument",
    "No such option:",
    "Error: unknown flag:",
    "flag provided but not defined:",
    "ambiguous option:",
    matches=r"(?:unrecognized arguments: |invalid argument: |unknown argument:? |unexpected argument |No such option: |"
    r"unknown flag: |not defined: |ambiguous option: )'?(?P<option>[^\s']{0,60})|argument \"(?P<option_2>[^\s\"]{1,60})"
    r"\": the argument has been removed|the argument has been removed",
    instead_of=("log-settings", "log-option-value"),
    place=WHILE_STARTING,
)
PATTERNS.add(
    rule(
        "log-option-value",
        "blocks",
        "A command line option has a wrong value",
        "The value of {option} is not accepted: {reason}.",
        "Correct the value; slipstream doctor --config FILE checks the whole command. JSON needs single quotes around "
        'it in the shell: --speculative-config \'{{"method": "ngram"}}\'.',
    ),
    ": error: argument ",
    "error while handling argument",
    "error: Invalid value for",
    "Error: Invalid value for",
    matches=r"(?:error: argument |error while handling argument \"?|[Ii]nvalid value for '?)"
    r"(?P<option>-[\w/, -]{1,60}?)['\"]?: (?P<reason>.{3,160})",
)
PATTERNS.add(
    rule(
        "log-context-exceeded",
        "blocks",
        "A request is longer than the context",
        "Prompt and answer together are longer than the context that the engine was started with: {reason}.",
        "Shorten the prompt or the answer (max_tokens), or start with a longer context: vLLM --max-model-len, SGLang "
        "--context-length, llama-server -c (shared by its slots: --parallel), llama-cpp-python n_ctx=, Ollama "
        "num_ctx, TabbyAPI max_seq_len and cache_size.",
    ),
    "Cannot truncate prompt with n_keep",
    "odel is loaded with context length of only",
    "Prompt exceeds the available context",
    "maximum context length is",
    "longer than the maximum model length",
    "exceed context window of",
    "exceeds the available context size",
    "Context size has been exceeded",
    "is longer than the model's context length",
    "exceeds the maximum allowed length",
    "exceeds maximum context length",
    "input length exceeds the context length",
    matches=r"(?P<reason>[^:\n]{0,80}(?:(?:maximum context length is|longer than the "
    r"maximum model length|exceed context window of|exceeds the available context size|longer than the model's "
    r"context length|exceeds the maximum allowed length)[^.\n]{0,60}|Context size has been exceeded|exceeds maximum "
    r"context length|input length exceeds the context length|Cannot truncate prompt with n_keep.{0,40}|"
    r"loaded with context length of only.{0,20}|Prompt exceeds the available context))",
)
PATTERNS.add(
    rule(
        "log-context-model",
        "blocks",
        "The context asked for is longer than the model's",
        "The context of {asked} tokens is longer than the {trained} that the model's config.json allows.",
        "Ask for at most {trained} tokens (vLLM --max-model-len, SGLang --context-length), or give the model a rope "
        "scaling that its publisher describes. VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only removes the check.",
    ),
    "is greater than the derived",
    matches=r"User-specified (?:max_model_len|context_length) \((?P<asked>\d+)\) is greater than the derived "
    r"(?:max_model_len|context_length) \(\D{0,60}(?P<trained>\d+)",
)
PATTERNS.add(
    rule(
        "log-request-json",
        "blocks",
        "A request is not valid JSON",
        "A client sent a request that is not valid JSON: {reason}. The server is not the cause.",
        "Correct the request; `python -m json.tool FILE` shows where it is wrong. In a shell, put single quotes around "
        "it (curl -d '{{…}}'); on Windows use a file (curl -d @FILE).",
    ),
    "with invalid JSON",
    "JSON decode error",
    "json.exception.parse_error",
    matches=r"(?P<reason>with invalid JSON.{0,120}|JSON decode error.{0,80}|json\.exception\.parse_error.{0,120})",
    place=WHILE_SERVING,
)
PATTERNS.add_general(
    rule(
        "log-vocab-differs",
        "blocks",
        "Draft and target have different vocabularies",
        "The engine refuses the pair because the vocabularies of draft and target differ: {reason}.",
        "Use a draft of the target's family: slipstream pairs --target TARGET. What differs: slipstream doctor "
        "--target T --draft D.",
    ),
    "raft",
    "ssistant",
    matches=r"(?:Error|Exception|ERROR|\[error\]|error:)(?P<reason>.{0,80}(?:[Dd]raft|[Aa]ssistant).{0,80}(?:vocab|"
    r"okenizer).{0,80}(?:mismatch|not match|n't match|differ|ncompatib|not compatib|same).{0,60})",
    instead_of=("log-refused",),
)
PATTERNS.add_general(
    rule(
        "log-draft-warning",
        "slows",
        "The engine warns that the draft is not used or does not fit",
        "The engine says that speculation does not work as asked: {reason}. It may run without the draft.",
        "Look whether later lines report acceptance. Check the pair: slipstream doctor --target T --draft D; drafts "
        "that fit: slipstream pairs --target T.",
    ),
    "raft",
    "peculative ",
    "ssistant model",
    matches=r"(?m)^(?!.*(?:Error|Exception|ERROR|error)\b).*?"
    r"(?P<reason>(?:[Ss]peculative [Dd]ecod(?:ing|e)|[Dd]raft(?:er| model|ing)|[Aa]ssistant model)\b"
    r"(?:(?! and )[^.,;\n]){0,80}?(?:\bnot (?:be )?(?:used|supported|compatible|available|loaded)|(?:does not|doesn't) "
    r"(?:match|fit)|\bincompatible|\bmismatch|turned off|switched off|(?:is|was|been|being|be) "
    r"disabled|malfunction).{0,80})",
)
PATTERNS.add_general(
    rule(
        "log-settings",
        "blocks",
        "The engine refuses its settings",
        "The engine refuses one of its settings: {reason}.",
        "Change the setting that the message names. slipstream doctor --config FILE checks a command or a config file "
        "before the start.",
    ),
    "Value error, ",
    "Extra inputs are not permitted",
    "Unexpected keyword argument [type=",
    "Input should be ",
    matches=r"(?P<reason>(?:Value error, .{5,240}?|Extra inputs are not permitted|Unexpected keyword argument|"
    r"Input should be .{3,160}?)) \[type=\w+, input_value=.{0,80}",
)
PATTERNS.add_general(
    rule(
        "log-refused",
        "blocks",
        "The engine refuses this combination",
        "The engine refuses this combination of model, machine and options: {reason}",
        'Change one of the things that the message names. If the message says "yet" or "currently", a newer version '
        "may accept it.",
    ),
    "ValueError: ",
    "NotImplementedError: ",
    "NotSupportedError: ",
    "AssertionError: ",
    "RuntimeError: ",
    "Exception: ",
    matches=r"(?:Value|NotImplemented|NotSupported|Assertion|Runtime)?(?:Error|Exception): "
    r"(?P<reason>[^\n]{0,200}?(?:not (?:yet |currently )?(?:be )?support|only support|n't support|support only|"
    r"[Uu]nsupported|(?:not |in)compatible|\brequires?\b|must be (?:divisible|"
    r"equal|the same|positive|set|greater|less|one of|a multiple|between|in )|cannot be (?:used|combined)|[Cc]annot "
    r"use)[^\n]{0,200})",
)
PATTERNS.add(
    rule(
        "log-config-syntax",
        "blocks",
        "A setting or a file is not valid JSON or YAML",
        "A text that should be JSON or YAML can't be read: {reason}. In the shell, quotes around JSON are often lost; "
        "a file may be cut off.",
        'Put single quotes around JSON on the command line: --speculative-config \'{{"method": "ngram"}}\'. Check '
        "config.json and config files for missing quotes, commas and indentation.",
    ),
    "JSONDecodeError: ",
    "yaml.scanner.ScannerError",
    "yaml.parser.ParserError",
    "is not a valid JSON file",
    matches=r"(?P<reason>JSONDecodeError: .{3,100}|(?:Scanner|Parser)Error.{0,80}|is not a valid JSON file)",
)
