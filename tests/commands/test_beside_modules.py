"""What was edited beside Python modules: a feature carries data files, and the rest is named."""

from __future__ import annotations

import os
from pathlib import Path

import jsonschema
import pytest

from tests.authoring.commands.test_new import SCHEMA, index, ours
from tests.support import fake_vllm, releases
from tests.support.cli import RUNNER, Cli, digest, edit

__all__ = ["index", "ours"]  # the fixtures

CONFIG, TEMPLATE, LIBRARY = "vllm/configs/h200.json", "vllm/chat/own.jinja", "vllm/_C.abi3.so"
OWN_CONFIG = "vllm/configs/own.json"
RELEASED = {
    OWN_CONFIG: b'{\n  "BLOCK": 64\n}\n',
    "vllm/py.typed": b"",
    "vllm/v1/gone.py": b"A = 1\n",
}
DATA = {CONFIG: b'{"BLOCK": 64}\n', LIBRARY: b"\x7fELF" + bytes(3 << 20)}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose RECORD lists data files, too; the releases have some of them."""
    files = releases.files
    monkeypatch.setattr(releases, "files", lambda name: files(name) | RELEASED)
    return fake_vllm.site_packages(tmp_path / "site", extra=RELEASED | DATA)


def config(site: Path) -> None:
    (site / CONFIG).write_bytes(b'{"BLOCK": 128}\n')


def template(site: Path) -> None:
    (site / TEMPLATE).parent.mkdir()
    (site / TEMPLATE).write_bytes(b"{{ x }}\n")
    (site / TEMPLATE).with_name("second.jinja").write_bytes(b"{{ y }}\n")


def beside_modules(site: Path) -> None:
    (site / "vllm/v1/own.jinja").write_bytes(b"{{ x }}\n")


def libraries(site: Path) -> None:
    (site / TEMPLATE).parent.mkdir()
    (site / TEMPLATE).with_name("one.so").write_bytes(b"1")
    (site / TEMPLATE).with_name("two.so").write_bytes(b"2")


def own_config(site: Path) -> None:
    (site / OWN_CONFIG).write_bytes(b'{\n  "BLOCK": 128\n}\n')


def module(site: Path) -> None:
    (site / "vllm/v1/gone.py").unlink()


def binary(site: Path) -> None:
    (site / OWN_CONFIG).write_bytes(bytes(range(200)))


def library(site: Path) -> None:
    with (site / LIBRARY).open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"1")


def marker(site: Path) -> None:
    (site / "vllm/py.typed").unlink()


def module_link(site: Path) -> None:
    (site / "vllm/v1/own.py").symlink_to("__init__.py")


def dangling_module_link(site: Path) -> None:
    (site / "vllm/v1/own.py").symlink_to("/nowhere")


def pipe(site: Path) -> None:
    os.mkfifo(site / "vllm/v1/own.py")


def link(site: Path) -> None:
    (site / CONFIG).unlink()
    (site / CONFIG).symlink_to("/etc/hostname")


def folder_link(site: Path) -> None:
    (site / "vllm/more").symlink_to(site)


CHANGES = {
    "a JSON file that the release at hand has not": (config, f"{CONFIG} (edited)"),
    "a folder of libraries": (libraries, "vllm/chat/ (added, 2 files)"),
    "a library": (library, f"{LIBRARY} (edited)"),
    "a link in a file's place": (link, f"{CONFIG} (a symbolic link)"),
    "a link with a module's name": (module_link, "vllm/v1/own.py (a symbolic link)"),
    "a link to nothing": (dangling_module_link, "vllm/v1/own.py (a symbolic link)"),
    "a pipe with a module's name": (pipe, "vllm/v1/own.py (a pipe)"),
    "a link to a folder": (folder_link, "vllm/more (a symbolic link)"),
}


CARRIED = {
    "a JSON file": own_config,
    "a folder of templates": template,
    "a template": beside_modules,
    "other bytes": binary,
}

#: Of what is missing nobody says that it is to go.
LOST = {"a marker that is gone": marker, "a module that is gone": module}


@pytest.mark.parametrize("name", [*CARRIED, *LOST])
@pytest.mark.parametrize("applied", [True, False])
def test_keep_as_keeps_data_files_and_puts_all_back(
    cli: Cli, site: Path, ours: Path, name: str, applied: bool
) -> None:
    pristine = digest(site)
    if applied:
        assert cli("apply", site).exit == 0
    (CARRIED | LOST)[name](site)
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    now = {**pristine, **digest(site)} if name in LOST else digest(site)
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0, result.out
    assert digest(site) == pristine
    ids = () if applied else ("--feature", "mine")
    assert cli("apply", site, *ids, "--patches", ours).exit == 0
    after = {path: data for path, data in digest(site).items() if path.startswith("vllm/")}
    assert after == {path: data for path, data in now.items() if path.startswith("vllm/")}
    assert cli("status", site, "--patches", ours).exit == 0
    assert cli("revert", site).exit == 0
    assert digest(site) == pristine


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("applied", [True, False])
def test_keep_as_names_it_and_does_not_say_that_all_is_back(
    cli: Cli, site: Path, ours: Path, name: str, applied: bool
) -> None:
    change, named = CHANGES[name]
    pristine = digest(site)
    if applied:
        assert cli("apply", site).exit == 0
    change(site)
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 1
    assert f"kept in {ours / 'mine'}" in result.last
    assert named in result.last
    assert "neither kept nor put back" in result.last
    assert digest(site)[RUNNER] == pristine[RUNNER]
    again = cli("revert", site, "--keep-as", "mine", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(again.json)
    assert again.exit == 1
    assert named in again.json["verdict"]


@pytest.mark.parametrize("name", CHANGES)
def test_where_nothing_else_was_edited_it_is_not_said_that_nothing_was(
    cli: Cli, site: Path, ours: Path, name: str
) -> None:
    change, named = CHANGES[name]
    change(site)
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 1
    assert named in result.last
    assert "nothing was edited" not in result.out
    made = cli("new", "mine", site, "--from-edits", "--patches", ours)
    assert made.exit == 1
    assert named in made.last
    assert not ours.exists()


@pytest.mark.parametrize("name", CHANGES)
def test_new_names_it_beside_the_feature(cli: Cli, site: Path, ours: Path, name: str) -> None:
    change, named = CHANGES[name]
    change(site)
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    result = cli("new", "mine", site, "--from-edits", "--patches", ours, "--json")
    jsonschema.Draft202012Validator(SCHEMA).validate(result.json)
    assert result.exit == 1
    assert result.json["code"] == "kept-in-part"
    assert named in result.json["verdict"]
    (other,) = result.json["new"]["beside"]
    assert f"{other['path']} ({other['what']})" == named
    assert (ours / "mine/feature.toml").exists()


def test_a_folder_that_loses_its_modules_is_named(cli: Cli, site: Path, ours: Path) -> None:
    (site / "vllm/own/deep").mkdir(parents=True)
    (site / "vllm/own/deep/a.py").write_text("A = 1\n")
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0
    assert "vllm/own/ and vllm/own/deep/, and no folder is removed" in result.out


def test_many_of_them_are_counted(cli: Cli, site: Path, ours: Path) -> None:
    for number in range(500):
        (site / f"vllm/v1/{number}.so").write_bytes(b"")
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 1
    assert "495 others" in result.last
    assert len(result.last) < 1000
    told = [line for line in result.out.splitlines() if line.startswith("! vllm/v1/")]
    assert len(told) == 200
    assert "! 300 others of that kind" in result.out
    named = cli("revert", site, "--keep-as", "mine", "--patches", ours, "--json").json["beside"]
    assert {each["path"] for each in named} == {f"vllm/v1/{number}.so" for number in range(500)}


def test_each_is_named_also_where_nothing_can_be_kept(cli: Cli, site: Path, ours: Path) -> None:
    libraries(site)
    for number in range(9):
        (site / f"vllm/v1/{number}.so").write_bytes(b"")
    (site / RUNNER).write_text("def\n")
    for command in (("revert", site, "--keep-as", "mine"), ("new", "mine", site, "--from-edits")):
        result = cli(*command, "--patches", ours)
        assert (result.exit, ours.exists()) == (1, False)
        assert f"! {RUNNER} is not Python" in result.out
        assert "! vllm/chat/ (added, 2 files)" in result.out
        assert all(f"! vllm/v1/{number}.so (added)" in result.out for number in range(9))
        assert "11 files could not be carried" in result.last


def test_a_module_that_is_a_link_now_is_edited_and_put_back(
    cli: Cli, site: Path, ours: Path
) -> None:
    pristine = digest(site)
    (site / RUNNER).unlink()
    (site / RUNNER).symlink_to("../spec_decode/proposer.py")
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0
    assert digest(site)[RUNNER] == pristine[RUNNER]


def test_bytecode_and_the_overlays_own_files_are_nobodys_edit(
    cli: Cli, site: Path, ours: Path
) -> None:
    assert cli("apply", site).exit == 0
    for place in (
        "vllm/__pycache__/a.cpython-311.pyc",
        "vllm/v1/__pycache__/b.pyc",
        "vllm/old.pyc",
    ):
        (site / place).parent.mkdir(exist_ok=True)
        (site / place).write_bytes(b"")
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    assert cli("revert", site, "--keep-as", "mine", "--patches", ours).exit == 0


def test_without_a_record_it_is_said_that_they_were_not_compared(
    cli: Cli, tmp_path: Path, ours: Path
) -> None:
    tree = fake_vllm.tree(tmp_path / "tree")
    config_file = tree / "vllm/own.json"
    config_file.write_bytes(b"{}\n")
    edit(tree, RUNNER, "return captured\n", "return captured + 1\n")
    result = cli("revert", tree, "--keep-as", "mine", "--patches", ours)
    assert "not Python were not compared" in result.out + result.err


def test_what_record_lists_without_a_hash_is_not_taken_for_an_addition(
    cli: Cli, site: Path, ours: Path
) -> None:
    pristine = digest(site)
    (record,) = site.glob("*.dist-info/RECORD")
    rows = [row.split(",")[0] + ",," for row in record.read_text().splitlines()]
    record.write_text("\n".join(rows) + "\n")
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    result = cli("revert", site, "--keep-as", "mine", "--patches", ours)
    assert result.exit == 0
    assert "1 file restored and 0 removed" in result.out
    assert "not Python were not compared" in result.out + result.err
    own = {path: data for path, data in digest(site).items() if not path.endswith("RECORD")}
    assert own == {path: data for path, data in pristine.items() if not path.endswith("RECORD")}


def test_a_shipped_feature_is_not_offered_to_be_replaced(cli: Cli, site: Path, ours: Path) -> None:
    edit(site, RUNNER, "return captured\n", "return captured + 1\n")
    refused = cli("revert", site, "--keep-as", "demo", "--patches", ours)
    assert refused.exit == 2
    assert "Choose another id" in refused.err
    assert "--update" not in refused.err
    assert "report this" not in refused.err
