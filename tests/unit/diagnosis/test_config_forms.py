"""Configurations in other forms than a file or a command of today: scripts, variables, settings of other programs."""

from __future__ import annotations

import pytest

from cpu_time import cpu_seconds
from slipstream.diagnosis.configs import guess_engine, is_script, lint, lint_blocks, lint_script
from slipstream.parsing.log_reading import Log

MODEL_AS_DRAFT = """from llama_cpp import Llama
draft = Llama(model_path="Llama-3.2-1B-Instruct.Q4_K_M.gguf", n_gpu_layers=33)
llm = Llama(model_path="Meta-Llama-3.1-8B-Instruct-Q5_K_M.gguf", n_gpu_layers=33, draft_model=draft)
"""
LOOKUP = """import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
llm = llama_cpp.Llama(model_path="a.gguf", n_gpu_layers=LAYERS, draft_model=LlamaPromptLookupDecoding(10))
"""
LOOP = """for i, draft_token in enumerate(draft_tokens):
    target_logits = self.target_generator.decode_forward_text(...)
"""
NGRAM = (
    """SPEC_CONFIG='{"method": "ngram", "prompt_lookup_max": 8, "prompt_lookup_min": 1, "num_speculative_tokens": 5}'"""
)


def ids(engine: str, text: str) -> list[str]:
    return [finding.id for finding in lint(engine, text)]


def test_a_model_as_draft_model_is_the_cause_whatever_the_tokenizers_are():
    assert guess_engine(MODEL_AS_DRAFT, "run.py") == "llama-server"
    draft, layers = lint("llama-cpp-python", MODEL_AS_DRAFT)
    assert draft.id == "config-draft-object" and draft.evidence == "line 3: draft_model=draft"
    assert "The tokenizers are not the cause" in draft.cause and "LlamaPromptLookupDecoding" in draft.fix
    assert layers.id == "config-gpu-layers-unproven" and "llama_supports_gpu_offload" in layers.fix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOKUP, []),
        ('Llama("a.gguf", n_gpu_layers=-1, draft_model=Llama("b.gguf", n_gpu_layers=-1))', "config-draft-object"),
        ('Llama(model_path="a.gguf", n_gpu_layers=n, draft_model="b.gguf")', "config-draft-object"),
        ('Llama(model_path="a.gguf")', "config-no-gpu-layers"),
        ('Llama(model_path="a.gguf", n_gpu_layers=0)', "config-no-gpu-layers"),
        ("Llama(**settings)", []),
        ('Llama(model_path="a.gguf", vocab_only=True)', []),
        ('Llama(model_path="a.gguf", n_gpu_layers="all")', "config-type"),
        ('Llama(model_path="a.gguf", gpu_layers=33, n_gpu_layers=n)', "config-unknown-key"),
        ('llm = Llama(model_path="a.gguf"', "config-syntax"),
    ],
)
def test_scripts_of_llama_cpp_python(text, expected):
    found = [one for one in ids("llama-cpp-python", text) if one != "config-gpu-layers-unproven"]
    assert found == ([expected] if expected else [])


