"""vLLM: command lines, requests and counters. Responses were recorded from vLLM 0.32.0 on a CPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from slipstream.cli.terminal import TerminalReporter
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines import find_engine
from slipstream.engines.driver import method_like
from slipstream.engines.engine_types import EngineSettings, Speculation
from slipstream.engines.metrics import Metrics
from slipstream.engines.process import find_program
from slipstream.engines.vllm.driver import ENGINE, counted, speculative_config
from slipstream.engines.vllm.flags import FLAGS, KEYS_OF_METHODS, SPECULATIVE
from slipstream.engines.vllm.methods import EXPORTED
from slipstream.errors import MissingDependencyError, UsageError
from slipstream.tasks.audit_engine import comparable
from slipstream.tasks.reporter import SILENT

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="/models/smollm2"} 3.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="/models/smollm2"} 1.794734844617064e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="/models/smollm2"} 12.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="/models/smollm2"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="/models/smollm2",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="/models/smollm2",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="/models/smollm2",position="2"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="/models/smollm2",position="3"} 0.0
"""
LAST_EVENT = json.loads(
    '{"id": "chatcmpl-88161c2ff809c451", "object": "chat.completion.chunk", "created": 1794734909, "model": "smollm2", '
    '"choices": [], "usage": {"prompt_tokens": 46, "total_tokens": 50, "completion_tokens": 4}, '
    '"system_fingerprint": "vllm-0.32.0-dea14087", "metrics": {"speculative_decoding": {"mean_acceptance_length": 3.0, '
    '"draft_acceptance_rate": 0.5, "acceptance_histogram": [1, 0, 0, 2, 0], "num_spec_steps": 3, '
    '"num_accepted_draft_tokens": 6, "num_draft_tokens": 12, "num_spec_tokens": 4}}}'
)
TOKEN_EVENT = json.loads(
    '{"id": "chatcmpl-88161c2ff809c451", "object": "chat.completion.chunk", "created": 1794734909, "model": "smollm2", '
    '"choices": [{"index": 0, "delta": {"content": " fox"}, "logprobs": {"content": [{"token": " fox", "logprob": '
    '-0.179, "bytes": [32], "top_logprobs": [{"token": " fox", "logprob": -0.179}, {"token": " and", "logprob": '
    '-2.842}]}]}, "finish_reason": "length", "stop_reason": null, "token_ids": [16438]}]}'
)


def settings(**changes: object) -> EngineSettings:
    return EngineSettings(**({"model": "org/model", "program": "vllm", "port": 8000} | changes))


def arguments(**changes: object) -> dict[str, str | None]:
    plan = ENGINE.plan(settings(**changes), Path("unused"))
    return {argument.flag: argument.value for argument in plan.arguments}


# -- command lines


def test_plain_decoding_says_nothing_of_speculation():
    plan = ENGINE.plan(settings(), Path("unused"))
    assert plan.argv == ("vllm", "serve", "org/model", "--host", "127.0.0.1", "--port", "8000")


@pytest.mark.parametrize("name", [name for name, way in EXPORTED.items() if not way.missing])
def test_every_method_uses_keys_that_vllm_has(name: str):
    kind = EXPORTED[name]
    draft = "org/draft" if kind.model == "required" or kind.needs_model_or_tokens else None
    config = json.loads(arguments(method=name, draft=draft)["--speculative-config"])
    assert all(SPECULATIVE.knows(key) for key in config)
    assert all(config["method"] in KEYS_OF_METHODS[key] for key in config if key in KEYS_OF_METHODS)
    assert ("num_speculative_tokens" in config) or kind.tokens == "optional"
    assert ("model" in config) == (draft is not None)


def test_every_flag_is_in_the_table():
    everything = arguments(
        method="ngram", draft_length=5, context=4096, streams=16, draft_streams=8, tensor_parallel=4,
        pipeline_parallel=2, nodes=2,
    )  # fmt: skip
    assert all(FLAGS.knows(flag) for flag in everything)
    assert everything["--tensor-parallel-size"] == "4" and everything["--pipeline-parallel-size"] == "2"
    assert everything["--distributed-executor-backend"] == "ray"


def test_drafting_ends_above_a_number_of_streams():
    config = speculative_config(settings(method="eagle3", draft="org/head", draft_length=3, draft_streams=32))
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 32, 3], [33, 1024, 0]]
    with pytest.raises(UsageError, match="expected 1 to 1023"):
        speculative_config(settings(method="ngram", draft_streams=0))
    with pytest.raises(UsageError, match="needs a draft length"):
        speculative_config(settings(method="suffix", draft_streams=8))


def test_another_vocabulary_is_a_method_of_its_own():
    method = method_like(ENGINE, "translate(p_min=0.3)")
    config = speculative_config(settings(method=method.name, draft="org/other"))
    assert config["method"] == "draft_model" and config["use_heterogeneous_vocab"] is True
    assert "use_heterogeneous_vocab" not in speculative_config(settings(method="draft_model", draft="org/same"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "eagle3"}, "needs a draft model: add --draft"),
        ({"method": "ngram", "draft": "org/draft"}, "without a model: remove --draft"),
        ({"method": "telepathy"}, "expected none, draft_model"),
        ({"method": "ngram", "p_min": 0.3}, "has no p_min"),
        ({"nodes": 3, "tensor_parallel": 4}, "be divided evenly among 3 machines"),
    ],
)
def test_settings_that_it_cant_have(changes: dict, says: str):
    with pytest.raises(UsageError, match=says):
        ENGINE.plan(settings(**changes), Path("unused"))


