"""`settle`: what is loaded is left out of later garbage collections, and is still freed when it is no longer used."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from slipstream.loading import freeze_loaded


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_is_left_out_of_later_collections() -> None:
    gc.unfreeze()
    freeze_loaded()
    assert gc.get_freeze_count() > 0
    assert len(gc.get_objects()) < gc.get_freeze_count()


def test_what_was_left_out_and_dropped_is_freed_the_next_time() -> None:
    model = Cycle()
    seen = weakref.ref(model)
    freeze_loaded()
    del model
    gc.collect()
    assert seen() is not None
    freeze_loaded()
    assert seen() is None
