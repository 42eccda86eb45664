"""ApiKeys: who may use the server."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from slipstream.errors import UsageError
from slipstream.reading import MAX_CONFIG_BYTES, read_given_text
from slipstream.server.refusals import Refusal
from slipstream.server.settings import ServeOptions

ANONYMOUS = "anonymous"
_MIN_CHARS = 8


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


def read_keys(options: ServeOptions) -> ApiKeys:
    """The keys of the options and their file. Raises UsageError, also for a public address without a key."""
    keys = list(options.api_keys)
    if options.api_key_file is not None:
        try:
            keys += read_given_text(options.api_key_file, MAX_CONFIG_BYTES).split()
        except OSError as error:
            raise UsageError(f"can't read --api-key-file {options.api_key_file}: {error.strerror or error}") from error
    if any(len(key) < _MIN_CHARS or not key.isascii() or not key.isprintable() for key in keys):
        raise UsageError(
            f"an API key is too short or has odd characters; expected {_MIN_CHARS} ASCII characters or more"
        )
    if options.is_public and not keys and not options.allow_anonymous:
        raise UsageError(
            f"--host {options.host} lets other machines connect, and there is no API key: set SLIPSTREAM_API_KEY or "
            "--api-key-file, or add --allow-anonymous if everybody may use it"
        )
    return ApiKeys(keys)