def test_a_missing_program_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="pip install vllm"):
        find_program(ENGINE.plan(EngineSettings("org/model"), Path("unused")))


def test_several_machines_need_ray(tmp_path: Path):
    plan = ENGINE.plan(settings(program=str(tmp_path / "vllm"), nodes=2, pipeline_parallel=2), Path("unused"))
    result = subprocess.run(plan.argv, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=10)
    assert result.returncode == 127 and "pip install ray" in result.stderr


def test_several_machines_start_rays_head_first(tmp_path: Path):
    (tmp_path / "ray").touch()
    vllm = str(tmp_path / "vllm")
    plan = ENGINE.plan(settings(program=vllm, nodes=2, tensor_parallel=8, pipeline_parallel=2), Path("unused"))
    assert plan.program[:3] == ("sh", "-e", "-c") and plan.program[4:] == ("vllm", vllm, "serve", "org/model")
    assert "every other machine (1 in all; each needs 8 GPUs" in plan.notes[0]
    assert "RAY_AUTH_MODE=token ray start --address=THIS_MACHINE:6379 --block" in plan.notes[0]


@pytest.mark.parametrize("cluster", ["", "elsewhere:6379"])
def test_the_shell_starts_a_head_only_where_no_cluster_is_named(tmp_path: Path, cluster: str):
    """The shell for real, with a ray and a vllm that only say what they were asked."""
    for name in ("ray", "vllm"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" at "$RAY_ADDRESS" with "$RAY_AUTH_MODE" >> {tmp_path}/said\n')
        program.chmod(0o755)
    plan = ENGINE.plan(settings(program=str(tmp_path / "vllm"), nodes=2, pipeline_parallel=2), Path("unused"))
    subprocess.run(plan.argv, env={"PATH": "/usr/bin:/bin", "RAY_ADDRESS": cluster}, check=True, timeout=10)
    said = (tmp_path / "said").read_text().splitlines()
    assert said[-1].startswith("vllm serve org/model --host")
    assert said[-1].endswith("at elsewhere:6379 with " if cluster else "at 127.0.0.1:6379 with token")
    assert [line.split(" at ")[0] for line in said[:-1]] == (
        [] if cluster else ["ray get-auth-token --generate", "ray start --head --port=6379 --disable-usage-stats"]
    )


# -- requests and answers


def test_a_request_says_all_of_the_sampling():
    request = ENGINE.request([{"role": "user", "content": "hi"}], Sampling(), Limits(8, stop_tokens=frozenset({7})))
    assert request.path == "/v1/chat/completions"
    wanted = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert wanted.items() <= request.body.items() and request.body["stop_token_ids"] == [7]
    again = ENGINE.request([{"role": "user", "content": "hi"}], Sampling(), Limits(8))
    assert request.body["cache_salt"] != again.body["cache_salt"]
    assert "cache_salt" not in ENGINE.request("raw", Sampling(), Limits(8), cold=False).body


def test_sampled_texts_are_no_matter_of_an_audit(capsys: pytest.CaptureFixture[str]):
    """vLLM verifies by rejection: with a seed the texts may differ, and no audit may call that a bug."""
    greedy, warm = Sampling(), Sampling(temperature=0.8)
    assert comparable(ENGINE, [greedy, warm], TerminalReporter()) == [greedy]
    assert "not the text for a seed" in capsys.readouterr().err
    assert comparable(find_engine("llama-server"), [greedy, warm], SILENT) == [greedy, warm]
    with pytest.raises(UsageError, match="--temperatures 0"):
        comparable(ENGINE, [warm], SILENT)


def test_recorded_events():
    piece = ENGINE.read_event(TOKEN_EVENT)
    assert (piece.text, piece.tokens, piece.finish_reason) == (" fox", (16438,), "length")
    assert [candidate.token for candidate in piece.candidates[0]] == [" fox", " and"]
    last = ENGINE.read_event(LAST_EVENT)
    assert (last.num_prompt_tokens, last.num_tokens) == (46, 4)
    assert last.speculation == Speculation(12, 6, 3, (2, 2, 2, 0))


def test_recorded_counters():
    assert counted(Metrics(METRICS)) == Speculation(12, 9, 3, (3, 3, 3, 0))
    assert counted(Metrics('vllm:num_requests_running{engine="0"} 0.0')) is None


def test_counters_of_several_engines_add_up():
    second = METRICS.replace('engine="0"', 'engine="1"')
    assert counted(Metrics(METRICS + second)) == Speculation(24, 18, 6, (6, 6, 6, 0))


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("(APIServer pid=1) INFO [model.py:733] Resolved architecture: LlamaForCausalLM", "reading the model's config"),
        ("(EngineCore pid=2) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with", "starting the engine's"),
        ("(Worker pid=3) INFO [cpu_model_runner.py:68] Starting to load model /models/x...", "loading the weights"),
        ("(Worker pid=3) INFO [cpu_model_runner.py:75] Loading drafter model...", "loading the draft"),
        ("(Worker pid=3) INFO [cpu_model_runner.py:87] Warming up model for the compilation...", "compiling"),
        ("(EngineCore pid=2) INFO [kv_cache_utils.py:2327] CPU KV cache size: 23,296 tokens", "creating the KV cache"),
        (
            "(APIServer pid=1) INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:8123",
            "starting the HTTP server",
        ),
    ],
)
def test_stages_of_a_recorded_log(line: str, stage: str):
    assert ENGINE.readiness.stage_of("WARNING Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT") is None
    assert (ENGINE.readiness.stage_of(line) or "").startswith(stage)
