"""Logs are judged in order and by their engine: what came after decides, and prompts are no errors."""

from __future__ import annotations

import pytest

from slipstream.diagnosis.log_unknown import last_errors, most_telling
from slipstream.diagnosis.logs import explain, judge
from slipstream.parsing.log_reading import Log

BEGIN = "INFO [api_server.py:1] vLLM API server version 0.15.1\n"
READY = "INFO:     Application startup complete.\n"
ANSWER = '(APIServer pid=1) INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
MEMORY = (
    "(EngineCore pid=7) ERROR [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
STRANGE = "(EngineCore pid=7) ERROR [core.py:1] KeyError: 'rope_theta'\n"
DEAD = (
    "(APIServer pid=1) EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)
SLOW = "INFO [cuda.py:234] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.\n"


def ids(log: str, engine: str | None = None) -> list[str]:
    return [finding.id for finding in explain(log, engine)]


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (BEGIN + MEMORY, ["log-cuda-memory"]),
        (BEGIN + MEMORY + READY, []),
        (BEGIN + STRANGE + READY, []),
        (BEGIN + READY + MEMORY, ["log-cuda-memory"]),
        (BEGIN + READY + MEMORY + ANSWER, []),
        (BEGIN + READY + MEMORY + ANSWER + DEAD, ["log-cuda-memory"]),  # the last answer was already under way
        (BEGIN + MEMORY + BEGIN + READY, []),  # the run before failed
        (BEGIN + READY + ANSWER + BEGIN + MEMORY, ["log-cuda-memory"]),
        (BEGIN + READY + BEGIN + STRANGE, ["log-unknown"]),
        (BEGIN + SLOW + READY + ANSWER, ["log-flash-attention"]),  # what slows lasts
        (BEGIN + SLOW + BEGIN + READY, []),
        (BEGIN + SLOW + STRANGE, ["log-flash-attention", "log-unknown"]),  # a note explains no end
    ],
)
def test_what_came_after_decides(log, found):
    assert ids(log) == found


@pytest.mark.parametrize(
    "log",
    [
        "INFO [logger.py:36] Received request cmpl-1: prompt: 'Why\\nCUDA out of memory\\nValueError: x', params: 1\n",
        'srv log_server_r: request: {"messages":[{"role":"user","content":"ValueError: CUDA out of memory"}]}\n',
        '  "content": "Traceback (most recent call last): ValueError: address already in use",\n',
        "2025-08-12 08:41:19.590 INFO:     ValueError: CUDA out of memory\n",  # TabbyAPI logs prompts line by line
        "Receive: obj=GenerateReqInput(rid='1', text='KeyError: CUDA out of memory')\n",
        "Output: Your log says CUDA out of memory, which is an Error: the GPU is full.\n",
    ],
)
def test_a_prompt_or_an_answer_is_no_error(log):
    assert ids(log) == []
    assert ids(log + "CUDA out of memory\n") == ["log-cuda-memory"]


def test_a_ready_mark_in_a_prompt_is_none():
    log = BEGIN + MEMORY + 'request: {"content": "Application startup complete."}\n'
    assert ids(log) == ["log-cuda-memory"]


@pytest.mark.parametrize(
    "end",
    ["Processed prompts: 100%|██████| 4/4 [00:03<00:00, 1.2it/s]\n", "llama_perf_context_print: eval time = 1 ms\n"],
)
def test_a_finished_offline_run_needs_no_server(end):
    begin = "main: loading model\nggml_cuda_init: found 1 CUDA devices\n" if "llama" in end else BEGIN
    assert ids(begin + end) == []


def test_a_start_is_unfinished_only_if_the_log_shows_its_beginning_and_ends_in_it():
    loading = "INFO [default_loader.py:1] Loading weights took 3.22 seconds\n"
    assert ids(BEGIN + loading) == ["log-start-unfinished"]
    assert ids("vllm\n" + loading) == []  # a part of a log
    assert ids(BEGIN + loading + "INFO:     Shutting down\n") == []
    assert ids(BEGIN + loading + READY) == []


def test_http_listening_is_not_ready_before_the_model_is_loaded():
    log = "main: HTTP server is listening, hostname: 0.0.0.0\nmain: loading model\n"
    assert ids(log + "llama_model_load: unknown model architecture: 'x'\n") == ["log-gguf-architecture"]


