"""Makes the text that a head is trained on: conversations, each from its own seed, until there is enough.

Where a shard ends depends on the time; what the conversations are, and how many `--tokens` takes, does not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice

from slipstream.core.engine import Engine
from slipstream.errors import SlipstreamError, UsageError
from slipstream.measurement.prompt_files import read_prompts
from slipstream.measurement.workload import Prompt
from slipstream.models.text.chat_template import Message
from slipstream.models.text.tokenizer import Tokenizer
from slipstream.train.chat_form import ChatForm
from slipstream.train.filters import LEAST_ANSWER_TOKENS, Seen, is_worth_keeping
from slipstream.train.messages import Messenger, time_left
from slipstream.train.scripts import LEAST_ANSWER_ROOM, Kind, Script, Writing, given, least_length, random_script
from slipstream.train.settings import MAX_HELD_BACK, RunOptions
from slipstream.train.shards import Shards, Text
from slipstream.train.transcripts import read_transcripts
from slipstream.train.writer import run_scripts, writer_for

LEAST_TEXTS = 9  # to learn from and to judge by
_SURELY_HELD_BACK = 4  # texts on average: then there is one at least
_SMALL_SHARE = 0.2  # with a larger one there may be too few to learn from
_USUALLY_KEPT = 0.3  # of the tokens written: SmolLM2 0.31
_MAX_POOR_SHARDS = 3  # whole ones in a row with hardly anything new: more would not help, now or in a run that goes on
_MAX_UNSAVED_S = 60.0  # a shard is written after this time, full or not: on a CPU a full one can take hours


def refuse_too_few(options: RunOptions, tokenizer: Tokenizer) -> None:
    """Before anything is written: raises UsageError where these options can't give enough texts."""
    form, length = ChatForm(tokenizer), options.length
    if options.prompts and form.has_template:
        prompts = read_prompts(options.prompts)
        if len(prompts) < LEAST_TEXTS:
            raise UsageError(f"{options.prompts} has {len(prompts)} prompts; training needs {LEAST_TEXTS}: add some")
        fitting = (prompt for prompt in prompts if _num_tokens(form, prompt) + LEAST_ANSWER_ROOM <= length)
        if len(list(islice(fitting, LEAST_TEXTS))) < LEAST_TEXTS:
            raise UsageError(
                f"--length is {length}, and fewer than {LEAST_TEXTS} of the {len(prompts)} prompts leave "
                f"{LEAST_ANSWER_ROOM} tokens of it for an answer: raise it"
            )
        if len(prompts) * options.held_back < 1:
            enough = _SURELY_HELD_BACK / len(prompts)
            raise_it = f"raise it, to {enough:.2g} for example" if enough <= _SMALL_SHARE else _more(options)
            raise UsageError(
                f"--held-back is {options.held_back}, which of {len(prompts)} texts leaves none to judge by: {raise_it}"
            )
    elif not options.transcripts and length < (least := least_length(form)):
        raise UsageError(
            f"--length is {length}, but a question and an answer need {least} with this template: raise it"
        )


def too_few(options: RunOptions, num_texts: int) -> SlipstreamError:
    return SlipstreamError(
        f"there are only {num_texts} usable texts (an answer of {LEAST_ANSWER_TOKENS} tokens or more within --length, "
        f"no loops), and training needs {LEAST_TEXTS}: {_more(options)}, or raise --length"
    )


def refuse_split(options: RunOptions, texts: Sequence[Text]) -> None:
    """Raises UsageError where too few texts are held back, or left to learn from, with the share that works."""
    num_judged = sum(text.is_held_back(options.held_back) for text in texts)
    if _is_usable(num_judged, len(texts)):
        return
    found = (step / 100 for step in range(1, round(MAX_HELD_BACK * 100) + 1))
    counts = {share: sum(text.is_held_back(share) for text in texts) for share in found}
    usable = [share for share, count in counts.items() if _is_usable(count, len(texts))]
    best = min(usable, key=lambda share: abs(counts[share] - _SURELY_HELD_BACK), default=None)
    change = f"{'lower' if num_judged else 'raise'} it to {best}" if best else f"more text is needed: {_more(options)}"
    left = f"{len(texts) - num_judged} to learn from" if num_judged else "none to judge by"
    raise UsageError(f"--held-back is {options.held_back}, which of {len(texts)} texts leaves {left}: {change}")


