"""`slipstream doctor` as people use it: the stories that this project began with, each from its own error text."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import run_apart, run_here
from cpu_time import cpu_seconds
from doctor_rules import page
from unit.models import model_files

VLLM_COMMAND = """SPEC_CONFIG='{"method": "draft_model", "model": "JackFram/llama-160m", "num_speculative_tokens": 5}'
python -m vllm.entrypoints.openai.api_server --model TheBloke/Llama-2-7B-AWQ --dtype half --max-model-len 2048 \\
  --quantization awq --enforce-eager --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'
"""


def doctor(*arguments: str | Path, code: int = 0) -> dict:
    return _report(run_here("doctor", "--json", *map(str, arguments)), code)


def _report(done: subprocess.CompletedProcess[str], code: int) -> dict:
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def gguf_file(path: Path, tokens: Callable[[int, str], str] | None = None, context: int = 8192) -> Path:
    """A whole tiny model; `tokens` changes its vocabulary."""
    tokenizer = model_files.byte_level_tokenizer()
    names = [name for name, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    metadata = {"llama.context_length": context}
    if tokens is None:
        model_files.write_gguf(path, metadata=metadata)
        return path
    rows = len(model_files.gguf_tensors("llama", np.random.default_rng(0))["token_embd.weight"])
    changed = [tokens(i, names[i] if i < len(names) else f"[PAD{i}]") for i in range(rows)]
    changed[7] = "x5x6"  # what the one merge makes
    metadata |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": changed, "tokenizer.ggml.merges": ["x5 x6"]}
    model_files.write_gguf(path, metadata=metadata, tokenizer=False)
    return path


def ids(result: dict) -> set[str]:
    return {finding["id"] for finding in result["findings"]}


def test_with_nothing_configured_it_is_useful_in_under_5_seconds() -> None:
    started = cpu_seconds()
    result = _report(run_apart("doctor", "--json"), 0)
    assert cpu_seconds() - started < 5
    assert result["machine"]["cores"] >= 1
    assert result["verdict"]


def test_a_pair_blamed_on_its_tokenizers_shares_one_and_the_error_is_explained(tmp_path: Path) -> None:
    target, draft = gguf_file(tmp_path / "llama-3.1-8b.gguf"), gguf_file(tmp_path / "llama-3.2-1b.gguf")
    log = tmp_path / "run.log"
    log.write_text("ValueError: operands could not be broadcast together with shapes (0,) (82,)\n")
    result = doctor("--target", target, "--draft", draft, "--engine", "llama.cpp", "--log", log, code=1)
    assert "vocabulary-same" in ids(result)
    explained = next(f for f in result["findings"] if f["id"] == "log-draft-object")
    assert "draft_model" in explained["cause"] + explained["fix"]
    assert not {"vocabulary-tokens", "vocabulary-size"} & ids(result)


def test_a_log_that_names_no_engine_is_read_as_of_the_engine_of_the_configuration(tmp_path: Path) -> None:
    log, config = tmp_path / "notes.txt", tmp_path / "run.py"
    log.write_text("ValueError: operands could not be broadcast together with shapes (0,) (82,)\n")
    config.write_text("from llama_cpp import Llama\nllm = Llama('t.gguf', draft_model=Llama('d.gguf'))\n")
    found = ids(doctor("--log", log, "--config", config, code=1))
    assert {"log-draft-object", "config-draft-object"} <= found and "log-unknown" not in found
    log.write_text("sglang.launch_server\n" + log.read_text())
    assert "log-draft-object" not in ids(doctor("--log", log, "--config", config, code=1)), "the log itself says whose"


def test_a_draft_of_another_vocabulary_is_refused_with_the_first_ids_that_differ(tmp_path: Path) -> None:
    target = gguf_file(tmp_path / "miqu.gguf")
    draft = gguf_file(tmp_path / "tiny.gguf", tokens=lambda i, token: f"x{i}" if i >= 5 else token)
    result = doctor("--target", target, "--draft", draft, "--engine", "llama.cpp", code=1)
    blocking = [f for f in result["findings"] if f["severity"] == "blocks"]
    assert any("id 5" in f["evidence"] and "x5" in f["evidence"] for f in blocking)
    assert result["verdict"].startswith("blocked")
    assert "vocabulary-translate" in ids(doctor("--target", target, "--draft", draft))  # Slipstream itself can


def test_vllm_on_a_t4_an_unreadable_draft_and_a_start_that_never_finished(tmp_path: Path) -> None:
    log, config = tmp_path / "vllm.log", tmp_path / "serve.sh"
    log.write_text("ValueError: could not determine the shape of object type 'torch.storage.UntypedStorage'\n")
    config.write_text(VLLM_COMMAND)
    result = doctor("--engine", "vllm", "--log", log, "--config", config, code=1)
    assert "log-tensor-read" in ids(result)
    assert "AWQ" in next(f for f in result["findings"] if f["id"] == "log-tensor-read")["cause"]


def test_a_draft_alone_can_be_checked(tmp_path: Path) -> None:
    result = doctor("--draft", gguf_file(tmp_path / "draft.gguf"))
    assert list(result["models"]) == ["draft"] and result["verdict"].startswith("no problems")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03")
    doctor("--draft", broken, code=1)


def test_figures_are_shown_and_names_are_printed_as_they_are(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)\n"
        "load_tensors: offloaded 33/33 layers to GPU\nAssertionError: :smile: [bold]boom[/bold]\n"
    )
    figures = {figure["name"]: figure for figure in doctor("--log", log, code=3)["figures"]}
    assert figures["acceptance"]["value"] == pytest.approx(171 / 297) and figures["acceptance"]["of"] == 297
    assert figures["gpu_layers"]["line"] == 2
    for columns in (80, 120):
        lines = shown("--log", log, columns=columns)
        assert any("57.6% accepted (171 of 297 drafted tokens)" in line for line in lines)
        assert any(":smile: [bold]boom[/bold]" in line for line in lines)
        assert lines[-1].startswith("unknown: ") and max(map(len, lines)) <= columns


def test_a_name_that_is_no_text_and_thousands_of_findings_can_be_shown(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    folder.mkdir()
    (folder / "Modelfile").write_text("FROM x\n" + "".join(f"PARAMETER wrong_{i} 1\n" for i in range(2000)))
    started = cpu_seconds()
    done = run_apart("doctor", "--engine", "ollama", "--target", str(folder), "--config", str(folder / "Modelfile"))
    assert done.returncode == 1 and "Traceback" not in done.stderr and "\\udcff" in done.stdout
    assert "more findings: --json lists all" in done.stdout
    assert cpu_seconds() - started < 10


def test_the_verdict_is_one_short_line(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("ValueError: could not determine the shape of object type 'torch.storage.UntypedStorage'\n")
    for columns in (80, 120):
        last = shown("--log", log, columns=columns)[-1]
        assert last.startswith("blocked: ") and len(last) <= min(columns, 100)


def shown(*arguments: str | Path, columns: int) -> list[str]:
    """The lines that a user sees, without spaces at their end."""
    done = run_here("doctor", *map(str, arguments), COLUMNS=str(columns))
    assert "Traceback" not in done.stderr
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    return done.stdout.splitlines()


def test_a_script_and_its_timings_name_the_true_cause(tmp_path: Path) -> None:
    script, log = tmp_path / "run.py", tmp_path / "notes.md"
    script.write_text('llm = Llama(model_path="a.gguf", n_gpu_layers=33, draft_model=Llama(model_path="b.gguf"))\n')
    log.write_text("- Average: 22,390ms (22.4 seconds)\n- 100 token generation: ~1,500-2,000ms\n")
    result = doctor("--engine", "llama-cpp-python", "--config", script, "--log", log, code=1)
    assert {"config-draft-object", "config-no-gpu-layers", "log-cpu-speed"} <= ids(result)


def test_names_of_models_that_are_not_here_are_judged_by_their_names() -> None:
    result = doctor("--target", "Meta-Llama-3.1-8B-Instruct-Q5_K_M.gguf", "--draft", "Llama-3.2-1B.Q4_K_M.gguf")
    assert "vocabulary-by-name" in ids(result)


def test_a_loop_that_verifies_one_by_one_is_recognised_from_its_counters(tmp_path: Path) -> None:
    log = tmp_path / "counters.txt"
    log.write_text("target forwards: 130, tokens: 100, drafted: 120, accepted: 45\n")
    assert "log-one-by-one" in ids(doctor("--log", log))


def test_tabbyapis_draft_section_has_another_name(tmp_path: Path) -> None:
    config = tmp_path / "config.yml"
    config.write_text("model:\n  model_name: miqu\ndraft:\n  draft_model_dir: /models\n  draft_model_name: TinyLlama\n")
    result = doctor("--engine", "tabbyapi", "--config", config)
    assert any("draft_model:" in f["fix"] for f in result["findings"] if f["severity"] == "slows")


def test_a_short_draft_context_is_warned_of(tmp_path: Path) -> None:
    target = gguf_file(tmp_path / "a.gguf", context=131072)
    draft = gguf_file(tmp_path / "b.gguf", context=2048)
    result = doctor("--target", target, "--draft", draft, "--context", "8192")
    assert any("2,048" in f["evidence"] + f["cause"] for f in result["findings"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "vlm", "--target", "smollm2-135m"), "engine"),
        (("--engine", "foo"), "expected slipstream, vllm, llama-server"),
        (("--log", "/nowhere/log"), "can't read"),
        (("--log", "/dev/null"), "is empty"),
    ],
)
def test_a_case_that_can_not_be_is_bad_use(arguments: tuple[str, ...], message: str) -> None:
    done = run_here("doctor", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_is_fine_with_what_was_checked_or_unknown_with_its_error(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("INFO vLLM API server version 0.15.1\nINFO:     Application startup complete.\n")
    fine = doctor("--log", log)
    assert "2 lines of log" in fine["verdict"] and "for vLLM" in fine["checked"][-1]
    log.write_text("INFO vLLM API server version 0.15.1\nKeyError: 'rope_theta'\n")
    unknown = doctor("--log", log, code=3)
    assert unknown["verdict"].startswith("unknown: This failure is not known. Ruled out: ")
    assert "line 2: KeyError: 'rope_theta'" in unknown["verdict"]


def test_start_up_refuses_with_the_doctors_findings(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file(tmp_path / "whole.gguf").read_bytes()[:5000])
    done = run_here("generate", "--model", str(broken), "hello")
    assert done.returncode == 1
    assert "weights-" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_of_rules_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "doctor-rules.md"
    assert written.read_text() == page(), "run: python tools/doctor_rules.py > docs/doctor-rules.md"


def test_that_this_machine_has_no_gpu_says_nothing_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("INFO:     Application startup complete.\n")
    assert not [f for f in doctor("--log", log)["findings"] if f["id"] == "machine-no-gpu"]


def test_a_log_without_a_sign_of_work_gets_no_all_clear(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("WARNING the moon is full\nall is well\n```\n")
    assert shown("--log", log, columns=100)[-1].startswith("unknown: The log shows neither")
    assert doctor("--log", log, code=3)["findings"][0]["evidence"] == "line 1: WARNING the moon is full"
    log.write_text("INFO 07-01 10:00:00 [config.py:713] This model supports multiple tasks\n")
    lines = shown("--log", log, columns=100)
    assert lines[-1] == "no problems found, but the log does not show that the engine worked"
    assert any("log-not-ready" in line for line in lines)
    log.write_text("INFO: vLLM API server version 0.11.0\nINFO:     Application startup complete.\n")
    assert shown("--log", log, columns=100)[-1] == "no problems found"


@pytest.mark.parametrize("context", ["0", "-1"])
def test_a_context_without_a_token_is_refused(context: str) -> None:
    done = run_here("doctor", "--context", context)
    assert done.returncode == 2 and "'--context'" in done.stderr and "greater than or equal to 1" in done.stderr


def test_prose_of_a_report_is_no_error(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    prose = "# Report\n\n## Risks\n\n1. **Mismatch**: it failed\n\n```cpp\nreturn false; // Cannot use it\n```\n"
    prose += "\n```\n1. Reject it\n```\n"
    report.write_text(prose)
    assert "log-unknown" not in str(shown("--log", report, columns=100))
    report.write_text(prose + "\n```\nOddError: the moon is full\n```\n")
    assert shown("--log", report, columns=100)[-1].startswith("unknown")
