"""A checkout is asked by git and never makes it run anything; what git refuses is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlay.authoring.git import Checkout
from overlay.errors import UsageError
from tests.support.git_repository import Repository, needs_git

pytestmark = needs_git


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository.create(tmp_path / "src")
    repository.commit("First", {"vllm/a.py": b"a = 1\n"})
    repository.commit("Second (#12345)", {"vllm/a.py": b"a = 2\n"})
    return repository


def test_a_range_is_read_as_mails(repository: Repository) -> None:
    checkout = Checkout(repository.folder)
    first, last = checkout.commit("HEAD~1"), checkout.commit("main")
    mails = checkout.mails(f"{first}..{last}")
    assert mails.startswith(b"From " + last.encode())
    assert b"Subject: [PATCH] Second (#12345)" in mails
    assert b"+a = 2" in mails
    assert checkout.merges(first, last) == 0
    (entry,) = checkout.naming("(#12345)")
    assert (entry.commit, entry.date, entry.author) == (last, "2026-11-03", "Ada")
    assert [entry.subject for entry in checkout.history()] == ["Second (#12345)", "First"]


def test_a_checkout_runs_nothing_of_its_own(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every setting by which a repository can name a program, and none of them is run."""
    # Over fifty lines: one checkout with everything that git would run.
    script, trace = tmp_path / "evil.sh", tmp_path / "ran"
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {trace}\ncat "$1" 2>/dev/null\n')
    script.chmod(0o755)
    settings = {
        "diff.external": script,
        "diff.evil.command": script,
        "diff.evil.textconv": script,
        "filter.evil.clean": script,
        "filter.evil.smudge": script,
        "core.fsmonitor": script,
        "core.pager": script,
        "pager.log": script,
        "pager.diff": script,
        "core.sshCommand": script,
        "core.askPass": script,
        "core.editor": script,
        "gpg.program": script,
        "log.showSignature": "true",
        "alias.log": f"!{script}",
        "remote.origin.url": f"ext::{script}",
        "remote.origin.promisor": "true",
        "extensions.partialClone": "origin",
        "protocol.ext.allow": "always",
        "diff.noprefix": "true",
        "format.attach": "true",
        "format.from": "Somebody Else <else@example.invalid>",
        "diff.orderFile": "nowhere",
        "core.bigFileThreshold": "1",
        "i18n.logOutputEncoding": "UTF-16",
    }
    hooks = repository.folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction"):
        (hooks / name).symlink_to(script)
    (repository.folder / ".git/info").mkdir(exist_ok=True)
    (repository.folder / ".git/info/attributes").write_text("*.py diff=evil filter=evil\n")
    with (repository.folder / ".git/config").open("a") as config:
        for name, value in settings.items():
            section, _, key = name.rpartition(".")
            outer, _, inner = section.partition(".")
            head = f'[{outer} "{inner}"]' if inner else f"[{outer}]"
            config.write(f"{head}\n\t{key} = {value}\n")
        config.write("[core]\n\trepositoryFormatVersion = 1\n")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    monkeypatch.setenv("GIT_PAGER", str(script))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    checkout = Checkout(repository.folder)
    first, last = checkout.commit("HEAD~1"), checkout.commit("HEAD")
    mails = checkout.mails(f"{first}..{last}")
    assert b"--- a/vllm/a.py\n+++ b/vllm/a.py\n" in mails
    assert b"Somebody Else" not in mails
    assert b"\nSubject: [PATCH] " in mails
    assert b"+a = 2" in checkout.diff(first, last)
    checkout.merges(first, last)
    checkout.history()
    checkout.naming("(#12345)")
    checkout.tags_with(last)
    assert checkout.blob("1" * 40) is None  # missing: a promisor would be asked for it
    assert not trace.exists(), trace.read_text()


@pytest.mark.parametrize(
    "revision",
    ["", "--output=x", "-p", "nowhere", "HEAD\n", "HEAD^{tree}", "\0", "--help", "a b", "HEAD:"],
)
def test_a_revision_is_never_an_option(repository: Repository, revision: str) -> None:
    before = sorted(os.listdir(repository.folder))
    with pytest.raises(UsageError, match="expected a commit"):
        Checkout(repository.folder).commit(revision)
    assert sorted(os.listdir(repository.folder)) == before


def test_a_folder_without_a_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="no such folder"):
        Checkout(tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="expected git"):
        Checkout(tmp_path)


def test_gits_own_words_are_told(repository: Repository) -> None:
    with pytest.raises(UsageError, match="`git cat-file` failed: "):
        Checkout(repository.folder).ask("cat-file", "blob", "0" * 40)
