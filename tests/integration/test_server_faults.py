"""What goes wrong with a server: bad bodies, slow and vanishing clients, failing drafters, forwards and caches.

The model is a fake with the built-in model's tokenizer: it takes no time.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

import slipstream
from fakes import Crashing, FakeDrafter, FakeModel, cycle_logits
from served import Served, eventually, served
from slipstream.core.engine import Engine
from slipstream.core.round_stats import enter_round
from slipstream.core.team import DrafterTeam
from slipstream.drafters.grammar import GrammarDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.models import open_checkpoint
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.policy import make_policy
from slipstream.server.answers import ChatFormat
from slipstream.server.app import make_app
from slipstream.server.scheduler import Job

pytestmark = pytest.mark.real_model
VOCAB = 49152
TOKENS = list(range(300, 340))  # the fake says these in turn
MAX_ANSWER = 400
QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
ENDLESS = QUESTION | {"stream": True, "max_tokens": MAX_ANSWER}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_checkpoint("smollm2-135m").tokenizer


def fake_engine(tokenizer: Tokenizer, drafter: Any = None, **model: Any) -> Engine:
    fake = FakeModel(cycle_logits(TOKENS, VOCAB), VOCAB, context=4096, name="fake", **model)
    return Engine(fake, tokenizer, drafter, make_policy("fixed(2)"), max_streams=4)


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[Served]:
    options = {"max_streams": 4, "max_queue": 8, "max_tokens": MAX_ANSWER, "idle_limit": 1.0}
    with served(fake_engine(tokenizer), tokenizer, **options) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_leaked(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        assert eventually(lambda: server.num_active == server.service.scheduler.num_queued == 0)
        assert eventually(lambda: not server.service.engine.target.open_sequences)


def connection(server: Served) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)


def post(
    server: Served, body: bytes | dict[str, Any], path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, dict[str, Any]]:
    asked = connection(server)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked.request("POST", path, sent, {"Content-Type": "application/json"} | headers)
    answer = asked.getresponse()
    return answer.status, json.loads(answer.read())


def events(answer: http.client.HTTPResponse) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in answer.read().split(b"\n\n") if line]
    return [line if line == b"[DONE]" else json.loads(line) for line in lines]


def ask(server: Served, body: dict[str, Any]) -> http.client.HTTPConnection:
    """Sends a request and does not wait for the answer."""
    asked = connection(server)
    asked.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return asked


def stream(server: Served, body: dict[str, Any]) -> list[Any]:
    return events(ask(server, body).getresponse())


def refused(asked: http.client.HTTPConnection) -> tuple[int, str]:
    """The status and the code of the answer."""
    answer = asked.getresponse()
    return answer.status, json.loads(answer.read())["error"]["code"]


def text_of(parts: list[Any]) -> str:
    chunks = [part for part in parts if part != b"[DONE]" and part.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def test_the_end_is_told_also_if_the_last_token_was_taken_before_it_was_known(server, monkeypatch):
    """A round hands out its tokens first, accounts for them, and then says which answers are over."""

    def slowly(*of_round):
        time.sleep(0.03)  # meanwhile the last round is told, and the request takes what is there
        server.service.scheduler._is_told = False
        server.service.scheduler._tell()
        time.sleep(0.03)
        enter_round(*of_round)

    monkeypatch.setattr("slipstream.core.engine.enter_round", slowly)
    for includes_usage in (False, True):
        parts = stream(server, QUESTION | {"stream": True, "n": 2, "stream_options": {"include_usage": includes_usage}})
        endings = [p["choices"][0] for p in parts[:-1] if p["choices"] and p["choices"][0]["finish_reason"]]
        assert [one["finish_reason"] for one in endings] == ["length"] * 2
        assert {one["index"] for one in endings} == {0, 1}
        assert parts[-1] == b"[DONE]"
        assert [part["slipstream"]["rounds"] > 1 for part in parts[:-1] if "slipstream" in part] == [True]
        assert [part["usage"]["completion_tokens"] for part in parts[:-1] if "usage" in part] == [16] * includes_usage


@pytest.mark.parametrize("cause", ["drain", "engine"])
def test_an_answer_that_is_cut_off_has_no_finish_reason(tokenizer, monkeypatch, cause):
    """The failure comes while the last tokens are sent."""
    with served(fake_engine(tokenizer), tokenizer) as running:
        write = ChatFormat.part

        def failing(chat_format, *given):
            if cause == "drain":
                running.service.scheduler.end_all("the server is shutting down")
            for job in running.service.scheduler._running:
                job.stream.finish("error", RuntimeError("bus"))
            return write(chat_format, *given)

        monkeypatch.setattr(ChatFormat, "part", failing)
        parts = stream(running, ENDLESS | {"n": 2})
        assert parts[-1]["error"]["code"] == {"drain": "shutting_down", "engine": "engine_error"}[cause]
        assert not [part for part in parts[:-1] if part["choices"][0]["finish_reason"] or "slipstream" in part]


def test_a_failure_after_the_last_look_at_a_choice_is_told_too(tokenizer, monkeypatch):
    with served(fake_engine(tokenizer), tokenizer) as running:
        take = Job.take

        def failing(job):
            tokens, jobs = take(job), running.service.scheduler._running
            if jobs[-1:] == [job]:
                jobs[0].stream.finish("error", RuntimeError("bus"))
                jobs[0].stream.outbox.clear()
                job.stream.finish("length")
            return tokens

        monkeypatch.setattr(Job, "take", failing)
        assert post(running, ENDLESS | {"stream": False, "n": 2})[0] == 500


def test_a_text_without_a_length_is_as_long_as_the_server_allows(tokenizer):
    with served(fake_engine(tokenizer), tokenizer, max_tokens=8) as running:
        status, answer = post(running, {"prompt": "Hello"}, "/v1/completions")
        assert (status, answer["usage"]["completion_tokens"]) == (200, 8)


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_the_address_that_it_listens_on_is_answered(tokenizer, host):
    with served(fake_engine(tokenizer), tokenizer, host=host) as running:
        assert post(running, QUESTION)[0] == 200
        asked = connection(running)
        asked.request("POST", "/v1/chat/completions", json.dumps(QUESTION), {"Host": "elsewhere.example"})
        assert asked.getresponse().status == 400


def test_a_drafter_for_grammars_may_be_named_too(tokenizer):
    team = DrafterTeam([GrammarDrafter(), SuffixDrafter()])
    with served(fake_engine(tokenizer, team), tokenizer) as running:
        assert post(running, QUESTION | {"response_format": {"type": "json_object"}})[0] == 200


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages.0.content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": MAX_ANSWER + 1}, "max_tokens"),
        ({"max_completion_tokens": MAX_ANSWER + 1}, "max_completion_tokens"),
        ({"n": 1000}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, None),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": "x" * 70_000}}}}, "response_form"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"functions": []}, "functions"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "system"}]}, "messages.1.content"),
        ({"model": "../../etc/passwd"}, "model"),
        ({"speculation": {"drafter": "model(/etc/passwd)"}}, "speculation.drafter"),
    ],
)
def test_a_wrong_field_is_named(server, change, param):
    status, answer = post(server, QUESTION | change)
    assert status in (400, 404)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert param is None or answer["error"]["param"].startswith(param)


def nested(depth: int) -> bytes:
    return b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (nested(100_000), 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"a": ' + b"9" * 100_000 + b"}", 400),
        (b" " * (5 << 20), 413),
    ],
)
def test_bodies_that_are_no_requests(server, body, status):
    assert post(server, body)[0] == status


def nested_schema(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nested_schema(depth - 1)} if depth else {"type": "string"}


def test_a_deep_schema_is_refused(server):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": nested_schema(60)}}
    status, answer = post(server, QUESTION | {"response_format": wanted})
    assert status == 400
    assert "deep" in answer["error"]["message"]


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
@pytest.mark.parametrize(
    ("schemas", "field", "said"),
    [
        ([{}, nested_schema(60)], "tools.1", "nested more than 32 deep"),
        ([{"enum": ["x" * 70_000]}], "tools.0", "longer than 65,536 bytes"),
        ([{"enum": ["x" * 60_000]}] * 9, "tools.8", "more than 524,288 bytes"),
    ],
)
def test_the_schemas_of_tools_have_bounds(tokenizer, schemas, field, said, choice):
    speaking = copy.copy(tokenizer)
    speaking.chat_template = "{{ tools }}<tool_call>"
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": s}} for i, s in enumerate(schemas)]
    with served(fake_engine(speaking), speaking) as server:
        status, answer = post(server, QUESTION | {"tools": tools, "tool_choice": choice})
        assert (status, answer["error"]["param"]) == (400, f"{field}.function.parameters")
        assert said in answer["error"]["message"]


def test_another_content_type_is_refused(server):
    """A web page can send text/plain to this machine without asking, but not JSON."""
    assert post(server, QUESTION, **{"Content-Type": "text/plain"})[0] == 415


def test_another_host_name_is_refused(server):
    """A name of somebody else's that leads to this machine is not this server's."""
    assert post(server, QUESTION, Host="127.0.0.1:80")[0] == post(server, QUESTION, Host="LOCALHOST")[0] == 200
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost:x", ""):
        status, answer = post(server, QUESTION, Host=name)
        assert (status, answer["error"]["code"]) == (400, "unknown_host")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/v1/embeddings", 404, set()),
        ("GET", "/v1/nothing", 404, set()),
        ("POST", "/js/nothing.js", 404, set()),
        ("GET", "/js", 404, set()),
        ("GET", "/v1/chat/completions", 405, {"POST"}),
        ("DELETE", "/v1/models", 405, {"GET", "HEAD"}),
        ("POST", "/", 405, {"GET", "HEAD"}),
        ("POST", "/js/main.js", 405, {"GET", "HEAD"}),
    ],
)
def test_an_unknown_path_is_not_found_and_another_method_is_not_allowed(server, method, path, status, allow):
    asked = connection(server)
    asked.request(method, path, b"{}", {"Content-Type": "application/json"})
    answer = asked.getresponse()
    assert answer.status == status
    assert set(filter(None, (answer.getheader("Allow") or "").split(", "))) == allow
    assert set(json.loads(answer.read())["error"]) == {"message", "type", "param", "code"}


def test_the_page_is_sent_again_only_if_it_changed(server):
    asked = connection(server)
    asked.request("GET", "/")
    answer = asked.getresponse()
    assert answer.read().startswith(b"<!doctype html>")
    asked.request("GET", "/", headers={"If-None-Match": answer.getheader("ETag")})
    assert asked.getresponse().status == 304


def test_random_bodies_are_answered_clearly(server):
    chance = random.Random(20)
    values: list[Any] = [None, True, -1, 0, 1e308, "", "x" * 9, "😀\0", [], {}, [[]], {"a": [None]}]
    fields = [*QUESTION, "n", "stop", "seed", "top_k", "logit_bias", "stream", "tools", "logprobs", "speculation", "x"]
    for _ in range(300):
        changed = QUESTION | {chance.choice(fields): chance.choice(values) for _ in range(2)}
        body = json.dumps(changed | {"stream": False}).encode()
        if chance.random() < 0.3:
            body = body[: chance.randrange(len(body))]
        status, answer = post(server, body)
        assert status in (200, 400, 404), (status, answer)


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
SHORT = settings(max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_the_openapi_document_describes_the_server(server, mode):
    """A short run; CONTRIBUTING.md has the command of a long one."""
    for found in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():
        operation = found.ok()
        if operation.method != "post" and mode is schemathesis.GenerationMode.NEGATIVE:
            continue  # nothing in it can be wrong

        @SHORT
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS)

        check()


# -- clients ----------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_is_given_up(server):
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    with socket.create_connection((host, port), timeout=10) as slow:
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in slow.recv(200)


@pytest.mark.parametrize("start", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["new", "kept open"])
@pytest.mark.parametrize("rest", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_a_header_that_does_not_come_is_given_up(server, start, rest):
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    with socket.create_connection((host, port), timeout=10) as slow:
        slow.sendall(start)
        answer = b""
        while start and not answer.endswith(b'{"status":"ok"}'):
            answer += slow.recv(9999)
        began = time.monotonic()
        for byte in rest:
            slow.sendall(bytes([byte]))
            time.sleep(0.01)
        assert slow.recv(9999) == b""
        assert time.monotonic() - began < 4


def test_a_long_answer_is_not_cut_off_by_the_idle_limit(tokenizer, monkeypatch):
    step = Engine.step

    def slowly(engine):
        time.sleep(0.1)
        return step(engine)

    monkeypatch.setattr(Engine, "step", slowly)
    with served(fake_engine(tokenizer), tokenizer, idle_limit=1.0) as running:
        asked = connection(running)
        for _ in range(2):
            asked.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(QUESTION | {"max_tokens": 13}),
                {"Content-Type": "application/json"},
            )
            answer = json.loads(asked.getresponse().read())
            assert answer["usage"]["completion_tokens"] == 13


def test_a_reader_that_stops_reading_holds_nobody_up_and_is_given_up(server):
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    body = json.dumps(ENDLESS | {"speculation": {"details": True}, "n": 4, "logprobs": True, "top_logprobs": 20})
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.connect((host, port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        assert eventually(lambda: server.num_active == 4)
        assert text_of(stream(server, QUESTION | {"stream": True}))
        assert eventually(lambda: server.num_active == 0)


@pytest.mark.parametrize("body", [{"prompt": "Hi", "n": 4}, {"prompt": ["Hi"] * 4}, {"prompt": ["a", "b"], "n": 2}])
def test_more_answers_than_there_can_ever_be_places_are_refused_for_good(tokenizer, body):
    with served(fake_engine(tokenizer), tokenizer, max_streams=2, max_queue=1) as server:
        status, answer = post(server, body | {"max_tokens": 2}, "/v1/completions")
        assert status == 400
        assert "4 answers; this server takes 3 at most" in answer["error"]["message"]
        status, answer = post(server, {"prompt": "Hi", "n": 3, "max_tokens": 2}, "/v1/completions")
        assert (status, len(answer["choices"])) == (200, 3)


def test_keys_share_the_server_fairly(tokenizer):
    """A key with many requests does not delay another key's single one behind all of them."""
    keys = ("key-number-one", "key-number-two")
    with served(fake_engine(tokenizer), tokenizer, max_streams=1, max_queue=64, api_keys=keys) as server:
        order: list[str] = []

        def ask(key: str) -> None:
            assert post(server, QUESTION | {"max_tokens": 200}, Authorization=f"Bearer {key}")[0] == 200
            order.append(key)

        threads = [threading.Thread(target=ask, args=(keys[0],)) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: server.service.scheduler.num_queued > 3)
        threads.append(threading.Thread(target=ask, args=(keys[1],)))
        threads[-1].start()
        for thread in threads:
            thread.join()
        assert order.index(keys[1]) < len(order) - 2
        assert post(server, QUESTION, Authorization="Bearer key-number-tw")[0] == 401