def test_rules_of_other_engines_do_not_apply_where_the_log_names_its_engine():
    line = "AssertionError: Draft model seq len must be >= model seq len\n"
    assert ids("Loading with exllamav3\n" + line) == ["log-draft-context"]
    assert "log-draft-context" not in ids(BEGIN + line)


def test_without_the_engine_the_claim_is_lower():
    line = "AssertionError: Draft model seq len must be >= model seq len\n"
    assert "may be ExLlama" in explain(line)[0].cause
    assert "may be" not in explain("exllamav3\n" + line)[0].cause
    assert "may be" not in explain(line, "tabbyapi")[0].cause
    assert "may be" not in explain("CUDA out of memory")[0].cause, "a rule for any engine"


def test_the_broadcast_error_is_llama_cpp_pythons_only_with_its_frames():
    line = "ValueError: operands could not be broadcast together with shapes (0,) (82,)\n"
    frame = 'Traceback (most recent call last):\n  File "/lib/{}", line 7, in f\n'
    assert ids(frame.format("llama_cpp/llama.py") + line) == ["log-draft-object"]
    assert ids(frame.format("my/script.py") + line) == ["log-unknown"]
    assert ids(frame.format("my/script.py") + line, "llama-cpp-python") == ["log-unknown"]
    assert ids(line) == ["log-unknown"]
    [alone] = explain(line, "llama-cpp-python")
    assert alone.id == "log-draft-object" and "may come from" in alone.cause
    [named] = explain(line + "\n- llama-cpp-python version: 0.3.2\n")
    assert named == alone, "notes that name the engine do what --engine does"


def test_a_row_of_a_table_is_a_failure_only_where_it_quotes_one():
    row = "## Limits\n\n| Limit | Effect |\n|---|---|\n| Memory | Two models {} |\n"
    assert "log-cuda-memory" not in ids(row.format("requires more GPU memory"))
    assert ids(row.format("fail with RuntimeError: CUDA out of memory")) == ["log-cuda-memory"]


def test_a_rule_states_its_phase():
    option = "error: unrecognized arguments: --x\n"
    assert ids(BEGIN + option) == ["log-option-unknown"]
    assert ids(BEGIN + READY + option) == ["log-unknown"], "not of this start: the server already listens"
    pages = "AssertionError: Job requires 33 pages (only 32 available) and cannot be enqueued\n"
    assert ids("exllamav3 version: 0.0.10\n" + pages) == ["log-refused"], "no request was served yet"
    assert ids("exllamav3 version: 0.0.10\n" + READY + pages) == ["log-cache-too-small"]


def test_a_port_is_found_taken_after_uvicorn_says_that_it_started():
    taken = "ERROR:    [Errno 98] error while attempting to bind on address: address already in use\n"
    assert ids(BEGIN + READY + taken) == ["log-port-taken"]


def test_the_message_is_quoted_and_not_the_code_that_raises_it():
    code = '    raise ValueError("No available memory for the cache blocks. "\n'
    message = "ValueError: No available memory for the cache blocks. Try increasing\n"
    assert "Try increasing" in explain(code + message, "vllm")[0].evidence
    assert "raise" in explain(code, "vllm")[0].evidence


