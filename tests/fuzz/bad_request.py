"""BadRequest: odd and wrong arguments, each with the answers that would be right if it is answered at all."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzz.request import Request
from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits

ANYTHING = "anything"  # answered somehow, with valid tokens, or refused
_NAN, _INF = float("nan"), float("inf")
_SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 3}
_LIMITS: dict[str, Any] = {"max_tokens": 9}

# name: (field, value, values that mean the same). No such value: it has to be refused.
_SAMPLING_ROWS: dict[str, tuple[str, Any, Any]] = {
    "seed numpy": ("seed", np.int64(5), [5]),
    "seed numpy unsigned": ("seed", np.uint64(2**64 - 1), [2**64 - 1]),
    "seed float": ("seed", 5.0, [5]),
    "seed fraction": ("seed", 5.5, []),
    "seed negative": ("seed", -1, []),
    "seed too large": ("seed", 1 << 64, []),
    "seed None": ("seed", None, []),
    "seed text": ("seed", "5", [5]),
    "bias inf": ("logit_bias", {3: _INF}, [{3: 1e9}]),
    "bias -inf": ("logit_bias", {3: -_INF}, [{3: -1e9}]),
    "bias nan": ("logit_bias", {3: _NAN}, []),
    "bias text keys": ("logit_bias", {"3": 1.5}, [{3: 1.5}]),
    "bias outside the vocabulary": ("logit_bias", {10**6: 4.0}, [{}]),
    "bias negative token": ("logit_bias", {-1: 5.0}, [{}]),
    "bias fractional token": ("logit_bias", {2.7: 5.0}, [{2: 5.0}]),
    "bias None": ("logit_bias", None, [{}]),
    "bias list": ("logit_bias", [(3, 1.0)], [{3: 1.0}]),
    "bias value None": ("logit_bias", {3: None}, []),
    "bias beyond float32": ("logit_bias", {3: 1e300}, [{3: 1e9}]),
    "temperature subnormal": ("temperature", 1e-310, [0.0]),
    "temperature tiny": ("temperature", 1e-30, [0.0]),
    "temperature nan": ("temperature", _NAN, []),
    "temperature inf": ("temperature", _INF, [1e300]),
    "temperature negative": ("temperature", -0.5, []),
    "temperature text": ("temperature", "0.5", [0.5]),
    "temperature None": ("temperature", None, [0.0]),
    "temperature numpy": ("temperature", np.float32(0.5), [0.5]),
    "top_k fraction": ("top_k", 1.5, []),
    "top_k float": ("top_k", 2.0, [2]),
    "top_k numpy": ("top_k", np.int64(2), [2]),
    "top_k True": ("top_k", True, [1]),
    "top_k negative": ("top_k", -1, []),
    "top_k huge": ("top_k", 10**12, [0]),
    "top_p nan": ("top_p", _NAN, []),
    "top_p 0": ("top_p", 0.0, []),
    "top_p tiny": ("top_p", 1e-300, [1e-9]),
    "top_p text": ("top_p", "half", []),
    "min_p nan": ("min_p", _NAN, []),
    "min_p numpy": ("min_p", np.float64(0.25), [0.25]),
    "repetition nan": ("repetition_penalty", _NAN, []),
    "repetition inf": ("repetition_penalty", _INF, ANYTHING),
    "repetition subnormal": ("repetition_penalty", 1e-300, ANYTHING),
    "presence nan": ("presence_penalty", _NAN, []),
    "presence array": ("presence_penalty", np.ones(3), []),
    "frequency inf": ("frequency_penalty", _INF, []),
}
_LIMIT_ROWS: dict[str, tuple[str, Any, Any]] = {
    "max_tokens 0": ("max_tokens", 0, []),
    "max_tokens negative": ("max_tokens", -3, []),
    "max_tokens fraction": ("max_tokens", 2.5, []),
    "max_tokens numpy": ("max_tokens", np.int64(5), [5]),
    "max_tokens text": ("max_tokens", "5", [5]),
    "max_tokens None": ("max_tokens", None, []),
    "max_tokens nan": ("max_tokens", _NAN, []),
    "stop number": ("stop", (5,), []),
    "stop None inside": ("stop", (None,), []),
    "stop bytes": ("stop", (b"a",), []),
    "stop None": ("stop", None, [()]),
    "stop one string": ("stop", "a", [("a",)]),
    "stop empty string": ("stop", ("",), [()]),
    "stop list": ("stop", ["a", "bc"], [("a", "bc")]),
    "stop_tokens list": ("stop_tokens", [2, 3], [frozenset({2, 3})]),
    "stop_tokens number": ("stop_tokens", 2, [frozenset({2})]),
    "stop_tokens None": ("stop_tokens", None, [frozenset()]),
    "stop_tokens text": ("stop_tokens", {"2"}, [frozenset({2})]),
    "stop_tokens numpy": ("stop_tokens", np.array([2, 3]), [frozenset({2, 3})]),
    "ignore_eos text": ("ignore_eos", "no", ANYTHING),
}


def _torch_array(prompt: list[int]) -> Any:
    """A tensor, or a numpy array in a process that has not imported torch: that takes seconds."""
    torch = sys.modules.get("torch")
    return torch.tensor(prompt) if torch else np.array(prompt)


# name: (what is made of a prompt, whether an answer to the prompt itself is right)
_PROMPT_ROWS: dict[str, tuple[Callable[[list[int]], Any], bool]] = {
    "prompt with -1": (lambda p: [*p, -1], False),
    "prompt outside the vocabulary": (lambda p: [*p, 10**7], False),
    "prompt with a huge id": (lambda p: [*p, 2**70], False),
    "prompt numpy": (lambda p: np.array(p), True),
    "prompt torch": (_torch_array, True),
    "prompt of numpy ids": (lambda p: [np.int32(t) for t in p], True),
    "prompt tuple": (tuple, True),
    "prompt generator": (lambda p: (t for t in p), True),
    "prompt 2-D": (lambda p: np.array([p, p]), False),
    "prompt nested": (lambda p: [p], False),
    "prompt of floats": (lambda p: [float(t) for t in p], True),
    "prompt of fractions": (lambda p: [t + 0.5 for t in p], False),
    "prompt with None": (lambda p: [*p, None], False),
    "prompt with text": (lambda p: [*p, "a"], False),
    "prompt with nan": (lambda p: [*p, _NAN], False),
    "prompt empty": (lambda p: [], False),
    "prompt None": (lambda p: None, False),
    "prompt number": (lambda p: 5, False),
    "prompt bytes": (lambda p: b"ab", False),
    "prompt dict": (lambda p: {"role": "user"}, False),
    "prompt too long": (lambda p: p * 4000, False),
}
_ARGUMENT_ROWS: dict[str, tuple[dict[str, Any], bool]] = {
    "sampling dict": ({"sampling": {"temperature": 0.5}}, False),
    "sampling number": ({"sampling": 0.5}, False),
    "sampling class": ({"sampling": Sampling}, False),
    "limits dict": ({"limits": {"max_tokens": 5}}, False),
    "limits number": ({"limits": 5}, False),
    "verifier unknown": ({"verifier": "hope"}, False),
    "verifier None": ({"verifier": None}, False),
    "verifier number": ({"verifier": 3}, False),
    "drafter object": ({"drafter": object()}, True),
    "drafter number": ({"drafter": 5}, True),
    "drafter class": ({"drafter": dict}, True),
}
NAMES = (*_SAMPLING_ROWS, *_LIMIT_ROWS, *_PROMPT_ROWS, *_ARGUMENT_ROWS)


@dataclass(frozen=True)
class BadRequest:
    """`submit` makes the arguments and calls `generate`. `meanings` are good requests whose answer would be right;
    None: any valid answer."""

    name: str
    submit: Callable[[Engine], Generation]
    meanings: tuple[Request, ...] | None
    verifier: str = "matching"


def make_bad_request(name: str, prompt: list[int]) -> BadRequest:
    """The bad request of this name after a good prompt."""
    plain = Request(prompt, Sampling(**_SAMPLING), Limits(**_LIMITS))
    if name in _SAMPLING_ROWS:
        field, value, same = _SAMPLING_ROWS[name]
        return _changed(name, plain, "sampling", Sampling, _SAMPLING, field, value, same)
    if name in _LIMIT_ROWS:
        field, value, same = _LIMIT_ROWS[name]
        return _changed(name, plain, "limits", Limits, _LIMITS, field, value, same)
    if name in _PROMPT_ROWS:
        change, is_same = _PROMPT_ROWS[name]
        arguments: dict[str, Any] = {"prompt": change(prompt)}
    else:
        arguments, is_same = _ARGUMENT_ROWS[name]
    whole = {"prompt": prompt, "sampling": plain.sampling, "limits": plain.limits} | arguments
    return BadRequest(name, lambda engine: engine.generate(**whole), (plain,) if is_same else ())


def _changed(
    name: str, plain: Request, argument: str, kind: Any, base: dict[str, Any], field: str, value: Any, same: Any
) -> BadRequest:
    def submit(engine: Engine) -> Generation:
        whole = {"prompt": plain.prompt, "sampling": plain.sampling, "limits": plain.limits}
        return engine.generate(**(whole | {argument: kind(**(base | {field: value}))}))

    if same is ANYTHING:
        return BadRequest(name, submit, None)
    settings = [
        {"sampling": plain.sampling, "limits": plain.limits, argument: kind(**(base | {field: s}))} for s in same
    ]
    return BadRequest(name, submit, tuple(Request(plain.prompt, **s) for s in settings))


def random_bad_request(rng: random.Random, prompt: list[int]) -> BadRequest:
    return make_bad_request(rng.choice(NAMES), prompt)
