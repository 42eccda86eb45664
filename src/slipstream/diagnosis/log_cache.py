"""A KV cache that is almost full."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from slipstream.findings import rule
from slipstream.parsing.log_scan import Located, hits

CACHE_FULL = rule(
    "log-cache-full",
    "slows",
    "The KV cache is almost full",
    "{share:.0%} of the KV cache is in use{running}: new requests wait, or running ones stop for a while. The requests "
    "may be that long, or finished ones do not give their place back (a fault of this version, if it stays full with "
    "no request running).",
    "Compare the number of tokens with the length of the requests. Shorten prompts and answers, allow fewer requests "
    "at a time, give the cache more memory (vLLM --gpu-memory-utilization, SGLang --mem-fraction-static) or quantise "
    "it (--kv-cache-dtype fp8). If it does not fall when the requests end, restart and update the engine.",
)
_USAGE = re.compile(
    r"(?:#running-req: (?P<running>\d+).{0,80})?(?<!swa )token usage: (?P<share>[01]\.\d+)|"
    r"(?:Running: (?P<running_2>\d+) reqs.{0,80})?GPU KV cache usage: (?P<percent>[\d.]+)%"
)
_FULL = 0.95
_TAIL = 64_000  # characters at the end of a log that are looked at
_AT_LEAST, _LAST = 2, 3  # lines that must all show it: usage goes up and down with the load


def full_cache_in(text: str) -> Iterator[Located]:
    """The last line about the cache, if the last lines all show it almost full."""
    start = max(0, len(text) - _TAIL)
    pieces = ("token usage: ", "GPU KV cache usage: ")
    found = [hit for piece in pieces for hit in deque(hits(text, piece, _USAGE, start=start), _LAST)]
    shares = [float(hit.groups["share"] or 0) or float(hit.groups["percent"] or 0) / 100 for hit in found]
    if len(found) < _AT_LEAST or min(shares) < _FULL:
        return
    count = found[-1].groups["running"] or found[-1].groups["running_2"]
    running, share = f" by {count} requests" if count else "", shares[-1]
    yield Located(found[-1], CACHE_FULL.finding(share=share, running=running))