def test_all_but_the_page_and_the_state_of_the_server_needs_a_key(tokenizer):
    with served(fake_engine(tokenizer), tokenizer, api_keys=("key-number-one",)) as server:
        is_open = set()
        for route in make_app(server.service).routes:
            asked = connection(server)
            asked.request(min(route.methods - {"HEAD"}), route.path)
            if asked.getresponse().status != 401 and "." not in route.path:  # /openapi.json, and files of the page
                is_open.add(route.path)
        assert is_open == {"/", "/health", "/ready"}


# -- the engine -------------------------------------------------------------------------------------------------------


def test_a_drafter_that_raises_changes_nothing_but_the_figures(tokenizer):
    drafter = Crashing(FakeDrafter(), "propose", nth=2)
    with served(fake_engine(tokenizer, drafter), tokenizer) as server:
        broken, plain = (post(server, QUESTION | {"speculation": {"enabled": on}})[1] for on in (True, False))
        assert broken["choices"][0]["message"] == plain["choices"][0]["message"]
        assert "crashing" in broken["slipstream"]["policy"]


def test_a_forward_that_fails_ends_its_streams_and_no_others(tokenizer):
    engine = fake_engine(tokenizer)
    with served(engine, tokenizer) as server:
        expected = text_of(stream(server, QUESTION | {"stream": True}))
        engine.target.fails_at = engine.target.num_scores + 5
        parts = stream(server, ENDLESS)
        assert parts[-1]["error"]["code"] == "engine_error"
        assert "bus" not in parts[-1]["error"]["message"]
        engine.target.fails_at = engine.target.num_scores + 2
        assert post(server, QUESTION)[0] == 500
        assert text_of(stream(server, QUESTION | {"stream": True})) == expected
        assert not engine.target.open_sequences


