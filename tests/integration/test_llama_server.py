"""llama.cpp's real server, out of the xllamacpp wheel, driven over HTTP: on the built-in model and on a tiny one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines import find_engine
from slipstream.engines.client import Client
from slipstream.engines.engine_types import EngineSettings, Speculation
from slipstream.engines.http_generator import HttpGenerator
from slipstream.engines.ports import free_port, require_free_port
from slipstream.engines.process import EngineProcess
from slipstream.engines.session import require_speculation, running
from slipstream.errors import EngineError, EngineRequestError, EngineStartError, SilentFallbackError
from slipstream.findings import BlockedError
from slipstream.models import resolve
from slipstream.tasks.engine_runs import check_first, engine_running, explainer
from slipstream.tasks.reporter import SILENT
from unit.models.model_files import write_gguf

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(180)]

ENGINE = find_engine("llama-server")
ONE_THREAD = ("--threads", "1", "--no-warmup")  # threads that wait for each other crawl on a busy machine
SHORT_NGRAMS = ("--spec-ngram-simple-size-n", "3")
PROMPTS = (
    "one two three four five six seven eight nine ten. " * 2 + "one two three",
    [{"role": "user", "content": "Say hello twice."}],
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Logs and states of these engines are not the user's."""
    models = Path(resolve("smollm2-135m"))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / models.name).symlink_to(models)


