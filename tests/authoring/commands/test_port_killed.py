"""Law 8: a port killed at any call leaves patches as before or as after, and no edit is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay._features.folder import load
from overlay.authoring import disk
from overlay.authoring.commands.port import port
from overlay.authoring.commands.port_session import abort, proceed
from overlay.commands.request import Request
from overlay.errors import OverlayError
from tests.support import port_world as world
from tests.support.faults import FaultyOs, failing, faulty, in_child, killing
from tests.support.releases import know

#: More calls than any of these commands makes.
MOST = 400


@pytest.fixture(autouse=True)
def releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Releases that are small and need no network; a working folder of the test's own."""
    know(monkeypatch, world.NAMES)
    monkeypatch.setattr("overlay.targets.resolution.resolve", lambda name, **_: world.Tree(name))
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    monkeypatch.setattr("overlay._features.sources.shipped_folder", lambda: shipped)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def at_every_call(
    tmp_path: Path, prepare: Callable[[Request], object], work: Callable[[Request], object]
) -> list[tuple[Path, Request]]:
    """A folder of patches for each call at which a child was killed while it did the work."""
    left = []
    for at in range(1, MOST):
        place = tmp_path / f"at-{at}"
        world.write(place / "ours")
        (place / "work").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place / "work")
            request = Request(patches=(str(place / "ours"),), features=("replay",))
            prepare(request)

            def child(at: int = at, request: Request = request) -> None:
                with faulty(FaultyOs(at, killing), disk):
                    work(request)

            status = in_child(child)
        left.append((place, request))
        if status == 0:
            return left
        assert status < 0
    raise AssertionError("it makes more calls than MOST")


def served(request: Request) -> tuple[str, int]:
    """The range of the feature, and how many variants it has."""
    (feature,) = load([Path(request.patches[0])])
    return str(feature.releases), len(feature.topics[0].variants)


def test_killed_while_it_writes_the_features_are_as_before_or_as_after(tmp_path: Path) -> None:
    left = at_every_call(
        tmp_path, lambda request: None, lambda request: port(request, "0.22.0", write=True)
    )
    assert len(left) > 10
    for place, request in left:
        assert served(request) in (("0.21.0..0.21.0", 1), ("0.21.0..0.22.0", 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place / "work")
            port(request, "0.22.0", write=True)
        assert served(request) == ("0.21.0..0.22.0", 1)


def test_killed_while_a_session_ends_it_can_be_continued(tmp_path: Path) -> None:
    loop = b"        for size in sizes:\n"
    wanted = world.IN_THE_WAY.replace(loop, loop + b"            self.first(size)\n")

    def prepare(request: Request) -> None:
        port(request, "0.24.0")
        Path("port-0.24.0/replay/10-runner", world.PATH).write_bytes(wanted)

    left = at_every_call(tmp_path, prepare, lambda request: proceed(request, None))
    assert len(left) > 10
    for place, request in left:
        before = served(request)
        assert before in (("0.21.0..0.21.0", 1), ("0.21.0..0.24.0", 2))
        session = place / "work/port-0.24.0"
        if session.exists():
            assert (session / "replay/10-runner" / world.PATH).read_bytes() == wanted
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place / "work")
                proceed(request, None)
        assert served(request) == ("0.21.0..0.24.0", 2)
        assert not session.exists()


def test_killed_while_a_session_begins_or_is_aborted_it_is_whole_or_gone(tmp_path: Path) -> None:
    def begin_and_abort(request: Request) -> None:
        port(request, "0.24.0")
        abort(None)

    for place, request in at_every_call(tmp_path, lambda request: None, begin_and_abort):
        assert served(request) == ("0.21.0..0.21.0", 1)
        session = place / "work/port-0.24.0"
        if session.exists():
            assert (session / "session.toml").is_file()
            assert b"<<<<<<<" in (session / "replay/10-runner" / world.PATH).read_bytes()


def two_folders(place: Path) -> Request:
    """Two folders of patches, with a feature each."""
    world.write(place / "ours")
    world.write(place / "theirs", id="other")
    return Request(patches=(str(place / "ours"), str(place / "theirs")))


