"""Drafts that are seldom accepted, and drafting for so many requests that it can hardly pay off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from slipstream.diagnosis.log_figures import acceptance, tokens_per_step
from slipstream.findings import rule
from slipstream.parsing.log_scan import Located, hits

NEAR_ZERO = rule(
    "log-acceptance-near-zero",
    "slows",
    "Almost no drafted token is accepted",
    "{rate} of the drafted tokens are accepted{counts}: nearly all drafting is wasted, and this is slower than without "
    "a draft. It still verifies correctly. {causes}",
    "Check the pair: slipstream doctor --target T --draft D. Draft fewer tokens per step (2 to 4). If acceptance stays "
    "near zero, update the engine, use another draft (slipstream pairs --target T) or none.",
)
LOW = rule(
    "log-acceptance-low",
    "slows",
    "Most drafted tokens are rejected",
    "{rate} of the drafted tokens are accepted{counts}. Below about a third, speculation may be slower than plain "
    "decoding.",
    "Draft fewer tokens per step (2 to 4), or use a smaller draft. Compare with a run without a draft: "
    "slipstream bench --model T --draft D.",
)
MANY_AT_ONCE = rule(
    "log-many-requests",
    "slows",
    "Speculation runs with many requests at a time",
    "{running} requests run at the same time, with drafting. The GPU is then busy with the requests themselves, and "
    "verifying drafts takes time from them: speculation may be slower than plain decoding here, even with good "
    "acceptance ({rate}).",
    "Compare with a run without speculation at this load. Speculate only with few requests at a time (vLLM: "
    "--max-num-seqs; older versions: speculative_disable_by_batch_size), or leave speculation out on busy servers.",
)
_CAUSES = (
    "Usual causes: a draft of another family or version, a draft whose precision or template differs from what it was "
    "made for, far too many drafted tokens per step, or a fault of this version with this model (it does not hand the "
    "target's state to the draft)."
)
_CAUSES_OF_ZERO = (
    "A draft that is only weak still guesses some tokens. None at all means that the draft works with wrong input: "
    "the engine does not hand it the target's state (prefill and decoding on separate machines, a method or runner "
    "that does not fit this draft, a fault of this version), its weights are damaged, or its vocabulary is another one."
)
NEAR_ZERO_RATE, LOW_RATE = 0.1, 0.35  # checks of a running engine use the second too
_ONE_PER_STEP = 1.1  # with 3 drafted tokens, less than 4 % of them are accepted
_MANY_PER_STEP = 2.0  # tokens per step from which a low rate is only a sign of long drafts
_ENOUGH_DRAFTED = 100  # fewer drafted tokens do not show the rate


def acceptance_in(text: str) -> Iterator[Located]:
    """Acceptance that is near zero, or so low that drafting may not pay off. Nothing for few drafted tokens."""
    found, length = acceptance(text), tokens_per_step(text)
    if found is None and length and 1 <= length[0] < _ONE_PER_STEP:  # earlier SGLang prints no rate
        counts = f" ({length[0]:g} tokens per step)"
        yield Located(length[1], NEAR_ZERO.finding(rate="Almost none", counts=counts, causes=_CAUSES))
    if found is None or found.hit is None or (found.drafted is not None and found.drafted < _ENOUGH_DRAFTED):
        return
    has_long_drafts = length is not None and length[0] >= _MANY_PER_STEP
    if found.rate >= LOW_RATE or (found.rate >= NEAR_ZERO_RATE and has_long_drafts):
        return
    kind = NEAR_ZERO if found.rate < NEAR_ZERO_RATE and not has_long_drafts else LOW
    counts = f" ({found.accepted:,} of {found.drafted:,})" if found.drafted else ""
    causes = _CAUSES if found.rate else _CAUSES_OF_ZERO
    yield Located(found.hit, kind.finding(rate=f"{found.rate:.1%}", counts=counts, causes=causes))


_RUNNING = re.compile(r"Running: (?P<running>\d+) reqs|#running-req: (?P<running_2>\d+)")
_MANY_REQUESTS = 128  # at a time: a safe bound, since reports of slower runs have hundreds
_MAX_RUNNING = 200  # lines to look at, from the first: the load of a benchmark does not change much


def many_requests_in(text: str) -> Iterator[Located]:
    """Drafting with so many requests at a time that it can hardly pay off: in most lines that tell the load."""
    found = acceptance(text)
    if found is None or found.hit is None:
        return
    lines = [
        hit for piece in ("Running: ", "#running-req: ") for hit in islice(hits(text, piece, _RUNNING), _MAX_RUNNING)
    ]
    loads = sorted(int(hit.groups["running"] or hit.groups["running_2"]) for hit in lines)
    running = loads[len(loads) // 2] if loads else 0
    if running >= _MANY_REQUESTS:
        yield Located(found.hit, MANY_AT_ONCE.finding(running=running, rate=f"{found.rate:.1%}"))
