"""Damage to text: values of JSON and YAML, their syntax, encodings, command lines and logs."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from file_damage.byte_damage import damage_bytes
from file_damage.odd_values import ODD_VALUES, odd_value, short

_DEPTH = 100_000


# -- values -----------------------------------------------------------------------------------------------------------


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value; of a long list only the first and last."""
    keys: list[Any] = (
        list(tree) if isinstance(tree, dict) else [0, len(tree) - 1] if isinstance(tree, list) and tree else []
    )
    for key in keys[:40]:
        yield tree, key
        yield from _places(tree[key])


def damage_value(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """One value is another one, is gone, has another name, or is where another was."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    top = [(tree, key) for key in tree] if isinstance(tree, dict) else places
    container, key = rng.choice(rng.choice((places, top)))
    what = rng.choice(("odd", "odd", "odd", "odd", "gone", "renamed", "wrapped", "other", "all"))
    if what == "all":
        value = odd_value(rng)
        return value, f"all is {short(value)}"
    if what == "gone":
        del container[key]
    elif what == "renamed" and isinstance(container, dict):
        container[rng.choice(("", "x", f"{key} ", str(key).upper(), "\x00"))] = container.pop(key)
    elif what == "wrapped":
        container[key] = rng.choice(([container[key]], {"value": container[key]}, str(container[key])))
    elif what == "other":
        other, place = rng.choice(places)
        container[key] = copy.deepcopy(other[place]) if place in other or isinstance(other, list) else None
    else:
        container[key] = odd_value(rng)
        return tree, f"{key} is {short(container[key])}"
    return tree, f"{key} {what}"


# -- JSON -------------------------------------------------------------------------------------------------------------


def damage_json(tree: Any, rng: random.Random) -> tuple[bytes, str]:
    draw = rng.random()
    if draw < 0.6:
        changed, what = damage_value(tree, rng)
        text = json.dumps(changed, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
        return text.encode(errors="surrogatepass"), what
    text = json.dumps(tree, indent=2)
    if draw < 0.8:
        return _json_syntax(text, rng)
    return damage_text(text, rng)


def _json_syntax(text: str, rng: random.Random) -> tuple[bytes, str]:
    keys = re.findall(r'"(\w+)":', text) or ["x"]
    key = rng.choice(keys)
    changes: dict[str, Callable[[], str]] = {
        "deep lists": lambda: "[" * _DEPTH + "]" * _DEPTH,
        "deep lists under a key": lambda: text.replace("{", '{"deep": ' + "[" * _DEPTH + "]" * _DEPTH + ",", 1),
        "deep objects": lambda: '{"a":' * _DEPTH + "1" + "}" * _DEPTH,
        "never closed": lambda: "[" * 1_000_000,
        f"{key} twice": lambda: text.replace("{", f'{{"{key}": {json.dumps(rng.choice(ODD_VALUES[:20]))},', 1),
        f"{key} twice, the last one odd": lambda: (
            text.rstrip()[:-1] + f',"{key}": {json.dumps(rng.choice(ODD_VALUES[:12]))}}}'
        ),
        "a comment": lambda: text.replace("{", "{ // comment\n", 1),
        "a comma at the end": lambda: text.rstrip()[:-1] + ",}",
        "single quotes": lambda: text.replace('"', "'"),
        "a number of 100,000 digits": lambda: text.replace("{", '{"n": ' + "9" * 100_000 + ",", 1),
        f"{key} of 100,000 digits": lambda: re.sub(
            rf'"{key}": [^,\n]+', lambda _: f'"{key}": ' + "9" * 100_000, text, count=1
        ),
        "a lone surrogate": lambda: text.replace("{", '{"s": "\\ud800", ', 1),
        "two documents": lambda: text + text,
        "NaN": lambda: re.sub(r": \d[^,\n]*", ": NaN", text, count=rng.randrange(1, 4)),
        "Infinity": lambda: re.sub(r": \d[^,\n]*", ": -Infinity", text, count=rng.randrange(1, 4)),
        "a number with an exponent": lambda: re.sub(r": (\d+)", r": \g<1>e0", text, count=rng.randrange(1, 6)),
        "a control character in a text": lambda: text.replace('": "', '": "\x01\n', 1),
        "a text that does not end": lambda: text.replace('": "', '": "' + "y" * 2_000_000, 1)[:1_000_000],
    }
    what = rng.choice(list(changes))
    return changes[what]().encode(errors="surrogatepass"), what


# -- YAML -------------------------------------------------------------------------------------------------------------


def damage_yaml(tree: Any, rng: random.Random) -> tuple[bytes, str]:
    draw = rng.random()
    if draw < 0.4:
        changed, what = damage_value(tree, rng)
        return _yaml(changed).encode(errors="surrogatepass"), what
    if draw < 0.8:
        return _yaml_syntax(tree, rng)
    return damage_text(_yaml(tree), rng)


def _yaml(tree: Any) -> str:
    """Integers of thousands of digits are refused by Python's own printing of them; they become texts."""
    try:
        return yaml.safe_dump(tree, allow_unicode=True, default_flow_style=None)
    except (yaml.YAMLError, ValueError):
        return json.dumps(tree)


def _alias_bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def _yaml_syntax(tree: Any, rng: random.Random) -> tuple[bytes, str]:
    text, key = _yaml(tree), rng.choice(list(tree))
    scalars = ("!!binary 'x'", "!!int abc", "!!float x", "!!timestamp 9999-99-99", "2001-13-45",
    "!!python/object:os.system x", "!!set {a}",
               "!unknown x", "0o99", "1:99:99", "*nowhere", "&x", "~", ".nan", "-.inf", "1e999", "9" * 50_000, "<<",
               "0x", "1_000", "!!omap [a]",
               "!!bool maybe", "!!null x", "!!map [a]", "!!seq {a: b}", "2001-01-01", "2001-01-01T25:61:61Z", "-0b1",
               "%", "@x", "`x`", "|", ">")  # fmt: skip
    scalar = rng.choice(scalars)
    changes: dict[str, Callable[[], str]] = {
        "an alias bomb": lambda: _alias_bomb(rng.choice((6, 9, 30))) + text,
        "an alias bomb as a value": lambda: _alias_bomb(9) + f"{key}: *a8\n",
        "merge keys in a chain": lambda: "".join(
            f"m{i}: &m{i}\n  k{i}: {i}\n" + (f"  <<: *m{i - 1}\n" if i else "") for i in range(300)
        ),
        "a bomb of merge keys": lambda: (
            "m0: &m0 {a: b}\n"
            + "".join(f"m{i}: &m{i}\n  <<: [{', '.join([f'*m{i - 1}'] * 9)}]\n" for i in range(1, 12))
        ),
        "a list that holds itself": lambda: f"{text}\nloop: &l [*l]\n",
        "a value that holds itself": lambda: f"{key}: &l\n  a: *l\n",
        "deep lists": lambda: "[" * 5000 + "]" * 5000,
        "deep lists under a key": lambda: f"{key}: " + "[" * 5000 + "]" * 5000,
        "deep indents": lambda: "".join(" " * i + "a:\n" for i in range(1500)),
        "never closed": lambda: "{a: " * 200_000,
        f"{key} twice": lambda: f"{text}\n{key}: {rng.choice(('x', '1', '[]', '{}', '~'))}\n",
        f"{key}: {scalar[:40]}": lambda: f"{text}\n{key}: {scalar}\n",
        f"only {scalar[:40]}": lambda: scalar,
        "a key that is a list": lambda: f"{text}\n? [a, b]\n: c\n",
        "a key that is a map": lambda: f"{text}\n{{a: b}}: c\n",
        "keys of other types": lambda: f"{text}\n1: a\n2.5: b\ntrue: c\n~: d\n2001-01-01: e\n",
        "tabs": lambda: text.replace("  ", "\t"),
        "two documents": lambda: f"{text}\n---\n{text}",
        "an empty document": lambda: "---\n...\n",
        "a directive": lambda: "%YAML 9.9\n%TAG ! tag:x,2000:\n---\n" + text,
        "a comment only": lambda: "# nothing\n",
        "a plain word": lambda: "word",
        "a list": lambda: "- a\n- b: c\n",
        "a long line": lambda: f"{key}: " + "x" * 5_000_000,
        "100,000 keys": lambda: "".join(f"k{i}: {i}\n" for i in range(100_000)),
    }
    what = rng.choice(list(changes))
    return changes[what]().encode(errors="surrogatepass"), what


# -- any text ---------------------------------------------------------------------------------------------------------

_ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "a UTF-8 mark": lambda text: text.encode("utf-8-sig"),
    "Latin-1": lambda text: (text + "é").encode("latin-1", "replace"),
    "invalid UTF-8": lambda text: text.encode() + b"\xff\xfe\x80\n",
    "invalid UTF-8 inside": lambda text: (
        text.encode()[: len(text) // 2] + b"\xc3\x28\xed\xa0\x80" + text.encode()[len(text) // 2 :]
    ),
    "NULs between": lambda text: "\0".join(text[:50_000]).encode(),
    "NULs at the end": lambda text: text.encode() + bytes(10_000),
    "NULs at the start": lambda text: bytes(10_000) + text.encode(),
    "only NULs": lambda text: bytes(5_000_000),
    "EBCDIC": lambda text: text.encode("cp037", "replace"),
}


def damage_text(text: str, rng: random.Random) -> tuple[bytes, str]:
    if rng.random() < 0.5:
        what = rng.choice(list(_ENCODINGS))
        return _ENCODINGS[what](text), what
    return damage_bytes(text.encode(), rng)


_SHELL: dict[str, Callable[[str], str]] = {
    "an open quote": lambda text: text + " --x 'open",
    "an open double quote": lambda text: text + ' --x "open',
    "a backslash at the end": lambda text: text.rstrip() + " \\",
    "a variable of itself": lambda text: "A=$B\nB=$A\nexport A B\n" + text.replace("org/name", "$A"),
    "variables that grow": lambda text: (
        "".join(f"V{i + 1}=$V{i}$V{i}$V{i}$V{i}$V{i}$V{i}$V{i}$V{i}\n" for i in range(12))
        + "V0=xxxxxxxx\n"
        + text.rstrip()
        + " $V12\n"
    ),
    "variables that grow from the first": lambda text: (
        "V0=xxxxxxxx\n"
        + "".join(f"V{i + 1}=$V{i}$V{i}$V{i}$V{i}$V{i}$V{i}$V{i}$V{i}\n" for i in range(12))
        + text.rstrip()
        + " --x $V12\n"
    ),
    "a command in it": lambda text: text.rstrip() + " $(cat /dev/zero) `yes`\n",
    "a text of many lines": lambda text: "cat <<EOF\n" + text * 100,
    "100,000 flags": lambda text: text.rstrip() + " --flag value" * 100_000,
    "2,000,000 spaces": lambda text: text.rstrip() + " " * 2_000_000 + "--x\n",
    "an endless line": lambda text: text.rstrip() + " --x " + "y" * 5_000_000,
    "20,000 lines joined": lambda text: text.rstrip() + " \\\n" * 20_000 + "--x 1\n",
    "flags without values": lambda text: re.sub(r"(--?\S+) [^-\s]\S*", r"\1", text),
    "values doubled": lambda text: re.sub(r"(\d+)", r"\1\1\1\1\1\1\1\1", text),
    "numbers not finite": lambda text: re.sub(r"\d+", "nan", text),
    "negative numbers": lambda text: re.sub(r"\d+", "-1", text),
    "numbers of 5,000 digits": lambda text: re.sub(r"\d+", "9" * 5000, text, count=2),
    "the JSON is deep": lambda text: re.sub(r"'\{.*\}'", lambda _: "'" + "[" * 100_000 + "'", text),
    "the JSON is a list": lambda text: re.sub(r"'\{.*\}'", "'[1, 2]'", text),
    "the JSON is cut": lambda text: re.sub(r"'(\{.{9}).*\}'", r"'\1'", text),
    "the JSON has wrong types": lambda text: re.sub(
        r"'\{.*\}'", '\'{"method": 5, "model": [], "num_speculative_tokens": {}}\'', text
    ),
    "no commands": lambda text: "# nothing\n",
    "only flags": lambda text: "--model x --draft y\n",
    "equals signs": lambda text: re.sub(r"(--?\S+) ([^-\s]\S*)", r"\1=\2", text),
    "letters of other scripts": lambda text: text.replace("-", "–").replace("'", "’").replace('"', "“"),
}


def damage_script(text: str, rng: random.Random) -> tuple[bytes, str]:
    if rng.random() < 0.7:
        what = rng.choice(list(_SHELL))
        return _SHELL[what](text).encode(errors="surrogatepass"), what
    return damage_text(text, rng)


# -- logs -------------------------------------------------------------------------------------------------------------

_RUNS = (" ", "=", "a", "9", "(", "[", "{", "\\", '"', "<", "%", "1.", "0x", "ERROR ", "Error: ",
"Traceback (most recent call last):\n",
         '  File "x.py", line 1, in f\n', "\x1b[31m", "\r", "\t", "\x08", "é", "🎉", "accepted ", "1,",
         "tokens per second ", "a:b:")  # fmt: skip

_CONTROLS = "\x00\x01\x08\x0b\x1b\x7f\x85\u2028"


def _line(text: str, rng: random.Random) -> str:
    return rng.choice(text.splitlines() or [""])


_LOG: dict[str, Callable[[str, random.Random], str]] = {
    "an endless line": lambda text, rng: text + "y" * 20_000_000,
    "an endless line of its own words": lambda text, rng: (_line(text, rng) + " ")[:200] * 40_000,
    "an endless run": lambda text, rng: text + _line(text, rng) + rng.choice(_RUNS) * 300_000,
    "a run before each line": lambda text, rng: "\n".join(
        rng.choice(_RUNS) * 3000 + line for line in text.splitlines()
    ),
    "a run inside a line": lambda text, rng: text.replace(" ", rng.choice(_RUNS) * 20_000, 3),
    "many times": lambda text, rng: text * max(1, 8_000_000 // max(len(text), 1)),
    "500,000 empty lines": lambda text, rng: "\n" * 500_000 + text,
    "all on one line": lambda text, rng: text.replace("\n", " ") * 50,
    "carriage returns": lambda text, rng: text.replace("\n", "\r") * 20,
    "colours": lambda text, rng: re.sub(r"(\w+)", "\x1b[1;31m\\1\x1b[0m", text),
    "cursor movements": lambda text, rng: text.replace("\n", "\x1b[2K\x1b[1A\x08\x07\n"),
    "control characters": lambda text, rng: "".join(c + rng.choice(_CONTROLS) for c in text[:20_000]),
    "numbers of 5,000 digits": lambda text, rng: re.sub(r"\d+", "9" * 5000, text[:3000]),
    "numbers not finite": lambda text, rng: re.sub(
        r"\d+(\.\d+)?", rng.choice(("nan", "inf", "-inf", "1e999", "-1", "0", "0.0")), text
    ),
    "numbers of other scripts": lambda text, rng: re.sub(r"\d", rng.choice(("٣", "²", "Ⅷ", "１", "⑤")), text),
    "numbers with commas and points": lambda text, rng: re.sub(r"\d+", "1,,2.3.4", text),
    "lines shuffled": lambda text, rng: "\n".join(rng.sample(text.splitlines(), len(text.splitlines()))),
    "words shuffled": lambda text, rng: " ".join(rng.sample(text.split(), len(text.split()))),
    "two logs in turns": lambda text, rng: "\n".join(
        f"{a}\n{b}" for a, b in zip(text.splitlines(), reversed(text.splitlines()), strict=True)
    ),
    "braces and markup": lambda text, rng: re.sub(
        r"(\w+)", rng.choice((r"{\1}", r"[\1]", r"[/\1]", r"%(\1)s", r":\1:")), text
    ),
    "a traceback without an end": lambda text, rng: (
        text + "\nTraceback (most recent call last):\n" + '  File "a", line 1\n' * 100_000
    ),
    "brackets without an end": lambda text, rng: text + "\n" + "{'a': [" * 200_000,
    "no line ends at all, cut": lambda text, rng: text.replace("\n", "")[: rng.randrange(1, len(text) + 1)],
}


def damage_log(text: str, rng: random.Random) -> tuple[bytes, str]:
    if rng.random() < 0.75:
        what = rng.choice(list(_LOG))
        return _LOG[what](text, rng).encode(errors="surrogatepass"), what
    return damage_text(text, rng)
