"""Real vLLM on the CPU: started, asked, audited, stopped; one process, and two workers placed by Ray.

`make test-vllm` installs it into an environment of its own and runs these. Skipped where there is no vLLM: on PATH, or
beside the Python that SLIPSTREAM_VLLM_PYTHON names.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream
from contract import tiny_models
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines.engine_types import EngineSettings, StartPlan
from slipstream.engines.ports import free_port
from slipstream.engines.process import EngineProcess
from slipstream.engines.session import Running, require_speculation, running
from slipstream.engines.vllm.driver import ENGINE, RAY_ENV, ray_head, ray_worker
from slipstream.engines.vllm.flags import FLAGS
from slipstream.engines.vllm.methods import EXPORTED
from slipstream.models import open_checkpoint
from slipstream.models.export.folder import export_folder

PYTHON = os.environ.get("SLIPSTREAM_VLLM_PYTHON")
VLLM = str(Path(PYTHON).parent / "vllm") if PYTHON else shutil.which("vllm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_model,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not VLLM, reason="no vLLM: run make test-vllm"),
]

PLUGIN = Path(__file__).parents[1] / "ray_on_cpu"
# Weights as they are in the file, and no compiling, which takes minutes on few cores.
QUICK = ("--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", "512")
# On a CPU vLLM 0.32 makes a pipeline's buffers in a run that it skips where it does not compile; tracing is enough.
TRACED = json.dumps({"mode": 2, "backend": "eager"})
PROMPTS = [
    "Rewrite this and fix only the spelling: The quick brown fox jumsp over the lazy dog. The lazy dog sleeps.",
    "Repeat the words one two three four five six seven eight nine ten twice.",
    "Write a Python class Point with x, y and z and a method scale that multiplies all three.",
]
LIMITS = Limits(48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model as vLLM reads it."""
    path = tmp_path_factory.mktemp("vllm") / "smollm2"
    export_folder(open_checkpoint("smollm2-135m"), path, "fp32")
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    return tmp_path / "cache"


def settings(folder: Path, **changes: object) -> EngineSettings:
    values = {"program": VLLM, "port": free_port(), "context": 1024, "streams": 4, "extra": QUICK}
    return EngineSettings(str(folder), **(values | changes))


def answers(server: Running) -> list[str]:
    generator = server.generator("vllm")
    return [generator.answer([{"role": "user", "content": p}], Sampling(), LIMITS).text for p in PROMPTS]


@pytest.fixture(autouse=True)
def no_process_is_left(environment: Path) -> Iterator[None]:
    """Whatever was started here, by whomever and in whatever session, has this test's cache in its environment. The
    process that fills in chat templates is this one's own, and stays.
    """
    yield
    mark, left = f"SLIPSTREAM_CACHE={environment}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name != str(os.getpid()) and mark in (process / "environ").read_bytes():
                left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    assert [command[:100] for command in left if "template_worker" not in command] == []


def test_plain_and_ngram_write_the_same_text_as_slipstream(folder: Path) -> None:
    engine = slipstream.load(tiny_models.load_smollm2(), drafter="none")
    own = [engine.generate([{"role": "user", "content": p}], Sampling(), LIMITS).result().text for p in PROMPTS]
    plain = settings(folder)
    stages: list[str] = []
    with running(ENGINE, plain, stages.append) as server:
        assert ENGINE.speculation_state(server.client).on is False
        assert ENGINE.read_speculation(server.client) is None
        assert answers(server) == own
    assert "loading the weights" in stages and "starting the HTTP server" in stages

    ngram = settings(folder, method="ngram", draft_length=4, draft_streams=8)
    with running(ENGINE, ngram) as server:
        assert require_speculation(ENGINE, server.client, ngram, lambda log: []).on is True
        before = ENGINE.read_speculation(server.client)
        assert answers(server) == own
        after = ENGINE.read_speculation(server.client)
        assert before is not None and after is not None
        counted = after.since(before)
        assert 0 < counted.num_accepted <= counted.num_drafted
        assert sum(counted.accepted_by_position) == counted.num_accepted

        one = server.generator("ngram").answer([{"role": "user", "content": PROMPTS[1]}], Sampling(), LIMITS)
        assert one.stats.num_drafted > 0 and one.stats.rounds + one.stats.num_accepted == one.stats.num_tokens
        assert one.stats.num_reused == 0


