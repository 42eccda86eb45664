"""The card of what was trained: what it is, how it was made, what it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEAD = """\
# Draft head for {target}

One decoder layer ({parameters:.1f} M parameters) in the style of EAGLE-3: it reads hidden states of {target} after
layers {layers}, drafts with a vocabulary of {draft_vocab} ids ({coverage:.1%} of the tokens of the training answers),
and was trained on texts of up to {length} tokens with {draft_steps} drafting steps. It works for this model and no
other.
"""
_DRAFT = """\
# Draft model for {target}

The first {layers} of the {target_layers} layers of {target}, with its embedding, output head and tokenizer
({parameters:.1f} M parameters, {size_share:.0%} of the target's), trained to give the target's distribution on texts of
up to {length} tokens. It is made to draft for this model; its own answers are poor. Before training, the same layers
had a mean accepted length of {untrained_length:.2f}.
"""
_REST = """
Licence: to be stated by whoever publishes it. The weights derive from {target} and from text that it wrote.

## What it does

On {num_judged} texts held back, greedy, after training {state}:

| drafted token | 1 | 2 | 3 | 4 | 5 |
| --- | --- | --- | --- | --- | --- |
| drafts right up to here | {reached} |

Mean accepted length with a draft of 4 tokens, the target's own token included: **{accepted_length:.2f}**.

| kind of text | mean accepted length |
| --- | --- |
{kinds}

## How it was made

```
{command}
```

- Text: {recipe}; {num_texts:,} texts, {num_tokens:,} answer tokens, answers at temperatures {temperatures}; loops, very
  short answers and repeated questions were left out. {data_minutes:.1f} minutes in this run.
- Training: {steps:,} steps of {batch_tokens:,} tokens, {optimizer} with a peak rate of {learning_rate:g},
  {train_minutes:.1f} minutes.
- Seed {seed}; {device}; torch {torch}; Slipstream {slipstream}.
"""
RECIPES = {
    "self": "written by the target itself, from questions that it asked itself",
    "prompts": "answers of the target to given prompts",
    "transcripts": "given conversations",
}


def head_card(facts: Mapping[str, Any]) -> str:
    return _filled(_HEAD, {**facts, "layers": ", ".join(map(str, facts["layers"]))})


def draft_card(facts: Mapping[str, Any]) -> str:
    return _filled(_DRAFT, facts)


def _filled(beginning: str, facts: Mapping[str, Any]) -> str:
    kinds = [f"| {kind} | {length:.2f} |" for kind, length in sorted(facts["length_by_kind"].items())]
    reached = [f"{share:.2f}" for share in facts["reached"][:5]]
    shown = {
        **facts,
        "kinds": "\n".join(kinds),
        "reached": " | ".join(reached + ["–"] * (5 - len(reached))),
        "state": "to its end" if facts["is_finished"] else "that was stopped early",
        "recipe": RECIPES[facts["recipe"]],
    }
    return (beginning + _REST).format(**shown)
