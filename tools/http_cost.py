"""What HTTP costs: the same answers from the engine alone and through the server, in one process, interleaved.

    python tools/http_cost.py --streams 1,16

The clients run in a process of their own. Prints tokens per second of both for each number of streams, the median of
several passes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import slipstream
from load_server import LoadSettings, Tally, bodies, run_clients
from slipstream.core.engine import Engine
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits, RequestOptions
from slipstream.server.keys import ApiKeys
from slipstream.server.run import address, bind, make_server, make_service
from slipstream.server.settings import ServeOptions

WHOLE_PROMPT = RequestOptions(is_cold=True)  # as the requests over HTTP ask for it


def requests(max_tokens: int, count: int) -> list[dict[str, Any]]:
    found = bodies(LoadSettings("", 1, 1, max_tokens, 0.0, "auto", 0, None))
    return [body | {"ignore_eos": True, "cache_prompt": False} for body in (found * count)[:count]]


def engine_alone(engine: Engine, asked: list[dict[str, Any]], streams: int) -> float:
    """Tokens per second with so many answers at the same time."""
    started, waiting, running, tokens = time.perf_counter(), list(asked), [], 0
    while waiting or running:
        while waiting and len(running) < streams:
            body = waiting.pop(0)
            sampling, limits = (
                Sampling(body["temperature"], seed=body["seed"]),
                Limits(body["max_tokens"], ignore_eos=True),
            )
            running.append(engine.generate(body["messages"], sampling, limits, options=WHOLE_PROMPT))
        engine.step()
        tokens += sum(len(answer.tokens) for answer in running if answer.stream.done)
        running = [answer for answer in running if not answer.stream.done]
    engine.forget_prompts()
    return tokens / (time.perf_counter() - started)


def over_http(url: str, max_tokens: int, count: int, streams: int) -> float:
    command = [sys.executable, __file__, "--client", url, "--streams", str(streams)]
    done = subprocess.run(
        [*command, "--max-tokens", str(max_tokens), "--requests", str(count)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def client(url: str, max_tokens: int, count: int, streams: int) -> float:
    tally = Tally()
    settings = LoadSettings(url, streams, count, max_tokens, 0.0, "auto", 0, None)
    seconds = run_clients(settings, [(body, "") for body in requests(max_tokens, count)], tally)
    return tally.num_tokens / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, help="default: 4, or twice the streams")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        print(client(given.client, given.max_tokens, given.requests, int(given.streams)))
        return
    loaded = slipstream.load_model(given.model)
    alone = slipstream.load(loaded, drafter=given.drafter)
    options = ServeOptions(port=0)
    served = slipstream.load(loaded, drafter=given.drafter, max_stall_s=options.max_stall)
    service = make_service(served, loaded.tokenizer, options, ApiKeys(()))
    with bind(options) as bound:
        server, ready = make_server(service), threading.Event()
        server.on_ready = ready.set
        threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
        ready.wait()
        for streams in map(int, given.streams.split(",")):
            count = given.requests or max(4, 2 * streams)
            pairs = [
                (
                    engine_alone(alone, requests(given.max_tokens, count), streams),
                    over_http(address(bound), given.max_tokens, count, streams),
                )
                for _ in range(given.passes)
            ]
            medians = [round(statistics.median(side), 2) for side in zip(*pairs, strict=True)]
            shares = [round(http / own, 4) for own, http in pairs]
            print(
                json.dumps({"streams": streams, "engine": medians[0], "http": medians[1], "shares": shares}), flush=True
            )
        server.should_exit = True


if __name__ == "__main__":
    main()
