"""ApiKeys: who may use the server."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.reading import MAX_CONFIG_BYTES, read_given_text
from slipstream.server.refusals import Refusal
from slipstream.server.settings import ServeOptions

ANONYMOUS = "anonymous"
_MIN_CHARS = 8
_VISIBLE_ASCII = re.compile("[!-~]+")


class ApiKeys:
    """Only hashes are kept. A key is compared with all of them, each in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def identify(self, authorization: str | None) -> str:
        """A name for the key's share of the server, which does not reveal the key. Raises Refusal 401."""
        if not self._hashes:
            return ANONYMOUS
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._hashes]
        if scheme.lower() != "bearer" or not any(matches):
            message = "the API key is missing or wrong: send the header Authorization: Bearer KEY"
            raise Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return f"key{matches.index(True) + 1}"


def check_keys(keys: Mapping[str, str], source: str) -> None:
    """`keys` by their places in the source. Raises UsageError if there is none, or one that can't be used."""
    expected = f"an API key has {_MIN_CHARS} or more visible ASCII characters, without spaces"
    if not keys:
        raise UsageError(f"{source} holds no API key; {expected}")
    for place, key in keys.items():
        if len(key) < _MIN_CHARS:
            raise UsageError(f"{place} of {source} is too short; {expected}")
        if not _VISIBLE_ASCII.fullmatch(key):
            raise UsageError(f"{place} of {source} has odd characters; {expected}")


def numbered(keys: Iterable[str]) -> dict[str, str]:
    return {f"key {number}": key for number, key in enumerate(keys, 1)}


def read_keys(options: ServeOptions) -> ApiKeys:
    """The keys of the options and their file. Raises UsageError, also for a public address without a key."""
    keys = list(options.api_keys)
    if keys:
        check_keys(numbered(keys), "api_keys")
    if options.api_key_file is not None:
        keys += _keys_of_file(options.api_key_file)
    if options.is_public and not keys and not options.allow_anonymous:
        raise UsageError(
            f"--host {options.host} lets other machines connect, and there is no API key: set SLIPSTREAM_API_KEY or "
            "--api-key-file, or add --allow-anonymous if everybody may use it"
        )
    return ApiKeys(keys)


def _keys_of_file(path: Path) -> list[str]:
    """One a line; lines may be empty."""
    try:
        lines = read_given_text(path, MAX_CONFIG_BYTES).splitlines()
    except OSError as error:
        raise UsageError(f"can't read --api-key-file {path}: {error.strerror or error}") from error
    keys = {f"line {number}": line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    check_keys(keys, f"--api-key-file {path}")
    return list(keys.values())
