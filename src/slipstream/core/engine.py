"""Engine: the loop over all active streams. Plan, propose, score, verify, commit, observe, emit.

With no drafter the draft is empty, so plain decoding is the same loop, timed the same way.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol, Unpack, cast

from slipstream.core.checks import token_ids
from slipstream.core.drafter_guard import DrafterGuard
from slipstream.core.early_round import EarlyRound, next_draft, started_early
from slipstream.core.generate_keywords import GenerateKeywords, answer_settings
from slipstream.core.generation import Generation
from slipstream.core.generator import Conversation
from slipstream.core.logprobs import TokenLogprobs, token_logprobs
from slipstream.core.policy import PlainPolicy, Policy, RoundOutcome, RoundView
from slipstream.core.policy_guard import PolicyGuard
from slipstream.core.prompt_pace import PromptPace
from slipstream.core.protocols import Model, Scores
from slipstream.core.round_parts import StreamPart, schedule
from slipstream.core.round_stats import enter_round
from slipstream.core.sampling import Sampling
from slipstream.core.stats import Stats
from slipstream.core.stream import Drafter, Limits, Observation, RequestOptions, Stream
from slipstream.core.text import TextAssembler, TokenDecoder
from slipstream.core.tree import ROOT
from slipstream.core.turn import TURN
from slipstream.core.verify import VERIFIERS, Verdict, Verifier
from slipstream.errors import CapacityError, ContextFullError, NonFiniteLogitsError, SlipstreamError, UsageError
from slipstream.plugins import missing_part

log = logging.getLogger("slipstream")

_INHERIT: Literal["inherit"] = "inherit"
_BEYOND_END_TOKENS = 8  # drafted tokens that may lie beyond the end of an answer: a device has graphs for that many


class EngineTokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def prompt_ids(self, text: str) -> list[int]: ...

    def chat_ids(self, messages: Conversation) -> list[int]: ...

    def stream_decoder(self) -> TokenDecoder: ...


class Engine:
    """Decodes many streams with one target model.

    Safe to use from several threads, beside other engines on the same model: rounds take turns (see turn.py). An error
    in one stream ends that stream alone, and a forward pass that fails ends the streams that were in it.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: EngineTokenizer,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        *,
        max_streams: int = 32,
        prefill_chunk: int | None = None,
        max_stall_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`max_stall_s`: seconds of a round up to which prompts are read while other streams decode; None: no limit.
        `prefill_chunk`: prompt tokens a stream feeds in one round; None: what keeps the target's device busy.
        """
        chunk = target.info.prompt_rows if prefill_chunk is None else prefill_chunk
        if max_streams < 1 or chunk < 1:
            raise UsageError(f"max_streams {max_streams}, prefill_chunk {chunk}: expected 1 or more")
        self.target = target
        self.tokenizer = tokenizer
        self.drafter = drafter
        self.policy = policy or PlainPolicy()
        self.stats = Stats()
        self._max_streams = max_streams
        self._chunk = min(chunk, target.info.max_rows)
        self._submitted: deque[Stream] = deque()  # by any thread; the next round lets them join those that wait
        self._waiting: deque[Stream] = deque()
        self._active: list[Stream] = []
        self._clock = clock
        self._pace = PromptPace(max_stall_s)
        self._drafter_guard = DrafterGuard(target.info.vocab_size, clock)
        self._policy_guard = PolicyGuard(self.policy, self._drafter_guard, self.stats)
        self._after_s = 0.0  # of the last round, after it was measured: its figures and the policy
        self._early: EarlyRound | None = None

    # -- requests -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Conversation | Sequence[int],
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        *,
        drafter: Drafter | Literal["inherit"] | None = _INHERIT,
        verifier: str | Verifier = "matching",
        options: RequestOptions = RequestOptions(),
        **keywords: Unpack[GenerateKeywords],
    ) -> Generation:
        """Starts an answer. A string is taken as it is, messages go through the chat template, ids stay as they are.

        Fields of `Sampling` and `Limits` may be given as keywords: `generate("Hello", max_tokens=8, temperature=0.7)`.
        Raises ContextFullError or UsageError before anything is computed. An answer that can never fit the cache
        raises CapacityError when it is iterated.
        """
        sampling, limits = answer_settings(sampling, limits, keywords)
        stream = self._new_stream(self.encode(prompt), sampling, limits, drafter, verifier, options)
        self._submitted.append(stream)
        return Generation(self, stream)

    def encode(self, prompt: str | Conversation | Sequence[int]) -> list[int]:
        """The ids that `generate` starts from: those of a list, or of a 1-D array of numpy or torch, as they are.

        Raises UsageError for anything that is neither text, messages nor ids.
        """
        if isinstance(prompt, str):
            return self.tokenizer.prompt_ids(prompt)
        if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping):
            return self.tokenizer.chat_ids(prompt)
        return token_ids("prompt", prompt)

    def _new_stream(
        self,
        prompt: list[int],
        sampling: Sampling,
        limits: Limits,
        drafter: Drafter | Literal["inherit"] | None,
        verifier: str | Verifier,
        options: RequestOptions,
    ) -> Stream:
        TURN.check_process()
        self.check(prompt, sampling)
        return Stream(
            prompt,
            sampling,
            limits,
            TextAssembler(self.tokenizer.stream_decoder(), limits.stop),
            _checked_drafter(self.drafter if drafter == _INHERIT else drafter),
            _checked_verifier(verifier),
            self._clock,
            self.target.info.context_length,
            options,
        )

    def check(self, prompt: list[int], sampling: Sampling) -> None:
        """Raises ContextFullError or UsageError for what `generate` would refuse."""
        self._check_prompt(prompt)
        self._check_ids("logit_bias", sampling.logit_bias)

    def _check_prompt(self, prompt: list[int]) -> None:
        info = self.target.info
        if not prompt:
            raise UsageError("the prompt is empty: it has no token to go on from")
        if len(prompt) >= info.context_length:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and {info.name} holds {info.context_length}, answer included: "
                "shorten the prompt, or load the model with a larger context or cache"
            )
        self._check_ids("the prompt", prompt)

    def _check_ids(self, name: str, ids: Collection[int]) -> None:
        info = self.target.info
        bad = next((token for token in (min(ids), max(ids)) if not 0 <= token < info.vocab_size), None) if ids else None
        if bad is not None:
            raise UsageError(f"{name} has token id {bad}; {info.name} has a vocabulary of {info.vocab_size}")

    def cancel(self, stream: Stream) -> None:
        """Ends a stream and frees its place: at once, or when the round that is running ends. Never waits, so it may
        be called from anywhere. Harmless when the stream is over."""
        if not stream.done:
            stream.is_cancelled = True
            TURN.soon(self._update_streams)

    def close(self) -> None:
        """Cancels everything that runs or waits."""
        TURN.soon(self._end_all)

    def forget_prompts(self) -> None:
        """Drops what closed streams left in the target's cache for reuse."""
        with TURN.taken():
            self.target.forget_prompts()

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        return len(self._submitted) + len(self._waiting)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens that running streams hold in the target's cache."""
        return sum(sequence.length for stream in list(self._active) if (sequence := stream.sequence))

    # -- the round ------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One round over all streams: one forward of the target. False when there is nothing to do.

        Its errors are raised where the affected streams are read, not here; only Ctrl-C is raised here.
        """
        with TURN.taken():
            started = self._clock()
            self._update_streams()
            self._admit()
            if not self._active:
                return False
            parts = schedule(self._active, self.target.info.max_rows, self._chunk, self._pace)
            try:
                self._round(parts, started)
            except Exception as error:  # after a round that failed, none of its streams can continue
                _end(parts, error)
            except BaseException as error:  # Ctrl-C is raised in the thread that received it
                _end(parts, SlipstreamError(f"the round was interrupted: {type(error).__name__}"))
                raise
            finally:
                self._update_streams()
            return True

    def _round(self, parts: list[StreamPart], started: float) -> None:
        view, planning = self._view(parts), self._clock()
        draft = self._policy_guard.draft(view)
        plan_s = self._clock() - planning - sum(draft.draft_s.values())
        for part, tree in zip((part for part in parts if not part.is_prefill), draft.trees, strict=True):
            part.tree = tree
            part.offers = draft.offers.get(part.stream.id, ())
        scoring = self._clock()
        requests = [part.request(next_draft(part, draft.next_draft, is_alone=len(parts) == 1)) for part in parts]
        for part in parts:
            part.prepare_constraint()
        scores = self.target.score(requests)
        score_s = self._clock() - scoring
        num_rows, has_prefill = sum(part.num_rows for part in parts), len(view.streams) < len(parts)
        observations = self._commit(parts, scores)
        if has_prefill:
            self._read_prompts(parts, num_rows, score_s)
        for observation in observations:
            self._receive(observation)
        self._drafter_guard.observe(observations)
        measured = self._clock()
        outcome = RoundOutcome(
            rows=num_rows,
            num_streams=len(parts),
            draft_s=draft.draft_s,
            score_s=score_s,
            total_s=measured - started + self._after_s,
            has_prefill=has_prefill,
            early_draft=view.early_draft if all(len(part.tree) == view.early_draft for part in parts) else None,
            observations=observations,
            plan=draft.plan,
            plan_s=plan_s,
        )
        enter_round(outcome, [part.stream for part in parts if part.is_prefill], self.stats)
        for observation in observations:
            observation.stream.conclude()
        if draft.plan or any(part.stream.drafter for part in parts):
            self._policy_guard.record(outcome)
        self._early = started_early(parts, requests) if self.target.info.runs_ahead else None
        self._after_s = self._clock() - measured

    def _view(self, parts: list[StreamPart]) -> RoundView:
        streams = [part.stream for part in parts if not part.is_prefill]
        info, num_rows = self.target.info, sum(len(part.pending) for part in parts)
        max_rows = info.max_rows if len(streams) < len(parts) else info.decoding_rows or info.max_rows
        early_draft = self._early.draft_for(parts) if self._early else None
        return RoundView(
            streams,
            [self._room(s, early_draft or 0) for s in streams],
            max_nodes=max(0, max_rows - num_rows),
            can_run_ahead=info.runs_ahead,
            reads_prompts=len(streams) < len(parts),
            early_draft=early_draft,
        )

    def _commit(self, parts: list[StreamPart], scores: list[Scores]) -> list[Observation]:
        """Verifies each draft and keeps what was accepted. Prompt chunks but the last are kept without a verdict."""
        self.stats.target_forwards += 1
        observations = []
        for part, score in zip(parts, scores, strict=True):
            part.stream.stats.target_forwards += 1
            if part.stream.done:
                continue
            try:
                if part.chooses:
                    observations.append(self._verify(part, score))
                else:
                    part.sequence.commit()
            except Exception as error:
                part.stream.finish("error", self._explained(error))
        return observations

    def _read_prompts(self, parts: list[StreamPart], num_rows: int, score_s: float) -> None:
        """Draft models read the prompts as the target does, part by part, so that no stream waits for all of one."""
        reading = self._clock()
        read = [(part.stream, len(part.pending)) for part in parts if part.is_prefill and not part.stream.done]
        self._drafter_guard.read_prompts(read)
        self._pace.record(num_rows, score_s + self._clock() - reading)

    def _verify(self, part: StreamPart, scores: Scores) -> Observation:
        stream = part.stream
        verdict = stream.verifier.verify(part.tree, scores, stream.sampling_state())
        logprobs = () if stream.options.num_logprobs is None else self._logprobs(part, scores, verdict)
        part.sequence.commit(verdict.path)
        return Observation(stream, part.tree, verdict, part.offers, logprobs)

    def _logprobs(self, part: StreamPart, scores: Scores, verdict: Verdict) -> list[TokenLogprobs]:
        """Of the verdict's tokens. Call it before `commit`, which discards the logits."""
        nodes = (ROOT, *verdict.path)
        assert part.stream.options.num_logprobs is not None
        return [
            token_logprobs(scores.row(node), token, part.stream.options.num_logprobs)
            for node, token in zip(nodes, verdict.tokens(part.tree), strict=True)
        ]

    def _explained(self, error: Exception) -> Exception:
        if not isinstance(error, NonFiniteLogitsError):
            return error
        return NonFiniteLogitsError(f"{self.target.info.name} gave no usable logits, {error}: {self.target.diagnose()}")

    def _room(self, stream: Stream, early_draft: int) -> int:
        """Tokens that may be drafted without exceeding context or answer, the target's own token included. A draft
        that the device has started may be longer than the rest of the answer, which then ends within it."""
        if not stream.drafter:
            return 0
        room = stream.drafted_at_most(max(0, stream.max_answer_tokens - stream.num_answer_tokens - 1))
        return max(room, min(early_draft, stream.reserve - len(stream.tokens))) if early_draft else room

    def _reserve(self, stream: Stream) -> int:
        """Tokens that a stream may have in the cache: its own, and a few of a draft if there is room for them."""
        info, own = self.target.info, stream.prompt_length + stream.max_answer_tokens
        more = min(own + _BEYOND_END_TOKENS, info.context_length) if info.runs_ahead else own
        return more if self.target.can_open(more) else own

    def _receive(self, observation: Observation) -> None:
        """Hands the new tokens to the stream until it is done, and counts them."""
        tokens, stream = observation.tokens, observation.stream
        sources, end_tokens, last = observation.sources(), self.tokenizer.eos_ids, len(tokens) - 1
        logprobs: Sequence[TokenLogprobs | None] = observation.logprobs or [None] * len(tokens)
        try:
            for i, token in enumerate(tokens):
                if stream.is_complete:
                    break
                stream.receive(token, i < last, end_tokens, sources[i], logprobs[i])
                observation.num_taken += 1
        except Exception as error:
            stream.finish("error", error)

    # -- joining and leaving --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Lets waiting streams in, in order, while there is room. One that can never fit fails alone."""
        while self._waiting and len(self._active) < self._max_streams:
            stream = self._waiting[0]
            reserve = stream.reserve = self._reserve(stream)
            try:
                if not self.target.can_open(reserve):
                    raise CapacityError(
                        f"a stream of {reserve} tokens does not fit the KV cache of {self.target.info.name}: "
                        "lower max_tokens, or give the cache more room"
                    )
                known = () if stream.options.is_cold else stream.tokens
                stream.sequence = self.target.open(known, reserve)
            except Exception as error:
                if isinstance(error, CapacityError) and self._active:
                    return  # others will make room
                self._waiting.popleft()
                stream.finish("error", error)
                continue
            self._active.append(self._waiting.popleft())
            self._drafter_guard.begin(stream)
            stream.stats.num_reused = stream.sequence.length

    def _update_streams(self) -> None:
        """Lets submitted streams wait, ends cancelled ones, and releases all that are over. Only between rounds."""
        while self._submitted:
            self._waiting.append(self._submitted.popleft())
        for stream in (*self._waiting, *self._active):
            if stream.is_cancelled:
                stream.finish("cancelled")
        if any(stream.done for stream in (*self._waiting, *self._active)):
            self._release_finished()

    def _release_finished(self) -> None:
        finished = [s for s in self._active if s.done]
        self._active = [s for s in self._active if not s.done]
        self._waiting = deque(s for s in self._waiting if not s.done)
        for stream in finished:
            try:
                self._release(stream)
            except Exception:
                log.exception("stream %d could not be released", stream.id)

    def _end_all(self) -> None:
        self._update_streams()
        for stream in (*self._waiting, *self._active):
            stream.is_cancelled = True
        self._update_streams()

    def _release(self, stream: Stream) -> None:
        try:
            self._drafter_guard.end(stream)
            self._policy_guard.forget(stream)
        finally:  # the place in the cache is freed even if they fail
            if stream.sequence:
                stream.sequence.close()
                stream.sequence = None
        self.stats.num_prompt_tokens += stream.stats.num_prompt_tokens
        self.stats.num_reused += stream.stats.num_reused
        self.stats.drafter_error = self.stats.drafter_error or stream.stats.drafter_error


def _end(parts: Iterable[StreamPart], error: BaseException) -> None:
    for part in parts:
        part.stream.conclude()
        part.stream.finish("error", error)


def _checked_drafter(drafter: object) -> Drafter | None:
    if drafter is not None and (lacks := missing_part(drafter, Drafter)):
        raise UsageError(f"drafter is a {type(drafter).__name__}, which has no {lacks}; expected a Drafter")
    return cast(Drafter | None, drafter)


def _checked_verifier(verifier: object) -> Verifier:
    if isinstance(verifier, Verifier):
        return verifier
    if not isinstance(verifier, str) or verifier not in VERIFIERS:
        raise UsageError(f"unknown verifier {verifier!r}; expected one of {', '.join(VERIFIERS)}")
    return VERIFIERS[verifier]