def test_a_report_says_what_was_checked():
    report = judge(Log(BEGIN + READY))
    assert report.findings == [] and report.engines == ("vLLM",)
    assert report.checked == f"2 lines of log with {report.num_rules} rules for vLLM"
    assert "since the log names none" in judge(Log("hello\n")).checked


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\n'
CAUSES = [
    # The exception of a worker, and not those that follow from it.
    ("KeyError: 'x'\nRuntimeError: Engine core initialization failed. See root cause above.\n", "KeyError: 'x'"),
    (f"{TRACEBACK}OSError: disk\n{TRACEBACK}BrokenPipeError: [Errno 32] Broken pipe\n", "OSError: disk"),
    ("RuntimeError: Engine core initialization failed. See root cause above.\n", "root cause above"),
    # Chains.
    (f"{TRACEBACK}KeyError: 1\n\nThe above exception was the direct cause of the following exception:\n\n"
     f"{TRACEBACK}ModelError: can't load\n", "KeyError: 1"),
    (f"{TRACEBACK}KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
     f"{TRACEBACK}ModelError: no such type\n", "ModelError: no such type"),
    (f"{TRACEBACK}KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}",
     "KeyError: 1"),
    (f"{TRACEBACK}IndexError: 3\nException ignored in: <function A.__del__>\nAttributeError: y\n", "IndexError: 3"),
    # llama.cpp says the cause first.
    ("llama_model_load: error loading model: wrong shape\nllama_load_model_from_file: failed to load model\n"
     f"{TRACEBACK}AssertionError\n", "wrong shape"),
    # Other programs.
    ("thread 'main' panicked at src/main.rs:4:5:\nindex out of bounds\n", "panicked at"),
    ("panic: runtime error: index out of range\n\ngoroutine 1 [running]:\n", "panic: runtime error"),
    ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted\n", "what()"),
    ("Killed\n", "Killed"),
    ("process exited with code 137\n", "137"),
    ("container exited with status 1\n", "status 1"),
    ("Uncaught Exception:\nError: spawn UNKNOWN\n    at spawn (node:1)\n", "spawn UNKNOWN"),
    ("fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\n", "fatal error"),
    ("libc++abi: terminating due to uncaught exception of type std::runtime_error: bad\n", "uncaught exception"),
    ("Windows fatal exception: access violation\n", "access violation"),
    ("double free or corruption (!prev)\n", "double free"),
    ("zsh: abort      ./llama-server -m x.gguf\n", "zsh: abort"),
    ("server.exe exited with code 3221225477\n", "3221225477"),
    ("ollama.service: Main process exited, code=dumped, status=6/ABRT\n", "Main process exited"),
    ("Back-off restarting failed container vllm in pod vllm-0\n", "Back-off"),
    # Levels in fields, and in a line of its own.
    ('{"level":"error","ts":1.5,"msg":"model backend gone away"}\n', "gone away"),
    ('{"levelname": "CRITICAL", "message": "kv transfer stalled"}\n', "stalled"),
    ("E0512 10:00:00.123456   123 runner.cc:55] bad things\n", "bad things"),
    ("2026-05-04 14:06:10 [ERROR]\n Model unloaded\n", "Model unloaded"),
    ('INFO:     10.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n', "500"),
    # Only words.
    ("bash: vllm: command not found\n", "command not found"),
    # With and without a colon, and cut off.
    ("    assert a == b\nAssertionError\n", "assert a == b … AssertionError"),
    ("torch.cuda.OutOfThings.AcceleratorError\n", "AcceleratorError"),
    ("error failed to map the file", "failed to map"),
    (f"{TRACEBACK}  File \"b.py\", line 3, in lo", "b.py"),
    # An error that the program survived, many lines before the one that ended it.
    ("OSError: old\n" + "INFO all is well\n" * 12 + "ERROR new\n", "ERROR new"),
]  # fmt: skip


@pytest.mark.parametrize(("log", "quoted"), CAUSES)
def test_the_line_that_tells_the_cause_is_quoted(log, quoted):
    error = most_telling(last_errors(log, 0))
    assert error and quoted in error.line


@pytest.mark.parametrize(
    "log",
    [
        "process exited with code 0\n",
        "0.1 W srv: unable to find x\n",
        "Successful requests: 1000\nFailed requests:  0\n",
        '{"level":"info","msg":"request failed over to the cache"}\n{"level":"warn","msg":"could not find config"}\n',
        'time=2025 level=WARN msg="amdgpu version file missing" error="stat: no such file or directory"\n',
        "2025-01-01: E external/local_xla/cuda_fft.cc:485] Unable to register cuFFT factory: Attempting\n",
        "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory\n",
        "UserWarning: Can't initialize NVML\n  warnings.warn(\"Can't initialize NVML\")\n",
        "2026-07-04 [ERROR]\n Unexpected endpoint or method. (GET /favicon.ico). Returning 200 anyway\n",
        'INFO:     10.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable\n',
        "[W1001 10:00:00.1 socket.cpp:755] [c10d] The client socket cannot be initialized to connect to [localhost]\n",
        "x.py:9: UserWarning: \n Unable to import deep_gemm\n",
        "You are using a model of type a for b. This is not supported for all configurations and can yield errors.\n",
        # Ended by its user.
        f"{READY}^C{TRACEBACK}KeyboardInterrupt\n",
        f"{TRACEBACK}asyncio.exceptions.CancelledError\n\nDuring handling of the above exception, another exception "
        f"occurred:\n\n{TRACEBACK}KeyboardInterrupt\n",
    ],
)
def test_other_lines_are_no_errors(log):
    assert ids(log) == []


