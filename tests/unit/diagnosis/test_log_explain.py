"""Logs: each known failure by the text that its engine really prints, its true cause, and nothing for other text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_time import cpu_seconds
from slipstream.diagnosis.logs import explain

BARE_BROADCAST = "ValueError: operands could not be broadcast together with shapes (0,) (82,)"
BROADCAST = f"""  File "/lib/site-packages/llama_cpp/llama.py", line 780, in generate
    draft_tokens = self.draft_model(self.input_ids[: self.n_tokens])
{BARE_BROADCAST}"""
STORAGE = """File "/opt/lib/python3.10/site-packages/vllm/model_executor/model_loader/weight_utils.py", line 727, \
in safetensors_weights_iterator
    param = f.get_tensor(name)
ValueError: could not determine the shape of object type 'torch.storage.UntypedStorage'
"""
VOCAB_SIZE_VLLM = (
    "ValueError: Target and draft model should have the same vocabulary size. Target model vocab_size=152064. "
    "Draft model vocab_size=151936. Using models with different tokenizers can cause out-of-bounds errors"
)
BF16 = (
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has "
    "compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: "
    "--dtype=half."
)
EVAL_TIME = (
    "llama_perf_context_print:        eval time =   22390.00 ms /   100 runs   (  223.90 ms per token,     4.47 tokens "
    "per second)"
)
PROMPT_TIME = EVAL_TIME.replace("       eval time", "prompt eval time").replace("runs  ", "tokens")

KNOWN = [
    (BROADCAST, "log-draft-object", "LlamaPromptLookupDecoding"),
    (STORAGE, "log-tensor-read", "safetensors"),
    (BF16, "log-bfloat16", "--dtype half"),
    (
        "INFO 03-19 11:53:56 [cuda.py:234] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.",
        "log-flash-attention",
        "not an error",
    ),
    ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "log-flash-attention-forced", "backend"),
    (
        "common_speculative_are_compatible: draft model vocab type must match target model to use speculation but "
        "vocab_type_dft = 1 while vocab_type_tgt = 2",
        "log-vocab-type",
        "slipstream pairs",
    ),
    (
        "common_speculative_are_compatible: draft model special tokens must match target model to use speculation",
        "log-vocab-special",
        "special",
    ),
    (
        "spec common_specu: draft model bos tokens must match target model to use speculation. add: 0 - 1, id: 11 - "
        "17)",
        "log-vocab-special",
        "bos",
    ),
    (
        "draft model vocab must closely match target model to use speculation but target vocab size 128256 does not "
        "match draft vocab size 32000 - difference 96256, max allowed 128",
        "log-vocab-size",
        "128256",
    ),
    (
        "draft model vocab must match target model to use speculation but token 128013 content differs - target "
        "'<|a|>', draft '<|b|>'",
        "log-vocab-token",
        "<|a|>",
    ),
    ("main: error: draft model vocab must match ... but token 0 content differs", "log-vocab-token", "not named"),
    (VOCAB_SIZE_VLLM, "log-vocab-vllm", "use_heterogeneous_vocab"),
    (
        "srv  load_model: the draft model 'b.gguf' is not compatible with the target model 'a.gguf'",
        "log-speculation-off",
        "runs without it",
    ),
    (
        "srv    load_model: failed to initialize speculative decoding context: draft model is not eagle3",
        "log-draft-kind",
        "not eagle3",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.58 "
        "GiB",
        "log-cuda-memory",
        "2.00 GiB",
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5632.00 MiB on device 0: cudaMalloc failed: out of "
        "memory",
        "log-cuda-memory",
        "5632.00 MiB",
    ),
    ("CUDA error: out of memory", "log-cuda-memory", "slipstream plan"),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "log-kv-memory",
        "--max-model-len",
    ),
    (
        "ValueError: Free memory on device cuda:0 (3.1/14.6 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 13.1 GiB).",
        "log-memory-taken",
        "nvidia-smi",
    ),
    ("load_tensors: offloaded 0/33 layers to GPU", "log-no-layers-on-gpu", "n_gpu_layers=-1"),
    (
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        "log-no-cuda-device",
        "--gpus all",
    ),
    ("ggml_cuda_init: no CUDA devices found", "log-no-cuda-device", "nvidia-smi"),
    (
        "warning: not compiled with GPU offload support, --gpu-layers option will be ignored",
        "log-no-gpu-build",
        "GGML_CUDA=on",
    ),
    ("warning: no usable GPU found, --gpu-layers option will be ignored", "log-no-gpu-build", "n_gpu_layers"),
    (
        "ERROR: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        "log-port-taken",
        "--port",
    ),
    ("srv   start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", "log-port-taken", "--port"),
    (
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/x",
        "log-hub-access",
        "HF_TOKEN",
    ),
    (
        "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x/y",
        "log-hub-access",
        "HF_TOKEN",
    ),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
        "cached",
        "log-hub-offline",
        "slipstream pull",
    ),
    (
        "gguf_init_from_file: failed to open GGUF file '/models/a.gguf' (No such file or directory)",
        "log-file-missing",
        "/models/a.gguf",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/draft/config.json'",
        "log-file-missing",
        "/models/draft/config.json",
    ),
    (
        "OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from "
        "'https://huggingface.co/models'",
        "log-tokenizer-missing",
        "tokenizer.json",
    ),
    (
        "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'qwen4'",
        "log-gguf-architecture",
        "qwen4",
    ),
    (
        "gguf_init_from_file_impl: invalid magic characters: 'vers', expected 'GGUF'",
        "log-gguf-damaged",
        "slipstream doctor",
    ),
    (
        "llama_model_load: error loading model: tensor 'blk.31.ffn_down.weight' data is not within the file bounds, "
        "model is corrupted or incomplete",
        "log-gguf-damaged",
        "download it again",
    ),
    (
        "AssertionError: Job requires 33 pages (only 32 available) and cannot be enqueued. Total cache allocated is 32 "
        "* 256 = 8192 tokens",
        "log-cache-too-small",
        "cache_size",
    ),
    (
        "WARNING:  The given max_seq_len (24064) is larger\nthan the cache size and will be limited to 4096 tokens.",
        "log-context-limited",
        "cache_size",
    ),
    ("AssertionError: Draft model seq len must be >= model seq len", "log-draft-context", "draft_rope_alpha"),
    (
        "llama_context: n_ctx_seq (8192) > n_ctx_train (2048) -- possible training context overflow",
        "log-context-trained",
        "2048",
    ),
    (
        "WARNING: Draft model is disabled because a model name wasn't provided. Please check your config.yml!",
        "log-draft-disabled",
        "draft_model_name",
    ),
    (
        "Error: llama runner process has terminated: exit status 2",
        "log-runner-ended",
        "exit status 2",
    ),
    (
        "api_server.py: error: unrecognized arguments: --speculative-model x",
        "log-option-unknown",
        "--speculative-model",
    ),
    ("error: invalid argument: --draft-maxx", "log-option-unknown", "--draft-maxx"),
    (
        "the argument has been removed. use --spec-draft-n-max or --spec-ngram-mod-n-max",
        "log-option-unknown",
        "slipstream doctor --config",
    ),
    (
        "ImportError: Arctic Inference is required for suffix decoding. Install via `pip install "
        "arctic-inference==0.1.1`.",
        "log-suffix-missing",
        "pip install arctic-inference",
    ),
]


@pytest.mark.parametrize(("text", "rule_id", "told"), KNOWN)
def test_a_known_failure_is_explained(text, rule_id, told):
    log = f"INFO something before\n\x1b[31m{text}\x1b[0m\nINFO something after\n"
    findings = explain(log)
    assert [finding.id for finding in findings] == [rule_id]
    [finding] = findings
    assert told in finding.cause + finding.fix
    assert finding.evidence.startswith("line ") and "\x1b" not in finding.evidence and len(finding.evidence) < 220


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\nworld",
        "INFO: Application startup complete.",
        "load_tensors: offloaded 33/33 layers to GPU",
        "common_speculative_init: no implementations specified for speculative decoding",
        PROMPT_TIME,
        "The draft was read by the target audience in 5 s",
        "draft acceptance = 0.70312 (   90 accepted /   128 generated), mean len = 3.1",
    ],
)
def test_other_text_gives_nothing(text):
    assert explain(text) == []


def test_the_wrong_suspects_are_cleared():
    assert "tokenizers are not the cause" in explain(BROADCAST)[0].cause
    assert "82" in explain(BROADCAST)[0].cause
    cause = explain(STORAGE)[0].cause
    assert "AWQ" in cause and "not the cause" in cause
    assert explain(STORAGE)[0].evidence.startswith("line 3: ValueError: could not determine the shape")


def test_a_silent_fallback_is_told_by_its_real_reason_and_not_by_the_last_message():
    to_use = "must match target model to use speculation"
    log = (
        f"0.1 E spec common_specu: draft model bos tokens {to_use}. add: 0 - 1, id: 11 - 17)\n"
        "0.1 E spec common_specu: the target and draft vocabs are not compatible\n"
        "0.1 E srv    load_model: failed to initialize speculative decoding context: "
        f"draft model vocab type {to_use}\n"
        "0.2 I main: server is listening on http://127.0.0.1:8080\n"
    )
    [finding] = explain(log, "llama-server")
    assert finding.id == "log-vocab-special"
    assert finding.severity == "slows"
    assert "continues without speculation" in finding.cause
    without_reason = "\n".join(log.splitlines()[1:])
    [general] = explain(without_reason)
    assert general.id == "log-speculation-off"


def test_a_loaded_draft_without_a_type_of_speculation_is_told():
    log = (
        "srv load_model: loading draft model 'b.gguf'\n"
        "common_speculative_init: no implementations specified for speculative decoding\n"
        "srv: listening on x\n"
    )
    [finding] = explain(log)
    assert finding.id == "log-draft-unused"
    assert "--spec-type draft-simple" in finding.fix


VLLM_STAGES = [
    ("INFO 02-11 [api_server.py:1] vLLM API server version 0.15.1", "starting the server's process"),
    ("INFO [model.py:733] Resolved architecture: LlamaForCausalLM", "reading the model's config"),
    (
        "INFO [core.py:134] Initializing a V1 LLM engine (v0.15.1) with config: "
        "speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=5), {eager}",
        "starting the engine's process",
    ),
    ("INFO [gpu_model_runner.py:5040] Starting to load model TheBloke/Llama-2-7B-AWQ...", "loading the weights"),
    ("INFO [default_loader.py:248] Loading weights took 3.22 seconds", "measuring memory"),
    ("INFO [gpu_model_runner.py:5150] Model loading took 3.67 GiB memory and 5.1 seconds", "measuring memory"),
    ("INFO [backends.py:1] Dynamo bytecode transform time: 6.20 s", "compiling"),
    ("INFO [gpu_worker.py:760] Available KV cache memory: 7.91 GiB", "creating the KV cache"),
    ("Capturing CUDA graphs (decode, FULL):  20%|██        | 2/10 [00:03<00:12]", "capturing CUDA graphs"),
]


@pytest.mark.parametrize("reached", range(1, len(VLLM_STAGES) + 1))
def test_a_hang_is_told_with_the_last_stage_reached(reached):
    log = "\n".join(line.format(eager="enforce_eager=False") for line, _ in VLLM_STAGES[:reached])
    [finding] = explain(log)
    assert finding.id == "log-start-unfinished"
    assert f"reached: {VLLM_STAGES[reached - 1][1]}" in finding.cause
    assert finding.evidence.startswith(f"line {reached}: ")
    assert "VLLM_LOGGING_LEVEL=DEBUG" in finding.fix
    assert ("N-gram drafting loads no weights" in finding.cause) == (reached >= 3)


def test_a_hang_names_what_to_try_and_not_what_is_on_already():
    log = "\n".join(line for line, _ in VLLM_STAGES[:6])
    [compiled] = explain(log.format(eager="enforce_eager=False"))
    [eager] = explain(log.format(eager="enforce_eager=True"))
    assert "--enforce-eager" in compiled.fix and "7.5" in compiled.fix and "VLLM_USE_V1" in compiled.fix
    assert "--enforce-eager" not in eager.fix and "already on" in eager.cause


@pytest.mark.parametrize("end", ["INFO:     Application startup complete.", "Traceback (most recent call last):", BF16])
def test_a_start_that_finished_or_failed_is_no_hang(end):
    log = "\n".join(line for line, _ in VLLM_STAGES) + "\n" + end
    assert "log-start-unfinished" not in [finding.id for finding in explain(log)]


def test_hangs_of_other_engines():
    [llama] = explain(
        "main: loading model\nsrv    load_model: loading model 'a.gguf'\ncommon: warming up the model with an empty run"
    )
    assert "warming up" in llama.cause
    [sglang] = explain("server_args=ServerArgs(model_path='m')\nLoad weight begin. avail mem=70.1 GB\n", "sglang")
    assert "loading the weights" in sglang.cause
    assert explain("Load weight begin. avail mem=70.1 GB", "vllm") == []


def test_findings_come_in_the_order_of_the_log_and_once_each():
    memory = "CUDA error: out of memory"
    log = f"{memory}\n{BROADCAST}\n{memory}\n"
    assert [(f.id, f.evidence[:6]) for f in explain(log)] == [
        ("log-cuda-memory", "line 1"),
        ("log-draft-object", "line 4"),
    ]


def test_an_engine_leaves_out_what_only_others_print():
    text = "Job requires 33 pages (only 32 available) and cannot be enqueued."
    assert [finding.id for finding in explain(text, "tabbyapi")] == ["log-cache-too-small"]
    assert [finding.id for finding in explain(text, "vllm")] == ["log-unknown"]


UNKNOWN_FAILURES = [
    (
        'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: shapes (3,) (82,)\n',
        "ValueError: shapes",
    ),
    (
        "(EngineCore pid=7) ERROR KeyError: 'x'\nRuntimeError: Engine core failed. See root cause above\n",
        "KeyError: 'x'",
    ),
    ("Segmentation fault (core dumped)\n", "Segmentation fault"),
    ("  assert x\nAssertionError\n", "AssertionError"),
]


@pytest.mark.parametrize(("log", "quoted"), UNKNOWN_FAILURES)
def test_an_error_that_no_rule_explains_is_quoted_as_unknown(log, quoted):
    [finding] = explain(log)
    assert (finding.id, finding.severity) == ("log-unknown", "unknown") and quoted in finding.evidence


@pytest.mark.parametrize(
    "log",
    [
        "ERROR one worker is late\nINFO: Application startup complete.\n",  # what came after decides
        "WARNING Unable to detect the config. Defaulting to NHD.\n",
        "INFO error_rate=0.0\n",
    ],
)
def test_a_warning_and_an_error_before_the_engine_was_ready_are_no_failure(log):
    assert explain(log) == []


HUGE = [
    "INFO 02-11 10:00:00 [loggers.py:1] Engine 000: Avg generation throughput: 41.0 tokens/s, Running: 1 reqs\n",
    "target vocab size content differs No such file or directory eval time = s for " + "x" * 60 + "\n",
    "draft tokens 1 eval time = (0,) ",  # one line of 50 MB
    "operands " * 3 + "\r",
]


@pytest.mark.parametrize("line", HUGE)
def test_a_log_of_50_mb_takes_seconds_and_its_end_is_still_read(line):
    log = line * (50_000_000 // len(line)) + "\n" + BROADCAST
    start = cpu_seconds()
    findings = explain(log)
    assert cpu_seconds() - start < 20
    assert "log-draft-object" in [finding.id for finding in findings]


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([text for text, _, _ in KNOWN] + [line for line, _ in VLLM_STAGES] + ["", "\0", "{x}"]))
)
def test_no_mixture_makes_it_fail(lines):
    assert all(finding.evidence for finding in explain("\n".join(lines)))


@pytest.mark.parametrize("line", ["." * 1_000_000, "a.Error " * 125_000, "error " * 160_000, ":" * 1_000_000])
def test_one_huge_line_is_read_in_no_time(line):
    started = cpu_seconds()
    explain(f"vLLM API server version 0.11.0\n{line}\n")
    assert cpu_seconds() - started < 5
