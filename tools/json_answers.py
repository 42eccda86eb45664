"""JSON schemas on a running server: is every answer valid, is the text the same with and without speculation, and what
does the grammar drafter save?

    python tools/json_answers.py --url http://127.0.0.1:8000

20 schemas, 10 seeds each, at temperature 0.8. Every value has a greatest length: a small model may otherwise go on
until max_tokens, and half an object is not valid. Needs jsonschema. Exit code 1 if an answer is invalid or differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema

WORD = {"type": "string", "pattern": "^[A-Za-z]{1,12}$"}
TEXT = {"type": "string", "maxLength": 40}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
PRICE = {"type": "integer", "minimum": 0, "maximum": 1000}
MAIL = {"type": "string", "pattern": "^[a-z]{1,10}@[a-z]{1,10}[.](com|org)$"}
DATE = {"type": "string", "format": "date"}


def thing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def some(item: Any, least: int = 1, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": ("Invent a person.", thing(name=WORD, age=SMALL, city=WORD)),
    "colour": ("Name a colour.", thing(colour={"enum": ["red", "green", "blue"]})),
    "weather": (
        "What is the weather?",
        thing(sky={"enum": ["clear", "cloudy"]}, degrees=SMALL, windy={"type": "boolean"}),
    ),
    "book": (
        "Describe a book.",
        thing(title=TEXT, author=TEXT, year={"type": "integer", "minimum": 1500, "maximum": 2026}),
    ),
    "recipe": ("Give a recipe.", thing(dish=TEXT, ingredients=some(thing(name=WORD, grams=SMALL)))),
    "order": ("Make an order.", thing(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, total=PRICE)),
    "list": ("List fruits.", some(WORD, 2, 5)),
    "nested": ("Describe a house.", thing(address=thing(street=WORD, number=SMALL), rooms=some(thing(name=WORD)))),
    "optional": ("Describe a pet.", thing(name=WORD) | {"properties": {"name": WORD, "age": SMALL}}),
    "nullable": ("Describe a car.", thing(brand=WORD, owner={"type": ["string", "null"], "maxLength": 12})),
    "union": ("A number or a word?", {"anyOf": [thing(number=SMALL), thing(word=WORD)]}),
    "date": ("When is it?", thing(day=DATE, title=TEXT)),
    "verdict": ("Is the sea blue?", thing(answer={"type": "boolean"}, reason=TEXT)),
    "points": ("Give two points.", some(thing(x=SMALL, y=SMALL), 2, 2)),
    "constant": ("Greet.", thing(kind={"const": "greeting"}, version={"const": 2}, text=TEXT)),
    "reference": (
        "Describe a tree.",
        thing(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}) | {"$defs": {"leaf": thing(value=SMALL)}},
    ),
    "tags": ("Tag a text.", thing(tags=some({"enum": ["news", "sport", "music", "art"]}), score=PRICE)),
    "long_names": (
        "Report a measurement.",
        thing(measurement_identifier=WORD, temperature_in_degrees_celsius=SMALL, relative_humidity_percent=SMALL),
    ),
    "table": ("Fill a table.", thing(header=some(WORD, 2, 2), rows=some(some(SMALL, 2, 2), 2, 2))),
    "email": (
        "Write a mail.",
        thing(to=MAIL, subject=TEXT, urgent={"type": "boolean"}),
    ),
}
WAYS: dict[str, Mapping[str, Any]] = {
    "plain": {"enabled": False},
    "suffix": {"drafter": "suffix"},
    "grammar": {"drafter": "grammar"},
    "default": {},  # the grammar's tokens first, then the server's drafter
}


def ask(url: str, key: str, name: str, seed: int, way: str) -> dict[str, Any]:
    prompt, schema = SCHEMAS[name]
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}},
        "temperature": 0.8,
        "seed": seed,
        "max_tokens": 300,
        "speculation": WAYS[way],
    }
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    cases = [(name, seed) for name in SCHEMAS for seed in range(given.seeds)]
    texts: dict[str, list[str]] = {}
    report: dict[str, Any] = {"answers": len(cases), "seeds": given.seeds}
    for way in WAYS:
        with ThreadPoolExecutor(given.clients) as pool:
            answers = list(pool.map(lambda case: ask(given.url, given.key, *case, way), cases))  # noqa: B023
        texts[way] = [answer["choices"][0]["message"]["content"] for answer in answers]
        tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
        rounds = sum(answer["slipstream"]["rounds"] for answer in answers)
        invalid = [c for c, text in zip(cases, texts[way], strict=True) if not is_valid(text, SCHEMAS[c[0]][1])]
        report[way] = {
            "invalid": invalid,
            "same_text_as_plain": texts[way] == texts["plain"],
            "tokens": tokens,
            "tokens_per_forward": round(tokens / rounds, 3),
        }
        print(way, report[way], file=sys.stderr, flush=True)
    print(json.dumps(report, indent=1))
    sys.exit(0 if all(not report[way]["invalid"] and report[way]["same_text_as_plain"] for way in WAYS) else 1)


if __name__ == "__main__":
    main()
