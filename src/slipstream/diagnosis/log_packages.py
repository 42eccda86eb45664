"""Known failures of Python packages and of models loaded with them, in any engine's log."""

from __future__ import annotations

from slipstream.findings import rule
from slipstream.parsing.log_patterns import LinePlace, Patterns

PACKAGES = Patterns()
PACKAGES.add(
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
PACKAGES.add(
    rule(
        "log-weights-damaged",
        "blocks",
        "A file of weights is damaged or incomplete",
        "A file of weights can't be read: {reason}. The download was interrupted, the file is a Git LFS pointer, or it "
        "has another format than its name says.",
        "Check it: slipstream doctor --target MODEL. Delete the file and download it again (hf download MODEL "
        "--force-download).",
    ),
    "Unable to load weights from pytorch checkpoint",
    "SafetensorError",
    "UnpicklingError",
    "PytorchStreamReader failed",
    "unexpected EOF, expected",
    "git-lfs",
    "onsistency check failed",
    "digest mismatch",
    "HeaderTooLarge",
    "MetadataIncompleteBuffer",
    matches=r"(?:Error|Exception|error).{0,80}?(?P<reason>(?:Error while deserializing header|HeaderTooLarge|"
    r"InvalidHeader|MetadataIncompleteBuffer|incomplete metadata|invalid load key|Unable to load weights|"
    r"PytorchStreamReader failed|unexpected EOF|git-lfs|[Cc]onsistency check failed|pickle data was truncated|digest "
    r"mismatch).{0,80})|SafetensorError: (?!device)",
    instead_of=("log-hub-access", "log-model-incomplete"),
)
PACKAGES.add(
    rule(
        "log-model-incomplete",
        "blocks",
        "A file of the model is missing",
        "The model's folder or repository lacks a file that the engine needs: {reason}. Often it holds another format "
        "(GGUF, EXL2, an adapter), or the download was interrupted.",
        "Check it: slipstream doctor --target MODEL. Give the folder that has config.json and the weights; name a GGUF "
        "file by its full path; download again what is missing.",
    ),
    "does not appear to have a file named",
    "Error no file named",
    "Cannot find any model weights with",
    "annot find any of ['adapter",
    "Entry Not Found for url",
    "Invalid repository ID or local directory specified",
    "find a checkpoint index",
    "Unrecognized model in",
    "No safetensors",
    "o .safetensors files found",
    "no GGUF files found in repository",
    "not found in repository",
    matches=r"(?P<reason>does not appear to have a file named [^.]{1,60}\.?\w*|Error no file named .{0,100}|Cannot "
    r"find any model weights.{0,80}|Entry Not Found for url.{0,100}|Invalid repository ID or local directory "
    r"specified.{0,80}|find a checkpoint index.{0,80}|Unrecognized model in.{0,80}|[Nn]o \.?safetensors.{0,60}|no "
    r"GGUF files found.{0,80}|file '.{0,80}' not found in repository)",
)
PACKAGES.add(
    rule(
        "log-model-type",
        "blocks",
        "transformers does not know the model",
        "The installed transformers does not know the model type {name}: it is older than the model, or the model "
        "needs an engine of its own.",
        "Update transformers in the engine's environment (pip install -U transformers) together with the engine. A "
        "draft head (EAGLE, MTP) is no model of its own: give it as draft with its method.",
    ),
    "but Transformers does not recognize this architecture",
    "Unrecognized configuration class",
    "Unrecognized model identifier",
    matches=r"model type `(?P<name>[^`]{1,60})`|Unrecognized (?:configuration class|model identifier)",
    instead_of=("log-model-incomplete",),
)
PACKAGES.add(
    rule(
        "log-architecture",
        "blocks",
        "The engine does not support the model's architecture",
        "The engine has no code for the architecture {name} of target or draft: this version is older than the model, "
        "or the engine has no draft class of this kind.",
        "Update the engine. For a draft: name the method that it was made for (eagle is not eagle3), use one whose "
        'architecture the engine lists, or another method (n-gram, MTP). Check "architectures" in config.json.',
    ),
    "Unknown gguf model_type",
    "are not supported for now",
    "has no vLLM implementation and",
    "has no SGLang implementation",
    "failed to be inspected",
    "are not supported by vLLM",
    "Unknown architecture ",
    "Could not find the model architecture",
    "is not a registered model",
    matches=r"(?:Model architectures? |architecture )\[?'?(?P<name>[\w., ']{1,80}?)'?\]?,? (?:are|is|has|failed|in)\b|"
    r"'?(?P<name_2>\w+)'? (?:has no (?:vLLM|SGLang) implementation|is not a registered model)",
)
PACKAGES.add(
    rule(
        "log-remote-code",
        "blocks",
        "The model needs code of its own repository",
        "The model brings its own Python code, and running it was not allowed.",
        "If you trust the publisher, add --trust-remote-code (transformers: trust_remote_code=True). Else use a "
        "version of the model that the engine supports itself.",
    ),
    "trust_remote_code=True",
    "trust-remote-code",
    matches=r"(?:Error|Exception): .{0,300}(?:requires|contains|[Pp]lease).{0,200}trust[-_]remote[-_]code|"
    r"^(?:(?!INFO|WARN).){0,200}Please (?:pass the argument|set the option) `trust_remote_code=True`",
)
PACKAGES.add(
    rule(
        "log-chat-template",
        "blocks",
        "The model has no chat template",
        "The tokenizer has no chat template, so a conversation can't be turned into a prompt.",
        "Use the instruct version of the model, or give a template: vLLM and SGLang --chat-template FILE, llama-server "
        "--chat-template-file FILE. Or use the completions API.",
    ),
    "Error rendering prompt with jinja template",
    "default chat template is no longer allowed",
    "tokenizer.chat_template is not set",
    "chat template parsing error",
    matches=r"(?:Error|Exception|error).{0,200}|no longer allowed|chat_template is not set",
)
PACKAGES.add(
    rule(
        "log-module-missing",
        "blocks",
        "A Python module is missing",
        "Python can't find the module {name}. A package that this model or option needs is not installed in the "
        "engine's environment, or a file of the program itself is missing after an incomplete update.",
        "Install the package that has it, with the python that runs the engine (fla is flash-linear-attention). If the "
        "module belongs to the engine, update the whole of it (git pull, then install again).",
    ),
    "ModuleNotFoundError: No module named",
    "PackageNotFoundError: ",
    matches=r"(?:No module named '?|PackageNotFoundError: (?:No package metadata was found for "
    r")?)(?P<name>[\w.-]{1,60})",
)
PACKAGES.add(
    rule(
        "log-package-needed",
        "blocks",
        "A Python package must be installed",
        "This model or option needs a package that is missing or too old: {package}.",
        "Install it with the python that runs the engine, in the version that the message names: pip install -U "
        "{package}. If it was renamed since, update the engine.",
    ),
    "pip install",
    "with minimum required version",
    "is not installed",
    "isn't installed",
    "to be not installed",
    "seems to be not installed",
    matches=r"(?:ImportError|ModuleNotFoundError|ValueError|RuntimeError|AssertionError|Exception): (?:.{0,300}?"
    r"pip3? install (?:-U |--upgrade )?[`'\"]?(?P<package>[\w.\[\]>=<-]{2,60})|"
    r"(?P<package_2>[\w.-]{2,40}) (?:with minimum required version|is not installed)|.{0,200}(?:not|n't) installed)",
    instead_of=("log-module-missing",),
)
PACKAGES.add(
    rule(
        "log-import-name",
        "blocks",
        "Two Python packages have versions that do not fit",
        "{name} is not in the installed version of {package}: two packages have versions that do not fit each other.",
        "Install the versions that the engine names (pip install -U ENGINE in a new environment; pip check lists "
        "conflicts). Do not update torch or transformers alone.",
    ),
    "cannot import name '",
    matches=r"ImportError: cannot import name '(?P<name>[^']{1,80})' from (?:partially initialized module )?"
    r"'(?P<package>[^']{1,80})'",
)
PACKAGES.add(
    rule(
        "log-attribute-missing",
        "blocks",
        "The engine and a package or a model do not fit",
        "{object} has no attribute {name}. The engine expects another version: of transformers or torch, or a newer "
        "release of the engine that supports this model with this method.",
        "Update the engine, and let it choose the version of transformers (pip install -U ENGINE in a new "
        "environment). If the draft's class is named, the method is not supported for this model.",
    ),
    "' object has no attribute '",
    "' has no attribute '",
    matches=r"AttributeError: (?:module |type object )?'(?P<object>(?!Llama'|LlamaModel'|"
    r"_?LlamaContext')[\w.]*(?:Config|Args|Tokenizer\w*|ForCausalLM|ForConditionalGeneration|Cache|Processor|"
    r"Translator|Model|Backend|Fast|torch[\w.]*|transformers[\w.]*|triton[\w.]*|flash_attn[\w.]*|flashinfer[\w.]*|"
    r"vllm[\w.]*|sgl\w*[\w.]*|exllama\w*[\w.]*|numpy[\w.]*))'(?: object)? has no attribute '(?P<name>\w{1,60})'",
)
PACKAGES.add(
    rule(
        "log-argument-unknown",
        "blocks",
        "A function does not know an argument",
        "{function} does not know the argument {name}. The installed version is older or newer than the code that "
        "calls it; if both belong to the engine, it is a fault of this version.",
        "Update the engine, and let it choose its packages (pip check lists conflicts); or install the version that "
        "the caller was written for.",
    ),
    "got an unexpected keyword argument",
    matches=r"TypeError: (?P<function>[\w.]{1,80})\(\) got an unexpected keyword argument '(?P<name>\w{1,60})'",
)
PACKAGES.add(
    rule(
        "log-extension-missing",
        "blocks",
        "The compiled part of a package could not be loaded",
        "{name} is the compiled part of a package, and it could not be loaded before: the wheel does not fit the "
        "installed torch, CUDA or Python.",
        "Reinstall the package with the wheel for this torch, CUDA and Python (pip install --force-reinstall), or "
        "build it here. The first import error above this line says what does not fit.",
    ),
    "NameError: name '",
    matches=r"NameError: name '(?P<name>\w+_(?:ext|cuda|kernels?|ops|C|lib))' is not defined",
)
PACKAGES.add(
    rule(
        "log-weights-mismatch",
        "blocks",
        "The weights do not fit the model class",
        "The weights do not fit the class that the engine built from config.json: {reason}. The draft may be of "
        "another kind than the method (an EAGLE head loaded as a plain model), the quantisation of this file may not "
        "be supported by the loader (GGUF, a quantised head), or the engine is older than the model.",
        'Check "architectures" in the draft\'s config.json and the method. Try the unquantised model, or one in a '
        "format that the engine loads itself (AWQ, GPTQ, FP8). Update the engine.",
    ),
    "parameters not in model",
    "KeyError: '",
    "There is no module or parameter named",
    "size mismatch for ",
    "loaded_weight.shape",
    "Error(s) in loading state_dict",
    "were not initialized from checkpoint",
    "Attempted to load weight",
    "ensor shape mismatch",
    matches=r"(?P<reason>KeyError: '[\w.]+\.(?:weight|bias|qweight|qzeros|scales?|weight_scale\w*|weight_packed|g_idx|"
    r"w\d+_weight|input_scale)'|KeyError: '(?:d2t|t2d)'|Received \d+ parameters not in model|Missing \d+ parameters|"
    r"There is no module or parameter named .{0,120}|size mismatch for .{0,120}|assert "
    r".{0,60}loaded_weight\.shape.{0,40}|Error\(s\) in loading state_dict.{0,60}|weights were not initialized from "
    r"checkpoint.{0,80}|Attempted to load weight.{0,100}|[Tt]ensor shape mismatch.{0,80})",
)
PACKAGES.add(
    rule(
        "log-tensor-sizes",
        "blocks",
        "Two tensors inside the engine do not fit",
        "Two tensors inside the engine do not fit: {reason}. With speculation the usual cause is a pair or a setting "
        "that this version does not handle (different hidden sizes, a tree of drafts); else it is a fault of this "
        "version. It may also be weights of another model.",
        "Send the same request without speculation; if that works, update the engine, draft one branch only (top-k "
        "1), or use another method or a draft made for this target.",
    ),
    "must match the size of tensor b",
    "Sizes of tensors must match except in dimension",
    "The expanded size of the tensor",
    "mat1 and mat2 shapes cannot be multiplied",
    "is invalid for input of size",
    "Cannot broadcast array of shape",
    "shape mismatch: ",
    matches=r"(?:Error|Exception): (?P<reason>(?:The size of tensor a|Sizes of tensors|The expanded size|mat1 and "
    r"mat2|shape .{0,40}is invalid|Cannot broadcast|shape mismatch).{0,120})",
)
PACKAGES.add(
    rule(
        "log-devices-mixed",
        "blocks",
        "Tensors are on different devices",
        "Tensors of one operation are on different devices: draft, target or inputs were not put on the same one.",
        "Load draft and target with the same device_map (or .to(model.device)), and move the inputs there too.",
    ),
    "Expected all tensors to be on the same device",
)
PACKAGES.add(
    rule(
        "log-dtypes-mixed",
        "blocks",
        "Tensors have different number types",
        "Two tensors of one operation have different types: {reason}. Draft and target, or model and adapter, were "
        "loaded with different dtypes.",
        "Load both with the same dtype (torch_dtype=torch.bfloat16; vLLM and SGLang: --dtype). On a CPU use float32 or "
        "bfloat16.",
    ),
    "expected scalar type",
    "to have the same dtype",
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "Input type (",
    matches=r"RuntimeError: (?P<reason>.{0,80}(?:expected scalar type|to have the same dtype|not implemented for "
    r"'B?(?:Float|Half)|Input type \().{0,80})",
)
PACKAGES.add(
    rule(
        "log-not-finite",
        "blocks",
        "The model computed numbers that are not finite",
        "The model computed NaN or infinity. Most often a model made for bfloat16 runs in float16, or a quantised "
        "file or kernel is faulty.",
        "Use bfloat16 (or float32), another quantisation, or another attention implementation; check the file: "
        "slipstream doctor --target MODEL.",
    ),
    "probability tensor contains either",
    "Sampling: found NaN",
    "Detected errors during sampling! NaN in the logits",
)
PACKAGES.add(
    rule(
        "log-fork",
        "blocks",
        "A new process was started the wrong way",
        "A worker process was started before the main program was ready for it: the script has no main guard, or CUDA "
        "was used before the engine forked.",
        'Put the code that starts the engine under `if __name__ == "__main__":`, and set '
        "VLLM_WORKER_MULTIPROCESSING_METHOD=spawn. Do not touch CUDA before the engine is created.",
    ),
    "Cannot re-initialize CUDA in forked subprocess",
    "finished its bootstrapping phase",
    "has finished its",
    matches=r"Cannot re-initialize CUDA in forked|(?:current process has )?finished its\s*(?:bootstrapping phase|$)",
)
PACKAGES.add(
    rule(
        "log-quant-capability",
        "blocks",
        "The GPU is too old for this quantisation",
        "The kernels for {method} need compute capability {needed}, and this GPU has {have}.",
        "Use another quantisation (GPTQ or GGUF run on older GPUs), a newer version of the engine (later ones accept "
        "some older GPUs), or a newer GPU.",
    ),
    "is not supported for the current GPU. Minimum capability",
    matches=r"quantization method (?P<method>\S{1,40}) is not supported for the current GPU\. Minimum capability: "
    r"(?P<needed>\d+)\. Current capability: (?P<have>\d+)",
)
PACKAGES.add(
    rule(
        "log-quant-mismatch",
        "blocks",
        "Two different quantisations are given",
        "The model's config.json says {config}, and the option --quantization says {option}.",
        "Leave out --quantization. For a GGUF file use a config.json without quantization_config (--hf-config-path of "
        "the unquantised model).",
    ),
    "does not match the quantization method specified in the",
    matches=r"in the model config \((?P<config>[^)]{1,40})\) does not match .{0,80}argument \((?P<option>[^)]{1,40})\)",
)
PACKAGES.add(
    rule(
        "log-quant-unknown",
        "blocks",
        "The engine does not know this quantisation",
        "The engine does not know the quantisation {method}: it is misspelt, newer than this version, or needs a "
        "plugin.",
        "Use a quantisation that the message lists, update the engine, or install its plugin (vLLM from 0.32 on needs "
        "vllm-gguf-plugin for GGUF).",
    ),
    "Unknown quantization method",
    "Invalid quantization method",
    "Unknown quantization type",
    "is not in the supported quantization methods",
    matches=r"(?:Error|Exception|error).{0,60}?(?:Unknown|Invalid) quantization (?:method|type)(?:, got|:)? "
    r"'?(?P<method>[\w.-]{1,40})|not in the supported quantization",
)
PACKAGES.add(
    rule(
        "log-quant-dtype",
        "blocks",
        "This quantisation does not run with this number type",
        "{dtype} is not supported for the quantisation {method}.",
        "Start with --dtype half (AWQ and GPTQ on older versions compute in float16 only), or use a newer version.",
    ),
    "is not supported for quantization method",
    matches=r"(?P<dtype>\S{1,40}) is not supported for quantization method (?P<method>[\w.-]{1,40})",
)
PACKAGES.add(
    rule(
        "log-quant-kernel",
        "blocks",
        "No kernel fits this quantisation on this GPU",
        "No kernel of this version can run the quantised weights here: {reason}. The GPU is too old for the kernel, "
        "or the layers (group size, parts per GPU) do not fit its block sizes.",
        "Lower the tensor parallel size, use a plain kernel (--quantization gptq or awq instead of marlin), another "
        "quantisation of the model, or a newer version.",
    ),
    "Marlin does not support",
    "not divisible by min_thread",
    "input size is not aligned with the quantized weight shape",
    "Failed to find a kernel that can implement",
    "not divisible by weight quantization block",
    "is not divisible by group_size",
    "Marlin kernels are not",
    "output size is not aligned with the quantized weight shape",
    matches=r"(?:Error|Exception): (?P<reason>.{0,160})",
)
PACKAGES.add(
    rule(
        "log-model-type-key",
        "blocks",
        "transformers has no entry for the model",
        "The installed transformers has no entry for the model type {name}: it is older than the model.",
        "Update transformers in the engine's environment (pip install -U transformers) together with the engine.",
    ),
    "KeyError: '",
    matches=r"KeyError: '(?P<name>[a-z0-9_]{2,40})'",
    place=LinePlace(frames=("configuration_auto.py", "CONFIG_MAPPING")),
)
PACKAGES.add(
    rule(
        "log-rope-scaling",
        "blocks",
        "transformers is too old for the model's rope_scaling",
        "The model's config.json has a kind of rope_scaling that the installed version does not know (Llama 3.1 and "
        "later).",
        "Update transformers and the engine: pip install -U transformers.",
    ),
    "`rope_scaling` must be a dictionary",
    "rope_scaling should have a 'rope_type' key",
    "Unknown RoPE scaling type",
)
PACKAGES.add(
    rule(
        "log-generate-argument",
        "blocks",
        "generate() does not know an argument",
        "The model's generate() does not use these arguments: {names}. They are misspelt, or the installed "
        "transformers is older than them.",
        "Check the spelling (assistant_model, assistant_tokenizer, prompt_lookup_num_tokens), and update transformers.",
    ),
    "The following `model_kwargs` are not used by the model",
    matches=r"not used by the model: (?P<names>\[[^\]]{1,120}\])",
)
PACKAGES.add(
    rule(
        "log-torch-load",
        "blocks",
        "The weights are pickle files, which are not loaded here",
        "The weights are in the old pickle format (.bin, .pt), and torch refuses to load them: it is too old to do "
        "that safely, or the file holds more than tensors.",
        "Use a version of the model with safetensors files, or update torch to 2.6 or later.",
    ),
    "we now require users to upgrade torch",
    "Weights only load failed",
    instead_of=("log-weights-damaged",),
)
