"""Cores and memory of this process, a container's limits included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream import host


def test_this_machine():
    assert 1 <= host.physical_cores() <= host.cores() == len(os.sched_getaffinity(0))
    assert 0 < host.free_memory() <= host.total_memory()


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    return tmp_path


def test_a_container_s_limit_counts_where_it_is_lower(container):
    (container / "memory.max").write_text(f"{1 << 30}\n")
    (container / "memory.current").write_text(f"{300 << 20}\n")
    assert (host.total_memory(), host.free_memory()) == (1 << 30, (1024 - 300) << 20)
    (container / "memory.stat").write_text(f"anon 5\ninactive_file {200 << 20}\n")
    assert host.free_memory() == (1024 - 100) << 20  # files that are only cached can go


@pytest.mark.parametrize("limit", ["max", str(1 << 60)])
def test_no_limit_is_the_machine_s_own(container, limit):
    free = host.free_memory()
    (container / "memory.max").write_text(f"{limit}\n")
    assert host.free_memory() == pytest.approx(free, rel=0.2)
    assert host.total_memory() > 1 << 30
