"""Replay: what a drafter and a policy would have done on an answer that is known, without running the target.

The text does not depend on the drafter. So once plain decoding has given an answer, the real engine, drafter and
policy can decode it again against a stand-in that knows every next token, and whose forwards take no time but are
charged what forwards of that many rows were measured to cost. A candidate is judged in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from slipstream.core.engine import Engine
from slipstream.core.generator import Answer
from slipstream.core.protocols import ModelInfo, ScoreRequest, Scores
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Limits
from slipstream.core.tree import DraftTree
from slipstream.measurement.results import RowCost
from slipstream.measurement.tune import TuneCandidate
from slipstream.measurement.workload import Prompt
from slipstream.policy.round_times import RoundTimes


class ChargedClock:
    """Real time, and the time that was charged on top of it."""

    def __init__(self) -> None:
        self._charged_s = 0.0

    def charge(self, seconds: float) -> None:
        self._charged_s += seconds

    def __call__(self) -> float:
        return time.perf_counter() + self._charged_s


class KnownText:
    """A Model that says what is known: prompt and answer of one stream."""

    def __init__(self, info: ModelInfo, tokens: Sequence[int], costs: RoundTimes, clock: ChargedClock) -> None:
        self.info = info
        self.tokens = tokens
        self._costs = costs
        self._clock = clock
        self._row = np.zeros(info.vocab_size, np.float32)

    def open(self, tokens: Sequence[int] = (), reserve: int = 0) -> KnownPlace:
        return KnownPlace()

    def can_open(self, reserve: int) -> bool:
        return True

    def forget_prompts(self) -> None:
        pass

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        self._clock.charge(self._costs.seconds(sum(request.num_rows for request in requests)))
        scores: list[Scores] = []
        for request in requests:
            place = request.sequence
            assert isinstance(place, KnownPlace)
            place.num_pending = len(request.pending)
            scores.append(KnownScores(self, place.length + len(request.pending), request.tree))
        return scores

    def diagnose(self) -> str:
        return "these are known answers"

    def row_of(self, token: int) -> npt.NDArray[np.float32]:
        """Logits that no noise can overcome."""
        self._row.fill(0.0)
        self._row[token] = 1e6
        return self._row


class KnownPlace:
    """A stream's place in a model that knows the answer: only its length."""

    def __init__(self, length: int = 0) -> None:
        self.length = length
        self.num_pending = 0

    def commit(self, path: Sequence[int] = ()) -> None:
        self.length += self.num_pending + len(path)

    def rewind(self, length: int) -> None:
        self.length = length

    def fork(self) -> KnownPlace:
        return KnownPlace(self.length)

    def close(self) -> None:
        pass


class KnownScores:
    """The next token after a node of the right path. Others are never asked for: no verifier descends to them."""

    def __init__(self, text: KnownText, position: int, tree: DraftTree) -> None:
        self._text = text
        self._position = position
        self._tree = tree

    def argmax(self, node: int) -> int:
        return self._text.tokens[min(self._position + len(self._tree.path(node)), len(self._text.tokens) - 1)]

    def chosen(self, node: int) -> int | None:
        return self.argmax(node)

    def row(self, node: int) -> npt.NDArray[np.float32]:
        return self._text.row_of(self.argmax(node))


def round_times(costs: Sequence[RowCost]) -> RoundTimes:
    times = RoundTimes()
    times.expect({cost.rows: cost.seconds for cost in costs})
    return times


def replayer(
    make_engine: Callable[[TuneCandidate], Engine],
    sampling: Sampling,
    costs: Sequence[RowCost],
    can_replay: Callable[[TuneCandidate], bool],
) -> Callable[[TuneCandidate, Prompt, Answer], Stats | None]:
    """Replays for a Tuner. Each candidate keeps its drafter and policy, which learn from prompt to prompt.
    `can_replay`: not those with a head, which reads the target's hidden states.
    """
    engines: dict[TuneCandidate, Engine] = {}
    charged = round_times(costs)

    def run(candidate: TuneCandidate, prompt: Prompt, answer: Answer) -> Stats | None:
        if not can_replay(candidate):
            return None
        if candidate not in engines:
            engines[candidate] = make_engine(candidate)
        engine = engines[candidate]
        return replay(engine, engine.encode(prompt.request()), answer, sampling, charged)

    return run


def replay(engine: Engine, prompt: list[int], answer: Answer, sampling: Sampling, costs: RoundTimes) -> Stats:
    """The stats `engine` would have had on this answer. Its drafter and policy learn from it as from any other."""
    clock = ChargedClock()
    known = KnownText(engine.target.info, [*prompt, *answer.tokens], costs, clock)
    stand_in = Engine(known, engine.tokenizer, engine.drafter, engine.policy, clock=clock)
    limits = Limits(len(answer.tokens), ignore_eos=True)
    return stand_in.generate(prompt, sampling, limits).result().stats
