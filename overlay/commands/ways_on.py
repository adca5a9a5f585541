"""Find the features without which an ``apply`` of the others goes on, as few as possible.

Where features clash, leaving out one of them is often enough, and any of them will do: each way is
planned before it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from overlay._features.model import paths_of
from overlay.report.problems import CLASH, word
from overlay.results import Clash, Plan, State
from overlay.results.invocation import NOTHING_NAMED, current

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.on_disk.ledger import Ledger

#: How many ways are planned; behind that all that clash are left out.
_TRIES = 16

#: How many ways are named.
_NAMED = 4


def ways_on(
    features: Sequence[Feature],
    plan: Plan,
    try_on: Callable[[Sequence[Feature]], Plan],
    ledger: Ledger | None = None,
) -> tuple[tuple[str, ...], ...]:
    """The ids of the features without which an ``apply`` of the others would go on, by way.

    What is applied stays applied, and what vLLM must not start without is not left out.

    :param try_on: plans features on the target.
    :returns: the ways that leave out the fewest; none where no way is left.
    """
    needy = {entry.feature for entry in plan.features if entry.state.needs_attention}
    applied = {entry.result.feature for entry in (ledger.applied if ledger is not None else ())}
    bound = applied | {feature.id for feature in features if feature.required}
    clashing = {entry.feature for entry in plan.features if word(entry) == CLASH}
    drifted = needy - clashing
    if not needy or drifted & bound:
        return ()

    paths = {feature.id: {*paths_of([feature])} for feature in features}
    states = {entry.feature: entry.state for entry in plan.features}

    def goes_on(left_out: frozenset[str]) -> bool:
        remaining = [feature for feature in features if feature.id not in left_out]
        # What shares no file with those left out stays as it is, and is not planned again.
        apart = set().union(*(paths[id_] for id_ in left_out))
        changed = {feature.id for feature in remaining if not apart.isdisjoint(paths[feature.id])}
        beside = set().union(*(paths[id_] for id_ in changed))
        group = [each for each in remaining if not beside.isdisjoint(paths[each.id])]
        again = try_on(group).features if changed else ()
        now = states | {each.feature: each.state for each in again if each.feature in changed}
        outlook = [now[feature.id] for feature in remaining]
        return State.PRISTINE in outlook and not any(state.needs_attention for state in outlook)

    ways: list[frozenset[str]] = []
    for way in _candidates(drifted, sorted(clashing - bound), all_of=needy - bound):
        if ways and len(way) > len(ways[0]):
            break
        if goes_on(way):
            ways.append(way)
    return tuple(tuple(each.id for each in features if each.id in way) for way in ways)


def _candidates(
    always: set[str], clashing: Sequence[str], all_of: set[str]
) -> Iterator[frozenset[str]]:
    """What could be left out, the fewest first, and at last everything."""
    tries = 0
    for size in range(1 if clashing else 0, len(clashing)):
        for some in combinations(clashing, size):
            if (tries := tries + 1) > _TRIES:
                break
            yield frozenset({*always, *some})
    yield frozenset(all_of)


def _without(way: Sequence[str]) -> list[str]:
    return [word for id_ in way for word in ("--without", id_)]


def with_ways(plan: Plan, ways: Sequence[tuple[str, ...]], *, read_only: bool) -> Plan:
    """A plan whose clashes name the ways out, each of which is one command.

    :param read_only: whether the target is a file or a release, to which no command writes.
    """
    clashing = {entry.feature for entry in plan.features if word(entry) == CLASH}
    if not ways or not clashing:
        return plan
    caller = current() or NOTHING_NAMED
    commands = [
        str(caller.command("apply", *_without(way), read_only=read_only)) for way in ways[:_NAMED]
    ]
    number = len(clashing & {*ways[0]})
    step = (
        f"leave {'one' if number == 1 else number} of them out, {' or '.join(commands)}, "
        f"or make one patch of {'both' if number == 1 else 'them'}"
    )

    def with_step(reason: object) -> Clash | None:
        return reason._replace(next_step=step) if isinstance(reason, Clash) else None

    features = []
    for entry in plan.features:
        files = []
        for file in entry.files:
            hunks = tuple(
                hunk._replace(reason=with_step(hunk.reason) or hunk.reason) for hunk in file.hunks
            )
            files.append(file._replace(hunks=hunks, reason=with_step(file.reason) or file.reason))
        features.append(entry._replace(files=tuple(files)))
    return plan._replace(features=tuple(features))
