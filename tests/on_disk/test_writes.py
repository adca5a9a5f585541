"""The order of a transaction's writes, and what it refuses to order."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import overlay
from overlay.errors import TransactionError
from overlay.on_disk.changes import Intent, assemble
from overlay.on_disk.files import Site
from overlay.on_disk.journal import Step
from overlay.on_disk.ledger import Entry, Ledger
from overlay.results import Change
from tests.support import fake_vllm

RECORD = "vllm-0.26.0.dist-info/RECORD"
LEDGER = ".vllm-overlay/ledger.json"
IGNORE = ".vllm-overlay/.gitignore"
COPY = f".vllm-overlay/pristine/{'0' * 64}"
OLD, NEW = b"old", b"new"


def ledger(before: str | None = "0" * 64) -> Ledger:
    """A ledger of one file; ``before`` is the hash of its pristine copy."""
    return Ledger("1", "0.26.0", (), (Entry("vllm/a.py", before, "1" * 64, 0o644, 1),), (), None)


def ordered(
    site: Path, new: Ledger | None, *writes: tuple[str, bytes | None, bytes | None]
) -> Intent:
    """The transaction of some writes, which are given in the order that they must not have."""
    made = [Change(*write) for write in writes]
    return assemble("apply", Site(site), made[::-1], None, new, ["vllm/b.py", "vllm/a.py"], [])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return fake_vllm.site_packages(tmp_path / "site")


def test_an_apply_lists_files_first_and_writes_its_ledger_last(site: Path) -> None:
    wanted = [
        (RECORD, OLD, NEW),
        (IGNORE, None, NEW),
        (COPY, None, NEW),
        ("vllm/z/added.py", None, NEW),
        ("vllm/a.py", OLD, NEW),
        ("vllm/b.py", OLD, None),
        (LEDGER, OLD, NEW),
        (f"{COPY}1", OLD, None),
    ]
    intent = ordered(site, ledger(), *wanted)
    assert [write.path for write in intent.writes] == [path for path, *_ in wanted]
    assert intent.added_folders == (".vllm-overlay/pristine", "vllm/z")
    assert intent.changed == ("vllm/a.py", "vllm/b.py")


def test_a_revert_takes_its_rows_out_of_record_last(site: Path) -> None:
    wanted = [
        ("vllm/z.py", OLD, NEW),
        ("vllm/added.py", OLD, None),
        (LEDGER, OLD, None),
        (IGNORE, OLD, None),
        (COPY, OLD, None),
        (RECORD, OLD, NEW),
    ]
    intent = ordered(site, None, *wanted)
    assert [write.path for write in intent.writes] == [path for path, *_ in wanted]


def test_each_file_has_its_form_and_what_comes_back_its_mode(site: Path) -> None:
    (site / "vllm/__init__.py").chmod(0o640)
    writes = [
        Change("vllm/__init__.py", OLD, NEW),
        Change("vllm/gone.py", None, NEW),
        Change("vllm/z/new.py", None, NEW),
    ]
    modes = {"vllm/gone.py": 0o755}
    intent = assemble("apply", Site(site), writes, None, ledger(), [], [], modes)
    assert {path: form.mode for path, form in intent.forms.items()} == {
        "vllm/__init__.py": 0o640,
        "vllm/gone.py": 0o755,
        "vllm/z/new.py": 0o644,
    }


def test_the_folder_of_copies_goes_where_no_copy_is_needed(site: Path) -> None:
    folder = ".vllm-overlay/pristine"
    assert folder not in ordered(site, ledger()).dropped
    assert folder in ordered(site, ledger(before=None)).dropped
    assert folder in ordered(site, None).dropped


def test_two_writes_to_one_file_are_refused(site: Path) -> None:
    with pytest.raises(TransactionError, match=r"^vllm/a\.py: two files of the patches are one"):
        ordered(site, ledger(), *[("vllm/a.py", OLD, NEW)] * 2, ("vllm/b.py", OLD, NEW))


def test_what_is_left_alone_is_named(site: Path) -> None:
    intent = assemble("apply", Site(site), [], None, ledger(), [], ["vllm/c.py"])
    assert intent.warnings == (
        (
            "vllm/c.py is not what the overlay wrote, and belongs to the vLLM that was installed "
            "since: left as it is"
        ),
    )


def test_the_journal_names_every_write_by_its_hashes(site: Path) -> None:
    old, new = hashlib.sha256(OLD).hexdigest(), hashlib.sha256(NEW).hexdigest()
    intent = ordered(
        site, ledger(before=None), ("vllm/n/x.py", None, NEW), ("vllm/a.py", OLD, None)
    )
    journal = intent.journal()
    assert journal.steps == (Step("vllm/n/x.py", None, new), Step("vllm/a.py", old, None))
    assert (journal.action, journal.overlay) == ("apply", overlay.__version__)
    assert (journal.made, journal.dropped) == (("vllm/n",), (".vllm-overlay/pristine",))


def test_a_folder_that_is_needed_no_more_goes(site: Path) -> None:
    for name in ("gone", "kept"):
        (site / "vllm" / name).mkdir()
    before = ledger()._replace(folders=("vllm/gone", "vllm/kept"))
    after = ledger()._replace(folders=("vllm/kept",))
    assert assemble("apply", Site(site), [], before, after, [], []).dropped == ("vllm/gone",)
