"""Makes the text that a head is trained on: shard by shard, each from its own seed, until there is enough of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice

from slipstream.core.engine import Engine
from slipstream.errors import UsageError
from slipstream.measurement.prompt_files import read_prompts
from slipstream.measurement.workload import Prompt
from slipstream.models.tokenizer import Tokenizer
from slipstream.train.chat_form import ChatForm
from slipstream.train.filters import Seen, is_worth_keeping
from slipstream.train.messages import Messenger, time_left
from slipstream.train.scripts import Kind, Script, Writing, given, random_script
from slipstream.train.settings import RunOptions
from slipstream.train.shards import Shards, Text
from slipstream.train.transcripts import read_transcripts
from slipstream.train.writer import run_scripts, writer_for

_MAX_EMPTY_SHARDS = 3  # in a row with hardly anything new: more would not help


@dataclass(frozen=True, slots=True)
class TextMaker:
    """`engine` is called when something has to be written: finished shards need none."""

    options: RunOptions
    tokenizer: Tokenizer
    engine: Callable[[], Engine]
    messenger: Messenger

    def make(self, shards: Shards) -> None:
        """Fills `shards`. What is there already is kept; another call goes on after the last whole shard."""
        if self.options.transcripts:
            if not shards.count():
                texts = read_transcripts(self.options.transcripts, ChatForm(self.tokenizer))
                shards.write(0, self._chosen(texts, Seen()))
            return
        have, number = self._already(shards)
        if have >= self.options.tokens:
            return
        seen, num_poor = Seen(shards.all()), 0
        with closing(self._written(number, have)) as written:
            while have < self.options.tokens and num_poor < _MAX_EMPTY_SHARDS:
                if not (made := list(islice(written, self.options.shard_texts))):
                    return
                texts = self._chosen((text for texts in made for text in texts), seen)
                shards.write(number, texts)
                gained = sum(text.num_answer_tokens for text in texts)
                num_poor = 0 if gained > self.options.shard_texts else num_poor + 1
                have, number = have + gained, number + 1

    def _already(self, shards: Shards) -> tuple[int, int]:
        """Answer tokens and shards."""
        have = sum(text.num_answer_tokens for text in shards.all())
        if shards.count() and have < self.options.tokens:
            self.messenger.say(f"going on after {shards.count()} shards with {have:,} answer tokens")
        return have, shards.count()

    def _given_kinds(self) -> list[Kind] | None:
        """The user's prompts, each once for each temperature."""
        if not self.options.prompts:
            return None
        prompts = read_prompts(self.options.prompts)
        if self.tokenizer.chat_template is None:
            raise UsageError("--prompts needs a target with a chat template; this one has none")
        return [_kind_of(prompt) for _ in self.options.answer_temperatures() for prompt in prompts]

    def _written(self, number: int, have: int) -> Generator[list[Text]]:
        """What each conversation from shard `number` on became."""
        started, wanted, kinds = time.monotonic(), self.options.tokens, self._given_kinds()

        def pulse(num_written: int) -> None:
            if self.messenger.stop_asked:  # shards that are not whole are lost, those before them are kept
                raise KeyboardInterrupt
            rate = num_written / max(time.monotonic() - started, 1e-9)
            left = (wanted - have - num_written) / rate if rate else 0.0
            self.messenger.progress(min(have + num_written, wanted), wanted, f"{rate:,.0f} tokens/s, {time_left(left)}")

        return run_scripts(writer_for(self.engine()), self._scripts(number, kinds), self.options.streams, pulse)

    def _scripts(self, number: int, kinds: list[Kind] | None) -> Iterator[Script]:
        options, form = self.options, ChatForm(self.tokenizer)
        first = number * options.shard_texts
        for index in count(first) if kinds is None else range(first, len(kinds)):
            chance = random.Random(f"{options.seed}/{index}")
            writing = Writing(form, options.length, options.answer_temperatures(), chance)
            yield random_script(writing) if kinds is None else kinds[index](writing)

    def _chosen(self, texts: Iterable[Text], seen: Seen) -> list[Text]:
        cut = (text.cut(self.options.length) for text in texts)
        return [text for text in cut if is_worth_keeping(text) and seen.is_new(text)]


def _kind_of(prompt: Prompt) -> Kind:
    return given([{"role": message.role, "content": message.content} for message in prompt.opening], prompt.turns)