def _is_usable(num_judged: int, num_texts: int) -> bool:
    return num_judged > 0 and num_texts - num_judged >= LEAST_TEXTS - 1


def _more(options: RunOptions) -> str:
    source = options.prompts or options.transcripts
    return f"add more to {source}" if source else "raise --tokens"


def _num_tokens(form: ChatForm, prompt: Prompt) -> int:
    """Up to the first answer."""
    return len(form.prompt([*_opening(prompt), {"role": "user", "content": prompt.turns[0]}]))


@dataclass(slots=True)
class Tally:
    """Answer tokens that are kept: not all that is written is an answer, and not every text is worth keeping.

    `expected` counts what was written since the last complete shard too: as large a share of it is kept as before, or
    at first the usual one. It never falls.
    """

    kept: int  # in complete shards
    usual_share: float = _USUALLY_KEPT
    expected: int = 0
    _written: int = 0  # tokens, since the start
    _gained: int = 0  # of them, in complete shards
    _counted: int = 0  # written when the last of these was complete

    def write(self, written: int) -> None:
        """So many tokens were written since the start."""
        share = self._gained / self._counted if self._counted else self.usual_share
        self._written, expected = written, self.kept + int((written - self._counted) * share)
        self.expected = max(self.expected, expected)

    def keep(self, gained: int) -> None:
        """A shard is complete."""
        self.kept, self._gained, self._counted = self.kept + gained, self._gained + gained, self._written
        self.expected = max(self.expected, self.kept)


@dataclass(slots=True)
class _Shard:
    """What is kept of some conversations that follow each other."""

    texts: list[Text]
    num_conversations: int = 0
    num_tokens: int = field(init=False)  # of answers

    def __post_init__(self) -> None:
        self.num_tokens = sum(text.num_answer_tokens for text in self.texts)

    def add(self, texts: Sequence[Text]) -> None:
        """A conversation."""
        self.texts += texts
        self.num_conversations += 1
        self.num_tokens += sum(text.num_answer_tokens for text in texts)