def test_a_line_that_a_rule_is_about_but_does_not_explain_is_unknown():
    line = "IndexError: index 2048 is out of bounds for axis 0 with size 2048\n"
    other = 'Traceback (most recent call last):\n  File "my.py", line 7, in f\n'
    assert ids(other + line, "llama-cpp-python") == ["log-unknown"]
    assert ids(line, "llama-cpp-python") == ["log-context-overrun"]


def test_a_failure_is_history_if_the_program_says_how_it_works_on():
    failed = "E ggml_cuda: cudaMalloc failed: out of memory\nE graph_reserve: failed to allocate compute buffers\n"
    again = "W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
    assert ids(failed + again + "I srv load_model: initializing, n_slots = 1\n") == []
    assert ids(failed + again) == ["log-cuda-memory"], "the log ends there"
    assert ids(failed + again + failed) == ["log-cuda-memory"]
    assert ids(f"Error: no kernel\nfalling back to the CPU\n{BEGIN}") == ids(BEGIN)


def test_the_exception_is_quoted_and_not_the_code_that_shows_its_cause():
    frame = '  File "sglang/a.py", line 203, in prepare\n    cpu = req_pool_indices.cpu()\n'
    [finding] = explain(f"Traceback (most recent call last):\n{frame}AttributeError: 'NoneType' x\n", "sglang")
    assert finding.id == "log-sglang-pool" and "AttributeError" in finding.evidence


def test_the_error_is_quoted_and_not_the_line_that_repeats_it():
    repeated = f"ERROR MQEngineDeadError: Inspect the stacktrace to find the original error: {MEMORY}"
    [finding] = explain(repeated + MEMORY)
    assert finding.evidence.startswith("line 2: ")


def test_an_unknown_failure_says_how_to_see_more():
    [finding] = explain(BEGIN + STRANGE)
    assert "VLLM_LOGGING_LEVEL=DEBUG" in finding.fix and "slipstream doctor" in finding.fix
    assert "not known" in finding.cause and "Ruled out" in finding.cause


BFLOAT16 = "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your P100 GPU has {}.\n"


@pytest.mark.parametrize(
    ("log", "found"),
    [
        # a line that is no error itself does not explain a later exception
        (BFLOAT16.format("compute capability 6.0"), ["log-bfloat16"]),
        (BFLOAT16.format("compute capability 6.0") + "RuntimeError: the lamp is green.\n", ["log-unknown"]),
        ("ValueError: " + BFLOAT16.format("compute capability 6.0") + "RuntimeError: a lamp\n", ["log-bfloat16"]),
        # nor does a general rule that tells less than another line
        ("m.metal:3: fatal error: 'a.h' file not found\nValueError: Failed to create llama_context\n", ["log-unknown"]),
        ("ValueError: Failed to create llama_context\n", ["log-gguf-load"]),
        ("warmup error: Traceback (most recent call last):\nAssertionError: res=<502>, res.text=''\n", ["log-unknown"]),
        # the log speaks against it
        ("warning: no usable GPU found, --gpu-layers option will be ignored\n", ["log-no-gpu-build"]),
        ("ggml_cuda_init: found 1 CUDA\nwarning: no usable GPU found, --gpu-layers option will be ignored\n", []),
        ("Error: max retries exceeded: EOF\n", ["log-registry-offline"]),
        ("pulling a3c1  98% ▕██████  ▏ 6.5 GB\nError: max retries exceeded: EOF\n", ["log-unknown"]),
        ("CUDA error: device kernel image is invalid\n", ["log-driver-old"]),
        # messages in odd places
        ("ERROR x.py:2] Exception in worker W while processing method f: A lamp, Traceback (most recent call last):\n"
         "ERROR x.py:2]     self.load()\n", ["log-unknown"]),
        ("GGML_ASSERT(a != b &&\n     \"no lamp\") failed\n", ["log-ggml-assert"]),
        ("NCCL error in: a\nNCCL WARN Error while creating shared memory segment /dev/shm/n\n", ["log-shared-memory"]),
        # beginnings and GPUs
        ("INFO x.py:1] Initializing an LLM engine (v0.4.2)\nINFO x.py:2] Using a backend.\n", ["log-start-unfinished"]),
        ('level=INFO msg="no nvidia devices detected"\n', ["log-no-cuda-device"]),
        ('level=INFO msg="no nvidia devices detected"\nlevel=INFO msg="inference compute" library=rocm\n', []),
    ],
)  # fmt: skip
def test_what_a_log_ends_with_or_says_elsewhere_limits_the_claim(log: str, found: list[str]):
    assert [finding.id for finding in explain(log) if finding.severity != "note"] == found


