from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipstream.errors import UsageError
from slipstream.server.keys import ANONYMOUS, ApiKeys, read_keys
from slipstream.server.refusals import Refusal
from slipstream.server.settings import ServeOptions


def test_without_keys_everybody_is_the_same():
    assert ApiKeys(()).identify(None) == ApiKeys(()).identify("Bearer anything") == ANONYMOUS


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer ", "Bearer second-ke", "Basic second-key", "Bearer é"])
def test_a_wrong_key_is_refused(given):
    with pytest.raises(Refusal) as refusal:
        ApiKeys(["first-key", "second-key"]).identify(given)
    assert refusal.value.status == 401
    assert "second-ke" not in str(refusal.value)


def test_each_key_has_its_own_share_and_its_name_does_not_reveal_it():
    keys = ApiKeys(["first-key", "second-key"])
    assert [keys.identify(f"Bearer {key}") for key in ("first-key", "second-key")] == ["key1", "key2"]
    assert "first-key" not in repr(vars(keys))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_public_address_needs_a_key(host):
    with pytest.raises(UsageError, match="no API key"):
        read_keys(ServeOptions(host=host))
    assert not read_keys(ServeOptions(host=host, allow_anonymous=True))
    assert read_keys(ServeOptions(host=host, api_keys=("a-good-key",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.5"])
def test_this_machine_alone_needs_none(host):
    assert not read_keys(ServeOptions(host=host))


def test_keys_come_from_a_file_too(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("file-key-1\n\nfile-key-2\n")
    keys = read_keys(ServeOptions(api_keys=("given-key",), api_key_file=file))
    assert [keys.identify(f"Bearer {key}") for key in ("given-key", "file-key-1", "file-key-2")] == [
        "key1", "key2", "key3",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="can't read"):
        read_keys(ServeOptions(api_key_file=tmp_path / "missing"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "--api-key-file {} holds no API key"),
        (" \n\n", "--api-key-file {} holds no API key"),
        ("good-key-1\n\n  tiny\n", "line 3 of --api-key-file {} is too short"),
        ("good-key-1\nspaces in it\n", "line 2 of --api-key-file {} has odd characters"),
        ("schlüssel-1\n", "line 1 of --api-key-file {} has odd characters"),
    ],
)
def test_a_file_without_a_good_key_is_refused_by_its_line(tmp_path: Path, lines, message):
    file = tmp_path / "keys"
    file.write_text(lines, "utf-8")
    with pytest.raises(UsageError) as error:
        read_keys(ServeOptions(api_key_file=file))
    assert str(error.value).startswith(message.format(file))
    assert not any(line.strip() in str(error.value) for line in lines.splitlines() if line.strip())


@pytest.mark.parametrize("key", ["", "short", "good-key-2\x7f"])
def test_a_key_that_cant_be_used_is_refused_by_its_number(key):
    with pytest.raises(UsageError, match="key 2 of api_keys"):
        read_keys(ServeOptions(api_keys=("good-key-1", key)))


def test_the_keys_of_the_documentation_can_be_used():
    text = Path("docs/server.md").read_text("utf-8")
    keys = re.findall(r'SLIPSTREAM_API_KEY="(.*)"', text)[0].split()
    assert read_keys(ServeOptions(api_keys=tuple(keys)))
    assert {*re.findall(r'api_key="(.*?)"', text), *re.findall(r"OPENAI_API_KEY=(.*?)`", text)} == {keys[0], "none"}