def test_a_full_cache_refuses_what_never_fits_and_delays_the_rest(tokenizer):
    with served(fake_engine(tokenizer, max_tokens=150), tokenizer) as server:
        status, answer = post(server, QUESTION | {"max_tokens": 200})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        answers: list[int] = []
        ask = {"target": lambda: answers.append(post(server, QUESTION | {"max_tokens": 60})[0])}
        threads = [threading.Thread(**ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [200] * 4


def test_an_answer_that_takes_too_long_ends_with_an_error(tokenizer):
    with served(fake_engine(tokenizer), tokenizer, request_limit=0.05) as server:
        asked = ENDLESS | {"max_tokens": 3000}
        assert stream(server, asked)[-1]["error"]["code"] == "timeout"
        assert post(server, asked | {"stream": False})[0] == 504
        assert eventually(lambda: server.num_active == 0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Rounds wait while it is not set."""
    gate, step = threading.Event(), Engine.step

    def waiting(engine: Engine) -> bool:
        gate.wait()
        return step(engine)

    monkeypatch.setattr(Engine, "step", waiting)
    yield gate
    gate.set()


@pytest.mark.parametrize("streams", [True, False])
class TestBeforeItsFirstToken:
    """What ends an answer then has its status, whether it would have been streamed or not."""

    def test_a_request_that_can_never_fit_is_refused(self, tokenizer, streams):
        with served(fake_engine(tokenizer, max_tokens=150), tokenizer) as server:
            asked = ask(server, QUESTION | {"max_tokens": 200, "stream": streams})
            assert refused(asked) == (400, "context_length_exceeded")

    def test_a_request_that_takes_too_long_times_out(self, tokenizer, gate, streams):
        with served(fake_engine(tokenizer), tokenizer, request_limit=0.2) as server:
            assert refused(ask(server, QUESTION | {"stream": streams})) == (504, "timeout")
            gate.set()

    def test_a_forward_that_fails_is_an_error(self, tokenizer, streams):
        engine = fake_engine(tokenizer)
        with served(engine, tokenizer) as server:
            engine.target.fails_at = engine.target.num_scores + 1
            assert refused(ask(server, QUESTION | {"stream": streams})) == (500, "engine_error")

    def test_a_request_that_waits_when_the_server_stops_is_refused(self, tokenizer, gate, streams):
        with served(fake_engine(tokenizer), tokenizer, max_streams=1) as server:
            running = ask(server, QUESTION | {"stream": streams})
            assert eventually(lambda: server.num_active == 1)
            waiting = ask(server, QUESTION | {"stream": streams})
            assert eventually(lambda: server.service.scheduler.num_queued == 1)
            server.service.scheduler.begin_drain()
            assert refused(waiting) == (503, "shutting_down")
            gate.set()
            assert running.getresponse().status == 200

    def test_an_answer_that_has_not_begun_when_the_time_is_over_is_refused(self, tokenizer, gate, streams):
        with served(fake_engine(tokenizer), tokenizer) as server:
            running = ask(server, QUESTION | {"stream": streams})
            assert eventually(lambda: server.num_active == 1)
            server.service.scheduler.end_all("the server is shutting down")
            assert refused(running) == (503, "shutting_down")
            gate.set()

    def test_a_client_that_leaves_frees_its_place(self, tokenizer, gate, streams):
        with served(fake_engine(tokenizer), tokenizer, max_streams=1) as server:
            running = ask(server, QUESTION | {"stream": streams})
            assert eventually(lambda: server.num_active == 1)
            waiting = ask(server, QUESTION | {"stream": streams})
            assert eventually(lambda: server.service.scheduler.num_queued == 1)
            waiting.close()
            assert eventually(lambda: server.service.scheduler.num_queued == 0)
            running.close()
            assert eventually(lambda: server.num_active == 0)
            gate.set()


# -- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["slipstream", "openai"])
def test_the_server_is_measured_like_other_engines(server, engine):
    result = slipstream.bench(
        workload=slipstream.WorkloadOptions(limit=1, max_tokens=8),
        options=slipstream.BenchOptions(passes=1),
        engine=slipstream.EngineOptions(engine=engine),
        running=slipstream.RunningEngineOptions(url=server.url, plain_url=server.url),
        concurrency=slipstream.ConcurrencyOptions(streams="1"),
    )
    assert {run.drafter for run in result.runs} == {"none", "running"}
    assert all(run.same_text is not False for run in result.runs)
