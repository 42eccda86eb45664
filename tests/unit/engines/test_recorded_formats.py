"""Engines that can't be run here, read from responses in their real formats.

RECORDED FORMATS, not recordings of a run: each is written by hand from the engine's own source or documentation, which
is named beside it. llama-server and vLLM are tested for real elsewhere.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits
from slipstream.engines import find_engine
from slipstream.engines.client import Client
from slipstream.engines.engine_types import Speculation
from slipstream.engines.http_generator import HttpGenerator

MESSAGES = [{"role": "user", "content": "Hi"}]

# sglang 0.5.23: srt/entrypoints/openai/serving_chat.py and protocol.py (SglExt, SpecTokensDetails, UsageInfo)
SGLANG = [
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]},
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {"content": "Hello"}, "logprobs": None, "finish_reason": None}]},
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {"content": " there"}, "logprobs": None, "finish_reason": None}]},
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "matched_stop": 2}]},
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
     "sglext": {"spec_tokens_details": {"spec_accept_rate": 0.5, "spec_accept_length": 2.5, "spec_cap_length": 0.0,
                "spec_block_accept_length": 0.0, "spec_num_correct_drafts": 6, "spec_num_proposed_drafts": 12,
                "spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 1, 1, 1], "spec_cap_lens_histogram": []}}},
    {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
     "usage": {"prompt_tokens": 9, "total_tokens": 19, "completion_tokens": 10, "prompt_tokens_details": None}},
]  # fmt: skip

# ollama: docs/api.md (streaming) and docs.ollama.com/api/usage (the figures of the last object)
OLLAMA = [
    {"model": "slipstream", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": "Hello"},
     "done": False},
    {"model": "slipstream", "created_at": "2026-01-01T00:00:01Z", "message": {"role": "assistant", "content": " there"},
     "done": False},
    {"model": "slipstream", "created_at": "2026-01-01T00:00:02Z", "message": {"role": "assistant", "content": ""},
     "done": True, "done_reason": "stop", "total_duration": 174560334, "load_duration": 101397084,
     "prompt_eval_count": 9, "prompt_eval_duration": 13074791, "eval_count": 10, "eval_duration": 52479709},
]  # fmt: skip

# tabbyAPI: endpoints/OAI/types (ChatCompletionStreamChunk, UsageStats)
TABBY = [
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}}]},
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {"content": " there"}}]},
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
     "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
     "usage": {"prompt_tokens": 9, "completion_tokens": 10, "total_tokens": 19}},
]  # fmt: skip
# tabbyAPI: common/gen_logging.py, log_metrics
TABBY_LOG = (
    "2026-01-01 00:00:00.000 INFO:     Metrics (ID: 1): 10 tokens generated in 0.5 seconds (Queue: 0.0 s, Prefill: 9 "
    "input tokens (0 cached, 9 uncached) at 90.0 effective T/s, Generate: 25.0 T/s, Context: 9 tokens, "
    "Draft: 6 / 12 tokens accepted (50.00%)) \n"
)


def serve(events: list[dict], path: str, lines: bool, others: dict[str, object]) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != path:
                self._send(json.dumps(others[self.path]))
                return
            self._send("".join(f"{json.dumps(e)}\n" if lines else f"data: {json.dumps(e)}\n\n" for e in events))
            if log := getattr(self.server, "log", None):
                log.write_text(log.read_text() + TABBY_LOG if log.exists() else TABBY_LOG)

        def do_GET(self) -> None:
            self._send(json.dumps(others[self.path]))

        def _send(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextmanager
def serving(events, path, lines=False, others=None, log=None) -> Iterator[tuple[Client, http.server.HTTPServer]]:
    server = serve(events, path, lines, others or {})
    server.log = log
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Client(f"http://127.0.0.1:{server.server_address[1]}", log=log), server
    finally:
        server.shutdown()
        server.server_close()


def test_sglang():
    others = {"/server_info": {"speculative_algorithm": "EAGLE3", "internal_states": [{}]}}
    engine = find_engine("sglang")
    with serving(SGLANG, "/v1/chat/completions", others=others) as (client, server):
        answer = HttpGenerator(engine, client, "x").answer(MESSAGES, Sampling(), Limits(16))
        assert engine.speculation_state(client).on is True
        asked = server.asked
    assert (answer.text, answer.finish_reason) == ("Hello there", "stop")
    stats = answer.stats
    assert (stats.num_prompt_tokens, stats.num_tokens, stats.num_drafted, stats.num_accepted) == (9, 10, 12, 6)
    assert [stats.accepted_at[depth] for depth in (1, 2, 3)] == [3, 2, 1]  # of 4 rounds: 3 accepted one or more …
    assert stats.rounds == 4
    assert asked["return_spec_tokens_details"] is True
    assert asked["top_k"] == -1  # off, in its words


def test_ollama():
    others = {"/api/show": {"modelfile": "FROM x\nDRAFT y\n", "parameters": "draft_num_predict    4"}}
    engine = find_engine("ollama")
    with serving(OLLAMA, "/api/chat", lines=True, others=others) as (client, server):
        answer = HttpGenerator(engine, client, "x", model="qwen3:8b").answer(MESSAGES, Sampling(), Limits(16))
        assert server.asked["model"] == "qwen3:8b"
        assert server.asked["options"]["num_predict"] == 16
        assert engine.speculation_state(client).on is None  # asked to, but it does not tell
    assert (answer.text, answer.finish_reason, answer.stats.num_tokens) == ("Hello there", "stop", 10)
    assert answer.stats.num_drafted == 0
    raw = engine.request("Once", Sampling(), Limits(4))
    assert (raw.path, raw.body["raw"], raw.body["prompt"]) == ("/api/generate", True, "Once")


def test_tabbyapi_tells_acceptance_in_its_log(tmp_path):
    engine = find_engine("tabbyapi")
    log = tmp_path / "engine.log"
    log.write_text(TABBY_LOG)  # of an answer before
    with serving(TABBY, "/v1/chat/completions", log=log) as (client, _):
        answer = HttpGenerator(engine, client, "x").answer(MESSAGES, Sampling(), Limits(16))
        state = engine.speculation_state(client)
        assert engine.read_speculation(client) == Speculation(24, 12)
    assert state.on is True
    assert (answer.text, answer.stats.num_tokens) == ("Hello there", 10)
    assert (answer.stats.num_drafted, answer.stats.num_accepted) == (12, 6)


@pytest.mark.parametrize("name", ["sglang", "ollama", "tabbyapi"])
def test_a_stream_without_its_end_is_no_answer(name):
    events = {"sglang": SGLANG[:3], "ollama": OLLAMA[:2], "tabbyapi": TABBY[:2]}[name]
    path = "/api/chat" if name == "ollama" else "/v1/chat/completions"
    from slipstream.errors import EngineRequestError

    with serving(events, path, lines=name == "ollama") as (client, _), pytest.raises(EngineRequestError) as caught:
        HttpGenerator(find_engine(name), client, "x").answer(MESSAGES, Sampling(), Limits(16))
    assert caught.value.partial_text == "Hello there"
