from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.engines.arguments import CommandLine
from slipstream.engines.versions import numbers, package_version, program_version
from slipstream.engines.vllm.flags import FLAGS
from slipstream.errors import UsageError
from slipstream.tasks.engines_here import list_engines


def test_every_engine_is_listed_with_its_methods_and_what_they_are_like():
    listed = {engine.name: engine for engine in list_engines()}
    known = {"slipstream", "vllm", "llama-server", "sglang", "tabbyapi", "ollama", "transformers", "openai"}
    assert set(listed) == known
    assert [m.name for m in listed["llama-server"].methods if "model" in m.like] == ["draft-simple"]
    assert listed["transformers"].methods == () and listed["transformers"].checked_version is None


def test_one_engine_by_an_alias_and_none_by_another_name():
    assert [engine.name for engine in list_engines("llama.cpp")] == ["llama-server"]
    with pytest.raises(UsageError, match="unknown engine"):
        list_engines("lama")


def test_a_python_engines_version_is_that_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    info = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm-0.28.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.1\n")
    assert package_version(str(program), ("vllm",)) == "0.28.1"
    assert package_version("no-such-program", ("vllm",)) is None


def test_a_programs_version_is_what_it_prints(tmp_path: Path):
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho 'version: 4711 (abc)' >&2\n")
    program.chmod(0o755)
    assert program_version(str(program), r"version: (\S+)") == "4711"
    program.write_text("#!/bin/sh\nexit 3\n")
    assert program_version(str(program), r"version: (\S+)") is None


@pytest.mark.parametrize(("version", "has"), [(None, True), ("0.29.0", True), ("0.32.0+cpu", True), ("0.28.1", False)])
def test_a_flag_is_written_only_where_the_installed_version_has_it(version: str | None, has: bool):
    line = CommandLine(FLAGS, version)
    assert line.has("--per-request-spec-decode-metrics") is has
    if not has:
        with pytest.raises(UsageError, match=r"0\.28\.1 has no flag --per-request-spec-decode-metrics; 0\.29\.0 was"):
            line.add("--per-request-spec-decode-metrics", "summary")


def test_versions_are_compared_by_their_numbers():
    assert numbers("v0.10.2rc1") == (0, 10, 2) > numbers("0.9.9") and numbers("b1234") == ()
