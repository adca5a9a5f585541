"""Whatever one place of a ledger, a journal or a process's record says: an answer, no traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay import _processes
from overlay.results import Way
from tests.support.cli import Cli, digest

#: What no place of these documents may say: wrong types, numbers, paths, escapes, depth, length.
NONSENSE = (
    *(None, True, -1, 10**40, 1e308, float("nan"), "", "\udc80", "\x1b[31m\u202e", "a" * 100_000),
    *("../../etc/passwd", "/etc/passwd", [], {}, [[[]]], {"a": {"a": 1}}, [{}] * 1000),
)

#: A fixture of a function serves all its examples, each of which copies what it changes.
examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(document, dict):
        keys = list(document)
    else:
        keys = [*range(len(document))] if isinstance(document, list) else []
    for key in keys:
        yield from _places(document[key], (*place, key))


def _spoilt(document: Any, draw: st.DataObject) -> str:
    """The document as JSON, with nonsense in one place."""
    first, *rest = draw.draw(st.sampled_from([*_places(document)][1:]), "place")
    value = draw.draw(st.sampled_from(NONSENSE), "nonsense")
    copy = json.loads(json.dumps(document))
    holder, key = copy, first
    for following in rest:
        holder, key = holder[key], following
    holder[key] = value
    return json.dumps(copy)


def _ask(cli: Cli, *words: str | Path) -> int:
    result = cli(*words)
    said = result.out + result.err
    assert result.exit in (0, 1, 2), said
    assert "Traceback" not in said
    assert "bug in vllm-overlay" not in said
    assert not set(said) & {chr(code) for code in (*range(9), *range(11, 32), 127)}
    assert len(said) < 20_000
    return result.exit


@pytest.mark.parametrize("name", ["ledger.json", "journal.json"])
@given(draw=st.data())
@examples
def test_of_a_target_whose_state_is_nonsense_everything_is_put_back_or_nothing(
    cli: Cli, site: Path, tmp_path: Path, name: str, draw: st.DataObject
) -> None:
    kept = tmp_path / "kept"
    if not kept.exists():
        before = digest(site)
        shutil.copytree(site, kept / "pristine")
        assert cli("apply", site).exit == 0
        shutil.copytree(site, kept / "applied")
        assert before == digest(kept / "pristine")
    shutil.rmtree(site)
    shutil.copytree(kept / "applied", site)
    state = site / ".vllm-overlay"
    ledger = json.loads((state / "ledger.json").read_text())
    steps = [
        {key: entry[key] for key in ("path", "before", "after")} for entry in ledger["entries"]
    ]
    journal = {"schema": 1, "action": "apply", "overlay": "0.2.0"}
    journal |= {"steps": steps, "made": [".vllm-overlay/pristine"], "dropped": []}
    (state / name).write_text(_spoilt(ledger if name == "ledger.json" else journal, draw))
    now = digest(site)
    _ask(cli, draw.draw(st.sampled_from(["status", "check", "diff"])), site)
    assert digest(site) == now
    if _ask(cli, "revert", site) == 0:
        assert digest(site) == digest(kept / "pristine")
    else:
        assert digest(site) == now


@given(draw=st.data())
@examples
def test_a_process_whose_record_is_nonsense_is_listed_all_the_same(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: st.DataObject
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for file in tmp_path.glob("vllm-overlay/*"):
        file.unlink()
    record = _processes.ProcessRecord(
        pid=os.getpid(),
        started=_processes.start_time(os.getpid()),
        host=os.uname().nodename,
        role="worker",
        rank=0,
        vllm="0.26.0",
        root=str(tmp_path),
        way=Way.MEMORY,
        digest="0" * 64,
        summary="demo (memory)",
        modules=(_processes.ModuleRecord("vllm.a", "0" * 64, {"f": _processes.CodeState.RUNS}),),
        left_out=("other (drifted): why",),
        required=("demo",),
        effects=(_processes.EffectRecord("demo", _processes.Effect.ACTIVE, "14 graphs"),),
        counters=(("demo", "replays"),),
        counts_fd=5,
        meanings=(_processes.Meaning("replays", (("graph", "loop"),)),),
    )
    _processes.write(record)
    (file,) = tmp_path.glob("vllm-overlay/*.json")
    file.write_text(_spoilt(json.loads(file.read_text()), draw))
    _ask(cli, "status", "--live", *draw.draw(st.sampled_from([(), ("-v",), ("--json",)])))