VLLM_SCRIPT = """from vllm import LLM, SamplingParams
prompts = ["The future of AI is"]
llm = LLM("big", tensor_parallel_size=GPUS, dtype="half", %s)
for output in llm.generate(prompts, SamplingParams(temperature=0.8)):
    print(output)
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}', []),
        ('speculative_config={"method": "ngram", "num_spec_tokens": 5}', ["config-unknown-key", "config-missing"]),
        ('speculative_model="[ngram]", num_speculative_tokens=5', ["config-removed", "config-removed"]),
        ('max_model_len="long", hf_overrides=None, only_python_has_this=1, **more', ["config-type"]),
        ("enforce_eager=True, enable_prefix_caching=False", []),
        ("(", ["config-syntax"]),
    ],
)
def test_scripts_of_vllm_are_checked_as_its_command_line(settings, expected):
    text = VLLM_SCRIPT % settings
    assert guess_engine(text, "run.py") == guess_engine(text, "") == "vllm"
    assert ids("vllm", text) == expected


def test_python_is_no_modelfile():
    assert guess_engine("import os\nfrom pathlib import Path\nmodel = Path('x')\n", "x.py") is None
    assert guess_engine("from llama3.2\nPARAMETER num_ctx 4096\n", "x") == "ollama"


def test_a_loop_that_calls_the_target_for_each_token_is_suspected():
    assert is_script(LOOP) and is_script("x = 1", "loop.py") and not is_script("vllm serve m", "serve.sh")
    [finding] = lint_script(LOOP)
    assert finding.id == "config-one-by-one" and finding.evidence.startswith("line 2: target_logits")
    assert "may" in finding.title and "count the target's forward passes" in finding.fix
    whole = "full = [token] + draft_tokens\nlogits = target_model.forward(full)\nfor t in draft_tokens:\n    check(t)\n"
    assert [finding.id for finding in lint_script(whole)] == ["config-script-unknown"]


def test_a_variable_with_the_json_alone_is_checked():
    assert guess_engine(NGRAM, "block.sh") == "vllm"
    assert ids("vllm", NGRAM) == []
    assert ids("vllm", NGRAM.replace("prompt_lookup_min", "prompt_lookup_mn")) == ["config-unknown-key"]


def test_llama_speculative_has_successors():
    text = (
        "./llama-speculative -m a.gguf -md b.gguf --draft 16 --draft-min 5 --draft-p-min 0.75 -ngl 99 -ngld 99 -cd 4096"
    )
    assert guess_engine(text, "") == "llama-server"
    findings = lint("llama-server", text)
    assert [finding.id for finding in findings] == ["config-removed"] * 3 + ["config-example-program"]
    command = (
        "llama-server -m a.gguf -md b.gguf --spec-draft-n-max 16 --spec-draft-n-min 5 --spec-draft-p-min 0.75 -ngl 99 "
        "-ngld 99 --spec-type draft-simple"
    )
    assert command in findings[-1].fix
    assert ids("llama-server", command) == []


VLLM_YAML = """# for serve
model: meta-llama/Llama-3.1-8B-Instruct
max_model_len: 16k
enable-prefix-caching: true
enforce-eager: false
speculative-config:
  method: ngram
  num_speculative_tokens: 5