def spans(request: Request) -> list[str]:
    """The range of each folder's feature."""
    return [str(load([Path(folder)])[0].releases) for folder in request.patches]


BEFORE, AFTER = "0.21.0..0.21.0", "0.21.0..0.22.0"


def test_killed_between_two_folders_the_same_command_goes_on(tmp_path: Path) -> None:
    between = 0
    for at in range(1, MOST, 3):  # every third call: each one of a folder is tried above
        request = two_folders(tmp_path / f"at-{at}")

        def child(at: int = at, request: Request = request) -> None:
            with faulty(FaultyOs(at, killing), disk):
                port(request, "0.22.0", write=True)

        status = in_child(child)
        assert spans(request) in ([BEFORE, BEFORE], [AFTER, BEFORE], [AFTER, AFTER])
        between += spans(request) == [AFTER, BEFORE]
        port(request, "0.22.0", write=True)
        assert spans(request) == [AFTER, AFTER]
        if status == 0:
            break
    assert between > 5


@pytest.mark.parametrize(
    ("then", "every"),
    [
        # Each call of one folder is met above, and after an abort less is to be seen.
        ("continue", 3),
        pytest.param("continue", 1, marks=pytest.mark.thorough),
        ("abort", 4),
    ],
)
def test_a_session_of_two_folders_killed_at_any_call_ends_well(
    tmp_path: Path, then: str, every: int
) -> None:
    """`--continue` carries out the rest and nothing twice; `--abort` leaves what is whole."""
    loop = b"        for size in sizes:\n"
    wanted = world.IN_THE_WAY.replace(loop, loop + b"            self.first(size)\n")
    reached = set[str]()
    for at in range(1, MOST, every):
        place = tmp_path / f"at-{at}"
        request = two_folders(place)
        (place / "work").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place / "work")
            port(request, "0.24.0")
            session = place / "work/port-0.24.0"
            files = [session / id_ / "10-runner" / world.PATH for id_ in ("replay", "other")]
            for file in files:
                file.write_bytes(wanted)

            def child(at: int = at, request: Request = request) -> None:
                with faulty(FaultyOs(at, killing), disk):
                    proceed(request, None)

            status = in_child(child)
            done = expect_whole(request)
            if session.exists():
                # No edit is lost before its feature is written.
                for file, ported in zip(files, done, strict=True):
                    assert ported or file.read_bytes() == wanted
                end(request, then)
            assert not session.exists()
            if then == "continue" or status == 0:
                assert expect_whole(request) == [True, True]
            else:
                assert expect_whole(request) == done
            reached.add(str(done))
        if status == 0:
            assert reached == {"[False, False]", "[True, False]", "[True, True]"}
            return
    raise AssertionError("it makes more calls than MOST")


def expect_whole(request: Request) -> list[bool]:
    """Whether each folder's feature serves the new release; it is as before or as after."""
    spanned = spans(request)
    assert set(spanned) <= {BEFORE, "0.21.0..0.24.0"}
    return [span != BEFORE for span in spanned]


def end(request: Request, then: str) -> None:
    """End a session that was killed."""
    if then == "continue":
        proceed(request, None)
    else:
        abort(None)


def test_a_full_disk_in_the_second_folder_names_the_first(tmp_path: Path) -> None:
    told = 0
    for at in range(1, MOST, 3):  # every third call: each one of a folder is tried above
        request = two_folders(tmp_path / f"at-{at}")
        system = FaultyOs(at, failing(errno.ENOSPC))
        error: Exception | None = None
        try:
            with faulty(system, disk):
                port(request, "0.22.0", write=True)
        except (OverlayError, OSError) as problem:
            error = problem
        if isinstance(error, OverlayError):
            told += 1
            assert f"before that: {request.patches[0]} (replay)" in str(error)
            assert f"not known to be written: {request.patches[1]} (other)" in str(error)
            assert "No space left" in str(error)
        elif error is not None:
            assert spans(request)[1] == BEFORE
        if system.count < at:
            break
        assert spans(request) in ([BEFORE, BEFORE], [AFTER, BEFORE], [AFTER, AFTER])
        port(request, "0.22.0", write=True)
        assert spans(request) == [AFTER, AFTER]
    assert told > 5
