"""Scripts: how one or more texts come about. A script asks for pieces of text and gets them from whoever runs it.

A script depends on its own random numbers alone, never on other scripts, so a shard that is made again is the same, as
far as the target rounds alike: on a GPU prompts that are read together may change the last bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.models.text.chat_template import Message
from slipstream.train.chat_form import ChatForm
from slipstream.train.shards import Role, Text

_QUESTION_TOKENS = 96
_QUESTION_TEMPERATURES = (0.8, 1.0)
_ARTICLE_TEMPERATURES = (0.6, 0.9)
LEAST_ANSWER_ROOM = 32  # tokens

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are an expert programmer. Answer with code and short explanations.",
    "You are a patient teacher. Explain step by step.",
    "You answer in one or two sentences.",
    "You are a translator.",
    "You are a careful assistant that answers only from the given text.",
    "You are a creative writer.",
    "You are a mathematician. Show your work.",
)
# Beginnings of questions: a model that opens a conversation by itself seldom asks for these.
OPENERS = (
    "Write a Python function that", "Write a function in JavaScript that", "Fix the following code:\n",
    "Complete the following Python function.\n\n```python\ndef ", "Write an SQL query that",
    "Explain what this code does:\n", "Solve this problem step by step:",
    "If a train", "A shop sells", "What is the value of", "How many", "Calculate",
    "Tom has", "Find the sum of", "What is the capital of", "Who was", "When did", "Where is", "Why do", "What causes",
    "Which of the following", "Explain the difference between", "Give me three tips for", "Describe", "Define",
    "Write a short story about", "Write a poem about", "Write an email to", "Imagine you are", "Pretend to be",
    "Write a product description for", "Compose a blog post about", "Write a review of", "List the main",
    "Extract the names and dates from the following text:\n", "Classify the sentiment of this review:",
    "Translate the following sentence into French:", "Translate into German:", "Translate this to Spanish:",
    "Translate German to English:", "Summarize the following article:\n", "Give a brief summary of this text:\n",
    "Rewrite the following sentence to be more formal:", "Correct the grammar of this sentence:",
    "Read the passage and answer the question.\n\n", "Compare", "What are the advantages of", "How can I", "Should I",
    "Discuss the impact of", "Analyze the theme of", "Explain like I am five:", "Prove that",
)  # fmt: skip
TASKS = (
    "Summarize the following text in a few sentences.\n\n{text}",
    "Give a one-sentence summary:\n\n{text}",
    "{text}\n\nSummarize the text above.",
    "Rewrite the following text in simpler words:\n\n{text}",
    "Rewrite this in a formal tone:\n\n{text}",
    "List the key points of this text:\n\n{text}",
    "Extract all names, places and numbers from this text:\n\n{text}",
    "Correct any mistakes in the following text:\n\n{text}",
    "What is this text about?\n\n{text}",
    "Repeat the following text:\n\n{text}",
)
# Beginnings of texts that are no answers: what people paste into a question is seldom written by an assistant.
ARTICLES = (
    "By our staff reporter\n\nLONDON -",
    "(Reuters) -",
    "WASHINGTON -",
    "Police said on Monday that",
    "The company said",
    "A man who",
    "Scientists have found that",
    "In a statement,",
    "The president",
    "Residents of the town",
    "The match ended",
    "He was born in",
    "She was born on",
    "is a town in",
    "The river",
    "The species",
    "In 1914,",
    "During the war,",
    "The album was released",
    "The film tells the story of",
    "The battle of",
    "According to the report,",
    "Abstract. We present",
    "Introduction\n\nIn recent years,",
    "Chapter 1\n\nIt was",
    "Once upon a time,",
    "Dear Sir or Madam,",
    "Minutes of the meeting\n\n",
    "Ingredients:\n",
    "Product review:",
    "How to",
    "Frequently asked questions\n\n",
    "Terms and conditions\n\n1.",
    "The patient",
    "The court held that",
    "Shares of",
    "The weather",
    "Interviewer:",
    "Title:",
    "Posted by",
    "The museum",
    "The first",
    "It is",
    "There are",
    "When",
    "Many people",
)
ARTICLE_TOKENS = (60, 120, 240, 400)
TRANSLATIONS = ("French", "German", "Spanish", "Italian", "English")
LONG_TASKS = (
    "Use the passages below to answer the question.\n\n{text}\n\nQuestion: What do the passages say?",
    "{text}\n\nSummarize everything above.",
    "Here are some notes:\n\n{text}\n\nWhat are the most important points?",
    "{text}\n\nWhich of these passages is the most useful, and why?",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A piece of text that a script asks for."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(slots=True)
class Writing:
    """What a script works with: the form of conversations, the limits, and random numbers of its own."""

    form: ChatForm
    length: int  # tokens of a text, at most
    temperatures: Sequence[float]  # of answers
    chance: random.Random

    def wanted(self, prompt: Sequence[int], max_tokens: int, temperature: float) -> Wanted:
        return Wanted(prompt, min(max_tokens, self.length - len(prompt)), temperature, self.chance.getrandbits(48))


def least_length(form: ChatForm) -> int:
    """Tokens that a conversation takes at least, if the model asks itself; 0 for models that write freely."""
    start = form.open_user([]) if form.has_template else []
    return len(start) + _QUESTION_TOKENS + LEAST_ANSWER_ROOM if start else 0


Script = Generator[Wanted, list[int], list[Text]]
Kind = Callable[[Writing], Script]


def _asked(writing: Writing, messages: list[Message], opener: str = "") -> Generator[Wanted, list[int], str]:
    """The user's next message, by the model itself; empty where it does not come to an end."""
    form = writing.form
    start = form.open_user(messages)
    prompt = [*start, *form.tokenizer.encode(opener)]
    if not start or len(prompt) + _QUESTION_TOKENS + LEAST_ANSWER_ROOM > writing.length:
        return ""
    question = yield writing.wanted(prompt, _QUESTION_TOKENS, writing.chance.choice(_QUESTION_TEMPERATURES))
    return (opener + form.tokenizer.decode(question)).strip() if form.is_finished(question) else ""


