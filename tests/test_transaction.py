"""Apply and revert on fake installations: what they leave, and what they refuse."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import LedgerError, RevertRefused, TransactionError
from overlay.model import Change, Plan
from overlay.transaction import commit, files, ledger
from overlay.transaction.recovery import recover
from tests.support import transactions
from tests.support.faults import FaultyOs, failing, faulty, in_child
from tests.support.transactions import (
    ADDED,
    ONE,
    PROPOSER,
    RUNNER,
    TWO,
    PatchSet,
    Site,
    snapshot,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture(params=["installed", "checkout"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return getattr(transactions, request.param)(tmp_path / "site")


@pytest.fixture
def installed(tmp_path: Path) -> Site:
    return transactions.installed(tmp_path / "site")


def stamps(root: Path) -> dict[str, int]:
    """The modification time of everything, in nanoseconds."""
    paths = [root, *root.rglob("*")]
    return {str(path): path.lstat().st_mtime_ns for path in paths}


# What they leave


def test_apply_writes_what_the_plan_says(site: Site) -> None:
    outcome = site.apply()
    assert outcome.wrote
    assert outcome.changed == (ADDED, PROPOSER, RUNNER)
    assert outcome.warnings == ()
    for change in ONE.plan(site.pristine).changes:
        assert (site.root / change.path).read_bytes() == change.after


def test_revert_leaves_nothing(site: Site) -> None:
    before = snapshot(site.root)
    site.apply()
    outcome = site.revert()
    assert outcome.changed == (ADDED, PROPOSER, RUNNER)
    assert snapshot(site.root) == before


def test_a_second_apply_writes_nothing(site: Site) -> None:
    site.apply()
    before = stamps(site.root)
    with faulty(FaultyOs()) as system:
        outcome = site.apply()
    assert system.names == []
    assert stamps(site.root) == before
    assert (outcome.changed, outcome.wrote) == ((), False)


def test_reverting_what_is_not_applied_writes_nothing(site: Site) -> None:
    before = stamps(site.root)
    with faulty(FaultyOs()) as system:
        outcome = site.revert()
    assert system.names == []
    assert stamps(site.root) == before
    assert (outcome.changed, outcome.wrote) == ((), False)


def test_another_version_is_applied_from_pristine(site: Site, tmp_path: Path) -> None:
    direct = site.copy(tmp_path / "direct")
    direct.apply(TWO)
    site.apply(ONE)
    outcome = site.apply(TWO)
    assert outcome.changed == tuple(
        sorted([ADDED, PROPOSER, RUNNER, "vllm/v1/other/loop.py", "vllm/v1/worker/__init__.py"])
    )
    assert snapshot(site.root) == snapshot(direct.root)


ACTIONS = {
    "one": lambda site: site.apply(ONE),
    "two": lambda site: site.apply(TWO),
    "nothing": lambda site: site.apply(PatchSet("3" * 64, {}, {})),
    "revert": lambda site: site.revert(),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1, max_size=6))
def test_only_the_last_action_counts(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    """Law: whatever was done before, the target is what the last action alone makes of it."""
    folder = tmp_path_factory.mktemp("law")
    with transactions.memory_folder(folder) as folder, faulty(FaultyOs()):
        start = transactions.installed(folder / "start")
        alone, after_all = start.copy(folder / "alone"), start.copy(folder / "all")
        ACTIONS[actions[-1]](alone)
        for action in actions:
            ACTIONS[action](after_all)
        assert snapshot(after_all.root) == snapshot(alone.root)


def test_a_checkout_does_not_see_our_folder_as_its_own(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    site.apply()
    assert (site.root / ".vllm-overlay/.gitignore").read_bytes() == b"*\n"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444])
def test_modes_are_kept(site: Site, mode: int) -> None:
    (site.root / PROPOSER).chmod(mode)
    before = snapshot(site.root)
    site.apply()
    assert stat.S_IMODE((site.root / PROPOSER).stat().st_mode) == mode
    site.revert()
    assert snapshot(site.root) == before


def test_others_may_read_what_is_added_whatever_the_umask(site: Site) -> None:
    old = os.umask(0o077)
    try:
        site.apply()
    finally:
        os.umask(old)
    for path in (ADDED, ledger.LEDGER_PATH):
        assert stat.S_IMODE((site.root / path).stat().st_mode) == 0o644
    for path in (
        "vllm/v1/draft",
        "vllm/v1/draft/parts",
        ledger.STATE_FOLDER,
        ledger.PRISTINE_FOLDER,
    ):
        assert stat.S_IMODE((site.root / path).stat().st_mode) == 0o755


@as_root
def test_root_leaves_the_owner_as_it_was(site: Site) -> None:
    for path in [site.root, *site.root.rglob("*")]:
        os.chown(path, 1234, 2345)
    site.apply()
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in [site.root, *site.root.rglob("*")]}
    assert owners == {(1234, 2345)}
    site.revert()
    owners = {(p.stat().st_uid, p.stat().st_gid) for p in [site.root, *site.root.rglob("*")]}
    assert owners == {(1234, 2345)}


def test_a_hard_link_is_broken_and_not_written_through(site: Site, tmp_path: Path) -> None:
    cache = tmp_path / "cache.py"
    os.link(site.root / PROPOSER, cache)
    site.apply()
    assert cache.read_bytes() == site.pristine[PROPOSER]
    assert cache.stat().st_nlink == 1
    site.revert()
    assert cache.read_bytes() == site.pristine[PROPOSER]


def test_stale_bytecode_goes_with_its_module(installed: Site) -> None:
    folder = (installed.root / PROPOSER).parent / "__pycache__"
    other = folder / "proposer_of_another.cpython-311.pyc"
    other.write_bytes(b"not ours")
    installed.apply()
    assert list(folder.iterdir()) == [other]
    other.unlink()
    (folder / "proposer.cpython-312.opt-2.pyc").write_bytes(b"stale")
    added = (installed.root / ADDED).parent / "__pycache__"
    added.mkdir()
    (added / "graphs.cpython-311.pyc").write_bytes(b"of the added module")
    installed.revert()
    assert not folder.exists()
    assert not added.parent.exists()


def test_python_runs_what_stands_even_where_it_trusts_bytecode(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    module = "v1/worker/plain.py"
    (site.root / "vllm" / module).write_text("VALUE = 'pristine'\n")
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiled, str(site.root / "vllm" / module)], check=True)

    def value() -> str:
        code = "import plain; print(plain.VALUE)"
        folder = (site.root / "vllm" / module).parent
        done = subprocess.run(
            [sys.executable, "-B", "-c", code],
            cwd=folder,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout.strip()

    assert value() == "pristine"
    pristine = {**site.pristine, f"vllm/{module}": b"VALUE = 'pristine'\n"}
    patches = PatchSet("4" * 64, {f"vllm/{module}": b"VALUE = 'patched'\n"}, {})
    replace(site, pristine=pristine).apply(patches)
    assert value() == "patched"


def test_a_folder_that_somebody_uses_stays(site: Site) -> None:
    site.apply()
    theirs = (site.root / ADDED).parent / "notes.txt"
    theirs.write_text("mine\n")
    site.revert()
    assert theirs.read_text() == "mine\n"
    assert not (site.root / ADDED).exists()
    assert not (site.root / ".vllm-overlay").exists()


def test_a_link_inside_the_target_is_followed(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    real = site.root / "vllm/v1/spec_decode/real.py"
    (site.root / PROPOSER).rename(real)
    (site.root / PROPOSER).symlink_to("real.py")
    before = snapshot(site.root)
    site.apply()
    assert (site.root / PROPOSER).is_symlink()
    assert real.read_bytes().endswith(b"PATCHED = 1\n")
    site.revert()
    assert snapshot(site.root) == before


def test_a_linked_root_is_the_root(installed: Site, tmp_path: Path) -> None:
    before = snapshot(installed.root)
    link = tmp_path / "link"
    link.symlink_to(installed.root)
    record = link / installed.record.relative_to(installed.root)
    replace(installed, root=link, record=record).apply()
    assert ADDED.encode() in installed.record.read_bytes()
    commit.revert(link)
    assert snapshot(installed.root) == before


def test_what_was_edited_before_us_comes_back_as_it_was(installed: Site) -> None:
    edited = installed.pristine[PROPOSER] + b"# by hand, before\n"
    (installed.root / PROPOSER).write_bytes(edited)
    before = snapshot(installed.root)
    replace(installed, pristine={**installed.pristine, PROPOSER: edited}).apply()
    installed.revert()
    assert snapshot(installed.root) == before


def test_a_rolled_back_apply_gives_back_the_very_files(installed: Site) -> None:
    """Not copies of them: hard links stay links, and nothing looks modified."""

    def identity(path: str) -> tuple[int, int]:
        status = (installed.root / path).stat()
        return status.st_ino, status.st_mtime_ns

    before = [identity(path) for path in (PROPOSER, RUNNER)]
    with faulty(FaultyOs()) as counting:
        installed.copy(installed.root.parent / "counted").apply()
    last = max(at for at, name in enumerate(counting.names, 1) if name == "replace")
    with faulty(FaultyOs(last, failing(errno.EIO))), pytest.raises(TransactionError):
        installed.apply()
    assert [identity(path) for path in (PROPOSER, RUNNER)] == before


def compiled(source: Path, mode: str) -> Path:
    """Compile a module; its bytecode."""
    command = [sys.executable, "-m", "compileall", "-q", "-f", "--invalidation-mode", mode]
    subprocess.run([*command, str(source)], check=True)
    return next((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


class NoUnlinkOfBytecode(FaultyOs):
    """A ``__pycache__`` that another user owns."""

    def unlink(self, path: Path) -> None:
        if str(path).endswith(".pyc"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        os.unlink(path)


@pytest.mark.parametrize("mode", ["timestamp", "checked-hash"])
def test_bytecode_that_python_checks_may_stay(site: Site, mode: str) -> None:
    bytecode = compiled(site.root / PROPOSER, mode)
    with faulty(NoUnlinkOfBytecode()):
        site.apply()
    assert bytecode.exists()
    assert not (site.root / ".vllm-overlay/journal.json").exists()


def test_bytecode_that_python_believes_may_not(site: Site) -> None:
    bytecode = compiled(site.root / PROPOSER, "unchecked-hash")
    before = snapshot(site.root)
    with faulty(NoUnlinkOfBytecode()), pytest.raises(TransactionError, match=r"\.pyc"):
        site.apply()
    assert bytecode.exists()
    assert snapshot(site.root) == before


def test_bytecode_of_a_file_of_the_same_time_and_size_may_not(site: Site) -> None:
    """Python tells sources apart by time and size only."""
    patches = PatchSet("5" * 64, {PROPOSER: b""}, {})
    path = site.root / PROPOSER
    pristine = {**site.pristine, PROPOSER: site.pristine[PROPOSER] + b"# A\n"}
    path.write_bytes(pristine[PROPOSER])
    plan = patches.plan(pristine)
    after = site.pristine[PROPOSER] + b"# B\n"
    plan = replace(plan, changes=(Change(PROPOSER, pristine[PROPOSER], after),))
    future = 4_000_000_000
    os.utime(path, (future, future))
    compiled(path, "timestamp")

    class SameTime(NoUnlinkOfBytecode):
        def fsync(self, file: int) -> None:
            os.utime(file, (future, future))

    with faulty(SameTime()), pytest.raises(TransactionError, match=r"\.pyc"):
        commit.apply(site.root, plan, [patches.feature()], release="0.26.0")
    assert path.read_bytes() == pristine[PROPOSER]
    assert not (site.root / ".vllm-overlay").exists()


# What they refuse


def test_a_link_that_leaves_the_target_is_refused(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "cache.py"
    (site.root / PROPOSER).rename(outside)
    (site.root / PROPOSER).symlink_to(outside)
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=r"spec_decode/proposer\.py leads out") as caught:
        site.apply()
    assert str(outside) in str(caught.value)
    assert snapshot(site.root) == before
    assert outside.read_bytes() == site.pristine[PROPOSER]


def test_a_linked_folder_that_leaves_the_target_is_refused(site: Site, tmp_path: Path) -> None:
    (site.root / "vllm/v1/draft").symlink_to(tmp_path)
    with pytest.raises(TransactionError, match="leads out of the target"):
        site.apply()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site"]


def test_a_linked_state_folder_is_refused(site: Site, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (site.root / ".vllm-overlay").symlink_to(elsewhere)
    with pytest.raises(TransactionError, match="the overlay's own folder"):
        site.apply()
    assert list(elsewhere.iterdir()) == []


def test_a_file_where_a_folder_is_needed(site: Site) -> None:
    (site.root / "vllm/v1/draft").write_bytes(b"a file\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=r"vllm/v1/draft: expected a folder"):
        site.apply()
    assert snapshot(site.root) == before


def test_a_folder_that_becomes_a_file_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too late for a look beforehand: everything is taken back."""

    def other(path: Path, owner: object) -> None:
        path.write_bytes(b"a file\n")

    make_folder = files.make_folder
    monkeypatch.setattr(
        files, "make_folder", lambda p, o: (other if p.name == "draft" else make_folder)(p, o)
    )
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match="as it was before the apply"):
        site.apply()
    recover(site.root)
    (site.root / "vllm/v1/draft").unlink()
    assert snapshot(site.root) == before


