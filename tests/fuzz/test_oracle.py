"""The oracle against answers worked out by hand."""

from __future__ import annotations

import numpy as np

from fakes import letters
from fuzz.oracle import choose, filtered, judge, plain_answer
from fuzz.request import Request
from slipstream.core.noise import gumbel
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Limits


def row(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def test_greedy_takes_the_lower_id_of_a_tie() -> None:
    assert choose(row(1, 3, 3), Sampling(), [0], []) == 1


def test_repetition_penalty_sees_the_prompt_and_presence_penalty_does_not() -> None:
    assert choose(row(2.0, 3.0, 1.0), Sampling(repetition_penalty=2.0), [1], []) == 0
    assert choose(row(2.0, 3.0, 1.0), Sampling(presence_penalty=2.0), [1], []) == 1
    assert choose(row(2.0, 3.0, 1.0), Sampling(presence_penalty=2.0), [0], [1]) == 0


def test_frequency_penalty_counts() -> None:
    assert choose(row(2.5, 3.0), Sampling(frequency_penalty=0.4), [0], [1]) == 1
    assert choose(row(2.5, 3.0), Sampling(frequency_penalty=0.4), [0], [1, 1]) == 0


def test_filters_apply_in_order() -> None:
    z = np.log([0.4, 0.3, 0.2, 0.1])
    assert filtered(z, Sampling(temperature=1, top_k=2)) == [0, 1]
    assert filtered(z, Sampling(temperature=1, top_p=0.75)) == [0, 1, 2]
    assert filtered(z, Sampling(temperature=1, top_k=2, top_p=0.5)) == [0]  # 0.4 of 0.7 reaches one half
    assert filtered(z, Sampling(temperature=1, min_p=0.5)) == [0, 1, 2]


def test_sampling_adds_the_noise_of_the_position() -> None:
    sampling = Sampling(temperature=0.5, seed=9)
    noise = gumbel(9, 2, np.arange(3))
    assert choose(row(0.1, 0.2, 0.3), sampling, [0], [1, 1]) == int(np.argmax(row(0.1, 0.2, 0.3) / 0.5 + noise))


def test_a_stop_string_across_tokens_cuts_the_text() -> None:
    answer = judge([0, 1, 2], Limits(stop=("bc",)), letters(), room=100)
    assert (answer.text, answer.reason) == ("a", "stop")


def test_an_end_token_has_no_text_and_the_context_is_a_limit() -> None:
    assert judge([0, 5], Limits(), letters(eos=5), room=100).reason == "stop"
    assert judge([0, 5], Limits(stop_tokens=frozenset({5})), letters(), room=100).text == "a"
    request = Request([1, 2], Sampling(), Limits(max_tokens=50))
    answer = plain_answer(request, lambda tokens: row(*range(8)), letters(), context_length=6)
    assert (answer.tokens, answer.reason) == ((7, 7, 7, 7), "length")
