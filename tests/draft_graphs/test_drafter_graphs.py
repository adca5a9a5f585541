"""Drafters beside EAGLE in a real engine on CPU: draft models, one-pass drafters, dflash.

As `test_engine_graphs`: real captures and replays, an audit of every call, junk in padded rows,
and an oracle that knows every token and every accepted draft.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from overlay.proof.tiny_drafters import LEAST_PROMPT, VOTERS, following, voters_rule
from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import (
    QUICKEST,
    Outcome,
    Plan,
    Run,
    expect_graphs,
    expect_right,
    live_sizes,
    make_spec,
    run_harness,
)
from tests.engine.engine_spec import Request

pytestmark = [pytest.mark.engine, pytest.mark.slow]

#: By drafter: the folder of its models, its model, and what is set in speculative_config.
DRAFTERS = {
    "draft_model": ("chain", "draft_model", {"method": "draft_model"}),
    "vocabularies": (
        "vocabularies",
        "draft_model",
        {"method": "draft_model", "use_heterogeneous_vocab": True},
    ),
    "PARD": ("parallel", "pard", {"method": "draft_model", "parallel_drafting": True}),
    "P-EAGLE": ("parallel", "peagle", {"method": "eagle3", "parallel_drafting": True}),
    "dflash": ("parallel", "dflash", {"method": "dflash"}),
}
CASES = [
    *(("draft_model", k) for k in (1, 3)),
    ("vocabularies", 3),
    *(("PARD", k) for k in (1, 3, 5)),
    *(("P-EAGLE", k) for k in (1, 3, 5)),
    *(("dflash", k) for k in (1, 3, 5)),
]
#: Each drafter once, with batches that are mostly padded, and each other run with one of a kind.
ALWAYS = {
    ("draft_model", 3): ("loop, only 8", "step"),
    ("vocabularies", 3): ("step, only 8",),
    ("PARD", 3): ("loop, only 8",),
    ("P-EAGLE", 5): ("loop, only 8",),
    ("dflash", 3): ("loop",),
}


def requests(seed: int = 3) -> tuple[Request, ...]:
    """Twelve in three waves, as `harness_client.make_requests`, that voters have an answer for."""
    rng = random.Random(seed)
    made = (
        Request(
            tuple(rng.randrange(3, VOTERS) for _ in range(rng.randint(LEAST_PROMPT, 39))),
            16 if index < 4 else 12 + 5 * index,
            arrival=index // 4 * 3,
        )
        for index in range(12)
    )
    return following(voters_rule(), made)


def runs(drafter: str, k: int, *, thorough: bool) -> list[Run]:
    """The second sizes make every batch but the full one a padded one."""
    modes = ("loop",) if DRAFTERS[drafter][0] == "parallel" or k == 1 else ("loop", "step")
    return [
        each
        for mode in modes
        for each in (Run(mode, mode), Run(f"{mode}, only 8", mode, ladder=(8,)))
        if thorough or each.name in ALWAYS.get((drafter, k), (each.name,))
    ]


def looked_at(items: Iterable[pytest.Item]) -> list[tuple[str, int]]:
    """The drafters and Ks that the chosen tests look at; all of them where none is named."""
    given = [each.callspec.params for each in items if hasattr(each, "callspec")]
    chosen = [(drafter, k) for drafter, k in CASES if {"drafter": drafter, "k": k} in given]
    return chosen or CASES


@pytest.fixture(scope="module")
def outcomes(
    forks: ForkedModules, drafter_models: Path, request: pytest.FixtureRequest
) -> dict[tuple[str, int], dict[str, Outcome]]:
    """Every drafter and K that is looked at, each in one engine."""
    thorough = bool(request.config.getoption("--thorough"))
    plans, cases = [], looked_at(request.session.items)
    for drafter, k in cases:
        folder, draft, speculative = DRAFTERS[drafter]
        more = {"requests": requests()} if folder == "parallel" else {}
        spec = make_spec(
            drafter_models / folder, draft, k, speculative=speculative, engine=QUICKEST, **more
        )
        plans.append(Plan(spec, runs(drafter, k, thorough=thorough)))
    return dict(zip(cases, run_harness(forks, plans), strict=True))


@pytest.mark.parametrize(
    ("drafter", "k"),
    [pytest.param(*case, marks=() if case in ALWAYS else pytest.mark.thorough) for case in CASES],
)
def test_drafts_are_those_of_the_oracle(
    outcomes: dict[tuple[str, int], dict[str, Outcome]], drafter: str, k: int
) -> None:
    # P-EAGLE with one token is EAGLE.
    whole = DRAFTERS[drafter][0] == "parallel" and (drafter, k) != ("P-EAGLE", 1)
    for name, outcome in outcomes[drafter, k].items():
        expect_right(outcome)
        expect_graphs(outcome, k)
        assert outcome.preemptions > 0, "the KV cache was to be too small"
        roles = ["whole"] if whole else ["first"] if k == 1 else ["first", name[:4]]
        assert {replay.split()[0] for replay in outcome.replays} == set(roles)
        assert set(outcome.replays) <= set(outcome.captured)
        assert outcome.profiled > 0


def test_every_number_of_requests_was_live(
    outcomes: dict[tuple[str, int], dict[str, Outcome]],
) -> None:
    seen: set[int] = set()
    for each in outcomes.values():
        if "loop, only 8" in each:
            seen |= live_sizes(each["loop, only 8"], "propose")
    assert seen == set(range(1, 9))
