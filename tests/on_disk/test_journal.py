"""The journal: read as it was written, and no other document is one."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import LedgerError, TransactionError
from overlay.on_disk import files, journal, ledger
from overlay.on_disk.journal import Journal, Step
from overlay.package import VLLM, Package, package_named

ASCEND = package_named("vllm_ascend")
A, B = "a" * 64, "b" * 64

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=15)
shas = st.binary(min_size=32, max_size=32).map(bytes.hex)
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
hashes = st.tuples(shas | st.none(), shas | st.none()).filter(lambda pair: pair[0] != pair[1])


@st.composite
def journals(draw: st.DrawFn, package: Package) -> Journal:
    """A journal as a transaction writes it."""
    modules = st.lists(names, min_size=1, max_size=3).map(
        lambda parts: f"{package.name}/{'/'.join(parts)}.py"
    )
    own = [package.ledger_path, package.ignore_path, f"{package.pristine_folder}/{A}"]
    paths = draw(st.lists(modules | st.sampled_from(own), max_size=4, unique=True))
    if draw(st.booleans()):
        paths.append("vllm-0.26.0.dist-info/RECORD")
    folders = st.lists(
        modules.map(lambda path: path.removesuffix(".py")) | st.just(package.pristine_folder),
        max_size=2,
    ).map(tuple)
    return Journal(
        draw(st.sampled_from(journal.ACTIONS)),
        draw(texts),
        tuple(Step(path, *draw(hashes)) for path in paths),
        draw(folders),
        draw(folders),
    )


@pytest.mark.parametrize("package", [VLLM, ASCEND])
def test_it_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, package: Package
) -> None:
    @settings(deadline=None, max_examples=40)
    @given(journals(package))
    def law(written: Journal) -> None:
        root = tmp_path_factory.mktemp("root")
        assert not journal.exists(root, package)
        assert not journal.pending(root, package)
        journal.write(root, written, None, package)
        assert journal.read(root, package) == written
        assert journal.exists(root, package)
        assert journal.pending(root, package)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "shared", _no_lock)
            with journal.reading(root, package=package) as begun:
                assert begun == written
        journal.remove(root, package)
        assert [*root.iterdir()] == []

    law()


class _no_lock:  # noqa: N801 - takes the place of a function
    def __init__(self, *arguments: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def document(**changes: Any) -> dict[str, Any]:
    """A journal's document with changes; ``None`` takes a key away."""
    known: dict[str, Any] = {
        "schema": 1,
        "action": "apply",
        "overlay": "0.1.0",
        "steps": [{"path": "vllm/a.py", "before": A, "after": B}],
        "made": ["vllm/new"],
        "dropped": [],
    }
    known.update(changes)
    return {key: value for key, value in known.items() if value is not None}


def step(path: object = "vllm/a.py", before: object = A, after: object = B) -> dict[str, Any]:
    return {"path": path, "before": before, "after": after}


def put(root: Path, text: str) -> Path:
    path = root / VLLM.journal_path
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a newer schema": (document(schema=3), "schema is 3 of vllm-overlay 0.1.0, expected 1 or 2"),
    "schema 0": (document(schema=0, overlay="9.9"), "schema is 0 of vllm-overlay 9.9"),
    "schema true": (document(schema=True), "schema is True"),
    "no schema": (document(schema=None), "KeyError: 'schema'"),
    "no overlay": (document(schema=7, overlay=None), "schema is 7 of vllm-overlay None"),
    "another action": (document(action="prune"), "action is 'prune', expected apply or revert"),
    "a path twice": (document(steps=[step(), step(after=None)]), "it lists a path twice"),
    "two RECORDs": (
        document(steps=[step("a-1.dist-info/RECORD"), step("b-1.dist-info/RECORD")]),
        "it lists more than one RECORD",
    ),
    "a foreign file": (document(steps=[step("other/a.py")]), "a transaction could not have"),
    "a file above": (document(steps=[step("../a.py")]), "'../a.py'"),
    "a path that is a number": (document(steps=[step(5)]), "5"),
    "a step of nothing": (document(steps=[step(after=A)]), "the step of 'vllm/a.py' changes not"),
    "a step from none to none": (document(steps=[step(before=None, after=None)]), "changes not"),
    "a hash that is none": (document(steps=[step(before="0")]), "'0'"),
    "another hash that is none": (document(steps=[step(after=7)]), "7"),
    "a made folder elsewhere": (document(made=["etc"]), "could not have made or removed it"),
    "a dropped folder elsewhere": (document(dropped=["etc"]), "could not have made or removed it"),
    "a list": ([], "TypeError"),  # type: ignore[dict-item] - no document at all
}


