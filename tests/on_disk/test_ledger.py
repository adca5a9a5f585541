"""The ledger: written and read back whole, and refused with what to do where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from overlay.errors import LedgerError
from overlay.on_disk import ledger as ledgers
from overlay.on_disk.ledger import Entry, Ledger, LedgerFeature, RecordEntry
from overlay.package import VLLM
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State
from tests.support import transactions
from tests.support.transactions import ADDED, ONE, PROPOSER, RUNNER, Site, snapshot

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=15)
shas = st.binary(min_size=32, max_size=32).map(bytes.hex)
records = st.from_regex(r"[a-z-]{1,8}\.dist-info/RECORD", fullmatch=True)
paths = st.from_regex(r"vllm(/[a-z_]{1,8}){1,3}\.py", fullmatch=True)
reasons = st.builds(Reason, texts, texts | st.none(), texts) | st.none()
hunks = st.builds(
    HunkResult,
    texts,
    st.sampled_from(State),
    st.integers(1, 9999) | st.none(),
    reasons,
    st.lists(st.integers(1, 9999), max_size=3).map(tuple),
)
files = st.builds(
    FileResult,
    paths,
    st.sampled_from(State),
    texts | st.none(),
    st.lists(hunks, max_size=3).map(tuple),
    reasons,
)
ids = st.from_regex(r"[a-z0-9]{1,5}(-[a-z0-9]{1,5}){0,2}", fullmatch=True)
results = st.builds(
    FeatureResult,
    ids,
    st.sampled_from(State),
    st.lists(files, max_size=3).map(tuple),
    reasons,
    st.booleans(),
)
entries = st.builds(
    Entry, paths, shas | st.none(), shas, st.integers(0, 0o777), st.integers(0, 10**9)
)


def _ledger(*parts: Any) -> Ledger:
    """A ledger as an apply writes it: each path once, folders above added modules only."""
    ledger = Ledger(*parts)
    by_path = {entry.path: entry for entry in ledger.entries}
    above = {
        str(folder)
        for entry in by_path.values()
        if entry.before is None
        for folder in list(PurePosixPath(entry.path).parents)[:-2]
    }
    return ledger._replace(entries=tuple(by_path.values()), folders=tuple(sorted(above)))


ledger_strategy = st.builds(
    _ledger,
    texts,
    texts,
    st.lists(st.builds(LedgerFeature, texts, texts, results, shas | st.none()), max_size=3).map(
        tuple
    ),
    st.lists(entries, max_size=3).map(tuple),
    st.just(()),
    st.builds(RecordEntry, records, shas, shas) | st.none(),
)


@settings(deadline=None)
@given(ledger_strategy)
def test_it_is_read_as_it_was_written(ledger: Ledger) -> None:
    # One without them would let revert leave the files patched, and is refused.
    assume(ledger.entries or not any(feature.result.files for feature in ledger.applied))
    assert ledgers.decode(ledgers.encode(ledger), "ledger.json") == ledger


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = transactions.installed(tmp_path / "site")
    site.apply()
    return site


def load(site: Site) -> Ledger:
    found = ledgers.load(site.root)
    assert found is not None
    return found


def test_it_says_what_was_done(site: Site) -> None:
    found = load(site)
    assert [entry.path for entry in found.entries] == [ADDED, PROPOSER, RUNNER]
    assert [entry.before is None for entry in found.entries] == [True, False, False]
    assert found.release == "0.26.0"
    assert found.folders == ("vllm/v1/draft", "vllm/v1/draft/parts")
    (feature,) = found.applied
    assert feature.digest == ONE.digest
    assert feature.origin == "shipped"
    assert feature.result.state is State.APPLIED
    for file in feature.result.files:
        assert file.state is State.APPLIED
        assert all(hunk.state is State.APPLIED for hunk in file.hunks)
    assert feature.result.files[0].hunks[0].line == 3


def test_nothing_of_ours_is_no_ledger(tmp_path: Path) -> None:
    assert ledgers.load(transactions.installed(tmp_path / "site").root) is None


def test_the_pristine_copies_are_the_pristine_bytes(site: Site) -> None:
    copies = ledgers.copies(site.root)
    for entry in load(site).entries:
        if entry.before is not None:
            assert copies(entry.before) == site.pristine[entry.path]


@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
def test_a_damaged_copy_is_named_before_anything_is_reverted(
    site: Site, damage: bytes | None
) -> None:
    (entry,) = (entry for entry in load(site).entries if entry.path == PROPOSER)
    copy = site.root / VLLM.pristine_folder / str(entry.before)
    copy.unlink()
    if damage is not None:
        copy.write_bytes(damage)
    before = snapshot(site.root)
    with pytest.raises(LedgerError, match="reinstall vLLM") as caught:
        site.revert()
    assert str(copy) in str(caught.value)
    assert snapshot(site.root) == before


def drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(key)


def put(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        *way, last, value = keys
        for key in way:
            document = document[key]
        document[last] = value

    return change


DAMAGES = {
    "no schema": drop("schema"),
    "a schema of old": put("schema", 0),
    "a schema that is no number": put("schema", "1"),
    "no entries": drop("entries"),
    "entries of another kind": put("entries", {"a": 1}),
    "an absolute path": put("entries", 0, "path", "/etc/passwd"),
    "a path that leaves": put("entries", 0, "path", "vllm/../../etc/passwd"),
    "a path beside vllm": put("entries", 0, "path", "other/x.py"),
    "a folder that leaves": put("folders", ["vllm/../.."]),
    "a record that leaves": put("record", "path", "../RECORD"),
    "a hash that is a path": put("entries", 1, "before", "../../../etc/passwd"),
    "a short hash": put("entries", 1, "after", "abc"),
    "an id that leaves its folder": put("features", 0, "feature", "../demo"),
    "an unknown state": put("features", 0, "state", "fine"),
    "no files": put("features", 0, "files", None),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_ledger_is_refused(site: Site, damage: Callable[[Any], None]) -> None:
    path = site.root / VLLM.ledger_path
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    before = snapshot(site.root)
    with pytest.raises(LedgerError, match="is damaged") as caught:
        ledgers.load(site.root)
    assert str(path) in str(caught.value)
    assert "reinstall vLLM" in str(caught.value)
    for action in (site.apply, site.revert):
        with pytest.raises(LedgerError):
            action()
    assert snapshot(site.root) == before


@settings(deadline=None)
@given(st.integers(0, 5000))
def test_a_ledger_cut_off_is_refused(length: int) -> None:
    whole = ledgers.encode(
        Ledger("1", "0.26.0", (), (Entry("vllm/a.py", None, "0" * 64, 420, 1),) * 9, (), None)
    )
    if length < len(whole.rstrip()):
        with pytest.raises(LedgerError, match="is damaged"):
            ledgers.decode(whole[:length], "ledger.json")


def as_schema_1(part: Any) -> Any:
    """A part of a ledger as the release before wrote it: a text ``why``, the advice behind it."""
    if isinstance(part, list):
        return [as_schema_1(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    plain = {name: as_schema_1(value) for name, value in part.items() if name != "reason"}
    if "reason" in part:
        reason = part["reason"]
        told = [reason["text"], reason["next_step"]] if reason else []
        plain["why"] = "; next: ".join(filter(None, told)) or None
    return plain


def test_a_ledger_of_the_release_before_is_read(site: Site) -> None:
    known = load(site)
    feature = known.features[0]
    stuck = feature.result._replace(
        reason=Reason("it is so", "mend it"),
        files=tuple(file._replace(reason=Reason("one")) for file in feature.result.files),
    )
    whole = known._replace(features=(feature._replace(result=stuck), *known.features[1:]))
    old = {**as_schema_1(json.loads(ledgers.encode(whole))), "schema": 1}
    assert '"reason"' not in json.dumps(old["features"])
    assert ledgers.decode(json.dumps(old).encode(), "ledger.json") == whole


def test_a_newer_ledger_is_left_alone(site: Site) -> None:
    path = site.root / VLLM.ledger_path
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema": 4, "overlay": "7.0.0", "new": "things"}))
    before = snapshot(site.root)
    for action in (site.apply, site.revert):
        with pytest.raises(LedgerError, match=r"newer overlay \(vllm-overlay 7\.0\.0"):
            action()
    assert snapshot(site.root) == before


def test_only_another_version_of_the_overlay_is_no_reason_to_write(site: Site) -> None:
    """Two overlays with the same patches do not write over each other."""
    path = site.root / VLLM.ledger_path
    path.write_bytes(ledgers.encode(load(site)._replace(overlay="0.0.1")))
    before = snapshot(site.root)
    assert not site.apply().wrote
    assert snapshot(site.root) == before