@pytest.fixture(scope="session")
def smollm2_path() -> str:
    return str(resolve("smollm2-135m"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    """A random model of two layers with a vocabulary of its own: starts at once, and says nothing sensible."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path)
    return str(path)


def settings(model: str, **values: object) -> EngineSettings:
    extra = (*ONE_THREAD, *values.pop("extra", ()))
    return EngineSettings(model, context=512, port=free_port(), start_limit_s=60, extra=extra, **values)


def answers(client: Client, max_tokens: int = 16, **sampling: float) -> list[str]:
    generator = HttpGenerator(ENGINE, client, "x")
    return [generator.answer(p, Sampling(**sampling), Limits(max_tokens)).text for p in PROMPTS]


@pytest.fixture(scope="module")
def plain_texts(smollm2_path) -> dict[str, list[str]]:
    with running(ENGINE, settings(smollm2_path)) as plain:
        assert ENGINE.speculation_state(plain.client).on is False
        return {"greedy": answers(plain.client), "sampled": answers(plain.client, temperature=0.8, seed=5)}


@pytest.mark.parametrize(
    ("method", "extra"),
    [
        ("ngram-simple", SHORT_NGRAMS),
        ("ngram-mod", ("--spec-ngram-mod-n-match", "3")),
        ("draft-simple", ()),
    ],
)
def test_speculation_is_on_counted_and_changes_no_text(smollm2_path, plain_texts, method, extra):
    draft = smollm2_path if method.startswith("draft") else None
    asked = settings(smollm2_path, method=method, draft=draft, draft_length=4, extra=extra)
    with running(ENGINE, asked) as engine:
        state = require_speculation(ENGINE, engine.client, asked, explainer(ENGINE))
        assert state.on is True
        assert "speculative: [True]" in state.evidence
        before = ENGINE.read_speculation(engine.client)
        generator = engine.generator("x")
        greedy = [generator.answer(p, Sampling(), Limits(16)) for p in PROMPTS]
        after = ENGINE.read_speculation(engine.client)
        sampled = answers(engine.client, temperature=0.8, seed=5)
    assert [a.text for a in greedy] == plain_texts["greedy"]
    assert sampled == plain_texts["sampled"]
    counted = after.since(before)
    assert counted.num_drafted == sum(a.stats.num_drafted for a in greedy) > 0
    assert counted.num_accepted == sum(a.stats.num_accepted for a in greedy)
    assert sum(counted.accepted_by_position) == counted.num_accepted
    assert counted.num_tokens == sum(a.stats.num_tokens for a in greedy)
    if draft:  # its own draft: only an answer's end cuts a draft short
        assert counted.acceptance_rate > 0.7
    assert engine.process.exit_code is not None
    require_free_port("127.0.0.1", asked.port)


KINDS = ["draft-simple", *(method.name for method in ENGINE.methods if method.name.startswith("ngram-"))]
REPEATED = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen. "


@pytest.mark.parametrize("length", [None, 4])
@pytest.mark.parametrize("kind", [*KINDS, "draft-simple,ngram-mod"])
def test_every_kind_drafts_with_its_own_length_and_with_another(smollm2_path, kind, length):
    """By the server's own counters, with no flags but those that the driver writes."""
    if kind == "ngram-cache" and length:
        pytest.skip("it has no length")
    draft = smollm2_path if kind.startswith("draft") else None
    with running(ENGINE, settings(smollm2_path, method=kind, draft=draft, draft_length=length)) as engine:
        engine.generator("x").answer(REPEATED * 6 + "one two three", Sampling(), Limits(24, ignore_eos=True))
        counted = ENGINE.read_speculation(engine.client)
    assert counted.num_drafted > 0
    assert counted.num_accepted > 0


def test_an_incompatible_draft_is_refused_beforehand_and_detected_afterwards(smollm2_path, tiny):
    asked = settings(smollm2_path, method="draft-simple", draft=tiny, draft_length=4)
    with pytest.raises(BlockedError, match="vocabulary"):
        check_first(ENGINE, asked)
    with pytest.raises(SilentFallbackError) as caught, engine_running(ENGINE, asked, SILENT):
        pytest.fail("a silent fallback was not noticed")
    assert "silently runs without speculation (/slots reports speculative: [False])" in str(caught.value)
    assert "vocab" in str(caught.value).split("\n", 1)[1]  # the doctor's explanation of the log
    require_free_port("127.0.0.1", asked.port)


def test_a_start_that_fails_shows_the_log_and_its_explanation(tmp_path, tiny):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(tiny).read_bytes()[:20_000])
    with (
        pytest.raises(EngineStartError, match=r"exited with status(.|\n)*broken\.gguf"),
        running(ENGINE, settings(str(broken))),
    ):
        pytest.fail("a truncated model was loaded")


def test_a_flag_that_the_wheel_has_no_counterpart_of_ends_the_start(tiny):
    with (
        pytest.raises(EngineStartError, match="xllamacpp does not support --no-perf"),
        running(ENGINE, settings(tiny, extra=("--no-perf",))),
    ):
        pytest.fail("it was dropped without a word")


def test_a_real_401(tiny):
    asked = settings(tiny, extra=("--api-key", "secret"))
    with running(ENGINE, asked, api_key="secret") as engine:
        assert HttpGenerator(ENGINE, engine.client, "x").answer("a", Sampling(), Limits(2)).finish_reason == "length"
        with pytest.raises(EngineRequestError, match=r"401.*--api-key"):
            HttpGenerator(ENGINE, Client(asked.url), "x").answer("a", Sampling(), Limits(2))


def test_candidates_come_with_their_probabilities(smollm2_path):
    with running(ENGINE, settings(smollm2_path)) as engine:
        generator = engine.generator("x")
        text = generator.answer(PROMPTS[0], Sampling(), Limits(4)).text
        told = generator.candidates(PROMPTS[0], Sampling(), Limits(4), top=3)
    assert "".join(entry[0].token for entry in told) == text
    assert all(len(entry) == 3 and entry[0].logprob >= entry[1].logprob for entry in told)


def test_without_slots_and_metrics_nothing_is_claimed(tiny):
    plan = ENGINE.plan(settings(tiny), Path())
    words = tuple(a for a in plan.argv[1:] if a not in ("--metrics", "--slots"))
    from dataclasses import replace

    from slipstream.engines.engine_types import Argument
    from slipstream.engines.readiness import wait_until_ready

    stripped = replace(plan, arguments=tuple(Argument(word) for word in (*words, "--no-slots")))
    port = words[words.index("--port") + 1]
    client = Client(f"http://127.0.0.1:{port}")
    with EngineProcess.start(stripped, Path(os.environ["SLIPSTREAM_CACHE"]) / "bare") as process:
        wait_until_ready(process, client, ENGINE.readiness, 60)
        assert ENGINE.speculation_state(client).on is None
        assert ENGINE.read_speculation(client) is None


# -- the commands -----------------------------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slipstream", *arguments]


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=150, **options)


ARGS = " ".join((*ONE_THREAD, *SHORT_NGRAMS))


