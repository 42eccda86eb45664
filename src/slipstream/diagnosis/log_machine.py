"""Known failures of the machine, in any engine's log: memory, GPUs, kernels, drivers, libraries, several GPUs."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import Patterns

MACHINE = Patterns()
MACHINE.add(
    rule(
        "log-cuda-memory",
        "blocks",
        "The GPU ran out of memory",
        "The GPU ran out of memory{amount}. Weights, KV cache and working buffers of both target and draft share the "
        "GPU's memory.",
        "Check the memory plan: slipstream plan --target T --draft D --context N --gpus GB. Then shorten the context, "
        "quantise the KV cache, or use a smaller draft; stop other programs on the GPU (nvidia-smi). vLLM: "
        "--gpu-memory-utilization, --max-model-len, --max-num-seqs; SGLang: --mem-fraction-static; llama-server: -c, "
        "-ctk q8_0 -ctv q8_0, -ngl; Ollama: num_ctx, num_gpu.",
    ),
    "failed to allocate Vulkan",
    "failed to allocate ROCm",
    "failed to allocate Metal",
    "failed to allocate SYCL",
    "evice memory allocation of size",
    "(Insufficient Memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "cudaMalloc failed: out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "NPU out of memory",
    "MPS backend out of memory",
    "hipMalloc failed: out of memory",
    "failed to allocate CUDA",
    "OutOfMemoryError",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "Triton Error [CUDA]: out of memory",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "ErrorOutOfDeviceMemory",
    "kIOGPUCommandBufferCallbackErrorOutOfMemory",
    matches=r"(?:allocating (?P<amount>[\d.]+ MiB).{0,60})?(?:out of memory|failed to allocate|memory allocation of "
    r"size|Insufficient Memory|OutOf(?:Device)?Memory|OUT_OF_MEMORY|MemoryAllocation|ALLOC_FAILED)(?:.{0,60}?allocate "
    r"(?P<amount_2>[\d.]+ [KMGT]iB))?",
)
MACHINE.add(
    rule(
        "log-host-memory",
        "blocks",
        "The machine ran out of main memory",
        "The program asked for main memory and got none: weights, KV cache or buffers on the CPU do not fit.",
        "Check the memory plan: slipstream plan --target T --draft D --context N. Free memory, add swap or a larger "
        "page file, shorten the context, use a smaller quantisation, or put more layers on the GPU (-ngl, num_gpu). "
        "In a container raise its memory limit.",
    ),
    "failed to allocate CPU buffer",
    "unable to allocate CPU buffer",
    "cpu_buffer_type_alloc_buffer: failed to allocate buffer",
    "DefaultCPUAllocator: ",
    "std::bad_alloc",
    "Cannot allocate memory",
    "MemoryError",
    "paging file is too small",
    "cannot allocate memory",
    matches=r"CPU buffer|failed to allocate buffer|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc|"
    r"(?:^|[^\w])MemoryError\b|\w*ArrayMemoryError|paging file|(?i:error|failed|panic).{0,200}cannot allocate memory",
)
MACHINE.add(
    rule(
        "log-killed",
        "blocks",
        "The system ended the process",
        "The process was ended from outside with signal 9. On Linux that is almost always the kernel, because main "
        "memory ran out; in a container, because its memory limit was reached.",
        "Check `dmesg | grep -i oom`. Use more memory or a higher limit, a smaller model or context, or load fewer "
        "weights into main memory at a time.",
    ),
    "Killed",
    "signal: killed",
    "signal killed",
    "SIGKILL",
    "oom-kill",
    *(f"{word}{between}{code}" for word in ("code", "status") for between in (" ", ": ", "=") for code in (137, -9)),
    matches=r"(?m:^Killed\s*$)|\bKilled +\S*(?:python|vllm|llama|ollama|sglang)|Killed process \d+|oom-kill|OOMKilled|"
    r"signal:? killed|\bSIGKILL\b|(?:code|status)(?: |: |=)(?:137|-9)\b",
)
MACHINE.add_general(
    rule(
        "log-buffer-memory",
        "blocks",
        "A buffer could not be allocated",
        "llama.cpp could not allocate a buffer for the weights, the KV cache or the computation: there is too little "
        "memory on the device for these settings.",
        "Lower -c (num_ctx), quantise the KV cache (-ctk q8_0 -ctv q8_0 with -fa on), put fewer layers on the GPU "
        "(-ngl), or use a smaller batch (-ub 256). slipstream plan computes what fits.",
    ),
    "failed to allocate ",
    "exceeds device memory allocation limit",
    "failed to allocate buffer for kv cache",
    "failed to allocate compute",
    "unable to allocate ",
    "failed to allocate buffer",
    "failed to allocate output buffer",
    "failed to reserve initial output buffer",
    "not enough memory",
    matches=r"failed to allocate (?:buffer|compute|output|\w+ buffer)|exceeds device memory allocation limit|unable "
    r"to allocate \w+ buffer|failed to reserve initial|(?i:error|fail).{0,100}not enough memory",
    instead_of=("log-gguf-load",),
)
MACHINE.add(
    rule(
        "log-no-cuda-device",
        "slows",
        "No CUDA device was found",
        "The program was built for CUDA but can't use a GPU, so it falls back to the CPU.",
        "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container start it with --gpus all. If nvidia-smi works: "
        "reload the module nvidia_uvm (modprobe -r nvidia_uvm; modprobe nvidia_uvm) or restart the machine.",
    ),
    "no CUDA devices found",
    "no CUDA-capable device is detected",
    "failed to initialize CUDA",
    "no ROCm-capable device is detected",
    "failed to initialize ROCm",
    "no compatible GPUs were discovered",
)
MACHINE.add(
    rule(
        "log-no-gpu",
        "blocks",
        "The engine needs a GPU and finds none",
        "The engine can't use a GPU: the driver is not visible, CUDA_VISIBLE_DEVICES hides the GPUs, or the installed "
        "torch is a build for the CPU.",
        "Check nvidia-smi in the same environment; in a container start it with --gpus all. "
        "python -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())' must print a version and True; "
        "if not, install the torch build for your CUDA version.",
    ),
    "NVMLError_",
    "NVML Shared Library Not Found",
    "failed call to cuInit",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver on your system",
    "Torch not compiled with CUDA enabled",
    "Failed to infer device type",
    "could not select device driver",
    "Driver/library version mismatch|NVMLError_(?:LibraryNotFound|DriverNotLoaded|NotFound|Unknown)|NVML Shared "
    "Library",
    "No HIP GPUs are available",
    matches=r"(?:Error|Exception|docker).{0,80}(?:GPUs are available|NVIDIA driver|CUDA enabled|infer device|device "
    r"driver)|Driver/library version mismatch",
)
MACHINE.add(
    rule(
        "log-driver-old",
        "blocks",
        "The NVIDIA driver is too old",
        "The installed driver is older than the CUDA version of the program needs.",
        "Update the NVIDIA driver (nvidia-smi shows the newest CUDA version it supports), or install a build for an "
        "older CUDA version.",
    ),
    "CUDA driver version is insufficient",
    "NVIDIA driver on your system is too old",
    "forward compatibility was attempted on non supported HW",
    "PTX was compiled with an unsupported toolchain",
    "please update your driver",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
)
MACHINE.add(
    rule(
        "log-gpu-fabric",
        "blocks",
        "The GPUs are not ready",
        "The driver runs, but the GPUs are not initialised. On machines with NVSwitch the service that connects them "
        "(fabric manager) does not run, or has another version than the driver.",
        "systemctl restart nvidia-fabricmanager, with the version of the driver; then check nvidia-smi -q | grep -i "
        "fabric.",
    ),
    "system not yet initialized",
    "CUDA_ERROR_SYSTEM_NOT_READY",
)
MACHINE.add(
    rule(
        "log-no-kernel-image",
        "blocks",
        "The program has no kernels for this GPU",
        "The installed build was not compiled for this generation of GPU: the GPU is newer than the build, or too old "
        "for it.",
        "New GPUs (Blackwell, sm_120): install builds for CUDA 12.8 or newer, of torch and of the engine. Old ones "
        "(Volta, Pascal): an older release that still has them, or build from source with TORCH_CUDA_ARCH_LIST "
        "(llama.cpp: -DCMAKE_CUDA_ARCHITECTURES).",
    ),
    "kernel image is invalid",
    "no kernel found to launch",
    "no kernel image is available for execution",
    "no device code compatible with CUDA arch",
    "not compiled with any CUDA arch",
    "cudaErrorNoKernelImageForDevice",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "invalid device function",
    "unsupported gpu architecture",
    "Unsupported gpu architecture",
    "named symbol not found",
    matches=r"(?i)error|fail|no device code|not compiled with any",
    instead_of=("log-ptxas",),
)
MACHINE.add(
    rule(
        "log-ptxas",
        "blocks",
        "Compiling a GPU kernel failed",
        "Triton or the CUDA compiler could not compile a kernel: {reason}. Most often the compiler that came with "
        "Triton is older than the GPU, or the kernel uses what this GPU does not have.",
        "Update torch and triton; for a new GPU set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas of a CUDA version that "
        "knows it. Or use another attention backend, and --enforce-eager in vLLM.",
    ),
    "ptxas fatal",
    "PTXASError",
    "PassManager::run failed",
    "LLVM ERROR",
    "CompilationError: at ",
    "is not defined for option 'gpu-name'",
    "not supported in this architecture",
    matches=r"(?P<reason>(?:ptxas fatal|PTXASError|PassManager::run failed|LLVM ERROR|CompilationError: at |"
    r"Value '\w+' is not defined).{0,120}|type .{0,20}not supported in this architecture.{0,100})",
)
MACHINE.add(
    rule(
        "log-triton-resources",
        "blocks",
        "A kernel needs more shared memory than the GPU has",
        "A Triton kernel needs more shared memory per block than this GPU has: {reason}. The kernel was tuned for a "
        "larger GPU.",
        "Use another attention backend (vLLM --attention-backend, SGLang --attention-backend flashinfer), another "
        "quantisation, or a newer version.",
    ),
    "out of resource: ",
    "out of resources: ",
    matches=r"out of resources?: (?P<reason>.{0,120})",
)
MACHINE.add(
    rule(
        "log-cuda-illegal",
        "blocks",
        "A GPU kernel accessed memory outside its bounds",
        "A kernel read or wrote outside its memory: {reason}. This is a fault in a kernel of this version, not too "
        "little memory. Kernels run later than the code that starts them, so the traceback may point elsewhere.",
        "Update the engine. To find what triggers it, start once without speculation, once without CUDA graphs (vLLM "
        "--enforce-eager, SGLang --disable-cuda-graph), once with another attention backend, and with "
        'CUDA_LAUNCH_BLOCKING=1. Choose the GPU with CUDA_VISIBLE_DEVICES, not with device="cuda:1".',
    ),
    "illegal memory access was encountered",
    "cudaErrorIllegalAddress",
    "an illegal instruction was encountered",
    "misaligned address",
    "unspecified launch failure",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "Memory access fault by GPU",
    matches=r"(?P<reason>(?:an )?illegal \w+(?: access)? was encountered|cudaErrorIllegalAddress|misaligned address|"
    r"unspecified launch failure|CUDA_ERROR_ILLEGAL_ADDRESS|Memory access fault by GPU)",
    instead_of=("log-nccl", "log-distributed-timeout"),
)
MACHINE.add(
    rule(
        "log-device-assert",
        "blocks",
        "An index is outside its table",
        "An index was larger than the table it looks into. Most often it is a token id that the model's vocabulary "
        "does not have (draft and target with different vocabularies, an added token), or a position beyond the "
        "context.",
        "Compare the vocabularies: slipstream doctor --target T --draft D. Check that the context is not longer than "
        "the model's. CUDA_LAUNCH_BLOCKING=1 shows the operation.",
    ),
    "device-side assert triggered",
    "srcIndex < srcSelectDimSize",
    "index out of bounds",
    "index out of range in self",
    matches=r"device-side assert triggered|srcSelectDimSize|[Aa]ssertion .{0,80}(?:index )?out of bounds|"
    r"IndexError: index out of range in self",
    instead_of=("log-nccl", "log-distributed-timeout"),
)
MACHINE.add(
    rule(
        "log-gpu-lost",
        "blocks",
        "The GPU stopped working",
        "The driver lost the GPU or reports a hardware error: {reason}.",
        "Check `dmesg | grep -i xid` and nvidia-smi; restart the machine. If it comes back: temperature, power supply, "
        "cables, memory errors (nvidia-smi -q | grep -i ecc).",
    ),
    "DeviceLost",
    "GPU is lost",
    "fallen off the bus",
    "uncorrectable ECC error",
    "CUDA error: unknown error",
    "hardware error",
    matches=r"(?P<reason>\w*DeviceLost|GPU is lost|fallen off the bus|uncorrectable ECC error|CUDA error: (?:unknown|"
    r"hardware) error)",
)
MACHINE.add_general(
    rule(
        "log-cuda-error",
        "blocks",
        "A CUDA call failed",
        "A call of the GPU's library failed: {reason}.",
        "Update the driver and the engine. Start once without speculation and once without CUDA graphs (vLLM "
        "--enforce-eager) to see what triggers it; CUDA_LAUNCH_BLOCKING=1 shows the operation.",
    ),
    "CUDA error: ",
    ": CUDA error",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "HIP error: ",
    "ROCm error: ",
    "Triton Error [CUDA]: ",
    matches=r"(?P<reason>(?:(?:CUDA|HIP|ROCm) error: .{3,100}|\.cuh?:\d+: CUDA error|"
    r"Triton Error \[CUDA\]: .{3,100}|CU(?:BLAS|"
    r"DNN)_STATUS_\w+))",
)
MACHINE.add(
    rule(
        "log-flash-attention-forced",
        "blocks",
        "FlashAttention is requested on a GPU below compute capability 8.0",
        "FlashAttention 2 was requested, or is needed by the selected backend, on a GPU below compute capability 8.0.",
        "Use another backend: --attention-backend TRITON_ATTN (older versions: VLLM_ATTENTION_BACKEND=XFORMERS), and "
        '--enforce-eager --dtype half. transformers: attn_implementation="sdpa".',
    ),
    "FlashAttention only supports Ampere GPUs or newer",
)
MACHINE.add(
    rule(
        "log-cpu-instructions",
        "blocks",
        "The CPU does not have the instructions that the build uses",
        "The program used an instruction (AVX2, AVX-512) that this CPU, or the virtual machine, does not have.",
        "Use a build for older CPUs, or build on this machine (llama.cpp: cmake -DGGML_NATIVE=ON; llama-cpp-python: "
        "pip install --no-binary llama-cpp-python). In a virtual machine pass the CPU through (host model).",
    ),
    "Illegal instruction",
    "illegal instruction (core dumped)",
    "0xc000001d",
    "SIGILL",
    "3221225501",
)
MACHINE.add(
    rule(
        "log-library-missing",
        "blocks",
        "A shared library is missing",
        "The library {library} was not found. A package was built for another CUDA version, driver or GPU vendor than "
        "the one installed, or its library is not installed.",
        "For libcuda.so the driver is missing (in a container: --gpus all); for libcudart, libcublas or libnvrtc "
        "install the build for your CUDA version. On AMD GPUs remove packages made for CUDA (pip uninstall "
        "flash-attn).",
    ),
    "Could not load any common_ops library",
    "cannot open shared object file",
    "DLL load failed",
    "Library not loaded:",
    "Could not find module '",
    "Failed to load shared library",
    "Shared library with base name",
    matches=r"(?:(?:ImportError|OSError|RuntimeError|error while loading shared libraries)[^\n]{0,40}?: "
    r"?(?P<library>[\w./+-]{1,80}): cannot open shared object|DLL load failed.{0,60}|Could not load any common_ops|"
    r"Library not loaded: |Could not find module '|Failed to load shared library |Shared library with base name)",
    instead_of=("log-file-missing", "log-module-missing"),
)
MACHINE.add(
    rule(
        "log-library-version",
        "blocks",
        "A compiled package was built for another version",
        "A compiled package does not fit the library it uses ({symbol}). It was built for another version, most often "
        "of torch, or for a newer Linux.",
        "Install the versions that belong together: reinstall the engine in a new environment, and let it choose "
        "torch. For GLIBC or GLIBCXX: a newer Linux, a container image, or conda's libstdcxx-ng.",
    ),
    "operator torchvision::nms does not exist",
    "undefined symbol:",
    "' not found (required by",
    "procedure could not be found",
    "was compiled using NumPy 1.x cannot be run in",
    "binary incompatibility",
    "requires the NumPy 1",
    matches=r"(?:undefined symbol: |version `)(?P<symbol>[\w.]{1,80})|torchvision::nms does not exist|procedure could "
    r"not be found|(?:Error|Exception).{0,100}(?:NumPy|binary incompatib)",
)
MACHINE.add(
    rule(
        "log-compiler-missing",
        "blocks",
        "A compiler is missing",
        "A kernel must be compiled on this machine, and a tool for it is missing: {tool}.",
        "Install it: apt install build-essential python3-dev; for nvcc the CUDA toolkit, with "
        "CUDA_HOME=/usr/local/cuda; pip install ninja. Or use a container image that has them (-devel).",
    ),
    "Failed to find C compiler",
    "Python.h: No such file or directory",
    "Could not find nvcc",
    "CUDA_HOME environment variable is not set",
    "nvcc: not found",
    "Ninja is required to load C++ extensions",
    "No such file or directory: 'nvcc'",
    "No such file or directory: 'ninja'",
    "cuda_runtime.h: No such file",
    "/bin/nvcc'",
    matches=r"(?P<tool>C compiler|Python\.h|nvcc|CUDA_HOME|[Nn]inja|cuda_runtime\.h)",
    instead_of=("log-file-missing",),
)
MACHINE.add_general(
    rule(
        "log-torch-compile",
        "blocks",
        "torch.compile failed",
        "Compiling the model with torch.compile failed.",
        "Start without it (vLLM --enforce-eager, SGLang without --enable-torch-compile), clear its cache (rm -rf "
        "~/.cache/vllm/torch_compile_cache /tmp/torchinductor_*), and update torch and the engine.",
    ),
    "torch._inductor.exc.",
    "torch._dynamo.exc.",
    "InductorError:",
    "BackendCompilerFailed",
    matches=r"torch\._(?:inductor|dynamo)\.exc\.\w+:? |InductorError: |BackendCompilerFailed:",
)
MACHINE.add(
    rule(
        "log-gpus-missing",
        "blocks",
        "There are fewer GPUs than asked for",
        "The settings ask for more GPUs than the program can see: {reason}.",
        "Lower the tensor parallel size (-tp) to the number of GPUs, or make them visible: CUDA_VISIBLE_DEVICES, and "
        "--gpus all in a container. For GPUs of other machines, start Ray on them first.",
    ),
    "Ray does not allocate any GPUs",
    "is larger than the number of available GPUs",
    "invalid device ordinal",
    "required GPUs exceeds the total number of available",
    "exceeds the number of available",
    "current node has no GPU available",
    "is larger than available cuda devices",
    matches=r"(?P<reason>World size \(\d+\) is larger.{0,60}|Ray does not allocate any GPUs.{0,40}|invalid device "
    r"ordinal|required GPUs exceeds.{0,60}|exceeds the number of available.{0,40}|current node has no GPU available|"
    r"larger than available cuda devices)",
)
MACHINE.add(
    rule(
        "log-nccl",
        "blocks",
        "The GPUs can't communicate",
        "NCCL could not connect the GPUs: {reason}. Its message does not say why; usual causes are too little shared "
        "memory in a container, a wrong network interface, GPUs that can't access each other, or two versions of NCCL.",
        "Start once with NCCL_DEBUG=INFO and read its first warning. Then: --shm-size 16g or --ipc=host for a "
        "container, NCCL_P2P_DISABLE=1 if direct access fails, NCCL_SOCKET_IFNAME=INTERFACE for several machines.",
    ),
    "NCCL error",
    "ncclSystemError",
    "ncclUnhandledCudaError",
    "ncclInternalError",
    "ncclRemoteError",
    "DistBackendError",
    "ncclInvalidUsage",
    matches=r"(?P<reason>NCCL error(?:: | in: ).{0,100}|nccl(?:System|UnhandledCuda|Internal|Remote)Error|"
    r"ncclInvalidUsage|DistBackendError)",
)
MACHINE.add(
    rule(
        "log-distributed-timeout",
        "blocks",
        "A process of the engine did not answer in time",
        "The processes of the engine wait for each other, and one did not answer in time: {reason}. It hangs, ended "
        "with an error of its own, or the machines can't reach each other.",
        "Look for the first error of another process above this line. With NCCL_DEBUG=INFO check whether the GPUs can "
        "communicate (NCCL_P2P_DISABLE=1, --shm-size 16g); with several machines check addresses and firewall.",
    ),
    "collective operation timeout",
    "waiting for clients",
    "connectFullMesh failed",
    "DistStoreError",
    "DistNetworkError",
    "Timed out waiting for engine",
    "Timeout waiting for",
    "TimeoutError: RPC call to",
    "Watchdog caught",
    matches=r"(?P<reason>[Cc]ollective operation timeout|Timed out after \d+ seconds waiting for clients|"
    r"connectFullMesh failed|Dist(?:Store|Network)Error.{0,80}|RPC call to .{0,60}timed out|"
    r"(?:Error|ERROR).{0,60}Time(?:d )?out waiting for.{0,60}|Watchdog caught.{0,60})",
    instead_of=("log-nccl",),
)
MACHINE.add(
    rule(
        "log-shared-memory",
        "blocks",
        "Too little shared memory in the container",
        "A process could not use shared memory (/dev/shm). Containers get 64 MB of it unless told otherwise.",
        "Start the container with --shm-size 16g or --ipc=host; in Kubernetes mount an emptyDir with medium: Memory at "
        "/dev/shm.",
    ),
    "insufficient shared memory",
    "Bus error (core dumped)",
    "unable to open shared memory object",
    "unable to mmap",
    matches=r"insufficient shared memory|Bus error \(core dumped\)|unable to (?:open shared memory object|mmap \d+ "
    r"bytes)",
    instead_of=("log-nccl",),
)
MACHINE.add(
    rule(
        "log-heads-divisible",
        "blocks",
        "The model can't be split over this number of GPUs",
        "The model can't be split over this number of GPUs: {reason}. Heads and layers are whole numbers per GPU.",
        "Use a tensor parallel size that divides the number of attention heads (mostly 1, 2, 4 or 8), or pipeline "
        "parallelism for an odd number of GPUs.",
    ),
    "must be divisible by tensor parallel size",
    "is not divisible by ",
    "must be divisible by tp",
    "divisible by tensor_parallel_size",
    "must be divisible by --tp-size",
    matches=r"(?:Error|Exception): (?P<reason>\d+ is not divisible by \d+|.{0,100}?divisible by "
    r"(?:tensor[_ ]parallel[_ ]size|tp|--tp-size).{0,40})",
)
MACHINE.add(
    rule(
        "log-attention-backend",
        "blocks",
        "The attention backend does not fit model, GPU or cache",
        "The chosen attention backend can't run this model with this GPU or this type of KV cache: {reason}.",
        "Leave the backend to the engine (remove --attention-backend and VLLM_ATTENTION_BACKEND), or choose one that "
        "the message lists; use the default type of KV cache (remove --kv-cache-dtype).",
    ),
    "is not valid for this configuration",
    "No valid attention backend found",
    "Attention backend '",
    "attention backend is not supported",
    "Please use `--attention-backend",
    matches=r"(?:Error|Exception|error).{0,80}?(?P<reason>(?:Selected backend|No valid attention backend|Attention "
    r"backend '|\S{1,40} attention backend is not supported|.{0,80}Please use `--attention-backend).{0,140})",
)
MACHINE.add(
    rule(
        "log-build-failed",
        "blocks",
        "Building a package from source failed",
        "A package had to be compiled on this machine, and that failed: {reason}. Compiler, CUDA toolkit or headers "
        "are missing or too old.",
        "Install a ready wheel for your Python, torch and CUDA instead. To build: apt install build-essential cmake, "
        "the CUDA toolkit with nvcc in PATH; the first error above this line says what is missing.",
    ),
    "Failed building wheel for",
    "Failed to build ",
    "CMake Error",
    "Error building extension",
    "ould not build wheels for",
    matches=r"(?P<reason>Failed building wheel for \S{1,60}|CMake Error.{0,80}|Error building extension.{0,60}|"
    r"ould not build wheels for.{0,60}|Failed to build \S{1,60})",
)
MACHINE.add_general(
    rule(
        "log-native-exception",
        "blocks",
        "The program ended with an error that it did not handle",
        "The program ended with an error in its compiled part: {reason}.",
        "The lines above say what it did last. Update the program; start once without the draft and with default "
        "settings to see what triggers it.",
    ),
    "what():",
    matches=r"what\(\): +(?P<reason>.{3,160})",
)