def _answered(writing: Writing, messages: list[Message], kind: str) -> Generator[Wanted, list[int], Text | None]:
    """The answer to a conversation; None where there is no room for it. Adds it to the messages."""
    prompt = writing.form.prompt(messages)
    if len(prompt) + LEAST_ANSWER_ROOM > writing.length:
        return None
    answer = yield writing.wanted(prompt, writing.length, writing.chance.choice(list(writing.temperatures)))
    text = writing.form.annotated(messages, answer, kind)
    messages.append({"role": "assistant", "content": writing.form.words(answer)})
    return text


def conversation(writing: Writing, kind: str, opening: list[Message], opener: str = "", turns: int = 1) -> Script:
    """Questions and answers. The text is that of the last turn: it has all of those before it."""
    messages, text = opening, None
    for turn in range(turns):
        question = yield from _asked(writing, messages, opener if turn == 0 else "")
        if not question:
            break
        messages.append({"role": "user", "content": question})
        answered = yield from _answered(writing, messages, kind)
        if answered is None:
            break
        text = answered
    return [text] if text else []


def chat(writing: Writing) -> Script:
    return conversation(writing, "chat", [])


def opened(writing: Writing) -> Script:
    return conversation(writing, "opened", [], writing.chance.choice(OPENERS))


def turns(writing: Writing) -> Script:
    return conversation(writing, "turns", [], turns=writing.chance.choice((2, 2, 3)))


def system(writing: Writing) -> Script:
    opening: list[Message] = [{"role": "system", "content": writing.chance.choice(SYSTEM_PROMPTS)}]
    return conversation(writing, "system", opening, writing.chance.choice(("", writing.chance.choice(OPENERS))))


def task(writing: Writing) -> Script:
    """Something to do with a text that the model wrote before, which is kept too."""
    sources = yield from (opened if writing.chance.random() < 0.5 else chat)(writing)
    source = _last_answer(writing, sources)
    if not source:
        return sources
    return sources + (yield from _single(writing, "task", writing.chance.choice(TASKS).format(text=source)))


