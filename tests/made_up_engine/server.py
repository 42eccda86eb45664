"""Answers every request with the same words, of which it claims to have guessed two thirds."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ["one", " two", " three", " four"]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer("text/plain", "ok")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        events = [self._event(word, asked) for word in WORDS]
        events[-1]["choices"][0]["finish_reason"] = "stop"
        events[-1]["guessed"] = [3, 2] if guesses else [0, 0]
        events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(WORDS)}})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._answer("text/event-stream", text + "data: [DONE]\n\n")

    def _event(self, word: str, asked: dict) -> dict:
        piece = {"delta": {"content": word}} if "messages" in asked else {"text": word}
        return {"choices": [{"index": 0, "finish_reason": None, **piece}]}

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--port", type=int)
parser.add_argument("--guesses", type=int)
options = parser.parse_args()
guesses = options.guesses
print("made-up engine: imagining", flush=True)
ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