def test_a_line_before_the_error_that_ends_a_log_is_context():
    error, note = explain(BFLOAT16.format("compute capability 6.0") + "RuntimeError: the lamp is green.\n")
    assert (error.id, note.id, note.severity) == ("log-unknown", "log-bfloat16", "note")
    assert "may be the cause or not" in note.cause


@pytest.mark.parametrize("bar", ["100%|####| 5/5 [00:01<00:00, 3it/s]", "Loading ━━━━   0% 0:00:00 -:--:--", "half\r"])
def test_a_message_behind_a_progress_bar_is_quoted_alone(bar: str):
    [finding] = explain(f"INFO start\n{bar}KeyError: 'lamp'\n")
    assert finding.evidence == "line 2: KeyError: 'lamp'"
    [finding] = explain(f"INFO start\n{bar}torch.OutOfMemoryError: CUDA out of memory.\n")
    assert finding.evidence == "line 2: torch.OutOfMemoryError: CUDA out of memory."


def test_the_message_before_a_traceback_is_quoted_and_not_the_code():
    [finding] = explain(
        "E x.py:2] while processing method load: A lamp failed, Traceback (most recent call last):\n  f()\n"
    )
    assert "A lamp failed" in finding.evidence


LIBRARY = "INFO 05-29 21:12:40 llm_engine.py:100] Initializing an LLM engine (v0.4.2)\n"


@pytest.mark.parametrize(
    "after",
    [
        "INFO # GPU blocks: 2000\n",
        "INFO Graph capturing finished in 12 secs\n",
        "INFO Avg generation throughput: 20 tokens/s\n",
        "Processed prompts:  40%|####  | 2/5 [00:01<00:00, 3it/s, est. speed 20 toks/s]\n",
    ],
)
def test_an_engine_in_a_program_need_not_say_that_it_is_ready(after: str):
    assert ids(LIBRARY + after) == []
    assert ids(BEGIN + LIBRARY + after) == ["log-start-unfinished"]


NO_GPU = 'time=2026-06-29T21:00:03.600+08:00 level=INFO source=types.go:60 msg="inference compute" id={} compute=""\n'
NO_LAYER = (
    "level=INFO source=server.go:175 msg=offload library={} layers.requested={} layers.model=25 layers.offload={} \n"
)
RUNNER = 'level=INFO source=server.go:1 msg="starting runner"\n'
CHAT = '[GIN] 2026/06/29 - 21:01:09 | 200 |  59.1s |       127.0.0.1 | POST     "/api/chat"\n'


@pytest.mark.parametrize(
    ("log", "is_on_cpu"),
    [
        (NO_GPU.format("cpu library=cpu") + CHAT, True),
        (NO_GPU.format("0 library=cpu") + RUNNER + CHAT + RUNNER + CHAT, True),  # the server found no GPU, once
        (NO_GPU.format("GPU-1 library=CUDA") + CHAT, False),
        (NO_GPU.format("cpu library=cpu") + RUNNER + NO_GPU.format("GPU-1 library=CUDA") + RUNNER + CHAT, False),
        (NO_LAYER.format("rocm", -1, 0) + CHAT, True),
        (NO_LAYER.format("rocm", -1, 25) + CHAT, False),
        (NO_LAYER.format("rocm", 0, 0) + CHAT, False),  # as asked for
        (NO_LAYER.format("cpu", -1, 0) + CHAT, False),
    ],
)
def test_ollama_without_a_gpu_is_slow(log: str, is_on_cpu: bool):
    assert ids(log) == ["log-ollama-on-cpu"] * is_on_cpu


LOST_DRAFT = (
    "main: loading model\n0.20 I srv    load_model: loading draft model 'small.gguf'\n"
    "0.21 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7168.00 MiB on device 1: cudaMalloc failed: out of "
    "memory\n0.21 E srv    load_model: failed to create draft context\n"
)
MTP_MEMORY = (
    "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 602 MiB on device 0: cudaMalloc failed: out of memory\n"
    "E srv    load_model: failed to create MTP context\n"
)
NO_LAYERS = (
    "llama_init_from_model: context type MTP requested but model doesn't contain MTP layers\n"
    "srv load_model: failed to create MTP context\n"
)


