"""Verification one by one: counters of a speculative loop whose target ran for each drafted token."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipstream.diagnosis.log_figures import number
from slipstream.findings import rule
from slipstream.parsing.log_scan import Hit, Located, hits

ONE_BY_ONE = rule(
    "log-one-by-one",
    "slows",
    "Drafts are verified one token at a time",
    "The target ran {forwards} times for {tokens} tokens{detail}. One forward pass can verify a whole draft, so there "
    "should be far fewer passes than tokens. This loop runs the target once for each drafted token, and spends time "
    "on drafting as well.",
    "Score all drafted tokens in one forward pass: [last token] + draft as one batch, logits for every position, then "
    "keep the longest prefix that matches. Slipstream does this: slipstream bench --model T --draft D.",
)
MAYBE_ONE_BY_ONE = rule(
    "log-one-by-one-suspected",
    "slows",
    "Drafts may be verified one token at a time",
    "{observed}. This may be verification one token at a time: the target then runs as often as without a draft, and "
    "the time for drafting comes on top.",
    "To check, count the target's forward passes, the rounds and the tokens of one answer. One pass per round is "
    "right. With a pass for each drafted token, or at least as many passes as tokens although drafts are accepted, it "
    "is one by one: then score [last token] + draft in one batch. To see what the pair can do: slipstream bench "
    "--target T --draft D.",
)
_COUNTER = re.compile(
    r"(?i)\b(?:num|n|total)?[_ ]?(?P<name>target[_ ](?:model[_ ])?(?:forwards?(?:[_ ]passes)?|calls|evaluations|runs)|"
    r"rounds|iterations|(?:tokens?[_ ])?accepted(?:[_ ](?:draft[_ ])?tokens)?|drafted(?:[_ ]tokens)?|draft[_ ]tokens|"
    r"(?:generated|output|completion|total|new)[_ ]tokens|tokens(?:[_ ]generated)?)\W{1,6}(?P<count>\d[\d,]{0,11})\b"
)
_FORWARDS = re.compile(r"(?<![\d,.])(?P<count>\d[\d,]{0,11})\W{1,6}(?:\w )?(?P<size>\d{1,4}(?:\.\d+)?)B forwards?")
_COUNT_FIRST = re.compile(r"(?i)(?<![\d,.])(?P<count>\d[\d,]{0,11}) (?P<name>iterations|rounds|tokens)\b")
_COUNTERS_NEAR = 600  # characters around the target's counter in which to look for the others
_COUNTER_PIECES = ("target_forward", "target forward", "target_calls", "target calls", "Target forward", "target_runs")


def one_by_one(target_forwards: int, tokens: int, accepted: int | None = None, rounds: int | None = None) -> bool:
    """Whether counters show a loop that runs the target for each drafted token, judged by the most precise counters
    available.

    A round needs one forward pass of the target and gives at least one token: with no token accepted, there are as many
    passes as tokens, and nothing is wrong with the loop. Without counters of rounds or accepted tokens, only clearly
    more passes than tokens are a proof.
    """
    if tokens <= 0 or target_forwards <= 0:
        return False
    if rounds:
        return target_forwards > 1.5 * rounds
    return target_forwards > 1.2 * (tokens - (accepted or 0)) + 1


def one_by_one_in(text: str) -> Iterator[Located]:
    """Finds counters of a speculative loop, in one place of the log, whose target ran once for each token."""
    for hit, counters in _counter_places(text):
        forwards, tokens = counters.get("target", 0), counters.get("tokens", 0)
        drafting = counters.get("drafted") or counters.get("accepted") or counters.get("rounds")
        if not drafting:
            continue
        if one_by_one(forwards, tokens, counters.get("accepted"), counters.get("rounds")):
            known = [f"{counters[kind]} {kind}" for kind in ("drafted", "accepted", "rounds") if kind in counters]
            detail = f" ({', '.join(known)})"
            yield Located(hit, ONE_BY_ONE.finding(forwards=forwards, tokens=tokens, detail=detail))
            return
        if forwards >= tokens > 0 and not {"accepted", "rounds"} & set(counters):
            observed = f"The target ran {forwards} times for {tokens} tokens, although {drafting} tokens were drafted"
            yield Located(hit, MAYBE_ONE_BY_ONE.finding(observed=observed))
            return


def _counter_places(text: str) -> Iterator[tuple[Hit, dict[str, int]]]:
    for piece in _COUNTER_PIECES:
        for hit in hits(text, piece, None):
            yield hit, _counters(text[max(0, hit.at - _COUNTERS_NEAR) : hit.at + _COUNTERS_NEAR])
    for hit in hits(text, "B forwards", _FORWARDS):
        counters = _counters_in_prose(text[max(0, hit.at - _COUNTERS_NEAR) : hit.at + _COUNTERS_NEAR])
        if counters.get("target") == int(number(hit.groups["count"])):  # the target's line, not the draft's
            yield hit, counters


def _counters(text: str) -> dict[str, int]:
    """The first counter of each kind: target, tokens, drafted, accepted, rounds."""
    counters: dict[str, int] = {}
    for found in _COUNTER.finditer(text):
        name = found["name"].lower()
        kind = next((kind for kind in ("target", "accepted") if kind in name), None)
        if kind is None:
            kind = "drafted" if "draft" in name else "rounds" if name in ("rounds", "iterations") else "tokens"
        counters.setdefault(kind, int(number(found["count"])))
    return counters


def _counters_in_prose(text: str) -> dict[str, int]:
    """From sentences such as "10 iterations: 40 x 1B forwards, 28 x 3B forwards": the larger model is the target."""
    forwards = {float(found["size"]): int(number(found["count"])) for found in _FORWARDS.finditer(text)}
    if len(forwards) < 2:
        return {}
    counters = {"target": forwards[max(forwards)], "drafted": forwards[min(forwards)]}
    for found in _COUNT_FIRST.finditer(text):
        counters.setdefault("tokens" if found["name"] == "tokens" else "rounds", int(number(found["count"])))
    return counters