def test_revert_refuses_every_file_that_was_edited(site: Site) -> None:
    site.apply()
    for path in (PROPOSER, ADDED):
        with (site.root / path).open("ab") as file:
            file.write(b"# by hand\n")
    before = snapshot(site.root)
    with pytest.raises(RevertRefused) as caught:
        site.revert()
    assert sorted(caught.value.paths) == sorted([PROPOSER, ADDED])
    assert PROPOSER in str(caught.value)
    assert caught.value.exit_code == 1
    assert snapshot(site.root) == before


def test_apply_refuses_a_file_that_was_edited(site: Site) -> None:
    site.apply()
    with (site.root / PROPOSER).open("ab") as file:
        file.write(b"# by hand\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=f"{PROPOSER}: changed by somebody else"):
        site.apply(TWO)
    assert snapshot(site.root) == before


def test_apply_refuses_what_changed_since_the_plan(site: Site) -> None:
    (site.root / RUNNER).write_bytes(b"another\n")
    before = snapshot(site.root)
    with pytest.raises(TransactionError, match=f"{RUNNER}: changed by somebody else"):
        site.apply()
    assert snapshot(site.root) == before


def test_a_plan_from_patched_files_is_not_applied(site: Site) -> None:
    """Or what revert restores would be patched already."""
    site.apply()
    before = snapshot(site.root)
    patched = {**site.pristine, PROPOSER: (site.root / PROPOSER).read_bytes()}
    with pytest.raises(TransactionError, match=PROPOSER):
        replace(site, pristine=patched).apply(PatchSet("6" * 64, {PROPOSER: b"# 6\n"}, {}))
    assert snapshot(site.root) == before


def test_a_file_that_was_removed_comes_back(site: Site) -> None:
    before = snapshot(site.root)
    site.apply()
    (site.root / PROPOSER).unlink()
    (site.root / ADDED).unlink()
    site.revert()
    assert snapshot(site.root) == before


def test_a_plan_that_needs_attention_is_not_applied(site: Site) -> None:
    plan = ONE.plan(site.pristine)
    feature = replace(plan.features[0], state=plan.features[0].state.DRIFTED)
    with pytest.raises(ValueError, match="drifted cannot be applied"):
        commit.apply(site.root, Plan((feature,)), [ONE.feature()], release="0.26.0")


def test_a_plan_that_removes_a_file_is_not_applied(site: Site) -> None:
    plan = ONE.plan(site.pristine)
    plan = replace(plan, changes=(Change(PROPOSER, site.pristine[PROPOSER], None),))
    with pytest.raises(ValueError, match="never removes"):
        commit.apply(site.root, plan, [ONE.feature()], release="0.26.0")


# Where nothing may be written


def as_nobody(work: object) -> int:
    def run() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()  # type: ignore[operator]

    return in_child(run)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder that every user can reach."""
    with transactions.memory_folder(tmp_path) as folder:
        folder.chmod(0o755)
        yield folder


@as_root
def test_another_users_installation_is_named_and_left_alone(public: Path) -> None:
    site = transactions.installed(public / "site")
    before = snapshot(site.root)

    def work() -> None:
        with pytest.raises(TransactionError) as caught:
            site.apply()
        said = str(caught.value)
        assert str(site.root) in said
        assert "Permission denied" in said
        assert "as it was before the apply" in said
        assert f"{site.root} belongs to root" in said

    assert as_nobody(work) == 0
    assert snapshot(site.root) == before


@as_root
def test_only_some_folders_are_writable(public: Path) -> None:
    """The staging finds it out, before the first file is touched."""
    site = transactions.installed(public / "site")
    for path in [site.root, *site.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    os.chown(site.root / "vllm/v1/worker", 0, 0)
    before = snapshot(site.root)

    def work() -> None:
        with pytest.raises(TransactionError, match=r"worker.*Permission denied"):
            site.apply()

    assert as_nobody(work) == 0
    assert snapshot(site.root) == before


@as_root
def test_a_read_only_installation_that_is_patched_is_fine(public: Path) -> None:
    site = transactions.installed(public / "site")
    site.apply()
    before = stamps(site.root)

    def work() -> None:
        outcome = site.apply()
        assert not outcome.wrote
        with pytest.raises(TransactionError, match="as it was before the revert"):
            site.revert()
        assert recover(site.root) is None

    assert as_nobody(work) == 0
    assert stamps(site.root) == before


@as_root
def test_an_interrupted_apply_is_told_by_who_cannot_end_it(public: Path) -> None:
    site = transactions.installed(public / "site")
    before = snapshot(site.root)
    interrupt_in_the_middle(site)
    middle = snapshot(site.root)

    def work() -> None:
        said = recover(site.root)
        assert said is not None
        assert "could not be ended here" in said
        assert "stands between two states" in said
        with commit.reading(site.root) as told:
            assert told == said
        with pytest.raises(TransactionError, match="between two states"):
            site.apply()

    assert as_nobody(work) == 0
    assert snapshot(site.root) == middle
    assert recover(site.root) == f"an interrupted apply was finished in {site.root}"
    site.revert()
    assert snapshot(site.root) == before


def interrupt_in_the_middle(site: Site) -> None:
    """Leave the journal behind, one file patched and one not: the ledger would be the last."""
    from tests.support.faults import Dead, dying

    with faulty(FaultyOs()) as counting:
        site.copy(site.root.parent / "counted").apply()
    replaces = [at for at, name in enumerate(counting.names, 1) if name == "replace"]
    system = FaultyOs(replaces[-2], dying, lasting=True)
    with faulty(system), pytest.raises(Dead):
        site.apply()
    assert (site.root / ".vllm-overlay/journal.json").exists()
    patched = [
        (site.root / path).read_bytes() != site.pristine[path] for path in (PROPOSER, RUNNER)
    ]
    assert sorted(patched) == [False, True]


# After an interruption


def test_what_others_wrote_into_an_interrupted_apply_is_left_alone(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    (installed.root / PROPOSER).write_bytes(b"a reinstalled release\n")
    said = recover(installed.root)
    assert said is not None
    assert "was undone" in said
    assert PROPOSER in said
    assert (installed.root / PROPOSER).read_bytes() == b"a reinstalled release\n"
    assert (installed.root / RUNNER).read_bytes() == installed.pristine[RUNNER]
    assert not (installed.root / ADDED).exists()
    assert not (installed.root / ".vllm-overlay").exists()


def test_leftovers_without_a_journal_make_room(site: Site) -> None:
    """Somebody removed our folder after an interruption, but not what lay beside the files."""
    before = snapshot(site.root)
    for word in ("new", "old"):
        (site.root / PROPOSER).with_name(f".proposer.py.overlay-{word}").write_bytes(b"cut off")
    site.apply()
    assert (site.root / PROPOSER).read_bytes() == site.pristine[PROPOSER] + ONE.patched[PROPOSER]
    site.revert()
    assert snapshot(site.root) == before


def test_what_cannot_be_finished_is_undone(installed: Site) -> None:
    before = snapshot(installed.root)
    interrupt_in_the_middle(installed)

    class NoReplacing(FaultyOs):
        def replace(self, source: Path, destination: Path) -> None:
            if str(source).endswith(".overlay-new"):
                raise OSError(errno.EBUSY, "Device or resource busy", str(source))
            os.replace(source, destination)

    with faulty(NoReplacing()):
        assert recover(installed.root) == f"an interrupted apply was undone in {installed.root}"
    assert snapshot(installed.root) == before


def test_what_cannot_be_ended_is_said(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    for left in installed.root.rglob(".*.overlay-*"):
        left.unlink()
    middle = snapshot(installed.root)
    with pytest.raises(TransactionError, match=r"neither be finished nor undone.*Reinstall"):
        recover(installed.root)
    assert snapshot(installed.root) == middle


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": 1}', '{"schema": 99, "overlay": "9.0"}'],
)
def test_a_journal_that_cannot_be_read_is_said(installed: Site, text: str) -> None:
    interrupt_in_the_middle(installed)
    (installed.root / ".vllm-overlay/journal.json").write_text(text)
    middle = snapshot(installed.root)
    with pytest.raises(LedgerError, match=r"journal\.json cannot be read"):
        recover(installed.root)
    assert snapshot(installed.root) == middle


def test_a_journal_that_points_out_of_the_target_is_refused(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    journal = installed.root / ".vllm-overlay/journal.json"
    journal.write_text(journal.read_text().replace(f'"{PROPOSER}"', '"vllm/../../../etc/x"'))
    with pytest.raises(LedgerError, match="leaves the target"):
        recover(installed.root)


def test_a_reader_ends_the_transaction_first(installed: Site) -> None:
    interrupt_in_the_middle(installed)
    with commit.reading(installed.root) as said:
        assert said == f"an interrupted apply was finished in {installed.root}"
        for path in (PROPOSER, RUNNER):
            assert (installed.root / path).read_bytes() != installed.pristine[path]


def mount(*arguments: str) -> None:
    """Mount something, or skip the test where that is not allowed."""
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount here: {done.stderr.strip()}")


def fill(file: Path) -> None:
    """Use up the space of a file system."""

    def write() -> None:
        with file.open("ab", buffering=0) as out:
            while True:
                out.write(b"x" * 4096)

    with pytest.raises(OSError, match="No space left"):
        write()


def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """No injected fault: a file system that is full."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder))
    try:
        site = transactions.installed(folder / "site")
        before = snapshot(site.root)
        filler = folder / "filler"
        fill(filler)
        with pytest.raises(TransactionError, match="free some space") as caught:
            site.apply()
        assert "as it was before the apply" in str(caught.value)
        assert snapshot(site.root) == before
        filler.unlink()
        site.apply()
        fill(filler)
        patched = snapshot(site.root)
        with pytest.raises(TransactionError, match="as it was before the revert"):
            site.revert()
        assert snapshot(site.root) == patched
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_disk_for_real(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    site = transactions.installed(folder / "site")
    patched = site.copy(folder / "patched")
    patched.apply()
    before = snapshot(folder)
    mount("--bind", str(folder), str(folder))
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(TransactionError, match="read-only"):
            site.apply()
        assert not patched.apply().wrote
        with pytest.raises(TransactionError, match="read-only"):
            patched.revert()
        assert not site.revert().wrote
        assert recover(site.root) is None
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert snapshot(folder) == before
