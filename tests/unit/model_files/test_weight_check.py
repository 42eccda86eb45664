from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tiny_fp8
from slipstream.diagnosis import support_checks
from slipstream.engines import find_folder
from slipstream.errors import ModelNotFoundError, UsageError
from slipstream.findings import Finding
from slipstream.load_checks import check_model
from slipstream.model_files.model_facts import ModelFacts, describe
from slipstream.model_files.quantisation import (
    LEAST_CAPABILITY,
    Role,
    check_capability,
    label,
)
from slipstream.model_files.tensor_probe import load_one_tensor
from slipstream.model_files.weights import check_weights
from slipstream.predict.gpus import Gpu
from unit.models import model_files

LLAMA_70B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32764,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    model_files.save_model(folder, "Llama", rope_scaling={"rope_type": "linear", "factor": 2.0})
    return folder


def config_folder(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **values: object) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA_70B | values))
    if tensors:
        save_file(tensors, folder / "model.safetensors")
    return folder


# --- sound files


@pytest.mark.parametrize("shard_size", ["1GB", "60KB"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_what_transformers_saved_is_sound(tmp_path: Path, family: str, shard_size: str) -> None:
    model_files.save_model(tmp_path, family, max_shard_size=shard_size)
    assert check_weights(tmp_path) == []


@pytest.mark.parametrize("kind", [None, gguf.GGMLQuantizationType.Q8_0])
def test_what_gguf_wrote_is_sound(tmp_path: Path, kind: gguf.GGMLQuantizationType | None) -> None:
    model_files.write_gguf(tmp_path / "m.gguf", quantisation=kind)
    assert check_weights(tmp_path / "m.gguf") == [] == check_weights(tmp_path)


def test_other_architectures_and_types_are_no_flaw(tmp_path: Path) -> None:
    """Weights that this project can't run may be sound all the same."""
    packed = {"model.layers.0.mlp.qweight": torch.zeros(4, 4, dtype=torch.int32)}
    packed["scale"] = torch.zeros(3, dtype=torch.float8_e4m3fn)
    config_folder(tmp_path, packed, model_type="gemma3", quantization_config={"quant_method": "awq", "bits": 4})
    assert check_weights(tmp_path) == []
    model_files.write_gguf(tmp_path / "x.gguf", architecture="gemma3")
    assert check_weights(tmp_path / "x.gguf") == []


@pytest.mark.real_model
def test_the_built_in_model_is_sound() -> None:
    assert check_weights("smollm2-135m") == [] == load_one_tensor("smollm2-135m")
    facts = describe("smollm2-135m")
    assert (facts.quantisation, facts.vocab_size, facts.num_layers, facts.num_kv_heads) == ("GGUF", 49152, 30, 3)
    assert facts.num_parameters == 134_515_008 and facts.weight_bytes == 98_362_432


# --- facts


def test_facts_of_a_folder(llama: Path) -> None:
    facts = describe(llama)
    parameters = sum(t.numel() for t in load(llama).values())
    assert (facts.format, facts.architecture, facts.quantisation) == ("safetensors", "llama", "none")
    assert facts.num_parameters == parameters and facts.quantisation_kind == "F32"
    assert facts.weight_bytes == (llama / "model.safetensors").stat().st_size
    assert (facts.vocab_size, facts.hidden_size, facts.num_layers) == (400, 64, 2)
    assert (facts.num_kv_heads, facts.head_dim, facts.context_length) == (2, 16, 128)
    assert facts.rope_scaling == "linear x2" and label(facts) == "not quantised (F32)"
    assert facts.weight_bytes and 8 * facts.weight_bytes / parameters == pytest.approx(32, rel=0.05)
    assert describe(llama / "model.safetensors").num_parameters == parameters


def load(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_facts_of_a_gguf(tmp_path: Path) -> None:
    tensors = model_files.write_gguf(
        tmp_path / "m.gguf",
        quantisation=gguf.GGMLQuantizationType.Q8_0,
        metadata={
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32,
        },
    )
    facts = describe(tmp_path / "m.gguf")
    assert (facts.name, facts.format, facts.architecture, facts.quantisation) == ("m", "gguf", "llama", "GGUF")
    assert facts.num_parameters == sum(t.size for t in tensors.values())
    assert facts.quantisation_kind == "Q8_0" and label(facts) == "GGUF Q8_0"
    assert (facts.vocab_size, facts.context_length, facts.num_layers) == (400, 128, 2)
    assert (facts.num_kv_heads, facts.head_dim, facts.hidden_size) == (2, 16, 64)
    assert (facts.rope_scaling, facts.original_context_length) == ("yarn x4", 32)


def test_the_stated_file_type_names_the_mix(tmp_path: Path) -> None:
    model_files.write_gguf(tmp_path / "m.gguf", metadata={"general.file_type": 15})
    assert describe(tmp_path / "m.gguf").quantisation_kind == "Q4_K_M"


def test_facts_of_an_exl2_folder(tmp_path: Path) -> None:
    """As Midnight-Miqu 70B at 2.5 bits: the tensors are packed, so the count comes from the sizes."""
    exl2 = {"quant_method": "exl2", "bits": 2.5, "head_bits": 6}
    facts = describe(config_folder(tmp_path, quantization_config=exl2))
    assert (facts.quantisation, facts.quantisation_kind) == ("EXL2", "2.5 bits")
    assert facts.num_parameters == pytest.approx(68.98e9, rel=0.001)
    assert (facts.num_layers, facts.num_kv_heads, facts.head_dim, facts.context_length) == (80, 8, 128, 32764)


@pytest.mark.parametrize(
    ("config", "method", "kind"),
    [
        ({"quant_method": "awq", "bits": 4}, "AWQ", "4 bits"),
        ({"quant_method": "gptq", "bits": 8}, "GPTQ", "8 bits"),
        ({"quant_method": "fp8"}, "FP8", None),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "FP8", None),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", "4 bits"),
        ({"quant_method": "exl3", "bits": 3.0}, "EXL3", "3 bits"),
        ({"quant_method": "hqq"}, "hqq", None),
    ],
)
def test_methods_stated_in_config_json(tmp_path: Path, config: dict, method: str, kind: str | None) -> None:
    facts = describe(config_folder(tmp_path, quantization_config=config))
    assert (facts.quantisation, facts.quantisation_kind) == (method, kind)


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (["l.q_weight", "l.q_scale"], "EXL2"),
        (["l.trellis", "l.suh"], "EXL3"),
        (["l.qweight", "l.qzeros", "l.g_idx"], "GPTQ"),
        (["l.qweight", "l.qzeros"], "AWQ"),
        (["l.weight"], "none"),
    ],
)
def test_methods_seen_in_the_tensors(tmp_path: Path, names: list[str], method: str) -> None:
    config_folder(tmp_path, {name: torch.zeros(2) for name in names})
    assert describe(tmp_path).quantisation == method


