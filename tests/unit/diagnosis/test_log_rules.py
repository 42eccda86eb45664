"""Rules for logs: each explains the line that its engine prints, and no harmless line."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

import doctor_recall
from slipstream.diagnosis.logs import ANY_ENGINE, explain
from slipstream.engines import FOLDERS, folders
from slipstream.findings import RULES

KNOWN_FAILURES = doctor_recall.read("failures", "known")
LABELLED = [entry for entry in KNOWN_FAILURES if entry.get("rule", "none") != "none"]
ALL_ANY_ENGINE = [*ANY_ENGINE, *(pattern for folder in folders() if folder.log for pattern in folder.log.patterns)]


def rules_in(log: str, engine: str | None) -> list[str]:
    findings = explain(log, engine if engine in FOLDERS else None)
    return [finding.id for finding in findings if finding.id != "log-unknown" and finding.severity != "note"]


@pytest.mark.parametrize("entry", LABELLED, ids=lambda entry: entry["id"])
def test_a_known_failure_is_explained_by_its_rule(entry):
    found = rules_in(entry["log"], entry["engine"])
    assert [rule for rule in found if rule != "log-cpu-speed"] == [entry["rule"]], "a slow CPU may be true besides"


def test_nine_of_ten_known_failures_have_a_rule():
    assert len(LABELLED) >= 0.9 * len(KNOWN_FAILURES)


@pytest.mark.parametrize("entry", doctor_recall.read("healthy", "known"), ids=lambda entry: entry["id"])
def test_no_rule_blames_a_healthy_log(entry):
    found = explain(entry["log"], entry["engine"] if entry["engine"] in FOLDERS else None)
    assert [finding.id for finding in found if finding.severity in ("blocks", "unknown")] == []


LINES = [
    (
        "vllm",
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 0.3%",
        "nothing-generated",
    ),
    (
        "llama-server",
        "the draft model 'a.gguf' is not compatible with the target model 'b.gguf'. tokens will be translated between "
        "the draft and target models.",
        "vocab-translated",
    ),
    ("sglang", "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-abc'", "shared-memory"),
    ("vllm", "Engine 000: Running: 0 reqs, Waiting: 40 reqs, GPU KV cache usage: 45.8%", "nothing-runs"),
    ("vllm", "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'a/b': '/models/x'.", "model-path"),
    ("vllm", "openai.NotFoundError: Error code: 404 - The model `gpt-4` does not exist.", "served-name"),
    ("vllm", "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", "tool-parser"),
    ("llama-server", "E srv send_error: error: failed to parse grammar", "grammar"),
    ("vllm", "OSError: [Errno 24] Too many open files", "limits"),
    ("vllm", "RuntimeError: can't start new thread", "limits"),
    ("vllm", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "ray"),
    ("llama-cpp-python", "RuntimeError: llama_decode returned -3", "decode-code"),
    ("llama-cpp-python", "RuntimeError: Llama model must be created with embedding=True to call it", "embedding-mode"),
    ("llama-cpp-python", "ValueError: Requested tokens (900) exceed batch size of 512", "batch-tokens"),
    ("tabbyapi", "TypeError: Value for eos_token_id is not of expected type <class 'int'>", "exllama-config"),
    ("tabbyapi", "AssertionError: Partially quantized attention layer", "exllama-weights"),
    ("tabbyapi", "AssertionError: Cache and draft cache must be same size", "exllama-draft-setup"),
    ("sglang", "AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'", "sglang-draft-path"),
    ("sglang", "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'", "sglang-draft-path"),
    ("vllm", "[ 8123.4] NVRM: Xid (PCI:0000:01:00): 79, pid=2200, GPU does not answer.", "gpu-lost"),
    ("vllm", "[ 8123.4] NVRM: Xid (PCI:0000:01:00): 31, pid=2200, name=VLLM::EngineCor, Ch 00000008", "cuda-illegal"),
    ("llama-server", "failed to initialize the context: dflash requires ctx_other to be set\n\nreceived signal SIGSEGV",
     "context-other-crash"),
    ("ollama", 'msg="inference compute" id=cpu library=cpu compute="" name=cpu', "ollama-on-cpu"),
    ("ollama", "ROCm error: out of memory", "cuda-memory"),
    ("lm-studio", "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum", "cuda-memory"),
    ("vllm", "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", "no-gpu"),
    ("vllm", "TypeError: forward() missing 1 required positional argument: 'positions'", "argument-unknown"),
    ("vllm", "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "extension-missing"),
    ("vllm", "RuntimeError: start (0) + length (896) exceeds dimension size (448).", "tensor-sizes"),
    ("sglang", "OSError: libnuma.so.1: cannot open shared object file: No such file or directory", "library-missing"),
    ("llama-cpp-python", "OSError: [WinError 193] %1 is not a valid Win32 application", "library-version"),
    ("llama-server", "llama_init: K cache type q5_1 with block size 32 does not divide n_embd_head_k=80", "cache-type"),
    ("llama-server", "decode: seq_id=4 >= n_seq_max=4 Try using a bigger --parallel value", "slots"),
    ("llama-server", "load: invalid value for main_gpu: 3 (available devices: 1)", "main-gpu"),
    ("llama-server", "error: image input: you may need to provide the mmproj", "multimodal-file"),
    ("transformers", "NotImplementedError: Cannot copy out of meta tensor; no data!", "meta-tensor"),
    ("vllm", "WARNING 06-25 [cuda.py:1] CUDA graphs are disabled because of eager mode", "feature-off"),
    ("vllm", "ValueError: Feature X is not supported by the V1 Engine, set VLLM_USE_V1=0.", "vllm-old-engine"),
    ("vllm", "RuntimeError: torch._scaled_mm requires compute capability >= 8.9 here", "gpu-dtype"),
    ("sglang", "Initialization failed. warmup error: Traceback", "sglang-restart"),
    ("llama-server", "ggml_cuda_init: failed, falling back to CPU: no CUDA", "gpu-unused"),
    ("sglang", "TypeError: LlamaConfig.__init__() got an unexpected keyword argument 'rope_theta'", "argument-unknown"),
    ("transformers", "ValueError: The main model and the assistant don't have compatible input shapes.",
     "assistant-refused"),
    ("transformers", "ValueError: `assistant_tokenizer` is not required when the main and assistant models use "
     "the same tokenizer. Please omit `assistant_tokenizer` from `generate()`.", "assistant-same"),
    ("vllm", "AttributeError: 'Qwen2Tokenizer' object has no attribute 'all_special_tokens_extended'",
     "attribute-missing"),
    ("vllm", "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (8192).", "batched-tokens"),
    ("transformers", "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough RAM",
     "bitsandbytes-offload"),
    ("llama-server", "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
     "buffer-memory"),
    ("sglang", "Exception: Capture cuda graph failed: 'tuple' object is wrong", "capture"),
    ("vllm", "ValueError: As of transformers v4.44, default chat template is no longer allowed, so provide one",
     "chat-template"),
    ("vllm", "RuntimeError: Failed to find C compiler. Please specify via CC.", "compiler-missing"),
    ("vllm", "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len "
     "(max_position_embeddings=32768 or model_max_length=None in model's config.json).", "context-model"),
    ("llama-server", "Illegal instruction (core dumped)", "cpu-instructions"),
    ("llama-server", "CUDA error: operation not supported", "cuda-error"),
    ("transformers", "RuntimeError: CUDA error: device-side assert triggered", "device-check"),
    ("transformers", "IndexError: index out of range in self", "device-assert"),
    ("transformers", "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
     "cuda:0 and cpu!", "devices-mixed"),
    ("ollama", "Error: write /root/.ollama/models/blobs/sha256-1-partial: no space left on device", "disk-full"),
    ("vllm", "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600000 milliseconds", "distributed-timeout"),
    ("llama-server", "common_download_file_single_online: download failed after 3 attempts", "download"),
    ("ollama", "Error: DRAFT cannot be used with remote models", "draft-file"),
    ("llama-server", "srv    load_model: failed to load draft model, '/models/draft.gguf'", "draft-load"),
    ("vllm", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver-old"),
    ("transformers", "RuntimeError: expected scalar type Half but found BFloat16", "dtypes-mixed"),
    ("tabbyapi", "ValueError: DFlash2 vocabulary size 151936 does not match target vocabulary size 128256",
     "exllama-draft"),
    ("tabbyapi", "RuntimeError: Insufficient VRAM in split for model and cache", "exllama-memory"),
    ("vllm", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
     "use the 'spawn' start method", "fork"),
    ("llama-server", "llama_model_load: error loading model: unordered_map::at", "gguf-load"),
    ("llama-server", "llama_model_load: error loading model: CLIP cannot be used as main model, use it with --mmproj "
     "instead", "gguf-projector"),
    ("llama-server", "llama_model_load: error loading model: illegal split file idx: 1 (file: m-00002-of-00003.gguf), "
     "model must be loaded with the first split", "gguf-split"),
    ("vllm", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
     "gpu-fabric"),
    ("vllm", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "gpu-lost"),
    ("vllm", "ValueError: World size (4) is larger than the number of available GPUs (2).", "gpus-missing"),
    ("vllm", "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded "
     "(Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))",
     "hub-certificate"),
    ("vllm", "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co",
     "hub-limit"),
    ("vllm", "ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/opt/x/__init__.py)",
     "import-name"),
    ("vllm", "Killed", "killed"),
    ("sglang", "Subprocess scheduler_0 (pid=88) crashed with exit code -9", "killed"),
    ("ollama", "Error: llama runner process has terminated: signal: killed", "killed"),
    ("llama-server", "RuntimeError: llama_decode returned 1", "kv-slot"),
    ("lm-studio", "Error: Model loading was stopped due to insufficient system resources.", "lmstudio-memory"),
    ("lm-studio", "Error: No LM Runtime found for model format 'gguf'!", "lmstudio-runtime"),
    ("vllm", "OSError: /models/draft does not appear to have a file named config.json.", "model-incomplete"),
    ("transformers", "ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does "
     "not recognize this architecture.", "model-type"),
    ("vllm", "RuntimeError: Failed to infer device type", "no-gpu"),
    ("transformers", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "not-finite"),
    ("ollama", "Error: pull model manifest: file does not exist", "ollama-name"),
    ("ollama", "Error: pull model manifest: 412: The model you attempt to pull requires a newer version of Ollama",
     "ollama-old"),
    ("ollama", "Error: could not connect to ollama server, run 'ollama serve' to start it", "ollama-server"),
    ("vllm", "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp4' (choose from auto, fp8)",
     "option-value"),
    ("llama-server", 'error while handling argument "--cache-type-k": Unsupported cache type: q9_0', "option-value"),
    ("vllm", "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'", "permission"),
    ("vllm", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas"),
    ("vllm", "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported: [torch.float16]",
     "quant-dtype"),
    ("vllm", "ValueError: Unknown quantization method: awqq. Must be one of ['awq', 'fp8']", "quant-unknown"),
    ("vllm", "NotImplementedError: Pipeline parallelism is not supported for this model.", "refused"),
    ("transformers", "ValueError: The repository x/y contains custom code which must be executed to correctly load the "
     "model. Please pass the argument `trust_remote_code=True` to allow custom code to be run.", "remote-code"),
    ("vllm", "  Value error, block size 7 is wrong [type=value_error, input_value=ArgsKwargs((), {}), input_type=A]",
     "settings"),
    ("sglang", "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
     "sglang-unbalanced"),
    ("sglang", "Watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "sglang-watchdog"),
    ("sglang", "ValueError: Currently DFLASH speculative decoding only supports pp_size == 1.", "sglang-settings"),
    ("vllm", "Bus error (core dumped)", "shared-memory"),
    ("vllm", "ValueError: num_speculative_tokens must be provided with speculative model unless the draft model config "
     "contains an n_predict parameter.", "spec-no-number"),
    ("vllm", "  Value error, prompt_lookup_min=5 must be <= prompt_lookup_max=3 [type=value_error, input_value=A]",
     "spec-settings"),
    ("tabbyapi", "ValueError: The exllamav2 backend is no longer supported. Please use exllamav3.", "tabby-backend"),
    ("tabbyapi", "The YAML config from 'config.yml' couldn't load because of the following error:", "tabby-config"),
    ("vllm", "torch._inductor.exc.InductorError: IndexError: list index out of range", "torch-compile"),
    ("vllm", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: "
     "101376.", "triton-resources"),
    ("vllm", "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
     "weights-damaged"),
    ("vllm", "  File \"/x.py\", line 3\n    assert param_data.shape == loaded_weight.shape\nAssertionError",
     "weights-mismatch"),
    ("vllm", "ValueError: Selected backend FLASH_ATTN is not valid for this configuration. Reason: ['kv_cache_dtype']",
     "attention-backend"),
    ("llama-server", "srv send_error: input is too large to process. increase the physical batch size", "batch-input"),
    ("llama-cpp-python", "ERROR: Failed building wheel for llama-cpp-python", "build-failed"),
    ("tabbyapi", "AssertionError: max_num_tokens must be a multiple of 256.", "cache-multiple"),
    ("tabbyapi", "ValueError: Initial job allocation requires 9000 cache tokens, 4096 are there", "cache-tokens"),
    ("vllm", "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2",
     "config-syntax"),
    ("llama-server", "main: error: --model-draft is required", "draft-required"),
    ("transformers", "ValueError: The following `model_kwargs` are not used by the model: ['asistant_model'] (note: x)",
     "generate-argument"),
    ("ollama", 'Error: unsupported architecture "FooForCausalLM"', "gguf-architecture"),
    ("llama-server", "srv send_error: task id = 3, error: tools param requires --jinja flag", "jinja"),
    ("koboldcpp", "(Warning! Request max_context_length=16384 exceeds allocated context size of 4096. It is reduced)",
     "kobold-context"),
    ("transformers", '  File "models/auto/configuration_auto.py", line 1\nKeyError: \'qwen9\'', "model-type-key"),
    ("llama-server", "terminate called\n  what():  map::at", "native-exception"),
    ("ollama", 'Error: registry.ollama.ai/library/gemma:2b does not support tools', "ollama-capability"),
    ("ollama", 'level=WARN source=runner.go:1 msg="truncating input prompt" limit=4096 prompt=9000 keep=5',
     "ollama-truncated"),
    ("ollama", 'level=WARN source=sched.go:6 msg="gpu VRAM usage didn\'t recover within timeout" seconds=5.4',
     "ollama-vram"),
    ("ollama", 'Error: Head "http://127.0.0.1:11434/": dial tcp 127.0.0.1:11434: connect: connection refused',
     "ollama-server"),
    ("vllm", "ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`", "rope-scaling"),
    ("llama-cpp-python", '  File "llama_cpp/llama.py"\nValueError: could not broadcast input array from shape (512,) '
     "into shape (123,)", "scores-shape"),
    ("sglang", '  File "speculative_hook.py"\nTypeError: \'>\' not supported between instances of \'NoneType\' and '
     "'int'", "sglang-steps"),
    ("tabbyapi", "WARNING: Could not find model path /models/x. Skipping inline model load.", "tabby-path"),
    ("vllm", "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded", "torch-load"),
    ("sglang", "[TP0] Decode batch. #running-req: 1, #token: 900, token usage: 0.0, accept len: 1.02, gen: 9",
     "acceptance-near-zero"),
    ("tabbyapi", "Metrics (ID: 1): 400 tokens generated, Draft: 12 / 800 tokens accepted (1.5%))",
     "acceptance-near-zero"),
    ("llama-server", "statistics draft: #calls = 9, #gen tokens =   1447, #acc tokens = 3",
     "acceptance-near-zero"),
    ("llama-server", "draft acceptance = 0.01562 (    2 accepted /   128 generated), mean len = 1",
     "acceptance-near-zero"),
    ("koboldcpp", "WARNING: Draft model vocab of (151936) does not match base vocab of (32000).", "kobold-draft"),
    ("vllm", "WARNING 10-01 [config.py:1] Draft model vocab size mismatch", "draft-warning"),
    ("lm-studio", "[INFO] [LM STUDIO SERVER] Stopping server..", "lmstudio-stopped"),
    ("ollama", '[GIN] 2024/12/11 - 09:58:58 | 500 |  29m59s |  10.0.0.1 | POST  "/api/chat"', "request-ended"),
    ("ollama", 'neo/shared/source/os.h\nlevel=ERROR msg="llama runner process has terminated: exit status 2"',
     "intel-driver"),
    ("sglang", "max_total_tokens=131072 is larger than the profiled value -561981. Use the profiled value instead.",
     "sglang-memory"),
    ("sglang", "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.",
     "graph-memory"),
    ("sglang", "[2025-08-01] KV cache pool is full. Retract requests. #retracted_reqs: 1", "sglang-retracted"),
    ("tabbyapi", "ValueError: Draft model vocabulary size mismatch: 32000 vs 32256", "vocab-differs"),
    ("llama-cpp-python", "FileNotFoundError: Shared library with base name 'llama' not found", "library-missing"),
    ("llama-server", "ggml-cuda/ggml-cuda.cu:88: CUDA error", "cuda-error"),
    ("tabbyapi", "!! Warning, unknown architecture: Gemma2ForCausalLM", "exllama-architecture"),
    ("tabbyapi", "NameError: name 'exllamav2_ext' is not defined", "extension-missing"),
    ("vllm", '  File "vllm/v1/core.py"\nValueError: could not broadcast input array from shape (256,) into shape (76,)',
     "draft-overrun"),
    ("vllm", "WARNING 01 [scheduler.py:7] Sequence group 1 is preempted by PreemptionMode.RECOMPUTE mode because there "
     "is not enough KV cache space.", "preempted"),
    ("vllm", "Value error, Model Runner V2 does not yet support: parallel drafting for EAGLE [type=value_error]",
     "spec-method"),
    ("lm-studio", "[LM STUDIO SERVER] Received request for /api/v1/chat with invalid JSON: Expected ','",
     "request-json"),
    ("llama-server", "load_model: failed to initialize speculative decoding context: draft model is not eagle3 (got 0)",
     "draft-kind"),
    ("llama-server", "W srv load_model: speculative decoding not supported by this context", "context-no-rollback"),
    ("llama-server", "srv  update_slots: Invalid input batch. i = 0, n_batch = 2048, ret = -1", "slot-positions"),
    ("llama-server", "gguf_init_from_file: invalid magic characters 'tjgg'", "gguf-format"),
    ("llama-server", "loading m.gguf.part1of2\nerror loading model: tensor 'b' data is not within the file bounds, "
     "model is corrupted or incomplete", "gguf-parts"),
    ("llama-server", 'error while handling argument "--draft-max": the argument has been removed.', "option-unknown"),
    ("vllm", "OSError: It looks like the config file at '/m/a.Q4_0.gguf' is not a valid JSON file.", "gguf-as-config"),
    ("sglang", "RuntimeError: /project/cpp/grammar_matcher.cc:653: Check failed: !terminated_", "grammar-draft"),
    ("llama-server", "slot update_slots: id 0 | task 4 | input truncated, n_ctx = 4096, n_keep = 0", "input-truncated"),
    ("sglang", "Request length is longer than the KV cache pool size or the max context length. Truncated.",
     "input-truncated"),
    ("vllm", "NameError: name 'grammar' is not defined", "name-missing"),
    ("vllm", "ValueError: q and cache heads must match, got 8 and 4", "refused"),
    ("sglang", "NameError: name 'sgl_build_tree_kernel' is not defined", "import-name"),
    ("vllm", "TypeError: 'NoneType' object is not subscriptable", "tensor-type"),
    ("sglang", "target vocab_size : 256,000\ndraft vocab_size : 49,152", "vocab-sizes"),
    ("koboldcpp", "ERROR: ggml-cuda was compiled without support for the current GPU architecture.", "no-kernel-image"),
    ("ollama", "cuBLAS error 15 at ggml-cuda.cu:7956: the requested functionality is not supported", "cuda-error"),
    ("vllm", "AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended", "attribute-missing"),
    ("llama-server", "ERR [ process_batch_tokens] failed to decode the batch: KV cache is full | ret=1\n"
     "INFO [ slots_idle] all slots are idle", "kv-slot"),
    ("ollama", 'Error: Get "https://registry.ollama.ai": x509: certificate has expired', "hub-certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "line", "rule"), LINES)
def test_a_line_is_explained_by_its_rule(engine, line, rule):
    log = f"INFO something before\n{line}\nINFO something after\n"
    assert rules_in(log, engine) == [f"log-{rule}"]


# Each is printed by a program that goes on: notes, warnings, settings and answers with the words of a failure.
HARMLESS = [
    "WARNING 05-06 21:00:09 [cuda.py:1] Cannot use FlashInfer backend; falling back to FLASH_ATTN.",
    "INFO 05-06 21:00:09 [config.py:1] Speculative decoding does not support chunked prefill; disabling it.",
    "WARNING 05-06 [registry.py:9] ModuleNotFoundError: No module named 'xformers'; ignoring",
    "WARNING 05-06 [utils.py:9] FileNotFoundError: [Errno 2] No such file or directory: '/sys/class/kfd'",
    "WARNING:root:PermissionError: [Errno 13] Permission denied: '/root/.triton', using /tmp",
    "Ignore import error when loading sglang.srt.models.foo. No module named 'foo'",
    "UserWarning: CUDA initialization: The NVIDIA driver was not asked",
    "huggingface_hub: '(MaxRetryError(\"HTTPSConnectionPool(host='hf.co', port=443)\"))' thrown; Retrying in 1s [1/5].",
    "The attention mask is not supported for assistant models and will be ignored",
    "llama_context: n_ctx_seq (4096) < n_ctx_train (131072) -- the full capacity of the model will not be utilized",
    "common_init_from_params: added <|endoftext|> logit bias = -inf",
    "load_backend: failed to find ggml_backend_init in libfoo.so",
    "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size, n_batch = 2",
    "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory",
    "warning: failed to mlock 1000-byte buffer (after previously locking 0 bytes): Cannot allocate memory",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (9 > 8)",
    "draft acceptance = 0.05000 (    2 accepted /    40 generated), mean len =  1.05",
    "SpecDecoding metrics: Mean acceptance length: 1.05, Accepted: 1 tokens, Drafted: 20 tokens, "
    "Per-position acceptance rate: 0.050, Avg Draft acceptance rate: 5.0%",
    'INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
    "exit code 0",
    "encoded 137 tokens, status 13700",
    "The kernel killed time; a Killed Mockingbird",
]


def test_requests_that_waited_and_run_now_are_no_failure():
    line = "Engine 000: Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: 45.8%\n"
    assert rules_in(line.format(0, 4) + line.format(8, 4), "vllm") == []
    assert rules_in(line.format(0, 4) + line.format(0, 0), "vllm") == []


@pytest.mark.parametrize("line", HARMLESS)
@pytest.mark.parametrize("engine", [None, "vllm", "llama-server"])
def test_a_harmless_line_is_no_failure(line, engine):
    assert rules_in(f"INFO before\n{line}\nINFO after\n", engine) == []


ELSEWHERE = {
    "log-requests-refused",
    *("log-start-unfinished", "log-cpu-speed", "log-one-by-one", "log-draft-unused", "log-unknown"),  # log_explain
    *("log-no-mtp-layers", "log-one-stream"),  # engines/test_ollama_methods.py
    *("log-one-by-one-suspected", "log-slower-than-plain", "log-many-requests", "log-acceptance-low"),  # log_slow
    *("log-no-sign", "log-not-ready"),  # test_cli_doctor.py
}


def test_every_log_rule_has_a_text_that_it_explains():
    explained = set(re.findall(r'"(log-[\w-]+)"', (Path(__file__).parent / "test_log_explain.py").read_text()))
    explained |= {f"log-{rule}" for _, _, rule in LINES} | {entry["rule"] for entry in LABELLED} | ELSEWHERE
    assert {rule for rule in RULES if rule.startswith("log-")} - explained == set()


@pytest.mark.parametrize("pattern", ALL_ANY_ENGINE, ids=lambda pattern: pattern.rule.id)
def test_a_rule_names_only_what_its_pattern_finds(pattern):
    texts = pattern.rule.cause + pattern.rule.fix
    named = {name for _, name, _, _ in string.Formatter().parse(texts) if name}
    groups = pattern.matches.groupindex if pattern.matches else {}
    named |= {name for _, fix in pattern.fix_on for _, name, _, _ in string.Formatter().parse(fix) if name}
    assert named <= {re.sub(r"_\d$", "", group) for group in groups}
    assert set(pattern.instead_of) <= set(RULES)
