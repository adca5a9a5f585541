"""Rename a feature, fold two into one and split one: the files that make it so.  Pure.

A feature is its ``feature.toml``, the folders of its topics, and the modules that it adds; so each
is a matter of names.  What shows that upstream has a feature as a whole (``[[upstreamed]]`` without
a topic) is given to the topic that it is about, since the whole is another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from overlay._features.model import Feature
from overlay.authoring.pruning import clip
from overlay.authoring.variants import with_releases
from overlay.authoring.writing import OF_A_CHANGE, require_change, toml_string, with_tables
from overlay.errors import UsageError
from overlay.package import ReleaseRange
from overlay.untrusted import parse_toml

#: Path below a feature's folder -> bytes.
Files = Mapping[str, bytes]

_OF_UPSTREAM = re.compile(r"\[\[\s*upstreamed\s*\]\]")


def renamed(files: Files, id_: str) -> dict[str, bytes]:
    """A feature's files under another id."""
    return {**files, "feature.toml": _with_text(files["feature.toml"], "id", id_)}


def needing(files: Files, id_: str, new: str) -> dict[str, bytes] | None:
    """The files of a feature that needs another one, which has a new id; ``None`` of any other."""
    toml = files["feature.toml"]
    needs = parse_toml(toml).get("needs", [])
    if id_ not in needs:
        return None
    after = re.sub(
        r"(?m)^(needs\s*=.*?)" + re.escape(toml_string(id_)),
        lambda match: match[1] + toml_string(new),
        toml.decode(),
        count=1,
    )
    keys = {"needs": [new if name == id_ else name for name in needs]}
    return {**files, "feature.toml": require_change(toml, after, keys, "needs on one line")}


def folded(first: Feature, second: Feature, files: Sequence[Files], id_: str) -> dict[str, bytes]:
    """The files of one feature that does what two did, in their order.

    :param first, second: as they are applied.
    :param id_: the id of one of them, whose words it keeps.
    """
    features = (first, second)
    span = _shared_range(first, second)
    own = 0 if first.id == id_ else 1
    other = features[1 - own]
    table = parse_toml(files[1 - own]["feature.toml"])
    if beyond := sorted(set(table) - OF_A_CHANGE):
        raise UsageError(
            f"{other.id}: its feature.toml says {', '.join(beyond)}, which holds for all of a "
            f"feature: fold {id_} into it instead, or leave them two"
        )
    if first.merged != second.merged:
        raise UsageError(
            f"{first.id} and {second.id}: upstream has one of them from another release on, so "
            "they end apart; leave them two"
        )
    names = _numbered([topic.name for each in features for topic in each.topics])
    result: dict[str, bytes] = {}
    tests: list[dict[str, Any]] = []
    for feature, before in zip(features, files, strict=True):
        new_names = {topic.name: next(names) for topic in feature.topics}
        tests += _of_topics(feature, before, new_names)
        for path, data in _within(feature, before, span).items():
            folder = path.split("/")[0]
            name = new_names.get(folder, folder) + path.removeprefix(folder)
            if name.startswith("origin/") and name in result:
                name = f"origin/{feature.id}-{name.removeprefix('origin/')}"
            if name != "feature.toml" and result.setdefault(name, data) != data:
                raise UsageError(f"{first.id} and {second.id} both add {name}, of other bytes")
    toml = with_releases(files[own]["feature.toml"], span)
    return {**result, "feature.toml": with_tables(toml, _OF_UPSTREAM, tests)}


def split(
    feature: Feature, files: Files, topics: Sequence[str], id_: str, title: str
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of a feature without some of its topics, and those of a new one with them.

    The modules that it adds stay with the first.
    """
    names = [topic.name for topic in feature.topics]
    if unknown := [name for name in topics if name not in names]:
        raise UsageError(f"--split {unknown[0]}: expected topics of {feature.id}: {_list(names)}")
    if set(topics) == set(names):
        raise UsageError(
            f"--split: expected some of the topics of {feature.id}, found all: --rename does that"
        )
    tests = _of_topics(feature, files, {name: name for name in names})
    going = [test for test in tests if test["topic"] in topics]
    staying = [test for test in tests if test["topic"] not in topics]
    rest = {path: data for path, data in files.items() if path.split("/")[0] not in topics}
    new = {path: data for path, data in files.items() if path.split("/")[0] in topics}
    toml = files["feature.toml"]
    new_toml = _with_text(_with_text(toml, "id", id_), "title", title or f"{feature.title}: {id_}")
    return (
        {**rest, "feature.toml": with_tables(toml, _OF_UPSTREAM, staying)},
        {**new, "feature.toml": with_tables(new_toml, _OF_UPSTREAM, going)},
    )


def _shared_range(first: Feature, second: Feature) -> ReleaseRange:
    begin = max(first.releases.first, second.releases.first)
    end = min(first.releases.last, second.releases.last)
    if begin > end:
        raise UsageError(
            f"{first.id} serves {first.releases} and {second.id} {second.releases}: expected "
            "features that have a release in common"
        )
    return ReleaseRange(begin, end)


def _within(feature: Feature, files: Files, span: ReleaseRange) -> dict[str, bytes]:
    """A feature's files once none of its variants reaches out of a range."""
    changes = clip(feature, files, span)
    if changes is None:
        raise UsageError(
            f"{feature.id}: a variant is made on a release outside {span}, which both serve; "
            "`overlay prune --releases` gives it another base, or port it first"
        )
    after = {**files, **changes}
    return {path: data for path, data in after.items() if data is not None}


def _numbered(names: Sequence[str]) -> Any:
    """The names of topics, one after the other, with numbers that keep their order."""
    step = 10 if len(names) <= 9 else 1
    return (f"{number * step:02d}{name[2:]}" for number, name in enumerate(names, 1))


def _of_topics(feature: Feature, files: Files, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The tests of a feature, each about one topic."""
    tests = []
    for test in parse_toml(files["feature.toml"]).get("upstreamed", []):
        topic = test.get("topic")
        if topic is None:
            about = [
                each.name
                for each in feature.topics
                if any(variant.patch.path == test["path"] for variant in each.variants)
            ]
            about = about or [each.name for each in feature.topics][: len(feature.topics) == 1]
            if len(about) != 1:
                raise UsageError(
                    f"{feature.id}: its feature.toml has an [[upstreamed]] for {test['path']} that "
                    f"may be about {_list(about) if about else 'any topic'}: name the topic there"
                )
            topic = about[0]
        tests.append({**test, "topic": names[topic]})
    return tests


def _with_text(toml: bytes, key: str, value: str) -> bytes:
    """A ``feature.toml`` with another text for a key."""
    line = f"{key} = {toml_string(value)}"
    after = re.sub(rf"(?m)^{key}\s*=.*$", lambda _: line, toml.decode(), count=1)
    return require_change(toml, after, {key: value}, f"{key} on a line of its own")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