@dataclass(frozen=True, slots=True)
class TextMaker:
    """`engine` is called when something has to be written: finished shards need none."""

    options: RunOptions
    tokenizer: Tokenizer
    engine: Callable[[], Engine]
    messenger: Messenger
    streams: int  # texts written at the same time

    def make(self, shards: Shards) -> None:
        """Fills `shards`. What is there already is kept; another call goes on after the last shard.

        Nothing is written before there is enough to train on: other options could not go on with it. Raises
        SlipstreamError where that never comes."""
        if self.options.transcripts:
            if not shards.count():
                texts = self._chosen(read_transcripts(self.options.transcripts, ChatForm(self.tokenizer)), Seen())
                if len(texts) < LEAST_TEXTS:
                    raise too_few(self.options, len(texts))
                shards.write(0, texts, len(texts))
            return
        done = [_Shard(shards.read(n), shards.num_conversations(n)) for n in range(shards.count())]
        first, num_tokens = sum(shard.num_conversations for shard in done), sum(shard.num_tokens for shard in done)
        kinds = self._given_kinds()
        is_used_up = kinds is not None and first >= len(kinds)
        if is_used_up or self._is_enough(done) or self._is_poor(done):
            return
        if done:
            self.messenger.say(f"going on after {first:,} conversations with {num_tokens:,} answer tokens")
        self.messenger.phase("writing text, tokens")
        tally = Tally(num_tokens, _USUALLY_KEPT if kinds is None else 1.0)
        seen, num_kept = Seen(shards.all(), keeps_answers=kinds is not None), len(done)

        def keep() -> None:
            """Writes shards as soon as there is enough to train on."""
            nonlocal num_kept
            if sum(len(shard.texts) for shard in done) >= LEAST_TEXTS:
                for number in range(num_kept, len(done)):
                    shards.write(number, done[number].texts, done[number].num_conversations)
                num_kept = len(done)

        try:
            with closing(self._written(first, kinds, tally)) as written:
                self._fill(done, written, seen, tally, keep)
        finally:  # what is complete is kept, however it ends
            keep()
            if self.messenger.stop_asked:
                kept = sum(shard.num_tokens for shard in done[:num_kept])
                self.messenger.say(
                    f"{kept:,} answer tokens are kept; the same command goes on" if kept else "no text to keep yet"
                )
        if num_kept < len(done):
            raise too_few(self.options, sum(len(shard.texts) for shard in done))

    def _fill(
        self, done: list[_Shard], written: Iterator[list[Text]], seen: Seen, tally: Tally, keep: Callable[[], None]
    ) -> None:
        """Adds shards to `done` until there is enough, or nothing new comes."""
        is_full, saved_at = True, time.monotonic()
        for texts in written:
            if is_full:
                done.append(_Shard([]))
            shard = done[-1]
            shard.add(self._chosen(texts, seen))
            is_enough, is_late = self._is_enough(done), time.monotonic() - saved_at >= _MAX_UNSAVED_S
            is_full = is_enough or is_late or shard.num_conversations >= self.options.shard_texts
            if is_full:
                tally.keep(shard.num_tokens)
                keep()
                saved_at = time.monotonic()
            if is_enough or (is_full and self._is_poor(done)):
                return

    def _is_enough(self, done: Sequence[_Shard]) -> bool:
        num_texts, num_tokens = sum(len(shard.texts) for shard in done), sum(shard.num_tokens for shard in done)
        return num_tokens >= self.options.tokens and num_texts >= LEAST_TEXTS

    def _is_poor(self, done: Sequence[_Shard]) -> bool:
        """Hardly anything of the last conversations was new."""
        num_conversations = num_tokens = 0
        for shard in reversed(done):
            num_conversations += shard.num_conversations
            num_tokens += shard.num_tokens
            if num_conversations >= _MAX_POOR_SHARDS * self.options.shard_texts:
                return num_tokens <= num_conversations
        return False

    def _given_kinds(self) -> list[Kind] | None:
        """The user's prompts, each once for each temperature."""
        if not self.options.prompts:
            return None
        prompts = read_prompts(self.options.prompts)
        if self.tokenizer.chat_template is None:
            raise UsageError("--prompts needs a target with a chat template; this one has none")
        return [_kind_of(prompt) for _ in self.options.answer_temperatures() for prompt in prompts]

    def _written(self, first: int, kinds: list[Kind] | None, tally: Tally) -> Generator[list[Text]]:
        """What each conversation from number `first` on became."""
        started, kept, wanted = time.monotonic(), tally.kept, self.options.tokens

        def pulse(num_written: int) -> None:
            if self.messenger.stop_asked:  # conversations that are not complete are lost, those before them are kept
                raise KeyboardInterrupt
            tally.write(num_written)
            seconds, now = max(time.monotonic() - started, 1e-9), min(tally.expected, wanted)
            left = [time_left((wanted - now) * seconds / (now - kept))] if now > kept else []
            self.messenger.progress(now, wanted, ", ".join([f"{num_written / seconds:,.0f} tokens/s", *left]))

        return run_scripts(writer_for(self.engine()), self._scripts(first, kinds), self.streams, pulse)

    def _scripts(self, first: int, kinds: list[Kind] | None) -> Iterator[Script]:
        options, form = self.options, ChatForm(self.tokenizer)
        for index in count(first) if kinds is None else range(first, len(kinds)):
            chance = random.Random(f"{options.seed}/{index}")
            writing = Writing(form, options.length, options.answer_temperatures(), chance)
            yield random_script(writing) if kinds is None else kinds[index](writing)

    def _chosen(self, texts: Iterable[Text], seen: Seen) -> list[Text]:
        cut = (text.cut(self.options.length) for text in texts)
        return [text for text in cut if is_worth_keeping(text) and seen.is_new(text)]


def _kind_of(prompt: Prompt) -> Kind:
    return given(_opening(prompt), prompt.turns)


def _opening(prompt: Prompt) -> list[Message]:
    return [{"role": message.role, "content": message.content} for message in prompt.opening]