def article(writing: Writing) -> Script:
    """Something to do with, or to ask about, a text as papers and pages have them, which is not kept itself."""
    opening, chance = writing.chance.choice(ARTICLES), writing.chance
    # After a new line the opening is one of a text of its own, and not the end of a sentence.
    start = [*writing.form.start_of_text(), *writing.form.tokenizer.encode("\n" + opening)]
    written = yield writing.wanted(start, chance.choice(ARTICLE_TOKENS), chance.choice(_ARTICLE_TEMPERATURES))
    text = opening + writing.form.tokenizer.decode(written).rstrip()
    if chance.random() < 0.5:
        return (yield from _single(writing, "article", chance.choice(TASKS).format(text=text)))
    return (yield from conversation(writing, "article", [], f"{text}\n\nQuestion:"))


def translation(writing: Writing) -> Script:
    """One or two sentences: small models lose the thread in more."""
    sources = yield from chat(writing)
    sentences = _last_answer(writing, sources).replace("\n", " ").split(". ")
    text = ". ".join(sentences[: writing.chance.choice((1, 1, 2))]).strip()
    if not text:
        return sources
    to = writing.chance.choice(TRANSLATIONS)
    request = writing.chance.choice((f"Translate to {to}: {text}", f"Translate the following into {to}.\n\n{text}"))
    return sources + (yield from _single(writing, "translation", request))


def long_context(writing: Writing) -> Script:
    """A question on several texts that the model wrote before, which are kept too."""
    kept: list[Text] = []
    passages: list[str] = []
    for _ in range(3):
        made = yield from chat(writing)
        kept += made
        passages += [words for words in (_last_answer(writing, made),) if words]
    while passages:
        joined = "\n\n".join(f"[{i}] {passage}" for i, passage in enumerate(passages, 1))
        made = yield from _single(writing, "long", writing.chance.choice(LONG_TASKS).format(text=joined))
        if made:
            return kept + made
        passages.pop()  # no room for all of them
    return kept


def free_text(writing: Writing) -> Script:
    """For base models."""
    start = writing.form.start_of_text()
    temperature = writing.chance.choice([t for t in writing.temperatures if t > 0] or [1.0])
    written = yield writing.wanted(start, writing.length, temperature)
    tokens = np.array([*start, *written], np.int32)
    roles = np.full(len(tokens), Role.ANSWER, np.uint8)
    roles[: len(start)] = Role.TEMPLATE
    return [Text(tokens, roles, "free")]


def given(messages: list[Message], turns: Sequence[str]) -> Kind:
    """The user's own questions, one after another."""

    def script(writing: Writing) -> Script:
        so_far, text = list(messages), None
        for turn in turns:
            so_far.append({"role": "user", "content": turn})
            answered = yield from _answered(writing, so_far, "given")
            if answered is None:
                break
            text = answered
        return [text] if text else []

    return script


def _single(writing: Writing, kind: str, request: str) -> Script:
    text = yield from _answered(writing, [{"role": "user", "content": request}], kind)
    return [text] if text else []


def _last_answer(writing: Writing, texts: Sequence[Text]) -> str:
    if not texts:
        return ""
    last = texts[-1]
    return writing.form.words(last.tokens[last.roles == Role.ANSWER].tolist())


# Shares of the kinds. Plain questions are most of what people ask; translation, summaries and long contexts are what a
# head that saw only such questions is worst at.
KINDS: tuple[tuple[Kind, float], ...] = (
    (chat, 0.18),
    (opened, 0.25),
    (turns, 0.08),
    (system, 0.06),
    (task, 0.10),
    (article, 0.20),
    (translation, 0.08),
    (long_context, 0.05),
)


def random_script(writing: Writing) -> Script:
    if not writing.form.has_template or not writing.form.open_user([]):
        return free_text(writing)
    kinds, shares = zip(*KINDS, strict=True)
    kind: Kind = writing.chance.choices(kinds, shares)[0]
    return kind(writing)
