"""Every bug of `mutations.py` is caught, and by what the table says.

Each mutation runs in a real engine, in a copy of the module of its own, between two runs of the
module as it is, which must pass. `docs/appendix/mutations.md` shows the table.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from overlay.untrusted import parse_toml
from tests.draft_graphs.added_modules import FOLDER, require_fit
from tests.draft_graphs.dp_mutations import DP_MUTATIONS, DpMutation
from tests.draft_graphs.forked_modules import ForkedModules
from tests.draft_graphs.harness_client import (
    QUICKEST,
    Outcome,
    Plan,
    Run,
    expect_graphs,
    expect_right,
    make_requests,
    make_spec,
    run_harness,
    upstreams_calls,
)
from tests.draft_graphs.mutation_table import MUTATIONS
from tests.draft_graphs.mutation_types import Mutation, TwinMutation, UnitMutation
from tests.draft_graphs.mutations import ANSWERS, POLICY_MUTATIONS, PolicyMutation, render
from tests.draft_graphs.package_copies import HOOKED
from tests.draft_graphs.sabotage import SABOTAGES, engine_of, is_named
from tests.draft_graphs.scenario_mutations import BUILDER_MUTATIONS, SCENARIO_MUTATIONS
from tests.draft_graphs.test_policy import LATE, REFUSED
from tests.draft_graphs.twin_mutations import TWIN_MUTATIONS
from tests.support.code_edits import edited

PAGE = Path(__file__).parents[2] / "docs/appendix/mutations.md"
#: What has caught a mutation, by the error that ended its run.
CATCHERS = {
    "AuditFailed": "audit",
    "AddressError": "address check",
    "WrongDraft": "acceptance",
}


#: The sizes that are captured: all of them would show the same once more, and cost more.
SIZES = (2, 8)
#: The engines, each with its K. A draft reads the token before the last one, so that a wrong token
#: of the second pass shows in the fourth at the earliest.
PARTS = {"eagle3hid": 3, "eagle3": 4, "kernel blocks": 3}
#: Runs of the module as it is that are always made: in each engine one, in the one with most
#: mutations each kind.
ALWAYS = (
    *(("eagle3hid", run) for run in ("before", "before, in steps", "after")),
    ("eagle3", "before"),
    ("kernel blocks", "before"),
)


def mutations_of(part: str) -> list[Mutation]:
    """The mutations that run in one of the engines."""
    return [each for each in MUTATIONS if each.engine == part]


AnyMutation = TypeVar("AnyMutation", Mutation, TwinMutation)


def once_each(table: Sequence[AnyMutation]) -> list[Any]:
    """A table as parameters: always what is shown first, with `--thorough` what repeats it.

    A mutation repeats another one that stands for the same hazard or defect, or that is of the same
    part of the feature and is shown by the same.
    """
    shown: set[tuple[str, str]] = set()
    parameters = []
    for each in table:
        by = each.catcher if isinstance(each, Mutation) else each.script
        what = (each.stands_for, "" if each.stands_for.startswith("hazard") else by)
        marks = pytest.mark.thorough if what in shown else ()
        parameters.append(pytest.param(each, id=each.name, marks=marks))
        shown.add(what)
    return parameters


def plan_for(part: str, models: Path, wanted: Collection[str]) -> Plan:
    """One engine with its mutations, and the module as it is before and after them.

    :param wanted: the names of the mutations, sabotages and runs of the module as it is.
    """
    runs = [
        Run("before", "loop", ladder=SIZES),
        Run("before, in steps", "step", tunes=True, ladder=SIZES),
    ]
    runs = [each for each in runs if each.name in wanted]
    runs += [
        Run(
            each.name,
            each.mode,
            mutation=each.changes,
            check=each.check,
            sabotage=each.sabotage,
            tunes=each.tunes,
            until_wrong=each.catcher == "acceptance",
            until_refused=each.catcher == "graph double",
            ladder=SIZES,
        )
        for each in mutations_of(part)
        if each.name in wanted
    ]
    sabotages = [each for each in SABOTAGES if engine_of(each) == part and each in wanted]
    runs += [Run(each, "loop", sabotage=each, ladder=SIZES) for each in sabotages]
    if "after" in wanted:
        runs.append(Run("after", "loop", ladder=SIZES))
    block = 8 if part == "kernel blocks" else None
    draft = "eagle3" if part == "eagle3" else "eagle3hid"
    spec = make_spec(models, draft, PARTS[part], engine=QUICKEST, requests=make_requests()[:8])
    return Plan(spec, runs, kernel_block=block)


def looked_at(items: Iterable[pytest.Item]) -> dict[str, set[str]]:
    """The engines that tests look at, each with the names of the mutations and sabotages."""
    runs: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if not isinstance(item, pytest.Function) or "outcomes" not in item.fixturenames:
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        mutation, name = parameters.get("mutation"), str(parameters.get("name"))
        if isinstance(mutation, Mutation):
            runs[part_of(mutation)].add(mutation.name)
        elif name in SABOTAGES:
            runs[engine_of(name)].add(name)
        elif name in PARTS:
            runs[name].add(str(parameters["run"]))
    return runs


@pytest.fixture(scope="module")
def outcomes(
    forks: ForkedModules, tiny_models: Path, request: pytest.FixtureRequest
) -> dict[str, dict[str, Outcome]]:
    """What the runs showed that the chosen tests look at, by engine and name."""
    runs = looked_at(request.session.items)
    plans = [plan_for(part, tiny_models, wanted) for part, wanted in runs.items()]
    return dict(zip(runs, run_harness(forks, plans), strict=True))


def part_of(mutation: Mutation) -> str:
    """The engine that a mutation runs in."""
    (part,) = [part for part in PARTS if mutation in mutations_of(part)]
    return part


def caught_by(outcome: Outcome, sabotage: str | None = None) -> str | None:
    """What shows that something is wrong with the module; None if nothing does.

    With a sabotage the address check must stop the run; that it does not shows the mutation, and
    what else the sabotage leads to.
    """
    if sabotage is not None and (outcome.error or "").startswith("AddressError"):
        return None
    if sabotage is not None and outcome.error is None and outcome.used:
        return "sabotage"
    warnings = [line for line in outcome.log if line.startswith("WARNING")]
    if "CaptureRefused" in "".join(warnings) or (outcome.error or "").startswith("ReplayRefused"):
        return "graph double"
    if outcome.error is not None:
        kind = outcome.error.partition(":")[0]
        return CATCHERS.get(kind, "error")
    if not outcome.tokens_ok or outcome.accepted != outcome.expected:
        return "acceptance"
    if warnings or not outcome.used or sum(outcome.missed.values()):
        return "use"
    if outcome.model_calls != upstreams_calls(outcome, len(outcome.accepted)):
        return "use"
    return None


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run"),
    [
        pytest.param(name, run, marks=() if (name, run) in ALWAYS else pytest.mark.thorough)
        for name in PARTS
        for run in ("before", "before, in steps", "after")
    ],
)
def test_the_module_as_it_is_passes(
    outcomes: dict[str, dict[str, Outcome]], name: str, run: str
) -> None:
    outcome = outcomes[name][run]
    assert caught_by(outcome) is None, outcome
    expect_right(outcome)
    expect_graphs(outcome, PARTS[name])


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("mutation", once_each(MUTATIONS))
def test_mutation_is_caught(outcomes: dict[str, dict[str, Outcome]], mutation: Mutation) -> None:
    outcome = outcomes[part_of(mutation)][mutation.name]
    said = "\n".join([outcome.error or "", *outcome.log])
    assert caught_by(outcome, mutation.sabotage) == mutation.catcher, said
    assert mutation.says in said


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("name", SABOTAGES)
def test_the_address_check_names_what_was_replaced(
    outcomes: dict[str, dict[str, Outcome]], name: str
) -> None:
    error = outcomes[engine_of(name)][name].error
    assert is_named(name, error), error


def refuses(source: str, fact: str) -> bool:
    """Whether a policy of this source refuses the value of a fact that it must refuse."""
    module: Any = ModuleType("draft_graphs.mutated_policy")
    module.__package__ = "draft_graphs"
    sys.modules[module.__name__] = module
    exec(compile(source, "policy.py", "exec"), module.__dict__)
    facts = {**vars(LATE), fact: REFUSED[fact][0]}
    return not module.decide("auto", module.Facts(**facts)).any


@pytest.mark.parametrize(
    "mutation", [*MUTATIONS, *SCENARIO_MUTATIONS, *BUILDER_MUTATIONS], ids=lambda each: each.name
)
def test_mutation_fits_the_module(mutation: Mutation | UnitMutation) -> None:
    # Upstream's file only the engine has.
    require_fit(change for change in mutation.changes if change[0] != HOOKED)


@pytest.mark.parametrize("mutation", TWIN_MUTATIONS, ids=lambda each: each.name)
def test_twin_mutation_fits_the_module(mutation: TwinMutation) -> None:
    require_fit(mutation.changes)


@pytest.mark.parametrize("mutation", POLICY_MUTATIONS, ids=lambda each: each.fact)
def test_mutation_of_the_policy_is_caught(mutation: PolicyMutation) -> None:
    source = (FOLDER / "draft_graphs" / "policy.py").read_text(encoding="utf-8")
    assert refuses(source, mutation.fact)
    bug = edited(source, [(mutation.scope, mutation.old, mutation.new)])
    assert not refuses(bug, mutation.fact)


def test_every_defect_and_hazard_has_its_row() -> None:
    page = render()
    for number in range(1, 12):
        assert f"| defect {number} |" in page
    for number in range(1, 16):
        assert f"| hazard {number} |" in page
    assert "(none)" not in page


def test_every_defect_and_hazard_has_an_answer() -> None:
    answers = parse_toml(ANSWERS.read_text(encoding="utf-8"))["answers"]
    numbers = [(each["kind"], number) for each in answers for number in each["numbers"]]
    expected = [("defect", number) for number in range(1, 12)]
    assert numbers == expected + [("hazard", number) for number in range(1, 16)]


def test_every_result_file_on_the_page_exists() -> None:
    named = re.findall(r"`(h200-[^`]+\.json)`", render())
    assert named
    for name in named:
        assert (PAGE.parents[2] / "bench/results" / name).is_file(), name


def test_the_page_shows_the_table() -> None:
    """`python tests/draft_graphs/mutations.py` writes it."""
    assert PAGE.read_text(encoding="utf-8") == render()


def names_in(
    table: Sequence[Mutation | DpMutation | TwinMutation | UnitMutation],
) -> list[str]:
    return [each.name for each in table]


def test_names_are_used_once() -> None:
    names: dict[str, int] = defaultdict(int)
    tables: tuple[Sequence[Any], ...] = (
        MUTATIONS,
        SCENARIO_MUTATIONS,
        BUILDER_MUTATIONS,
        DP_MUTATIONS,
        TWIN_MUTATIONS,
    )
    for name in [name for table in tables for name in names_in(table)]:
        names[name] += 1
    assert max(names.values()) == 1