def test_a_draft_model_of_its_own_kind(folder: Path) -> None:
    """SmolLM2 drafts for itself: all that it drafts is taken, up to ties of rounding."""
    drafting = settings(folder, method="draft_model", draft=str(folder), draft_length=3)
    with running(ENGINE, drafting) as server:
        state = require_speculation(ENGINE, server.client, drafting, lambda log: [])
        answer = server.generator("draft").answer([{"role": "user", "content": PROMPTS[2]}], Sampling(), LIMITS)
    assert state.on and answer.stats.num_accepted >= 0.9 * (answer.stats.num_drafted - 3)


def test_command_lines_pass_vllms_own_parser() -> None:
    """Every method and layout, and every name in the table of flags."""
    lines = [
        ENGINE.plan(
            EngineSettings(
                "org/model", program=VLLM, method=name, draft="org/draft" if way.model == "required" else None,
                draft_length=3, draft_streams=16, streams=32, context=4096, tensor_parallel=8, pipeline_parallel=2,
            ),
            Path("unused"),
        ).argv[2:]
        for name, way in EXPORTED.items()
        if not way.missing
    ]  # fmt: skip
    lines.append(ENGINE.plan(EngineSettings("org/model", program=VLLM), Path("unused")).argv[2:])
    wanted = {flag.name for flag in FLAGS.flags} | set(FLAGS.others)
    program = (
        "import json, sys\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule as check\n"
        "parser = make_arg_parser(FlexibleArgumentParser())\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    config = parser.parse_args(line).speculative_config\n"
        "    if config: check(config['num_speculative_tokens_per_batch_size'])\n"
        "print(json.dumps(sorted({s for a in parser._actions for s in a.option_strings})))\n"
    )
    result = subprocess.run([_python(), "-c", program, json.dumps(lines)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    known = set(json.loads(result.stdout.splitlines()[-1]))
    # Of the commands around it, or spelled in a way that the parser takes apart before.
    assert wanted - known - {"-O", "--omni", "--grpc", "--config", "--version", "-v"} == set()


def test_ray_takes_its_command_lines() -> None:
    """As Ray's own command parses them, without running them."""
    head = ray_head().partition("; ray start ")[2].partition(";")[0].split()
    lines = [head, list(ray_worker("10.0.0.1")[2:])]
    program = (
        "import json, sys\n"
        "from ray.scripts.scripts import get_auth_token, start\n"
        "parsed = [start.make_context('start', line).params for line in json.loads(sys.argv[1])]\n"
        "get_auth_token.make_context('get-auth-token', ['--generate'])\n"
        "print(json.dumps([[p['head'], p['port'], p['address'], p['block']] for p in parsed]))\n"
    )
    result = subprocess.run([_python(), "-c", program, json.dumps(lines)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads(result.stdout.splitlines()[-1]) == [
        [True, 6379, None, False],
        [False, None, "10.0.0.1:6379", True],
    ]


def _python() -> str:
    return PYTHON or str(Path(str(VLLM)).parent / "python")


def test_ray_places_two_workers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two Ray nodes on this machine stand for two machines, with a layer group each. See ray_on_cpu for the catch."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(_token(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"GPU": 1, "CPU": 1}))
    extra = ("--dtype", "float32", "--max-num-batched-tokens", "256", "--compilation-config", TRACED)
    two = settings(folder, pipeline_parallel=2, nodes=2, extra=extra)
    join = StartPlan(("sh", "-c", _join_when_up()), env=RAY_ENV)
    heard: list[str] = []
    with EngineProcess.start(join, tmp_path / "other"), running(ENGINE, two, heard.append) as server:
        text = answers(server)
        log = server.process.log.read_text()
    assert "Worker_PP0" in log and "Worker_PP1" in log
    assert "ray start --address=THIS_MACHINE:6379 --block" in heard[0]
    with running(ENGINE, settings(folder)) as server:
        assert answers(server) == text


def _token(folder: Path) -> Path:
    """One for this test alone."""
    path = folder / "ray-token"
    path.write_text(secrets.token_hex(32))
    return path


def _join_when_up() -> str:
    """What the second machine runs: joins as soon as the head answers, and ends with it."""
    join = " ".join(ray_worker("127.0.0.1", str(Path(str(VLLM)).parent / "ray")))
    return f"for attempt in $(seq 30); do sleep 2; {join} && exit; done"


def test_stopping_in_the_middle_of_an_answer_leaves_nothing(folder: Path) -> None:
    with running(ENGINE, settings(folder)) as server:
        request = ENGINE.request([{"role": "user", "content": PROMPTS[2]}], Sampling(), Limits(400, ignore_eos=True))
        next(iter(server.client.stream(request)))
        started = time.monotonic()
    assert time.monotonic() - started < 40
