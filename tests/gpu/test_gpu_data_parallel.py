"""What `gpu/data_parallel.py` makes of what the processes of a cell tell: it can fail."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overlay.proof.oracle import continuation, make_rule
from tests.engine.engine_spec import make_requests
from tests.engine.expected_steps import undisturbed
from tests.gpu import data_parallel, dp_judging

RULE, K = make_rule(), 3

Events = list[dict[str, Any]]
Served = dict[str, Any]


def story(target: str, mode: str) -> tuple[Served, Events]:
    """A cell in which all is right: requests, and what its processes tell."""
    served: Served = {}
    told: Events = []
    lockstep = target != "dense"
    together = target in dp_judging.TOGETHER and mode != "off"
    for rank in range(dp_judging.RANKS):
        told.append({"kind": "loaded", "rank": rank, "ranks": 2 if lockstep else 1})
        if mode != "off":
            told.append({"kind": "captured", "rank": rank, "keys": 8, "withdrawn": None})
        for index, request in enumerate(make_requests(3, seed=rank)):
            name = f"{rank}.0.{index}"
            prompt = list(request.prompt)
            served[name] = (request, continuation(RULE, prompt, request.tokens))
            for step in undisturbed(RULE, prompt, request.tokens, K):
                told.append({"kind": "step", "id": name, **vars(step)})
                if mode != "off":
                    told += [
                        {"kind": "replay", "rank": rank, "role": role, "size": 1}
                        for role in ("first", mode)
                    ]
                elif lockstep:
                    told.append({"kind": "asked", "rank": rank})
        if lockstep:
            replays = 2 * together
            told.append({"kind": "dummy", "rank": rank, "replays": replays, "wrote": []})
            told.append({"kind": "dummy", "rank": rank, "replays": replays, "wrote": None})
        if together and mode == "loop":  # behind a prefill
            told.append({"kind": "replay", "rank": rank, "role": "loop", "size": 1})
    if together:
        even_out(told)
    return served, told


def even_out(told: Events) -> None:
    """Let the rank with fewer replays have as many."""
    lists = [[e for e in told if (e["kind"], e.get("rank")) == ("replay", r)] for r in (0, 1)]
    short = min((0, 1), key=lambda rank: len(lists[rank]))
    missing = lists[1 - short][len(lists[short]) :]
    told += [{**event, "rank": short} for event in missing]


def verdict(target: str, mode: str, served: Served, told: Events) -> list[str]:
    return dp_judging.why_wrong(target, mode, dp_judging.judge(K, RULE, served, told))


@pytest.mark.parametrize("target", data_parallel.TARGETS)
@pytest.mark.parametrize("mode", ["off", "step", "loop"])
def test_what_is_right_is_right(target: str, mode: str) -> None:
    assert verdict(target, mode, *story(target, mode)) == []


def wrong_token(served: Served, told: Events) -> None:
    request, tokens = served["1.0.2"]
    served["1.0.2"] = (request, [*tokens[:-1], tokens[-1] ^ 1])


def missing_tokens(served: Served, told: Events) -> None:
    request, tokens = served["1.0.2"]
    served["1.0.2"] = (request, tokens[:-1])


def wrong_acceptance(served: Served, told: Events) -> None:
    step = next(each for each in told if each.get("id") == "1.0.0")
    step["accepted"] ^= 1


def swapped_acceptance(served: Served, told: Events) -> None:
    """The counts per position stay what they are."""
    steps = [each for each in told if each.get("id", "").startswith("1.")]
    most = max(steps, key=lambda each: int(each["accepted"]))
    least = min(steps, key=lambda each: int(each["accepted"]))
    most["accepted"], least["accepted"] = least["accepted"], most["accepted"]


def no_requests(served: Served, told: Events) -> None:
    for name in [name for name in served if name.startswith("1.")]:
        del served[name]


def no_replays(served: Served, told: Events) -> None:
    told[:] = [each for each in told if (each["kind"], each.get("rank")) != ("replay", 1)]


def no_later_replays(served: Served, told: Events) -> None:
    told[:] = [each for each in told if each.get("rank") != 1 or each.get("role") != "loop"]


def other_ranks(served: Served, told: Events) -> None:
    next(each for each in told if each["kind"] == "loaded" and each["rank"] == 1)["ranks"] = 1


def asks(served: Served, told: Events) -> None:
    told.append({"kind": "asked", "rank": 1})


def no_dummies(served: Served, told: Events) -> None:
    told[:] = [each for each in told if (each["kind"], each.get("rank")) != ("dummy", 1)]


def replaying_dummy(served: Served, told: Events) -> None:
    told.append({"kind": "dummy", "rank": 1, "replays": 1, "wrote": []})


def writing_dummy(served: Served, told: Events) -> None:
    told.append({"kind": "dummy", "rank": 1, "replays": 0, "wrote": ["layer"]})


def withdrawal(served: Served, told: Events) -> None:
    told.append({"kind": "captured", "rank": 1, "keys": 0, "withdrawn": "why"})


WRONG: dict[Callable[[Served, Events], None], str] = {
    wrong_token: "tokens",
    missing_tokens: "tokens",
    no_requests: "tokens",
    wrong_acceptance: "accepted drafts",
    swapped_acceptance: "accepted drafts",
    no_replays: "replays",
    no_later_replays: "roles",
    other_ranks: "ranks known",
    asks: "asked",
    no_dummies: "dummy batches",
    replaying_dummy: "replays in dummy batches",
    writing_dummy: "writes of dummy batches",
    withdrawal: "withdrawn",
}


@pytest.mark.parametrize("change", WRONG, ids=lambda each: each.__name__)
def test_what_is_wrong_on_one_rank_is_named(change: Callable[[Served, Events], None]) -> None:
    served, told = story("moe", "loop")
    change(served, told)
    found = verdict("moe", "loop", served, told)
    assert f"rank 1: {WRONG[change]}" in found
    assert not [each for each in found if each.startswith("rank 0")]


def other_replays(served: Served, told: Events) -> None:
    next(each for each in told if each["kind"] == "replay" and each["rank"] == 1)["size"] = 2


def fewer_replays(served: Served, told: Events) -> None:
    replays = [each for each in told if each["kind"] == "replay" and each["rank"] == 1]
    for each in [each for each in replays if each["role"] == "first"][-4:]:
        told.remove(each)


def silent_dummies(served: Served, told: Events) -> None:
    for each in told:
        if (each["kind"], each.get("rank")) == ("dummy", 1):
            each["replays"] = 0


def asks_in_every_step(served: Served, told: Events) -> None:
    told += [{"kind": "asked", "rank": 1}] * len(told)


def nothing_behind_prefills(served: Served, told: Events) -> None:
    firsts = sum(each["kind"] == "replay" and each["role"] == "first" for each in told) // 2
    for rank in range(dp_judging.RANKS):
        loops = [each for each in told if (each.get("rank"), each.get("role")) == (rank, "loop")]
        for each in loops[firsts:]:
            told.remove(each)


#: What is wrong where the draft has experts, and on which ranks it shows.
WRONG_TOGETHER: dict[Callable[[Served, Events], None], tuple[str, tuple[int, ...]]] = {
    other_replays: ("the other rank's replays", (0, 1)),
    fewer_replays: ("the other rank's replays", (0, 1)),
    silent_dummies: ("replays in dummy batches", (1,)),
    asks_in_every_step: ("asked", (1,)),
    nothing_behind_prefills: ("later passes behind a prefill", (0, 1)),
}


@pytest.mark.parametrize("change", WRONG_TOGETHER, ids=lambda each: each.__name__)
def test_ranks_that_do_not_draft_together_are_named(
    change: Callable[[Served, Events], None],
) -> None:
    served, told = story("glm", "loop")
    change(served, told)
    what, ranks = WRONG_TOGETHER[change]
    assert verdict("glm", "loop", served, told) == [f"rank {rank}: {what}" for rank in ranks]


def test_without_graphs_there_are_no_replays_and_ranks_ask() -> None:
    served, told = story("moe", "off")
    told.append({"kind": "replay", "rank": 0, "role": "loop", "size": 1})
    assert verdict("moe", "off", served, told) == ["rank 0: replays"]
    served, told = story("moe", "off")
    told[:] = [each for each in told if each["kind"] != "asked"]
    assert verdict("moe", "off", served, told) == ["rank 0: asked", "rank 1: asked"]


def test_a_dense_rank_is_alone() -> None:
    served, told = story("dense", "loop")
    told.append({"kind": "dummy", "rank": 0, "replays": 0, "wrote": []})
    assert verdict("dense", "loop", served, told) == ["rank 0: dummy batches"]


def test_each_rank_is_busy_and_idle() -> None:
    assert len(data_parallel.busy(1)) > 2 * data_parallel.LIVE
    lengths = {each.tokens for each in data_parallel.busy(1)}
    assert len(lengths) > data_parallel.LIVE


HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("CHILD", child.pid, flush=True)
time.sleep(100)
"""


def test_a_cell_that_hangs_has_failed_and_is_gone_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    monkeypatch.setattr(data_parallel, "__file__", str(script))
    arguments = Namespace(double=False, limit=3, deadline=time.monotonic() + 100)
    folders = dict.fromkeys(data_parallel.TARGETS, tmp_path)
    found = data_parallel.launch_cell("moe-loop", folders, tmp_path, arguments)
    assert not found["ok"]
    assert "did not end within" in found["why"][0]
    child = int(found["failed"].split()[1])
    # It may not have been waited for yet, so that it is a name without a process.
    assert data_parallel.session_of(child) == set()
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_cell_that_ends_early_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(data_parallel, "__file__", str(script))
    arguments = Namespace(double=False, limit=30, deadline=time.monotonic() + 100)
    folders = dict.fromkeys(data_parallel.TARGETS, tmp_path)
    found = data_parallel.launch_cell("dense-off", folders, tmp_path, arguments)
    assert not found["ok"]
    assert found["why"] == ["ended with status 3"]
