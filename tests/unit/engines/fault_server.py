"""A small HTTP server that misbehaves as told: for failures that a real engine does not produce on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ["One", " two", " three", " four"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.server.fault == "slow metrics":
            time.sleep(5)
        self._send(200, {"status": "ok"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.server.fault
        if isinstance(fault, int):
            self._send(fault, {"error": {"message": f"told to answer {fault}"}})
            return
        if fault == "no JSON":
            self._send(200, "this is no JSON", raw=True)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number, word in enumerate(WORDS):
            if number == 2 and fault == "broken stream":
                self.connection.close()
                return
            if number == 2 and fault == "hang":
                time.sleep(5)
            if number == 2 and fault == "error event":
                self._event({"error": {"message": "out of memory"}})
                return
            self._event({"choices": [{"text": word, "finish_reason": None}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 4}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: object) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def _send(self, status: int, data: object, raw: bool = False) -> None:
        body = (str(data) if raw else json.dumps(data)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fault_server(fault: int | str | None = None) -> Iterator[str]:
    """Its URL. `fault` is a status to answer with, or: broken stream, hang, error event, no JSON, slow metrics."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.fault = fault
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
