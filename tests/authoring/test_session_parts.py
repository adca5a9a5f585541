"""What a session says of itself, and whose it is: without processes, for the mutants."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.authoring import disk
from overlay.authoring.session import (
    BASE,
    DOCUMENT,
    IMPORT,
    NOTES_OF_IMPORT,
    Session,
    SessionFile,
    SessionKind,
    Waiting,
    _session,
    abort,
    begin,
    features_of,
    finish,
    from_anywhere,
    read,
    render,
    revise,
    without,
)
from overlay.errors import OverlayError, UsageError
from overlay.package import package_named
from overlay.untrusted import parse_toml, sha256

A, B, NEW, GONE = "vllm/a.py", "vllm/v1/b.py", "vllm/new.py", "vllm/gone.py"
LAID = {A: b"a = 1\nb = 2\n", NEW: b"n = 0\n"}
BASES = {A: b"a = 1\n", GONE: b"g = 1\n"}
EDIT, PORT = SessionKind.EDIT, SessionKind.PORT


@pytest.fixture
def begun(tmp_path: Path) -> Session:
    own = Session(tmp_path / "fix@0.26.0", EDIT, {"fix": "f"}, "0.26.0", (tmp_path / "ours",))
    return begin(own, LAID, BASES)


def waits(feature: str, topic: str, path: str = A) -> Waiting:
    return Waiting(feature, f"{feature}-digest", topic, path, "0.25.0", "")


WAITING = (waits("fix", "10-a"), waits("other", "20-b"), waits("fix", "30-c", B))


def ported(folder: Path, waiting: tuple[Waiting, ...] = WAITING, **more: Any) -> Session:
    own = Session(folder, PORT, features_of(waiting), "0.26.0", (folder.parent,), waiting=waiting)
    own = replace(own, **more)
    return begin(own, {entry.name: b"text\n" for entry in waiting}, {})


def test_a_session_says_what_lies_in_it(begun: Session) -> None:
    assert (begun.folder / DOCUMENT).read_text() == (
        "# A session of `overlay edit`. Edit the files beside this one.\n"
        'schema = 1\nkind = "edit"\nrelease = "0.26.0"\n'
        f'patches = "{begun.folder.parent}/ours"\n\n[features]\n"fix" = "f"\n\n[below]\n\n[notes]\n'
        f'\n[files]\n"{A}" = {{ base = "{sha256(BASES[A])}", laid = "{sha256(LAID[A])}" }}\n'
        f'"{GONE}" = {{ base = "{sha256(BASES[GONE])}", laid = "" }}\n'
        f'"{NEW}" = {{ base = "", laid = "{sha256(LAID[NEW])}" }}\n'
    )
    assert disk.files_below(begun.folder) == [
        DOCUMENT,
        f"{BASE}/{A}",
        f"{BASE}/{GONE}",
        A,
        NEW,
    ]
    again = read(begun.folder, EDIT)
    assert again == begun
    assert (again.base(A), again.base(GONE), again.base(NEW)) == (BASES[A], BASES[GONE], None)
    assert (again.now(A), again.now(GONE), again.base(B)) == (LAID[A], None, None)
    (begun.folder / BASE / A).write_bytes(b"other\n")
    with pytest.raises(UsageError, match=r"\.base/vllm/a\.py: .* but it was edited"):
        again.base(A)
    (begun.folder / BASE / A).unlink()
    with pytest.raises(UsageError, match="but nothing is there"):
        again.base(A)
    abort(again)
    assert list(begun.folder.parent.iterdir()) == []


def test_what_was_edited_is_told(begun: Session) -> None:
    folder = begun.folder / "vllm"
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/a.pyc").touch()
    (folder / ".a.py.swp").touch()
    (folder / "v1").mkdir()
    (folder / "v1/.DS_Store").touch()
    assert begun.present() == ("vllm/.a.py.swp", A, NEW, "vllm/v1/.DS_Store")
    assert begun.untouched()
    for path, data in ((A, b""), (NEW, None), (GONE, b"g = 1\n"), (B, b"")):
        before = (begun.folder / path).read_bytes() if (begun.folder / path).exists() else None
        if data is None:
            (begun.folder / path).unlink()
        else:
            (begun.folder / path).write_bytes(data)
        assert not begun.untouched()
        if before is None:
            (begun.folder / path).unlink()
        else:
            (begun.folder / path).write_bytes(before)
        assert begun.untouched()
    for link in ("v1/link", "link.py"):
        (folder / link).symlink_to(begun.folder)
        with pytest.raises(UsageError, match=f"{link}: expected a plain file or folder, found a "):
            begun.present()
        (folder / link).unlink()
    (folder / "a.py").unlink()
    (folder / "a.py").mkdir()
    with pytest.raises(UsageError, match=r"vllm/a\.py: expected a plain file, found a folder"):
        begun.now(A)


def test_further_files_come_with_what_they_are_compared_with(begun: Session) -> None:
    (begun.folder / A).write_bytes(b"mine\n")
    grown = revise(begun, {B: b"b\n"}, {B: b"base\n", "vllm/other.py": b"o\n"})
    assert grown.files == {
        **begun.files,
        B: SessionFile(sha256(b"base\n"), sha256(b"b\n")),
        "vllm/other.py": SessionFile(sha256(b"o\n"), None),
    }
    assert read(begun.folder, EDIT) == grown
    assert (grown.now(A), grown.now(B), grown.base(B)) == (b"mine\n", b"b\n", b"base\n")
    again = "vllm/again.py"
    (begun.folder / again).write_bytes(b"again\n")
    assert revise(grown, {again: b"again\n"}, {}).files[again].base is None
    with pytest.raises(UsageError, match="expected no file there"):
        revise(begun, {again: b"else\n"}, {})


@pytest.mark.parametrize("path", ["a.py", "vllm/../a.py", "/vllm/a.py", "vllm/a.so"])
def test_no_session_has_a_file_elsewhere(tmp_path: Path, path: str) -> None:
    own = Session(tmp_path / "s", EDIT, {"fix": ""}, "0.26.0", (tmp_path,))
    for texts, base in (({path: b""}, {}), ({}, {path: b""})):
        with pytest.raises(ValueError, match=path):
            begin(own, texts, base)
    assert list(tmp_path.iterdir()) == []


def test_an_edit_that_ends_takes_its_own_files_with_it(begun: Session) -> None:
    (begun.folder / B).parent.mkdir(parents=True)
    (begun.folder / B).touch()
    (begun.folder / "notes.md").touch()
    assert not finish(begun)
    assert disk.files_below(begun.folder) == ["notes.md"]
    assert not (begun.folder / BASE).exists()
    assert not (begun.folder / "vllm").exists()


def test_an_edit_without_other_files_is_gone(begun: Session) -> None:
    (begun.folder / "vllm/.swp").touch()
    assert finish(begun)
    assert not begun.folder.exists()


def test_a_port_is_read_as_it_was_begun(tmp_path: Path) -> None:
    own = ported(tmp_path / "port")
    assert read(own.folder, PORT) == own
    assert own.files == {}
    assert dict(own.features) == {"fix": "fix-digest", "other": "other-digest"}
    assert own.places_import == ()
    other = package_named("vllm_ascend")
    named = replace(own, package=other, patches=(), waiting=())
    assert 'package = "vllm_ascend"\npatches = []\n' in render(named)
    assert _session(own.folder, PORT, parse_toml(render(named))) == replace(named, features={})
    assert "package" not in parse_toml(render(own))
    edit = replace(named, kind=EDIT, features={"fix": ""}, patches=(tmp_path,), files={})
    assert _session(own.folder, EDIT, parse_toml(render(edit))) == edit


def test_a_port_waits_for_one_feature_less(tmp_path: Path) -> None:
    own = ported(tmp_path / "port")
    rest = without(own, "fix")
    assert [entry.feature for entry in rest.waiting] == ["other"]
    assert dict(rest.features) == {"other": "other-digest"}
    assert read(own.folder, PORT) == rest
    assert disk.files_below(own.folder) == [DOCUMENT, "other/20-b/vllm/a.py"]
    with pytest.raises(UsageError, match=r"^fix: expected one of other, for which .*/port waits$"):
        without(rest, "fix")
    with pytest.raises(UsageError, match=r"did you mean `?other"):
        without(rest, "othr")
    done = without(rest, "other")
    assert (dict(done.features), done.waiting) == ({}, ())
    assert not own.folder.exists()
    with pytest.raises(UsageError, match="expected one of none"):
        without(done, "other")


def test_a_link_in_a_port_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    own = ported(tmp_path / "port")
    place = own.folder / WAITING[2].name
    place.unlink()
    place.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="found a symbolic link"):
        without(own, "fix")
    assert read(own.folder, PORT) == own
    assert own.now(WAITING[0].name) == b"text\n"


NOTES = {name: f"the {name}" for name in NOTES_OF_IMPORT}


def test_a_port_of_a_foreign_change_takes_the_change_with_it(tmp_path: Path) -> None:
    notes = {**NOTES, "patches": str(tmp_path / "ours")}
    own = ported(tmp_path / "port", WAITING[:1], notes=notes)
    for name in (f"{BASE}/vllm/a.py", f"{IMPORT}/fix/feature.toml", f"{IMPORT}/fix/files/a"):
        disk.write_below(own.folder, name, b"")
    assert read(own.folder, PORT) == own
    assert own.places_import == (str(tmp_path / "ours"),)
    (own.folder / "notes.md").touch()
    assert not finish(own)
    assert disk.files_below(own.folder) == ["notes.md"]


def test_only_a_port_of_one_foreign_change_has_notes(tmp_path: Path) -> None:
    lacking = ported(tmp_path / "lacking", WAITING[:1], notes={"origin": "x"})
    with pytest.raises(UsageError, match="its notes are origin for 1 features"):
        read(lacking.folder, PORT)
    several = ported(tmp_path / "several", notes=NOTES)
    with pytest.raises(UsageError, match="for 2 features"):
        read(several.folder, PORT)
    more = ported(tmp_path / "more", WAITING[:1], notes={**NOTES, "stuck": "x"})
    assert read(more.folder, PORT) == more
    assert replace(more, kind=EDIT).places_import == ()


#: Each value of a document as somebody may have written it.
ODD = st.sampled_from(
    ["", "x", "../x", "a\0", 1, 1.0, True, [], [1], ["a\0"], {}, {"a": 1}, {"a": "b"}, {"x": {}}]
)


@given(kind=st.sampled_from([EDIT, PORT]), data=st.data())
def test_a_document_is_read_or_damaged_and_nothing_else(kind: SessionKind, data: Any) -> None:
    folder = Path("x")
    own = Session(folder, kind, {"fix": "f"}, "0.26.0", (Path("/nowhere"),), waiting=WAITING[:1])
    own = replace(own, files={A: SessionFile("a", None)}, below={"b": "c"})
    table = parse_toml(render(own))
    place: Any = table
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else [0]))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    value = data.draw(ODD)
    place[key] = value
    try:
        made = _session(folder, kind, table)
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    assert all(isinstance(each, Path) for each in made.patches)
    assert _session(folder, kind, parse_toml(render(made))) == made


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("schema = 1", "schema = 2", "schema is 2, expected 1"),
        ("schema = 1", "schema = true", "schema is True, expected 1"),
        ('"0.26.0"', '"newest"', "'newest' is not a release"),
        ('"fix" = "f"', '"Fix" = "f"', "id: 'Fix' is not lower-case"),
        ('"fix" = "f"', '"fix" = "f"\n"other" = "o"', "it is of 2 features, expected one"),
        ('"fix" = "f"', "", "it is of 0 features, expected one"),
        (
            '"0.26.0"\npatches = "',
            f'"0.26.0"\npatches = "{"o" * 50}\\u0000',
            r"'o{40}' has a NUL byte",
        ),
        ('laid = ""', "laid = 1", "TypeError: expected text, found 1"),
        ('laid = ""', "late = 1", "KeyError: 'laid'"),
        ('"vllm/a.py"', '"vllm/../a.py"', "has an empty part"),
        ("[notes]\n", '[notes]\n"a" = "' + "b" * 500, "ValueError|Malformed"),
    ],
)
def test_what_is_damaged_is_said(begun: Session, old: str, new: str, why: str) -> None:
    place = begun.folder / DOCUMENT
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=f"session.toml: .*found a damaged one.*{why}") as caught:
        read(begun.folder, EDIT)
    assert len(str(caught.value)) < 700 + len(str(begun.folder))


def test_another_kind_of_session_is_named(begun: Session, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a session of `overlay port`, found one of"):
        read(begun.folder, PORT)
    with pytest.raises(UsageError, match=r"found no session\.toml there"):
        read(tmp_path / "nowhere", EDIT)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"found no session\.toml there"):
        read(tmp_path / "file", EDIT)


@pytest.mark.parametrize("place", ["", DOCUMENT, A, f"{BASE}/{A}", "../ours"])
def test_what_others_could_have_written_is_not_read(begun: Session, place: str) -> None:
    (begun.folder.parent / "ours").mkdir()
    assert read(begun.folder, EDIT).now(A) == LAID[A]
    assert begun.base(A) == BASES[A]
    (begun.folder / place).chmod(0o777)
    with pytest.raises(OverlayError, match="can be written by others"):
        read(begun.folder, EDIT).now(A), begun.base(A)
    if place in ("", "../ours"):
        return
    (begun.folder / place).chmod(0o644)
    assert read(begun.folder, EDIT).now(A) == LAID[A]


def test_a_group_of_the_user_alone_may_write(
    begun: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (begun.folder, begun.folder / DOCUMENT, begun.folder / A):
        place.chmod(0o775)
    for alone in (True, False):
        monkeypatch.setattr("overlay.untrusted._private_group", lambda _, alone=alone: alone)
        if alone:
            assert read(begun.folder, EDIT).now(A) == LAID[A]
    with pytest.raises(OverlayError, match="can be written by others"):
        read(begun.folder, EDIT)


def test_no_session_is_begun_for_patches_of_others_or_where_something_is(
    begun: Session, tmp_path: Path
) -> None:
    (tmp_path / "ours").mkdir(mode=0o777)
    (tmp_path / "ours").chmod(0o777)
    other = replace(begun, folder=tmp_path / "other")
    with pytest.raises(OverlayError, match="can be written by others"):
        begin(other, LAID, BASES)
    assert not other.folder.exists()
    (tmp_path / "ours").chmod(0o755)
    begin(other, LAID, BASES)
    with pytest.raises(UsageError, match=r"other: expected nothing there, .*\(`overlay edit` ends"):
        begin(other, LAID, BASES)


def test_a_folder_is_found_from_inside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "session/vllm"
    inner.mkdir(parents=True)
    assert from_anywhere(tmp_path / "session") == tmp_path / "session"
    monkeypatch.chdir(inner)
    assert from_anywhere(Path("..")) == Path(os.path.realpath(tmp_path / "session"))
    assert from_anywhere(Path()) == Path(os.path.realpath(inner))
    monkeypatch.chdir(tmp_path)
    assert from_anywhere(Path("session")) == Path("session")
