from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from slipstream.cli.serve import OWN
from slipstream.errors import UsageError
from slipstream.server.settings import ServeOptions


@pytest.mark.parametrize("name", ["request_limit", "idle_limit", "drain_limit", "max_stall"])
@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_limit_is_a_finite_number(name, seconds):
    with pytest.raises(UsageError, match=f"{name} is {seconds}"):
        ServeOptions(**{name: seconds})


def shown(default: object) -> str:
    words = {"()": "none", "None": "none", "False": "off"}
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return words.get(text, f"`{text}`")


def test_the_documentation_has_every_option_with_its_default():
    rows = re.findall(r"^\| `(--[a-z-]+)` \| (.*?) \|", Path("docs/server.md").read_text("utf-8"), re.MULTILINE)
    options = dataclasses.fields(ServeOptions)
    assert rows == [(OWN[option.name].flags.split()[0], shown(option.default)) for option in options]


@pytest.mark.parametrize(
    "origin", ["*", "https://example.org", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abcdef"]
)
def test_an_origin_may_use_the_api(origin):
    assert ServeOptions(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    ["", "foo", "example.org", "null", "https://example.org/", "https://Example.org", "https://a:b", "https://"],
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(UsageError, match="expected \\* or scheme"):
        ServeOptions(cors_origins=("https://example.org", origin))
