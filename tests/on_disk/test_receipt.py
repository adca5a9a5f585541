"""Laws of receipts: one is used only where nothing at all differs from what it rests on."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlay
from overlay.on_disk import receipt

DECISION = {"way": "disk", "features": [["demo", "0" * 64, "applied", True, None, True]]}
NAMES = st.text("abc", min_size=1, max_size=3)
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=8), min_size=1, max_size=4)
VARIABLES = st.dictionaries(NAMES, NAMES, max_size=2)


class Case:
    """A cache, a package and a patches folder, in which a decision was taken and kept."""

    def __init__(self, folder: Path, package: dict[str, bytes], feature: dict[str, bytes]) -> None:
        self.cache = folder / "cache"
        self.package, self.patches = folder / "vllm", folder / "patches"
        for place, files in ((self.package, package), (self.patches / "demo", feature)):
            place.mkdir(parents=True, mode=0o755)
            for name, data in files.items():
                (place / f"{name}.py").write_bytes(data)
        self.files = [str(self.package / f"{name}.py") for name in package]
        self.missing = str(self.package / "missing.py")
        self.name = receipt.name_of([str(self.package)], {}, [str(self.patches)])

    def evidence(self) -> receipt.Evidence:
        return receipt.Evidence([self.missing, self.files[0]], [str(self.patches)])

    def settle(self) -> None:
        """Wait until a decision may rest on what was just written."""
        time.sleep(receipt._SETTLED / 1e9)

    def keep(self, evidence: receipt.Evidence | None = None) -> bool:
        inputs = receipt.hashes(self.files)
        return receipt.write(self.cache, self.name, DECISION, inputs, evidence or self.evidence())

    def read(self) -> object:
        return receipt.read(self.cache, self.name)

    @property
    def text(self) -> Path:
        (file,) = self.cache.iterdir()
        return file


def in_case(
    package: dict[str, bytes], feature: dict[str, bytes], law: Callable[[Case], None]
) -> None:
    with TemporaryDirectory() as folder:
        case = Case(Path(folder), package, feature)
        case.settle()
        assert case.keep()
        assert case.read() == DECISION
        law(case)


@given(CONTENTS, CONTENTS, st.data())
def test_a_changed_file_makes_it_void_until_it_is_as_before(
    package: dict[str, bytes], feature: dict[str, bytes], data: st.DataObject
) -> None:
    def law(case: Case) -> None:
        places = [*case.files, *map(str, case.patches.rglob("*.py")), case.missing]
        place = Path(data.draw(st.sampled_from(places)))
        before = place.read_bytes() if place.exists() else None
        after = data.draw(st.none() | st.binary(max_size=8), "contents")
        if after is None:
            place.unlink(missing_ok=True)
        else:
            place.write_bytes(after)
        assert (case.read() == DECISION) == (before == after)

    in_case(package, feature, law)


@given(CONTENTS, st.data())
def test_a_damaged_receipt_is_not_used(package: dict[str, bytes], data: st.DataObject) -> None:
    def law(case: Case) -> None:
        text = bytearray(case.text.read_bytes())
        at = data.draw(st.integers(0, len(text) - 1), "place")
        if data.draw(st.booleans(), "cut off"):
            del text[at:]
        else:
            text[at] ^= data.draw(st.integers(1, 255), "bits")
        case.text.write_bytes(text)
        assert case.read() is None

    in_case(package, {"a": b""}, law)


@given(st.binary(max_size=200))
def test_whatever_lies_there_reading_does_not_fail(text: bytes) -> None:
    def law(case: Case) -> None:
        for body in (text, receipt.sha256(text).encode() + b"\n" + text):
            case.text.write_bytes(body)
            assert case.read() is None

    in_case({"a": b""}, {"a": b""}, law)


@given(CONTENTS, st.data())
def test_a_change_while_it_is_decided_keeps_nothing(
    package: dict[str, bytes], data: st.DataObject
) -> None:
    """Also where the file is as before when the decision is kept: it may have been read between."""
    with TemporaryDirectory() as folder:
        case = Case(Path(folder), package, {"feature": b"1"})
        case.settle()
        evidence = case.evidence()
        place = data.draw(st.sampled_from([case.files[0], str(case.patches / "demo/feature.py")]))
        before = Path(place).read_bytes()
        Path(place).write_bytes(before + b"#")
        if data.draw(st.booleans(), "put back"):
            _put_back(place, before)
        assert not case.keep(evidence)
        assert not case.cache.exists()


def _put_back(place: str, data: bytes) -> None:
    """Write until the clock of the file system has moved on."""
    file = Path(place)
    began = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == began:
        file.write_bytes(data)


@given(VARIABLES, VARIABLES, st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3), NAMES, NAMES)
def test_a_name_belongs_to_one_question(
    variables: dict[str, str],
    others: dict[str, str],
    folders: list[str],
    further: list[str],
    root: str,
    elsewhere: str,
) -> None:
    same = (variables, folders, root) == (others, further, elsewhere)
    names = (
        receipt.name_of([root], variables, folders),
        receipt.name_of([elsewhere], others, further),
    )
    assert (names[0] == names[1]) == same


@pytest.mark.parametrize("what", ["version", "overlay", "interpreter", "optimized"])
def test_another_overlay_or_interpreter_asks_another_question(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = receipt.name_of(["/root"], {}, [])
    if what == "version":
        monkeypatch.setattr(overlay, "__version__", "0.0.1")
    elif what == "overlay":
        monkeypatch.setattr(overlay, "__file__", "/elsewhere/overlay/__init__.py")
    elif what == "interpreter":
        monkeypatch.setattr(sys, "hexversion", 0)
    else:
        monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=2))
    assert receipt.name_of(["/root"], {}, []) != before


@pytest.mark.parametrize("installed", [True, False])
def test_other_code_of_the_same_version_asks_another_question(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "overlay" / "planning" / "matching.py"
    record = tmp_path / f"vllm_overlay-{overlay.__version__}.dist-info" / "RECORD"
    for file in (module, record) if installed else (module,):
        file.parent.mkdir(parents=True)
        file.write_text("as it was")
    monkeypatch.setattr(overlay, "__file__", str(tmp_path / "overlay" / "__init__.py"))
    before = receipt.name_of(["/root"], {}, [])
    assert receipt.name_of(["/root"], {}, []) == before
    (record if installed else module).write_text("another build")
    assert receipt.name_of(["/root"], {}, []) != before


def test_a_cache_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    case = Case(tmp_path, {"a": b""}, {"a": b""})
    case.settle()
    assert case.keep()
    case.cache.chmod(0o777)
    assert case.read() is None
    case.cache.chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    shutil.copy(case.text, elsewhere)
    case.text.unlink()
    (case.cache / f"{case.name}.json").symlink_to(elsewhere)
    assert case.read() is None


def test_a_cache_keeps_a_bounded_number(tmp_path: Path) -> None:
    case = Case(tmp_path, {"a": b""}, {"a": b""})
    case.settle()
    for number in range(70):
        case.name = f"{number:064x}"
        assert case.keep()
    assert len(list(case.cache.iterdir())) == 64
    assert case.read() == DECISION
