"""Cores and memory of this process, a container's limits included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream import host
from slipstream.errors import UsageError


def test_this_machine():
    assert 1 <= host.physical_cores() <= host.cores() == len(os.sched_getaffinity(0))
    assert 0 < host.free_memory() <= host.total_memory()


def test_no_more_threads_than_the_machine_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cores", lambda: 2)
    for number in (None, 1, 8):
        host.check_threads("threads", number)
    with pytest.raises(UsageError, match="threads is 99999; this machine has 2 cores: expected 8 at most"):
        host.check_threads("threads", 99999)


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


def test_the_groups_above_count_too(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = container / "own"
    own.write_text("1:cpu:/\n0::/outer/inner\n")
    monkeypatch.setattr(host, "_OWN_GROUPS", own)
    (container / "outer" / "inner").mkdir(parents=True)
    (container / "outer" / "memory.max").write_text(f"{2 << 30}\n")
    (container / "outer" / "inner" / "memory.max").write_text("max\n")
    assert host.total_memory() == 2 << 30


def test_the_first_version_of_control_groups(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = container / "own"
    own.write_text("4:memory:/job\n0::/\n")
    monkeypatch.setattr(host, "_OWN_GROUPS", own)
    (container / "memory" / "job").mkdir(parents=True)
    (container / "memory" / "job" / "memory.limit_in_bytes").write_text(f"{1 << 30}\n")
    (container / "memory" / "job" / "memory.usage_in_bytes").write_text(f"{256 << 20}\n")
    assert host.free_memory() == (1024 - 256) << 20
