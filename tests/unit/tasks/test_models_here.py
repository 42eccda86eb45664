"""list, show and rm on stores made here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import tiny_gguf
from slipstream.cli import main
from slipstream.cli import options as cli_options
from slipstream.errors import ModelNotFoundError, SlipstreamError, UsageError
from slipstream.findings import BlockedError
from slipstream.tasks.models_here import list_models, plan_removal, show_model
from unit.models import model_files

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def hub(own_stores: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub cache among empty stores."""
    monkeypatch.chdir(own_stores)
    return own_stores / "hub"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "models" / "x.gguf", tiny_gguf.vocabulary(300, {}))


@pytest.fixture
def builtin(tmp_path: Path, model: Path) -> Path:
    """A file in the built-in model's place, with the record of its hash."""
    path = tmp_path / "cache" / "models" / "smollm2-135m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(model.read_bytes())
    path.with_name(".smollm2-135m.checked").write_text("{}")
    return path


def put(hub: Path, files: dict[str, bytes], commit: str = OLD, branch: str = "main") -> Path:
    """A snapshot of org/name with these files; returns the repository's folder."""
    source = hub.parent / "source" / commit
    source.mkdir(parents=True)
    for name, data in files.items():
        (source / name).write_bytes(data)
    tiny_gguf.put_in_hub_cache(hub, "org/name", sorted(source.iterdir()), commit, branch)
    return hub / "models--org--name"


def contents(folder: Path) -> list[str]:
    """What the files below a folder hold, blobs and links alike."""
    return sorted(path.read_text() for path in folder.rglob("*") if path.is_file())


def remove(spec: str) -> int:
    planned = plan_removal(spec)
    planned.run()
    return planned.freed_bytes


# -- list and show


def test_the_list_has_every_store(hub: Path, model: Path, builtin: Path, tmp_path: Path) -> None:
    tiny_gguf.put_in_ollama(tmp_path / "ollama", "llama3.2", "3b", model)
    tiny_gguf.put_in_hub_cache(hub, "org/name", [model])
    listed = {entry.found.spec: entry for entry in list_models([model.parent])}
    assert {spec: entry.store for spec, entry in listed.items()} == {
        "smollm2-135m": "built-in",
        "ollama:llama3.2:3b": "ollama",
        "org/name:x.gguf": "hub",
        str(model): "path",
    }
    entry = listed["org/name:x.gguf"].to_dict()
    assert entry["disk_bytes"] == model.stat().st_size and entry["num_parameters"] > 0
    assert (entry["format"], entry["quantisation"], entry["architecture"]) == ("gguf", "GGUF F16", "llama")


def test_a_damaged_model_is_listed_with_its_size(model: Path) -> None:
    model.write_bytes(b"GGUF" + bytes(96))
    (entry,) = list_models([model.parent])
    assert entry.found.problem and entry.disk_bytes == 100 and entry.to_dict()["num_parameters"] is None


def test_a_hub_repository_without_an_organisation_is_named_by_its_path(hub: Path, model: Path) -> None:
    snapshot = tiny_gguf.put_in_hub_cache(hub, "gpt2", [model])
    (entry,) = list_models()
    assert entry.found.spec == str(snapshot / "x.gguf") and show_model(entry.found.spec).facts.num_layers == 2


def test_a_folder_to_search_has_to_be_there() -> None:
    assert list_models() == []
    with pytest.raises(UsageError, match="--search nowhere: the folder does not exist"):
        list_models([Path("nowhere")])


def test_show_says_what_the_files_say(hub: Path, tmp_path: Path) -> None:
    model_files.save_model(tmp_path / "folder", "Llama")
    tiny_gguf.put_in_hub_cache(hub, "org/name", sorted((tmp_path / "folder").iterdir()))
    details = show_model("org/name")
    facts = details.facts
    assert (facts.architecture, facts.num_layers, facts.num_heads, facts.num_kv_heads) == ("llama", 2, 4, 2)
    assert {file.name for file in details.files} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert details.disk_bytes == sum(file.stat().st_size for file in (tmp_path / "folder").iterdir())
    assert json.loads(json.dumps(details.to_dict()))["store"] == "hub"


