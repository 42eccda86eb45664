"""Stream: one request on its way through the engine. Drafter: what proposes its next tokens."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from slipstream.core.checks import token_ids, whole_number, wrong_value
from slipstream.core.logprobs import TokenLogprobs
from slipstream.core.protocols import KVSequence
from slipstream.core.sampling import History, Sampling
from slipstream.core.stats import Stats
from slipstream.core.text import TextAssembler
from slipstream.core.tree import ROOT, DraftTree
from slipstream.core.verify import Constraint, SamplingState, Verdict, Verifier

FinishReason = Literal["stop", "length", "cancelled", "error"]
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Limits:
    """When an answer ends. Raises UsageError for a value of the wrong type or out of range."""

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()  # beside the model's own end tokens
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checked = {
            "max_tokens": whole_number("max_tokens", self.max_tokens, 1),
            "stop": _stop_strings(self.stop),
            "stop_tokens": frozenset(token_ids("stop_tokens", self.stop_tokens)),
            "ignore_eos": bool(self.ignore_eos),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def _stop_strings(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):  # a lone stop string, not its letters
        return (stop,)
    strings = tuple(stop) if isinstance(stop, Iterable) else (None,)
    if not all(isinstance(text, str) for text in strings):
        raise wrong_value("stop", stop, "a string, or several in a tuple or list")
    return strings


class TokenSource(NamedTuple):
    """Who drafted a token, and the drafter's own estimate that it is accepted, if it gave one."""

    drafter: str
    chance: float | None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request may ask of the engine beside sampling and limits."""

    max_draft: int | None = None  # tokens drafted per round; None: as many as the policy likes
    num_logprobs: int | None = None  # alternatives to report with each token; None: no log probabilities
    constraint: Constraint | None = None  # restricts which tokens may follow, for example to a grammar
    is_cold: bool = False  # reads the whole prompt, and shares no text for drafting with other streams

    def __post_init__(self) -> None:
        for name in ("max_draft", "num_logprobs"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 0)


class Token(NamedTuple):
    """One token of an answer. `text` is what became certain with it: it may be empty, or span several tokens."""

    id: int
    text: str
    drafted: bool  # proposed by a drafter and accepted; otherwise the target's own
    source: TokenSource | None = None  # of a drafted one
    logprobs: TokenLogprobs | None = None  # if they were asked for


class Stream:
    """What a drafter, a policy and the engine know of one request. `tokens` is prompt and answer so far."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        limits: Limits,
        assembler: TextAssembler,
        drafter: Drafter | None,
        verifier: Verifier,
        clock: Callable[[], float] = time.perf_counter,
        context_length: int | None = None,
        options: RequestOptions = RequestOptions(),
    ) -> None:
        """`context_length`: tokens the target holds, prompt and answer together; the answer ends there at the latest.

        None is no limit.
        """
        self.id = next(_ids)
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.sampling = sampling
        self.limits = limits
        self.options = options
        room = limits.max_tokens if context_length is None else context_length - len(prompt)
        self.max_answer_tokens = min(limits.max_tokens, room)
        self.is_cancelled = False  # its end was requested; the engine ends it between rounds
        self.drafter = drafter
        self.least_chance = 0.0  # set before each `propose`, from `Ask.least_chance`
        self.verifier = verifier
        self.history = History(prompt)
        self._sampling_state = SamplingState(sampling, self.history, 0, options.constraint)
        self.stats = Stats(num_prompt_tokens=len(prompt))
        self.finish_reason: FinishReason | None = None
        self._completed_by: FinishReason | None = None  # set with the last token, before the figures of its round
        self.error: BaseException | None = None
        # Whether the host has to see the logits of every token, so that a device can't choose alone.
        self.needs_logits = options.num_logprobs is not None or options.constraint is not None
        self._uses_history = sampling.uses_history
        self.sequence: KVSequence | None = None  # set while the stream has a place in the target's cache
        self.reserve = 0  # tokens that it may have there
        self.outbox: deque[Token] = deque()
        self._assembler = assembler
        self._clock = clock
        self._submitted_at = clock()

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def num_answer_tokens(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_unread(self) -> int:
        """Tokens the target has not seen yet: prompt that is left, or the last token chosen."""
        return len(self.tokens) - (self.sequence.length if self.sequence else 0)

    @property
    def is_complete(self) -> bool:
        """Whether no token follows."""
        return self.done or self._completed_by is not None

    def sampling_state(self) -> SamplingState:
        """How the next token is chosen. Always the same object, with its position updated."""
        self._sampling_state.position = len(self.tokens) - self.prompt_length
        return self._sampling_state

    @property
    def is_coupled(self) -> bool:
        """Whether drafts are chosen as the target chooses, with its noise. If not, they are independent samples."""
        return self.verifier.couples or self.sampling.is_greedy

    def drafted_at_most(self, count: int) -> int:
        """`count`, limited by the request's `max_draft`."""
        return count if self.options.max_draft is None else min(count, self.options.max_draft)

    def receive(
        self,
        token: int,
        drafted: bool,
        end_tokens: frozenset[int],
        source: TokenSource | None = None,
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        """Takes the next token into the answer, which is complete where the limits say so, and releases its text."""
        self.tokens.append(token)
        if self._uses_history:
            self.history.extend((token,))
        ends = token in self.limits.stop_tokens or (token in end_tokens and not self.limits.ignore_eos)
        text = "" if ends else self._assembler.push(token)
        self._note_time()
        if ends or self._assembler.stopped:
            self._completed_by = "stop"
        elif len(self.tokens) - self.prompt_length >= self.max_answer_tokens:
            self._completed_by = "length"
        if self._completed_by:
            text += self._assembler.flush()
        self.outbox.append(Token(token, text, drafted, source, logprobs))

    def conclude(self) -> None:
        """Finishes a complete answer. A reader in another thread that sees it finished finds all tokens and figures."""
        if self._completed_by:
            self.finish(self._completed_by)

    def finish(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """Ends the stream between tokens. Text held back for a stop string or a whole character never became certain,
        so it is not released."""
        if not self.done:
            self.error = error
            self.finish_reason = reason

    def _note_time(self) -> None:
        stats = self.stats
        stats.total_s = self._clock() - self._submitted_at
        if not stats.ttft_s:
            stats.ttft_s = stats.total_s


class Offer(NamedTuple):
    """What one drafter proposed for a stream."""

    drafter: str
    tree: DraftTree


@dataclass(slots=True)
class Observation:
    """What became of a stream's draft: the tree that was scored, and the verdict on it."""

    stream: Stream
    scored: DraftTree
    verdict: Verdict
    offers: Sequence[Offer] = ()  # from which the tree was made
    logprobs: Sequence[TokenLogprobs] = ()  # of the verdict's tokens, if they were asked for
    tokens: list[int] = field(init=False)  # that the stream gains: the verdict's
    num_taken: int = field(init=False, default=0)  # of these tokens: fewer where the answer ends among them

    def __post_init__(self) -> None:
        self.tokens = self.verdict.tokens(self.scored)

    def sources(self) -> list[TokenSource | None]:
        """Who drafted each of the verdict's tokens: the first that offered it. None for the target's own."""
        if not self.verdict.path:
            return [None]
        if len(self.offers) == 1 and self.offers[0].tree is self.scored:
            return [*[_source(self.offers[0], node) for node in self.verdict.path], None]
        found: list[TokenSource | None] = []
        places: list[int | None] = [ROOT] * len(self.offers)  # of the path so far in each offer; None: not in it
        for node in self.verdict.path:
            places = [
                _child(offer.tree, place, self.scored.tokens[node])
                for offer, place in zip(self.offers, places, strict=True)
            ]
            found.append(next((_source(o, p) for o, p in zip(self.offers, places, strict=True) if p is not None), None))
        return [*found, None]


def _child(tree: DraftTree, node: int | None, token: int) -> int | None:
    return None if node is None else tree.child(node, token)


def _source(offer: Offer, node: int) -> TokenSource:
    return TokenSource(offer.drafter, offer.tree.confidence[node] if offer.tree.confidence else None)


class Drafter(Protocol):
    """Proposes what comes next. It may be wrong, slow or broken: the text does not depend on it.

    Some have more attributes:
    - `width`: the nodes of one step of a draft, if more than one.
    - `stops_early`: its drafts end where their probability falls below `stream.least_chance`.
    - `drafts_early`: the device makes its next draft, and starts the round that scores it, without the host.
    - `read_prompts(streams, counts)`: it reads prompts too; the target has read `counts[i]` tokens more of each.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_free(self) -> bool:
        """Whether a proposal costs next to nothing, so that asking for more than is scored does no harm."""
        ...

    def begin(self, stream: Stream) -> None:
        """A stream starts; `stream.tokens` is its prompt."""
        ...

    def propose(self, streams: Sequence[Stream], budgets: Sequence[int]) -> list[DraftTree]:
        """A draft of at most `budgets[i]` nodes for each stream. Empty if it proposes nothing."""
        ...

    def observe(self, observations: Sequence[Observation]) -> None:
        """The round is over; `stream.tokens` already holds its tokens."""
        ...

    def end(self, stream: Stream) -> None:
        """The stream is over, finished or abandoned: free what was kept for it."""
        ...


def stops_early(drafter: Drafter) -> bool:
    return bool(getattr(drafter, "stops_early", False))


def reads_prompts(drafter: Drafter) -> bool:
    return hasattr(drafter, "read_prompts")


def drafts_early(drafter: Drafter) -> bool:
    """Whether the device can start the next round with this drafter's draft: it drafts and scores without the host."""
    return bool(getattr(drafter, "drafts_early", False))


def nodes_of_a_step(drafter: Drafter) -> int:
    width: int = getattr(drafter, "width", 1)
    return width