def processes_on(port: int) -> list[int]:
    """Servers out of the wheel that were told this port, and their guards."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(port) in words and "slipstream.engines.llama_server.xllamacpp_server" in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def prompt_file(tmp_path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": text, "raw": True}) + "\n" for text in ("a b a b a b", "one two one"))
    )
    return str(path)


def test_launch_verifies_compares_shows_figures_and_ends_on_ctrl_c(tiny):
    port = free_port()
    child = subprocess.Popen(
        command("launch", "llama-server", "--model", tiny, "--draft", tiny, "--policy", "fixed(2)", "--context", "128",
                "--port", str(port), "--engine-args", " ".join(ONE_THREAD)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == f"http://127.0.0.1:{port}  (llama-server, draft-simple)\n"
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 0, said
    assert "it drafts: " in said
    assert "2 of 2 texts identical" in said
    assert "drafted tokens accepted since the start" in said
    assert processes_on(port) == []


def test_launch_killed_with_sigkill_leaves_no_engine(tiny):
    port = free_port()
    child = subprocess.Popen(
        command("launch", "llama-server", "--model", tiny, "--drafter", "none", "--context", "128", "--port", str(port),
                "--engine-args", " ".join(ONE_THREAD)),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert "llama-server" in child.stdout.readline()
    assert processes_on(port)
    child.kill()
    child.communicate()
    deadline = time.monotonic() + 60
    while processes_on(port) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_on(port) == []


def test_launch_detached_is_listed_examined_and_stopped(tiny):
    """A random model never repeats itself, so n-grams draft nothing: --force."""
    port = str(free_port())
    started = run("launch", "llama-server", "--model", tiny, "--drafter", "ngram", "--context", "128", "--port", port,
                  "--no-smoke", "--force", "--detach", "--json", "--engine-args", ARGS)  # fmt: skip
    try:
        assert started.returncode == 0, started.stderr
        url = json.loads(started.stdout)["url"]
        listed = json.loads(run("launch", "--status", "--json").stdout)
        assert [one["url"] for one in listed] == [url]
        examined = json.loads(run("doctor", "--engine", "llama-server", "--url", url, "--json").stdout)
        assert "runtime-acceptance" in {finding["id"] for finding in examined["findings"]}
        again = run("launch", "llama-server", "--model", tiny, "--port", port, "--no-smoke")
        assert again.returncode == 1
        assert f"port {port} is in use by" in again.stderr
    finally:
        stopped = run("launch", "llama-server", "--stop", "--port", port)
    assert f"stopped: llama-server at http://127.0.0.1:{port}" in stopped.stdout
    assert processes_on(int(port)) == []
    assert "no detached engine is running" in run("launch", "--status").stdout


def test_bench_with_two_instances_under_load(tiny, prompt_file):
    done = run("bench", "--engine", "llama-server", "--model", tiny, "--draft", tiny, "--drafter", "model,ngram",
               "--policy", "fixed(3)", "--context", "128", "--streams", "1,2", "--passes", "1", "-n", "12", "--prompts",
               prompt_file, "--engine-args", ARGS, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    runs = {(r["drafter"], r["kind"]): r for r in result["runs"]}
    assert set(runs) == {
        (drafter, kind)
        for drafter in ("none", "draft-simple 3", "ngram-simple 3")
        for kind in ("1 stream", "2 streams")
    }
    assert all(r["same_text"] for r in result["runs"])
    assert runs["draft-simple 3", "1 stream"]["num_accepted"] > 0
    assert runs["draft-simple 3", "1 stream"]["ttft_s"] > 0
    assert result["settings"]["engine"] == "llama-server"


def test_bench_attached_to_engines_that_run(tiny, prompt_file):
    fast = settings(tiny, method="draft-simple", draft=tiny, draft_length=3)
    with running(ENGINE, settings(tiny)) as plain, running(ENGINE, fast) as other:
        done = run("bench", "--engine", "llama-server", "--url", other.settings.url, "--plain-url", plain.settings.url,
                   "--streams", "1", "--passes", "1", "-n", "8", "--prompts", prompt_file)  # fmt: skip
        audited = run("audit", "--engine", "llama-server", "--url", other.settings.url, "--plain-url",
                      plain.settings.url, "-n", "8", "--prompts", prompt_file, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "text identical: yes" in done.stdout
    assert json.loads(audited.stdout)["identical"] is True


def test_an_engine_that_dies_in_mid_benchmark_leaves_its_figures(tiny):
    """The engine is killed after its first answers: the message has its end and last lines, the samples stay."""
    from slipstream.measurement.load_test import run_load
    from slipstream.measurement.runner import BenchSettings
    from slipstream.measurement.workload import Prompt
    from slipstream.tasks.engine_comparison import started

    mortal = settings(tiny, method="draft-simple", draft=tiny, draft_length=3)
    prompts = [Prompt(f"p{i}", "chat", ("a b a b",), raw=True) for i in range(20)]

    def kill_later(done: int, total: int, what: str) -> None:
        if what == "draft: 2 streams":  # the load of one stream is through
            server = max(processes_on(mortal.port))  # the guard came first
            os.kill(server, signal.SIGKILL)

    openers = {"draft": lambda: started(ENGINE, mortal, "draft", SILENT)}
    measured = run_load(openers, prompts, BenchSettings(limits=Limits(8), passes=1), [1, 2], kill_later)
    assert not measured.complete
    assert len(measured.samples) >= 20
    assert "llama-server exited with status 137 during a request. Its last lines:" in (measured.error or "")


def test_audit_starts_both_and_compares(smollm2_path, tmp_path):
    prompt_file = tmp_path / "prompts.jsonl"
    prompt_file.write_text(
        "".join(json.dumps({"prompt": text, "raw": True}) + "\n" for text in (PROMPTS[0], "a b a b"))
    )
    done = run("audit", "--engine", "llama-server", "--model", smollm2_path, "--drafter", "ngram", "--policy",
               "fixed(4)", "--context", "256", "-n", "16", "--temperatures", "0,0.8", "--prompts", str(prompt_file),
               "--engine-args", ARGS, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["identical"] is True
    assert result["drafted_nothing"] == []
    assert len(result["findings"]) == 4
    assert result["model"]["engine"] == "llama-server"


def test_tune_writes_what_export_reads(tiny, prompt_file, tmp_path):
    done = run("tune", "--engine", "llama-server", "--model", tiny, "--draft", tiny, "--drafter", "draft-simple",
               "--context", "128", "--seconds", "20", "-n", "16", "--prompts", prompt_file, "--engine-args",
               " ".join(ONE_THREAD), "--json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    assert any(s["drafter"].startswith("draft-simple") and s["acceptance_rate"] > 0.5 for s in scores)
    written = (tmp_path / "slipstream.yaml").read_text()
    assert "engine: llama-server" in written
    exported = run("export", "llama-server", "--drafter", "draft-simple", "--draft", tiny, "--policy", "fixed(4)",
                   "-o", "serve.sh", cwd=tmp_path)  # fmt: skip
    assert exported.returncode == 0, exported.stderr
    script = (tmp_path / "serve.sh").read_text()
    assert f"--model {tiny} \\\n" in script
    assert "--spec-draft-n-max 4" in script
    subprocess.run(["sh", "-n", str(tmp_path / "serve.sh")], check=True)
    again = run("export", "llama-server", "--drafter", "draft-simple", "--draft", tiny, "--policy", "fixed(4)",
                "-o", "serve.sh", "--json", cwd=tmp_path)  # fmt: skip
    assert json.loads(again.stdout)["output"] == "serve.sh" and (tmp_path / "serve.sh").read_text() == script


def test_errors_are_one_clear_line(tiny):
    for arguments, said in (
        (("launch", "nonsense"), "expected slipstream, vllm, llama-server"),
        (("launch",), "name an engine"),
        (("launch", "llama-server", "--model", tiny, "--drafter", "early-exit"), "no method for the drafter"),
        (("launch", "vllm", "--model", tiny), "slipstream convert"),
        (("bench", "--engine", "llama-server", "--streams", "0"), "numbers from 1"),
        (("bench", "--engine", "llama-server", "--model", tiny, "--policy", "auto(3)"), "fixed(N)"),
        (("audit", "--engine", "llama-server", "--url", "http://127.0.0.1:1"), "--plain-url"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr.strip().splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_the_definition_of_acceptance_is_that_of_stats():
    assert Speculation(8, 6).acceptance_rate == 0.75
    restarted = Speculation(4, 1, 2, (1, 0), 9)
    assert restarted.since(Speculation(100, 50, 25, (25, 25), 200)) == restarted
    assert Speculation(10, 5, 4, (3, 2), 20).since(Speculation(4, 2, 1, (1,), 5)) == Speculation(6, 3, 3, (2, 2), 15)
    assert issubclass(SilentFallbackError, EngineError)


def test_a_key_is_in_no_command_line_result_state_or_log(tiny, tmp_path):
    secret, port = "sk-very-secret", str(free_port())
    (tmp_path / "key").write_text(secret)
    started = run("launch", "llama-server", "--model", tiny, "--drafter", "ngram", "--context", "128", "--port", port,
                  "--no-smoke", "--force", "--detach", "--json", "--engine-args", ARGS, "--api-key-file",
                  str(tmp_path / "key"))  # fmt: skip
    try:
        assert started.returncode == 0, started.stderr
        url = json.loads(started.stdout)["url"]
        with pytest.raises(EngineRequestError, match="401"):
            HttpGenerator(ENGINE, Client(url), "x").answer("a", Sampling(), Limits(2))
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        measured = run("bench", "--engine", "llama-server", "--url", url, "--api-key", secret, "--limit", "1",
                       "--max-tokens", "4", "--passes", "1", "--streams", "1", "--json", "--report",
                       str(tmp_path / "out.html"))  # fmt: skip
    finally:
        run("launch", "llama-server", "--stop", "--port", port)
    assert measured.returncode == 0, measured.stderr
    assert "--api-key HIDDEN" in json.loads(measured.stdout)["command"]
    assert not [line for line in lines if secret.encode() in line]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key" and path.suffix != ".gguf"]
    assert {"out.html", "engine.log"} <= {path.name for path in files}
    for text in (started.stdout, started.stderr, measured.stdout, measured.stderr):
        assert secret not in text
    assert not [path for path in files if secret.encode() in path.read_bytes()]