def test_show_says_whether_there_is_a_chat_template(tmp_path: Path, model: Path) -> None:
    model_files.write_gguf(tmp_path / "with.gguf")
    for name in ("with", "without"):
        model_files.save_model(tmp_path / name, "Llama")
    for file in ("chat_template.jinja", "tokenizer_config.json"):
        (tmp_path / "without" / file).unlink(missing_ok=True)
    specs = ["with.gguf", "with", str(model), "without"]
    assert [show_model(spec).facts.has_chat_template for spec in specs] == [True, True, False, False]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "weights-empty"),
        (b"hello world\n" * 20, "weights-text"),
        (bytes(range(256)), "weights-damaged"),
        (1000, "weights-damaged"),
        (-1000, "weights-truncated"),
    ],
)
def test_show_says_what_is_wrong_beside_what_is_known(
    content: bytes | int,
    problem: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.write_bytes(model.read_bytes()[:content] if isinstance(content, int) else content)
    assert run(monkeypatch, "show", str(model)) == 1
    shown = capsys.readouterr()
    assert f"files\n  {cli_options.shown_bytes(model.stat().st_size):>9}  x.gguf" in shown.out
    assert f"slipstream: {problem}: {model}" in shown.err
    assert ("layers          2" in shown.out) == (problem == "weights-truncated")
    assert run(monkeypatch, "show", str(model), "--json") == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["id"] == problem


@pytest.mark.parametrize(("name", "what"), [("empty", "is empty"), ("dir.gguf", "is a folder")])
def test_show_says_what_is_at_a_place_without_a_model(name: str, what: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(BlockedError, match=what):
        show_model(str(tmp_path / name))
    with pytest.raises(BlockedError, match="not a regular file"):
        show_model(os.devnull)


@pytest.mark.parametrize("spec", ["smollm2-135m", "org/name", "org/name:x.gguf", "ollama:nothing", "./nowhere", "odd"])
def test_a_model_that_is_not_here_is_an_error_for_both(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        show_model(spec)
    assert not (tmp_path / "cache").exists()  # nothing was fetched
    with pytest.raises((ModelNotFoundError, UsageError)):
        plan_removal(spec)


def test_a_file_that_the_cached_repository_does_not_have(hub: Path) -> None:
    put(hub, {"x.gguf": b"x"})
    for action in (show_model, plan_removal):
        with pytest.raises(ModelNotFoundError, match=r"y\.gguf"):
            action("org/name:y.gguf")
    with pytest.raises(ModelNotFoundError, match="@other is not in the hub cache"):
        plan_removal("org/name@other")


# -- rm


def test_a_repository_goes_with_all_its_revisions(hub: Path) -> None:
    root = put(hub, {"config.json": b"{}", "model.safetensors": b"weights"})
    put(hub, {"config.json": b"{}", "model.safetensors": b"newer"}, NEW, "dev")
    (root / "blobs" / "rest.incomplete").write_bytes(b"half")
    tiny_gguf.put_in_hub_cache(hub, "org/name2", [hub.parent / "source" / OLD / "config.json"])
    planned = plan_removal("org/name")
    assert root.exists()  # planning deletes nothing
    planned.run()
    assert planned.freed_bytes == len(b"{}" + b"weights" + b"newer" + b"half") + 2 * 40  # two refs
    assert not root.exists() and len(list(hub.iterdir())) == 1


@pytest.mark.parametrize("revision", [OLD, "main"])
def test_a_blob_of_two_snapshots_survives_one(hub: Path, revision: str) -> None:
    root = put(hub, {"config.json": b"shared", "model.safetensors": b"old"})
    put(hub, {"config.json": b"shared", "model.safetensors": b"new"}, NEW, "dev")
    assert remove(f"org/name@{revision}") == len(b"old") + 40
    assert contents(root / "blobs") == ["new", "shared"] and contents(root / "refs") == [NEW]
    assert [path.name for path in (root / "snapshots").iterdir()] == [NEW]
    assert contents(root / "snapshots") == ["new", "shared"]
    remove(f"org/name@{NEW}")
    assert not root.exists()


def test_one_file_of_several_goes_with_all_its_parts(hub: Path) -> None:
    names = ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    root = put(hub, {names[0]: b"one", names[1]: b"two", "y.gguf": b"other"})
    assert remove(f"org/name:{names[0]}") == 6
    assert contents(root / "blobs") == contents(root / "snapshots") == ["other"]
    remove("org/name:y.gguf")
    assert not root.exists()


def test_a_cache_without_links_is_emptied_too(hub: Path) -> None:
    """As the hub library writes it where links can't be made."""
    root = put(hub, {"x.gguf": b"x", "y.gguf": b"yy"})
    for link in (root / "snapshots" / OLD).iterdir():
        data = link.read_bytes()
        link.unlink()
        link.write_bytes(data)
    for blob in (root / "blobs").iterdir():
        blob.unlink()
    assert remove("org/name:y.gguf") == 2 and contents(root / "snapshots") == ["x"]


@pytest.mark.parametrize("spec", ["org/name", "org/name:x.gguf", f"org/name@{OLD}"])
def test_what_links_point_to_elsewhere_stays(hub: Path, tmp_path: Path, spec: str) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    for file in (outside / "x.gguf", outside / "folder" / "inner", outside / "blob"):
        file.write_text("mine")
    root = put(hub, {"y.gguf": b"y", "z.gguf": b"z"}, NEW, "dev")
    put(hub, {"w.gguf": b"w"})
    snapshot = root / "snapshots" / OLD
    (snapshot / "x.gguf").symlink_to(outside / "x.gguf")
    (snapshot / "folder").symlink_to(outside / "folder")
    (root / "blobs" / "linked").symlink_to(outside / "blob")
    (snapshot / "linked.gguf").symlink_to(Path("..", "..", "blobs", "linked"))
    remove(spec)
    assert contents(outside) == ["mine"] * 3 and not os.path.lexists(snapshot / "x.gguf")


@pytest.mark.parametrize("folder", ["blobs", "snapshots", "refs"])
@pytest.mark.parametrize("spec", ["org/name", "org/name:x.gguf", f"org/name@{OLD}"])
def test_folders_that_are_links_are_not_followed(hub: Path, tmp_path: Path, folder: str, spec: str) -> None:
    root = put(hub, {"x.gguf": b"x", "y.gguf": b"y"})
    put(hub, {"z.gguf": b"z"}, NEW, "dev")
    (root / folder).rename(tmp_path / "outside")
    (root / folder).symlink_to(tmp_path / "outside")
    before = sorted((tmp_path / "outside").rglob("*"))
    try:
        remove(spec)
    except SlipstreamError as error:
        assert "link" in str(error) or "not in the hub cache" in str(error)
    assert sorted((tmp_path / "outside").rglob("*")) == before


def test_a_repository_that_is_a_link_is_refused(hub: Path, tmp_path: Path) -> None:
    root = put(hub, {"x.gguf": b"x"})
    root.rename(tmp_path / "outside")
    root.symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="is a link"):
        plan_removal("org/name")


@pytest.mark.parametrize(
    "spec", ["org/name@../../../outside", "org/name:../../../../outside/x.gguf", "org/..", "org/."]
)
def test_names_that_climb_out_of_the_cache_find_nothing(hub: Path, tmp_path: Path, spec: str) -> None:
    put(hub, {"x.gguf": b"x"})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.gguf").write_text("mine")
    with pytest.raises(ModelNotFoundError):
        plan_removal(spec)


def test_a_cache_that_is_a_link_itself_is_the_cache(hub: Path, tmp_path: Path) -> None:
    put(hub, {"x.gguf": b"x", "y.gguf": b"y"})
    hub.rename(tmp_path / "large-disk")
    hub.symlink_to(tmp_path / "large-disk")
    assert remove("org/name:x.gguf") == 1 and contents(hub / "models--org--name" / "blobs") == ["y"]


def test_the_built_in_copy_goes_and_nothing_beside_it(builtin: Path) -> None:
    other = builtin.with_name("other.gguf")
    other.write_text("mine")
    size = builtin.stat().st_size
    assert remove("smollm2-135m") == size
    assert not builtin.exists() and not builtin.with_name(".smollm2-135m.checked").exists() and other.exists()


def test_a_built_in_copy_that_is_a_link_goes_as_a_link(builtin: Path, model: Path) -> None:
    builtin.unlink()
    builtin.symlink_to(model)
    assert remove("smollm2-135m") == 0
    assert model.exists() and not builtin.is_symlink()


def test_what_belongs_to_others_is_refused(hub: Path, model: Path, tmp_path: Path) -> None:
    snapshot = tiny_gguf.put_in_hub_cache(hub, "org/name", [model])
    (tmp_path / "org" / "name").mkdir(parents=True)  # goes before the hub id of the same name
    for spec in (str(model), str(model.parent), str(snapshot), "org/name"):
        with pytest.raises(UsageError, match="removes only what Slipstream fetched"):
            plan_removal(spec)
    with pytest.raises(UsageError, match=r"ollama rm llama3\.2:3b"):
        plan_removal("ollama:llama3.2:3b")


def test_a_file_that_can_not_be_deleted_is_one_clear_error(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = put(hub, {"x.gguf": b"x"})

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SlipstreamError, match="can't be removed: Permission denied"):
        remove("org/name")
    assert root.exists()


# -- the commands


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["slipstream", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_rm_asks_on_a_terminal(hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = put(hub, {"x.gguf": b"x" * 2000})
    assert run(monkeypatch, "rm", "org/name") == 2
    assert "pass --yes" in capsys.readouterr().err and root.exists()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert run(monkeypatch, "rm", "org/name") == 1
    assert "nothing was removed" in capsys.readouterr().err and root.exists()
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    assert run(monkeypatch, "rm", "org/name") == 0
    assert capsys.readouterr().out == "removed org/name, freed 2.0 kB\n" and not root.exists()


def test_the_commands_print_json(
    hub: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_gguf.put_in_hub_cache(hub, "org/name", [model])
    for command in (["list"], ["show", "org/name:x.gguf"], ["rm", "org/name:x.gguf", "--yes"]):
        assert run(monkeypatch, *command, "--json") == 0
        assert json.loads(capsys.readouterr().out)["schema"] == f"slipstream.{command[0]}/1"
    assert run(monkeypatch, "list") == 0
    assert "No models were found" in capsys.readouterr().out


def test_the_commands_print_for_people(
    hub: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_gguf.put_in_hub_cache(hub, "org/name", [model])
    assert run(monkeypatch, "list") == 0
    assert "org/name:x.gguf" in (shown := capsys.readouterr().out) and "GGUF F16" in shown
    assert run(monkeypatch, "show", "org/name:x.gguf") == 0
    shown = capsys.readouterr().out
    assert "layers          2\n" in shown and "chat template   no\n" in shown and str(hub) in shown