@pytest.mark.parametrize(
    ("log", "found"),
    [(MTP_MEMORY, "log-cuda-memory"), (MTP_MEMORY.splitlines()[1], "log-draft-load"), (NO_LAYERS, "log-no-mtp-layers")],
)
def test_a_context_for_mtp_fails_for_the_reason_above_it(log: str, found: str):
    assert ids(log, "llama-server") == [found]


LISTENS = "0.22 I main: server is listening on http://127.0.0.1:8080\n"
ACCEPTED = "slot print_timing: id  0 | task 0 | draft acceptance = {:.5f} ( {} accepted / 300 generated)\n"


@pytest.mark.parametrize(
    ("after", "severities"),
    [
        ("", ["blocks"]),
        (LISTENS, ["slows"]),
        (LISTENS + ACCEPTED.format(0, 0), ["slows", "slows"]),  # the acceptance is reported too
        (LISTENS + ACCEPTED.format(0.57, 171), []),
        (LISTENS + LOST_DRAFT.partition("0.21")[0] + LISTENS, []),  # another run
    ],
)
def test_a_server_that_works_without_its_draft_gets_no_all_clear(after: str, severities: list[str]):
    found = explain(LOST_DRAFT + after, "llama-server")
    assert [finding.severity for finding in found] == severities
    assert severities != ["slows"] or "works, without the draft" in found[0].cause


SYSTEMCTL = (
    "     Active: {} since Wed 2024-12-04 01:59:28 EST; 19min ago\n    Process: 7 ExecStart=/usr/bin/x -m a {}\n"
)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (SYSTEMCTL.format("failed (Result: core-dump)", "(code=dumped, signal=SEGV)"), ["log-unknown"]),
        (SYSTEMCTL.format("inactive (dead)", "(code=dumped, signal=ABRT)"), ["log-unknown"]),
        (SYSTEMCTL.format("activating (auto-restart) (Result: exit-code)", "(code=exited)"), ["log-unknown"]),
        (SYSTEMCTL.format("inactive (dead) (Result: success)", "(code=exited, status=0/SUCCESS)"), []),
        (SYSTEMCTL.format("inactive (dead)", "(code=killed, signal=TERM)"), []),
        ("ab12  vllm/vllm-openai  3 minutes ago  Exited (139) 2 minutes ago  vllm\n", ["log-unknown"]),
        ("ab12  vllm/vllm-openai  3 minutes ago  Exited (137) 2 minutes ago  vllm\n", ["log-killed"]),
        ("ab12  vllm/vllm-openai  3 minutes ago  Exited (143) 2 minutes ago  vllm\n", []),
        ("2026-03-03 10:00:05,100 INFO exited: vllm (terminated by SIGSEGV; not expected)\n", ["log-unknown"]),
        ("2026-03-03 10:00:09,100 INFO gave up: vllm entered FATAL state, too many start retries\n", ["log-unknown"]),
        ('PM2  | Script /usr/bin/x had too many unstable restarts (16). Stopped. "errored"\n', ["log-unknown"]),
    ],
)
def test_what_supervises_the_engine_says_how_it_ended(end: str, found: list[str]):
    assert ids(LISTENS + end, "llama-server") == found


def test_a_draft_that_is_accepted_later_has_its_context():
    fitting = (
        "E llama_init_from_model: failed to initialize the context: Gemma4Assistant requires ctx_other to be set\n"
    )
    assert ids(fitting + LISTENS, "llama-server") == ["log-context-other"]
    assert ids(fitting + LISTENS + ACCEPTED.format(0.57, 171), "llama-server") == []


def test_a_program_that_ended_a_kernel_with_another_xid_is_no_lost_gpu():
    assert "log-gpu-lost" not in ids("NVRM: Xid (PCI:0000:01:00): 109, pid=2200, name=python3, CTX SWITCH TIMEOUT\n")


@pytest.mark.parametrize(
    "said",
    [
        "No CUDA out of memory error was seen.",
        "It ran for a day without any CUDA out of memory.",
        "We never saw a CUDA out of memory here.",
        "There was no segmentation fault.",
    ],
)
def test_what_a_sentence_denies_is_no_failure(said: str):
    assert ids(f"{LISTENS}{said}\n", "llama-server") == []
    assert ids(LISTENS + "no memory is left: CUDA out of memory\n") == ["log-cuda-memory"]