@pytest.mark.parametrize("case", WRONG)
def test_no_other_document_is_one(tmp_path: Path, case: str) -> None:
    wrong, problem = WRONG[case]
    path = put(tmp_path, json.dumps(wrong))
    with pytest.raises(LedgerError) as caught:
        journal.read(tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be read (")
    assert problem in said
    assert said.endswith(f"or reinstall vLLM and remove the folder {path.parent}")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("{", "JSON"),
        ("[" * 200_000, "ValueError"),
        (" " * (journal.MAX_STATE_BYTES + 1), f"at most {journal.MAX_STATE_BYTES}"),
    ],
)
def test_no_other_bytes_are_one(tmp_path: Path, wrong: str, problem: str) -> None:
    put(tmp_path, wrong)
    with pytest.raises(LedgerError, match=problem):
        journal.read(tmp_path)


@pytest.mark.parametrize("partners", [[{"root": "..", "package": "vllm_ascend"}], [{}], None])
def test_of_a_former_transaction_over_several_its_own_part_is_read(
    tmp_path: Path, partners: object
) -> None:
    put(tmp_path, json.dumps(document(schema=2, id="t1", partners=partners)))
    former = journal.read(tmp_path)
    put(tmp_path, json.dumps(document()))
    assert former == journal.read(tmp_path)


def test_the_staged_files_lie_beside_the_file() -> None:
    assert Step("vllm/v1/a.py", A, B).new == "vllm/v1/.a.py.overlay-new"
    assert Step("vllm/v1/a.py", A, B).old == "vllm/v1/.a.py.overlay-old"
    assert Step("RECORD", A, B).new == ".RECORD.overlay-new"


