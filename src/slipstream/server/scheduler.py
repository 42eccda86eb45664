"""Scheduler: one thread runs the engine's rounds for all requests; requests wait for a place in a fair queue.

The event loop owns the queue and reads finished tokens; the engine's thread does nothing but rounds, and wakes the
loop once after each. So a client that reads slowly, or not at all, does not delay others: its tokens wait in its own
stream, at most as many as its answer may have.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from slipstream.core.engine import Engine
from slipstream.core.generation import Generation
from slipstream.core.policy import PolicyReport
from slipstream.core.sampling import Sampling
from slipstream.core.stream import Drafter, Limits, RequestOptions, Stream, Token
from slipstream.server.fair_queue import FairQueue
from slipstream.server.metrics import ServerMetrics
from slipstream.server.refusals import Refusal, refusal_for

log = logging.getLogger("slipstream")
_REPORT_EVERY_S = 0.25  # how often the policy's report is renewed; making it takes 0.1 ms
_RETRY_AFTER_S = 2


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """One answer to generate."""

    prompt: list[int]
    sampling: Sampling
    limits: Limits
    drafter: Drafter | None
    options: RequestOptions = RequestOptions()


@dataclass(eq=False, slots=True)
class Job:
    """One answer on its way: it waits, it runs, it is over."""

    call: AnswerCall
    key: str
    wake: asyncio.Event  # of the request, which may have several jobs
    asked_at: float = field(default_factory=time.perf_counter)
    generation: Generation | None = None
    error: BaseException | None = None
    is_over: bool = False  # its place was given back
    num_noted: int = 0  # tokens whose latency was noted, the last of them at `noted_at`
    noted_at: float = 0.0

    @property
    def stream(self) -> Stream | None:
        return self.generation.stream if self.generation else None

    @property
    def failure(self) -> BaseException | None:
        """What ended it early: the scheduler's or the engine's error."""
        return self.error or (self.stream.error if self.stream else None)

    @property
    def has_news(self) -> bool:
        stream = self.stream
        return bool(self.error or (stream and (stream.outbox or stream.done)))

    @property
    def is_read(self) -> bool:
        """Whether everything was generated and taken."""
        stream = self.stream
        return bool(self.error or (stream and stream.done and not stream.outbox))

    def refuse_failure(self) -> None:
        """Raises the Refusal for what ended it early, if anything did."""
        if error := self.failure:
            raise refusal_for(error)

    def take(self) -> list[Token]:
        """The tokens that wait."""
        outbox, taken = self.stream.outbox if self.stream else (), []
        while outbox:
            taken.append(outbox.popleft())
        return taken

    def note_latency(self, now: float, metrics: ServerMetrics) -> None:
        """Of the tokens that came with the last round."""
        num_tokens = self.stream.num_answer_tokens if self.stream else 0
        if num_tokens == self.num_noted:
            return
        if self.num_noted:
            metrics.tokens(num_tokens - self.num_noted, now - self.noted_at)
        else:
            metrics.first_token(now - self.asked_at)
        self.num_noted, self.noted_at = num_tokens, now


class Scheduler:
    def __init__(self, engine: Engine, max_streams: int, max_queue: int, metrics: ServerMetrics) -> None:
        self.engine = engine
        self.max_streams = max_streams
        self.is_draining = False
        self.report: PolicyReport = engine.policy.explain()
        self.metrics = metrics
        self._max_queue = max_queue
        self._queue: FairQueue[Job] = FairQueue()
        self._running: list[Job] = []
        self._has_work = threading.Event()
        self._is_stopping = False
        self._is_told = False  # the event loop has been told of a round and did not look yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="slipstream-engine", daemon=True)

    # -- the event loop's side -------------------------------------------------------------------------------------

    @property
    def num_active(self) -> int:
        return len(self._running)

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, calls: Sequence[AnswerCall], key: str) -> list[Job]:
        """Queues the answers of one request. Raises Refusal: 429 if the queue is full, 400 if it is too short even when
        it is empty, 503 while the server stops."""
        if self.is_draining:
            raise Refusal(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
        if len(calls) > (most := self._max_queue + self.max_streams):
            message = f"the request asks for {len(calls)} answers; this server takes {most} at most (its --max-streams "
            raise Refusal(400, message + "and --max-queue): ask for fewer choices or prompts")
        free = self.max_streams - len(self._running)
        if len(self._queue) + len(calls) > self._max_queue + max(free, 0):
            headers = {"Retry-After": str(_RETRY_AFTER_S)}
            message = f"{len(self._queue)} requests are waiting already: try again in {_RETRY_AFTER_S} seconds"
            raise Refusal(429, message, code="queue_full", headers=headers)
        wake = asyncio.Event()
        jobs = [Job(call, key, wake) for call in calls]
        for job in jobs:
            self._queue.add(key, job)
        self._start_jobs()
        return jobs

    async def read(self, jobs: Sequence[Job], limit_s: float | None) -> AsyncIterator[tuple[int, list[Token]]]:
        """Tokens of the jobs as they come, with the job's index; no tokens: the answer is complete. Raises Refusal for
        what ended a job early, or if the jobs take longer than `limit_s`. Whoever leaves early calls `cancel`.
        """
        wake, deadline = jobs[0].wake, None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        left = dict(enumerate(jobs))
        while True:
            wake.clear()
            for index, job in list(left.items()):
                if tokens := job.take():
                    yield index, tokens
                if job.is_read:
                    job.refuse_failure()
                    del left[index]
                    yield index, []
            if not left:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await wake.wait()
            except TimeoutError:
                message = f"the answer took longer than this server allows ({limit_s:g} seconds)"
                raise Refusal(504, message, code="timeout") from None

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Ends jobs that are not over; their places are free when the running round ends."""
        for job in jobs:
            if self._queue.remove(job.key, job):
                job.is_over = True
            elif job.generation and not job.generation.stream.done:
                job.generation.cancel()
        self._collect()

    def begin_drain(self) -> None:
        """Takes no more requests and refuses those that wait; running answers go on."""
        self.is_draining = True
        while entry := self._queue.start_next():
            key, job = entry
            self._queue.finished(key)
            self._end(job, Refusal(503, "the server is shutting down", code="shutting_down"))

    def end_all(self, reason: str) -> None:
        """Ends every answer with an error."""
        for job in self._running:
            job.error = Refusal(503, reason, code="shutting_down")
            if job.generation:
                job.generation.cancel()
            job.wake.set()

    def stop(self) -> None:
        """Ends the thread. Waits for the running round."""
        self._is_stopping = True
        self.engine.close()
        self._has_work.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _start_jobs(self) -> None:
        while len(self._running) < self.max_streams and (entry := self._queue.start_next()):
            _, job = entry
            call = job.call
            self._running.append(job)
            self.metrics.started(time.perf_counter() - job.asked_at)
            try:
                job.generation = self.engine.generate(
                    call.prompt, call.sampling, call.limits, drafter=call.drafter, options=call.options
                )
            except Exception as error:
                self._end(job, error)
                self._release(job)
        self._has_work.set()

    def _collect(self) -> None:
        """Gives back the places of answers that are over, and starts those that wait."""
        for job in [job for job in self._running if job.error or (job.stream and job.stream.done)]:
            self._release(job)
        if len(self._queue):
            self._start_jobs()

    def _release(self, job: Job) -> None:
        if not job.is_over:
            job.is_over = True
            self._running.remove(job)
            self._queue.finished(job.key)

    def _end(self, job: Job, error: BaseException) -> None:
        job.error = error
        job.wake.set()

    def _after_round(self) -> None:
        self._is_told = False
        now = time.perf_counter()
        for job in self._running:
            job.note_latency(now, self.metrics)
            if job.has_news:
                job.wake.set()
        self._collect()

    # -- the engine's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        reported_at = 0.0
        while not self._is_stopping:
            self._has_work.clear()
            if not self.engine.step():
                self._tell()  # streams that were cancelled or refused are over
                self._has_work.wait()
                continue
            self._tell()
            if time.perf_counter() - reported_at > _REPORT_EVERY_S:
                reported_at = time.perf_counter()
                self._renew_report()

    def _renew_report(self) -> None:
        """In this thread, since the policy learns in it. A policy that fails here keeps its last report."""
        try:
            self.report = self.engine.policy.explain()
        except Exception:
            log.exception("the policy could not report")

    def _tell(self) -> None:
        if not self._is_told and self._loop and not self._loop.is_closed():
            self._is_told = True
            self._loop.call_soon_threadsafe(self._after_round)