def test_facts_that_are_not_stated_are_none(tmp_path: Path) -> None:
    facts = describe(tmp_path)
    assert facts.num_parameters is facts.weight_bytes is facts.quantisation is facts.vocab_size is None
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    facts = describe(tmp_path / "broken.gguf")
    assert facts.weight_bytes == 104 and facts.architecture is facts.num_layers is None
    (tmp_path / "config.json").write_text('{"hidden_size": "64", "num_hidden_layers": -3, "rope_scaling": 7}')
    assert describe(config := tmp_path).hidden_size is None and describe(config).num_layers is None
    with pytest.raises(ModelNotFoundError):
        describe(tmp_path / "nothing.gguf")


def test_values_of_a_model_with_images(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": LLAMA_70B}))
    assert describe(tmp_path).num_layers == 80


# --- quantisation


def facts_with(method: str | None, kind: str | None = None) -> ModelFacts:
    nothing = (None,) * 7
    return ModelFacts("m", "safetensors", "llama", None, None, method, kind, *nothing)


TAKEN = {
    "vllm": {"none", "AWQ", "GPTQ", "FP8", "bitsandbytes"},
    "sglang": {"none", "AWQ", "GPTQ", "FP8"},
    "transformers": {"none", "AWQ", "GPTQ", "bitsandbytes"},
    "llama.cpp": {"GGUF"},
    "ollama": {"GGUF"},
    "exllama": {"none", "EXL3"},
    "slipstream": {"none", "GGUF", "AWQ", "GPTQ", "FP8", "compressed-tensors"},
}
REFUSED = {
    "vllm": {"EXL2", "EXL3", "hqq"},
    "sglang": {"EXL2"},
    "transformers": {"EXL2"},
    "llama.cpp": {"none", "AWQ", "GPTQ", "FP8", "EXL2", "bitsandbytes"},
    "ollama": {"AWQ", "none"},
    "exllama": {"GGUF", "AWQ", "FP8"},
    "slipstream": {"EXL2", "EXL3", "bitsandbytes"},
}


def check_quantisation(facts: ModelFacts, engine: str, role: Role) -> list[Finding]:
    return support_checks.check_quantisation(facts, find_folder(engine).facts, role)


@pytest.mark.parametrize("engine", TAKEN)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_what_engines_take(engine: str, role: Role) -> None:
    for method in TAKEN[engine]:
        assert check_quantisation(facts_with(method), engine, role) == []
    for method in REFUSED[engine]:
        (finding,) = check_quantisation(facts_with(method, "4 bits"), engine, role)
        assert (finding.id, finding.severity) == ("weights-quantisation", "blocks")
        assert role in finding.evidence and find_folder(engine).facts.title in finding.fix
    assert check_quantisation(facts_with(None), engine, role) == []


@pytest.mark.parametrize("name", tiny_fp8.CASES)
def test_the_doctor_takes_what_slipstream_reads_in_fp8(name: str, tmp_path: Path) -> None:
    folder = tiny_fp8.save_fp8(name, tmp_path)[0]
    assert check_model(folder) == [] == check_quantisation(describe(folder), "slipstream", "target")


@pytest.mark.parametrize("engine", ["llama-server", "ollama", "slipstream", "tabbyapi", "vllm"])
def test_an_old_gpu_blocks_only_the_kernels_that_need_a_newer_one(engine: str) -> None:
    facts, old = find_folder(engine).facts, Gpu("A GPU", "nvidia", 8 << 30, 8 << 30, 6.1, 300e9, None)
    for method in facts.quantisations:
        found = support_checks.check_support(facts_with(method), "target", facts, [old])
        is_blocked = engine == "vllm" and method in LEAST_CAPABILITY
        assert [f.id for f in found if f.severity == "blocks"] == ["weights-capability"] * is_blocked


def test_limited_support_slows() -> None:
    for engine in ("sglang", "transformers"):
        (finding,) = check_quantisation(facts_with("GGUF", "Q4_K_M"), engine, "draft")
        assert finding.severity == "slows" and "GGUF Q4_K_M" in finding.evidence and "{" not in finding.cause
    (finding,) = check_quantisation(facts_with("EXL2"), "tabbyapi", "target")
    assert finding.severity == "slows" and "TabbyAPI has dropped" in finding.cause


def test_a_refusal_names_engines_that_take_it() -> None:
    (finding,) = check_quantisation(facts_with("EXL2"), "vllm", "target")
    assert "ExLlama" in finding.fix and "AWQ" in finding.fix
    with pytest.raises(UsageError, match="tabbyapi"):
        check_quantisation(facts_with("EXL2"), "tgi", "target")


@pytest.mark.parametrize(
    ("method", "capability", "severity"),
    [
        ("AWQ", (7, 5), "slows"),  # a T4: runs, without Marlin
        ("AWQ", (7, 0), "blocks"),
        ("AWQ", (8, 0), None),
        ("GPTQ", (7, 0), "slows"),
        ("GPTQ", (6, 1), "blocks"),
        ("FP8", (8, 9), None),
        ("FP8", (8, 6), "slows"),
        ("FP8", (7, 0), "blocks"),
        ("none", (6, 0), None),
        (None, (6, 0), None),
    ],
)
def test_compute_capability(method: str | None, capability: tuple[int, int], severity: str | None) -> None:
    findings = check_capability(facts_with(method), capability)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    assert LEAST_CAPABILITY["Marlin"] == (8, 0)


def test_awq_on_a_t4_names_the_flags() -> None:
    (finding,) = check_capability(facts_with("AWQ", "4 bits"), (7, 5))
    assert "--quantization awq --dtype half" in finding.fix and "7.5" in finding.evidence


# --- loading in a process of its own


def test_a_sound_file_loads(llama: Path, tmp_path: Path) -> None:
    assert load_one_tensor(llama) == [] == load_one_tensor(llama / "model.safetensors")
    model_files.write_gguf(tmp_path / "m.gguf")
    assert load_one_tensor(tmp_path / "m.gguf") == []


FAKE_TORCH = "__version__ = '2.99.0'\n"
FAKE_SAFETENSORS = """
__version__ = '0.1.0'
class safe_open:
    def __init__(self, path, framework): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def get_tensor(self, name): {get_tensor}
"""
UNTYPED = "could not determine the shape of object type 'torch.storage.UntypedStorage'"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts packages of these names before the real ones, for child processes."""

    def install(**sources: str) -> None:
        folder = tmp_path / "packages"
        folder.mkdir()
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return install


def test_a_runtime_fault_is_told_from_a_bad_file(llama: Path, environment: Callable[..., None]) -> None:
    failing = FAKE_SAFETENSORS.format(get_tensor=f"raise ValueError({UNTYPED!r})")
    environment(torch=FAKE_TORCH, safetensors=failing)
    (finding,) = load_one_tensor(llama)
    assert finding.id == "weights-runtime-fault" and UNTYPED in finding.evidence
    assert "torch 2.99.0" in finding.evidence and "safetensors 0.1.0" in finding.evidence
    assert "file is good" in finding.cause and "pip install" in finding.fix and sys.executable in finding.fix


@pytest.mark.parametrize(
    ("torch_source", "says"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "libcudart"),
        ("import os; os.abort()", "exit code"),
        ("raise ImportError('numpy.core failed', name='numpy')", "numpy.core"),
    ],
)
def test_a_torch_that_does_not_start(
    llama: Path, environment: Callable[..., None], torch_source: str, says: str
) -> None:
    environment(torch=torch_source)
    (finding,) = load_one_tensor(llama)
    assert finding.id == "weights-runtime-fault" and says in finding.evidence


def test_without_torch_there_is_nothing_to_say(llama: Path, environment: Callable[..., None]) -> None:
    environment(torch="raise ModuleNotFoundError('No module named torch', name='torch')")
    assert load_one_tensor(llama) == []


def test_a_hanging_torch_is_left_behind(llama: Path, environment: Callable[..., None]) -> None:
    environment(torch="import time; time.sleep(60)")
    (finding,) = load_one_tensor(llama, limit_s=2.0)
    assert (finding.id, finding.severity) == ("weights-load-slow", "slows")


def test_a_bad_file_is_the_files_fault(llama: Path, tmp_path: Path) -> None:
    cut = tmp_path / "model.safetensors"
    cut.write_bytes((llama / "model.safetensors").read_bytes()[:5000])
    (finding,) = load_one_tensor(cut)
    assert finding.id == "weights-truncated" and "past the end of the file" in finding.evidence
    (finding,) = load_one_tensor(tmp_path / "nothing.gguf")
    assert finding.id == "weights-damaged"


def test_an_interpreter_that_is_not_there(llama: Path) -> None:
    (finding,) = load_one_tensor(llama, python="/nowhere/python")
    assert finding.id == "weights-runtime-fault" and "/nowhere/python" in finding.evidence


def test_importing_the_checks_needs_no_torch() -> None:
    import subprocess

    program = "import sys, slipstream.vocabularies.checks\n"
    program += "from slipstream.model_files import quantisation, weights\n"
    program += "print(sorted({'torch', 'transformers', 'safetensors'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_float_types_by_bytes(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.zeros(100, 4, dtype=torch.bfloat16), "norm.weight": torch.zeros(8)}
    config_folder(tmp_path, tensors)
    assert describe(tmp_path).quantisation_kind == "BF16"
    assert describe(tmp_path).num_parameters == int(np.sum([t.numel() for t in tensors.values()]))


def test_what_no_header_says_is_not_guessed(tmp_path):
    for name, data, form in (("m.gguf", b"hello", "gguf"), ("sha256-1", b"GGUF\3", "gguf"), ("m.bin", b"hello", None)):
        (tmp_path / name).write_bytes(data)
        facts = describe(tmp_path / name)
        assert facts.format == form
        assert label(facts) == ("GGUF" if form else "unknown")
        assert facts.quantisation == ("GGUF" if form else None)