def test_it_is_private_and_its_bytes_end_with_a_newline(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        journal.write(tmp_path, Journal("revert", "0.1.0", ()), None)
    finally:
        os.umask(mask)
    path = tmp_path / VLLM.journal_path
    assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0
    assert path.read_bytes().endswith(b"}\n")
    assert not (tmp_path / journal.draft_path(VLLM)).exists()


def _draft(root: Path) -> None:
    (root / VLLM.state_folder).mkdir()
    (root / journal.draft_path(VLLM)).write_text("{")


def _empty(root: Path) -> None:
    (root / VLLM.state_folder).mkdir()


def _draft_beside_a_ledger(root: Path) -> None:
    _draft(root)
    (root / VLLM.ledger_path).write_text("{}")


@pytest.mark.parametrize("left", [_draft, _empty, _draft_beside_a_ledger])
def test_leftovers_are_pending_and_swept(tmp_path: Path, left: Callable[[Path], None]) -> None:
    left(tmp_path)
    ledger = (tmp_path / VLLM.ledger_path).exists()
    assert journal.pending(tmp_path)
    assert not journal.exists(tmp_path)
    journal.sweep(tmp_path)
    assert not journal.pending(tmp_path)
    assert (tmp_path / VLLM.state_folder).exists() == ledger


def test_a_ledger_alone_and_a_file_in_the_place_of_the_folder_leave_nothing_pending(
    tmp_path: Path,
) -> None:
    (tmp_path / VLLM.state_folder).write_text("")
    assert not journal.pending(tmp_path)
    (tmp_path / VLLM.state_folder).unlink()
    _draft_beside_a_ledger(tmp_path)
    (tmp_path / journal.draft_path(VLLM)).unlink()
    assert not journal.pending(tmp_path)
    journal.sweep(tmp_path)
    assert (tmp_path / VLLM.ledger_path).exists()


def test_a_package_whose_ledger_is_there_is_pending_by_its_own_journal(tmp_path: Path) -> None:
    for package in (VLLM, ASCEND):
        (tmp_path / package.state_folder).mkdir()
        (tmp_path / package.ledger_path).write_text("{}")
    journal.write(tmp_path, Journal("apply", "0.1.0", ()), None, ASCEND)
    assert [journal.pending(tmp_path, package) for package in (VLLM, ASCEND)] == [False, True]


def test_each_name_is_on_the_disk_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is synced after each change of a name in it, and all that is made has the owner."""
    calls: list[tuple[object, ...]] = []
    owner = files.Owner(os.getuid(), os.getgid())

    def recorded(name: str) -> None:
        function = getattr(files, name)

        def call(root: Path, *arguments: Any) -> Any:
            told = [each.owner if isinstance(each, files.Form) else each for each in arguments]
            calls.append((name, *(each for each in told if not isinstance(each, bytes))))
            return function(root, *arguments)

        monkeypatch.setattr(files, name, call)

    for name in ("make_folder", "create", "replace", "remove", "remove_folder", "sync_folder"):
        recorded(name)
    state, path, draft = ASCEND.state_folder, ASCEND.journal_path, journal.draft_path(ASCEND)
    journal.write(tmp_path, Journal("apply", "0.1.0", ()), owner, ASCEND)
    assert calls == [
        ("make_folder", state, owner),
        ("sync_folder", ""),
        ("create", draft, owner),
        ("replace", draft, path),
        ("sync_folder", state),
    ]
    calls.clear()
    journal.remove(tmp_path, ASCEND)
    assert calls == [
        ("remove", path),
        ("sync_folder", state),
        ("remove", draft),
        ("remove_folder", state),
        ("sync_folder", ""),
    ]


def test_an_error_without_a_number_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> bytes:
        raise OSError("a strange device")

    monkeypatch.setattr(journal, "read_below", broken)
    with pytest.raises(LedgerError, match="a strange device"):
        journal.read(tmp_path)


def test_a_reader_waits_for_a_writer_as_long_as_was_said(tmp_path: Path) -> None:
    for package in (VLLM, ASCEND):
        (tmp_path / package.name).mkdir()
        journal.write(tmp_path, Journal("apply", package.name, ()), None, package)
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    with journal.exclusive(tmp_path, 0.0, ASCEND):
        with pytest.raises(TransactionError), journal.reading(link, 0.0, ASCEND):
            raise AssertionError("a writer is at work there")
        with journal.reading(link, 0.0) as begun:
            assert begun is not None
            assert begun.overlay == "vllm"
            with pytest.raises(TransactionError), journal.exclusive(tmp_path, 0.0):
                raise AssertionError("somebody reads there")
    with journal.reading(link, 0.0, ASCEND) as begun:
        assert begun is not None
        assert begun.overlay == "vllm_ascend"


def test_a_linked_state_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / VLLM.state_folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TransactionError), journal.reading(tmp_path, 0.0):
        raise AssertionError("it is read")


def test_a_folder_that_may_not_be_looked_into_shows_no_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "journal.json"))

    monkeypatch.setattr(journal, "read_below", refuse)
    with pytest.raises(LedgerError, match="as the user that owns the place") as error:
        journal.read(tmp_path)
    assert "interrupted" not in str(error.value)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_limit_of_the_process_says_nothing_of_the_journal_or_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """There may be no journal: nothing could be opened to see."""
    (tmp_path / VLLM.state_folder).mkdir()
    (tmp_path / VLLM.ledger_path).write_text("{}")

    def open_(*names: object, **options: object) -> int:
        raise OSError(number, os.strerror(number), "somewhere")

    monkeypatch.setattr(os, "open", open_)
    readers = (journal.read, ledger.load, lambda root: ledger.copies(root)("0" * 64))
    for reader in readers:
        with pytest.raises(LedgerError) as caught:
            reader(tmp_path)
        assert str(caught.value).startswith(f"somewhere: {os.strerror(number)}; ")
        assert "remove the cause" not in str(caught.value)
        assert "interrupted" not in str(caught.value)
        assert "reinstall" not in str(caught.value)