"""
SGLANG_YAML = """model-path: meta-llama/Llama-3.1-8B-Instruct
speculative-draft-model-path: meta-llama/Llama-3.2-1B-Instruct
mem-fraction-static: 0.8
"""


@pytest.mark.parametrize(
    ("engine", "text", "expected", "evidence"),
    [
        ("vllm", VLLM_YAML, [], ""),
        ("vllm", VLLM_YAML.replace("16k", "long"), ["config-type"], "line 3: --max-model-len long"),
        ("vllm", VLLM_YAML.replace("ngram", "ngrams"), ["config-choice"], '"method": "ngrams"'),
        ("vllm", VLLM_YAML.replace("  method", "\tmethod"), ["config-syntax"], "# for serve"),
        ("vllm", VLLM_YAML.replace("ngram", "2026-01-01"), ["config-choice"], '"method": "2026-01-01"'),
        ("vllm", VLLM_YAML.replace("method", "2026-01-01"), ["config-unknown-key", "config-missing"], ""),
        ("sglang", SGLANG_YAML, ["config-speculation-off"], "line 2: --speculative-draft-model-path"),
    ],
)
def test_yaml_with_flags_is_checked_as_the_command(engine, text, expected, evidence):
    assert guess_engine(text, "config.yaml") == engine
    findings = lint(engine, text)
    assert [finding.id for finding in findings] == expected
    assert all(finding.evidence.startswith(evidence) for finding in findings)


TRANSFORMERS = """from transformers import AutoModelForCausalLM
big = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-70B-Instruct", device_map="auto")
small = AutoModelForCausalLM.from_pretrained("%s")
print(big.generate(ids, assistant_model=small%s))
"""


@pytest.mark.parametrize(
    ("draft", "settings", "expected"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", "", []),
        ("Qwen/Qwen2.5-0.5B", "", ["vocabulary-by-name-differs"]),
        ("Qwen/Qwen2.5-0.5B", ", tokenizer=a, assistant_tokenizer=b", []),
        ("meta-llama/Llama-3.2-1B-Instruct", ", num_beams=4", ["config-speculation-off"]),
        ("meta-llama/Llama-3.2-1B-Instruct", ", num_beams=1", []),
        ("meta-llama/Llama-3.2-1B-Instruct", ", num_beams=args.beams", []),
        ("meta-llama/Llama-3.2-1B-Instruct", ", num_beams=", ["config-syntax"]),
    ],
)
def test_scripts_of_transformers(draft, settings, expected):
    text = TRANSFORMERS % (draft, settings)
    assert guess_engine(text, "run.py") == "transformers"
    assert ids("transformers", text) == expected


def test_transformers_without_a_draft_may_search_with_beams() -> None:
    script = "from transformers import pipeline\nmodel.generate(ids, assistant_model={}, num_beams=4)\n"
    assert ids("transformers", script.format("small")) == ["config-speculation-off"]
    assert ids("transformers", script.format("None")) == []


def test_names_in_a_configuration_can_tell_different_vocabularies():
    pair = '{"model": "%s", "method": "draft_model", "num_speculative_tokens": 5}'
    command = f"vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config '{pair}'"
    assert ids("vllm", command % "meta-llama/Llama-3.2-1B-Instruct") == []
    assert ids("vllm", command % "Qwen/Qwen2.5-0.5B") == ["vocabulary-by-name-differs"]
    assert ids("vllm", (command % "Qwen/Qwen2.5-0.5B").replace("draft_model", "eagle3")) == []
    script = f'from vllm import LLM\nLLM("meta-llama/Llama-3.1-8B", speculative_config={pair})'
    assert ids("vllm", script % "Qwen/Qwen2.5-0.5B") == ["vocabulary-by-name-differs"]
    config = "model:\n  model_name: Midnight-Miqu-70B\ndraft_model:\n  draft_model_name: Qwen2.5-0.5B\n"
    assert ids("tabbyapi", config) == ["vocabulary-by-name-differs"]


def test_a_script_of_no_known_engine_gets_no_all_clear():
    assert [finding.id for finding in lint_script("import torch\nmodel(x)\n")] == ["config-script-unknown"]
    assert lint_script(VLLM_SCRIPT) == []


def test_yaml_of_tabbyapi_is_not_taken_for_flags():
    assert guess_engine("model:\n  model_name: a\nseed: 1\nport: 5000\nhost: here\n", "x.yaml") == "tabbyapi"


@pytest.mark.parametrize(
    "text",
    [
        "speculative_config:\n  n_draft: 8           # Conservative start\n  n_reuse: 256\n  p_min: 0.75\n",
        "struct params {\n    int n_draft = 8;\n    int n_reuse = 256;\n    float p_min = 0.75f;\n};",
    ],
)
def test_settings_of_another_program_are_translated(text):
    assert guess_engine(text, "x.yaml") == "llama-server"
    [finding] = lint("llama-server", text)
    assert finding.id == "config-other-project" and "n_reuse has no successor" in finding.cause
    assert "--spec-type draft-simple --spec-draft-n-max 8 --spec-draft-p-min 0.75" in finding.fix


def test_ollamas_names_stay_ollamas():
    text = 'optimal_config:\n  main_model: "llama3.2:3b"\n  draft_model: "llama3.2:1b"\n  n_draft: 10\n'
    [finding] = lint("llama-server", text)
    assert "--model ollama:llama3.2:3b --draft ollama:llama3.2:1b" in finding.fix


def test_tabbyapi_names_a_missing_cache_size_and_exl2():
    text = "model:\n  model_name: Midnight-Miqu-70B-v1.5-exl2-2.5bpw\n  max_seq_len: 16300\n"
    cache, exl2 = lint("tabbyapi", text)
    assert cache.id == "config-cache-size" and "cache_size: 16384" in cache.fix
    assert exl2.id == "config-exl2" and "exl2-checkpoint" in exl2.fix and "speculative_ngram" in exl2.fix
    assert ids("tabbyapi", "model:\n  model_name: m-exl3\n  max_seq_len: 16384\n  cache_size: 16384\n") == []


def test_configurations_inside_a_report_are_checked():
    report = (
        "# notes\n```yaml\ndraft:\n  draft_model_name: TinyLlama\n```\n\n```bash\nssh me@there\npip install vllm\n```\n"
    )
    [finding] = lint_blocks(Log(report))
    assert finding.id == "config-section" and finding.evidence == "block at line 3, draft:"
    assert lint_blocks(Log(report), "vllm") == []
    assert lint_blocks(Log("no blocks\n" * 1000)) == lint_blocks(Log("```\n" * 1000)) == []


def test_a_large_log_with_many_blocks_is_read_quickly():
    started = cpu_seconds()
    lint_blocks(Log("x" * 50 + "\n``` not a fence\n" * 200_000))
    lint_blocks(Log("```yaml\n" + "a: b\n" * 1_000_000))
    assert cpu_seconds() - started < 4
