"""Texts on disk: token ids and who wrote them, in shards that are whole or not there."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream.errors import SlipstreamError, UsageError
from slipstream.train.settings import differences
from slipstream.writing import write_result

_RECIPE = "recipe.json"
_ARRAYS = ("tokens", "roles", "ends", "kind", "kinds", "num_conversations")


class Role(IntEnum):
    """Who wrote a token."""

    TEMPLATE = 0
    USER = 1
    ANSWER = 2


@dataclass(frozen=True, slots=True)
class Text:
    tokens: npt.NDArray[np.int32]  # [length]
    roles: npt.NDArray[np.uint8]  # [length] of Role
    kind: str

    @property
    def num_answer_tokens(self) -> int:
        return int((self.roles == Role.ANSWER).sum())

    def cut(self, length: int) -> Text:
        return self if len(self.tokens) <= length else Text(self.tokens[:length], self.roles[:length], self.kind)

    def digest(self) -> int:
        """A number that depends on the question alone; of a text without one on all tokens."""
        asked = self.tokens[self.roles == Role.USER]
        marked = asked if len(asked) else self.tokens
        return int.from_bytes(hashlib.blake2b(marked.tobytes(), digest_size=8).digest(), "little")

    def is_held_back(self, share: float) -> bool:
        """All texts with the same question are on the same side."""
        return self.digest() % 10_000 < share * 10_000


class Shards:
    """The shards of one recipe in a folder. A folder with another recipe's is refused."""

    def __init__(self, folder: Path, recipe: dict[str, Any]) -> None:
        self.folder = folder
        self._recipe = recipe
        self._refuse_others()

    def _refuse_others(self) -> None:
        place = self.folder / _RECIPE
        if not place.exists():
            if any(self.folder.glob("shard-*.npz")):
                raise UsageError(f"{self.folder} has shards but no {_RECIPE}: use another folder for the text")
        elif (found := _read_recipe(place)) != self._recipe:
            raise UsageError(
                f"{self.folder} has text of another recipe ({differences(self._recipe, found)}): use another --output "
                "or --texts, or the same options and files as before"
            )

    def count(self) -> int:
        """Shards that follow each other without a gap."""
        number = 0
        while self._path(number).exists():
            number += 1
        return number

    def write(self, number: int, texts: Sequence[Text], num_conversations: int) -> None:
        """`num_conversations`: how many the texts are what is kept of; the next shard begins after them. Raises
        UsageError where another run has begun with another recipe meanwhile."""
        if not number:
            self._refuse_others()
            write_result(self.folder / _RECIPE, json.dumps(self._recipe, indent=1))
        lengths = [len(text.tokens) for text in texts]
        kinds = sorted({text.kind for text in texts})
        file = io.BytesIO()
        np.savez(
            file,
            tokens=np.concatenate([np.empty(0, np.int32), *(text.tokens for text in texts)]),
            roles=np.concatenate([np.empty(0, np.uint8), *(text.roles for text in texts)]),
            ends=np.cumsum(lengths, dtype=np.int64),
            kind=np.array([kinds.index(text.kind) for text in texts], np.uint8),
            kinds=np.array(kinds or [""], dtype=np.str_),
            num_conversations=np.int64(num_conversations),
        )
        write_result(self._path(number), file.getvalue())

    def read(self, number: int) -> list[Text]:
        """Raises SlipstreamError for a damaged shard."""
        found = self._arrays(number)
        starts, ends, kinds = [0, *found["ends"]][:-1], found["ends"], found["kinds"][found["kind"]]
        return [
            Text(found["tokens"][a:b], found["roles"][a:b], str(kind))
            for a, b, kind in zip(starts, ends, kinds, strict=True)
        ]

    def num_conversations(self, number: int) -> int:
        """Raises SlipstreamError for a damaged shard."""
        return int(self._arrays(number)["num_conversations"])

    def _arrays(self, number: int) -> dict[str, npt.NDArray[Any]]:
        path = self._path(number)
        try:
            with np.load(path, allow_pickle=False) as shard:
                return {name: shard[name] for name in _ARRAYS}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise SlipstreamError(f"{path} can't be read ({error}): remove it, and it is made again") from error

    def all(self) -> Iterator[Text]:
        for number in range(self.count()):
            yield from self.read(number)

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05}.npz"


def _read_recipe(path: Path) -> dict[str, Any]:
    try:
        recipe = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SlipstreamError(f"{path} can't be read ({error}): use another folder for the text") from error
    return recipe if isinstance(recipe, dict) else {}
