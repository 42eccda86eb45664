from __future__ import annotations

import math

import pytest

from slipstream.errors import UsageError
from slipstream.server.settings import ServeOptions


@pytest.mark.parametrize("name", ["request_limit", "idle_limit", "drain_limit", "max_stall"])
@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_limit_is_a_finite_number(name, seconds):
    with pytest.raises(UsageError, match=f"{name} is {seconds}"):
        ServeOptions(**{name: seconds})


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
