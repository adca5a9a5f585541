"""Laws of another form: nothing is lost where features are renamed, split and folded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay._features.model import Feature
from overlay.authoring.reshaping import Files, folded, needing, renamed, split
from overlay.authoring.writing import check_files
from overlay.errors import UsageError
from overlay.untrusted import parse_toml
from tests.support.patches import hunk, patch_text

SPAN = "0.20.0..0.23.0"
HEADERS = "Description: A test\nOrigin: the tests\nLast-Update: 2026-11-20\nBase: 0.21.0\n\n"
PATHS = ("vllm/a.py", "vllm/b.py", "vllm/c.py")

#: A topic's file, and what its feature.toml says that upstream has: whether it names the topic.
Topics = Sequence[tuple[str, Sequence[bool]]]


def files_of(
    id_: str,
    topics: Topics,
    *,
    span: str = SPAN,
    keys: str = "",
    more: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """The files of a feature whose topics are called 05-t1, 06-t2 and so on."""
    toml = [f'title = "Of {id_}"', f'id = "{id_}"', 'why = "w"', f'releases = "{span}"', keys]
    files = {**(more or {})}
    for number, (path, tests) in enumerate(topics, 1):
        name = f"{number + 4:02}-t{number}"
        text = patch_text(path, hunk([" a = 1", f"+{id_[0]} = {number}"]), headers=HEADERS)
        files[f"{name}/{span}.patch"] = text.encode()
        for named in tests:
            toml += ["[[upstreamed]]", f'path = "{path}"', f'scope = "f{number}"', "share = 0.6"]
            toml += ['lines = ["one"]', f'topic = "{name}"' if named else ""]
    return {**files, "feature.toml": "\n".join([*toml, ""]).encode()}


def read(files: Files) -> Feature:
    """The feature that files make."""
    return check_files(parse_toml(files["feature.toml"])["id"], files)


def rest_of(files: Files, *beside: str) -> dict[str, Any]:
    """What a feature.toml says beside some keys."""
    table = parse_toml(files["feature.toml"])
    return {key: value for key, value in table.items() if key not in beside}


def topics_of(files: Files) -> dict[str, tuple[bytes, list[dict[str, Any]]]]:
    """The text of each topic, and what upstream has of it, of which the scope tells the topic."""
    tests = parse_toml(files["feature.toml"]).get("upstreamed", [])
    texts = {name.partition("/")[0]: files[name] for name in files if name[:1].isdigit()}
    for test in tests:
        assert test.setdefault("topic", "t1")
    return {
        name: (data, [{**test, "topic": ""} for test in tests if test["scope"][1:] == name[4:]])
        for name, data in texts.items()
    }


def about(files: Files) -> list[bool]:
    """Whether each of the tests names the topic that it is about."""
    tests = parse_toml(files["feature.toml"]).get("upstreamed", [])
    return [test["topic"][2:] == f"-t{test['scope'][1:]}" for test in tests]


@st.composite
def features(draw: st.DrawFn) -> dict[str, bytes]:
    """A feature of which each topic has a file of its own, or names itself in its tests."""
    paths = draw(st.lists(st.sampled_from(PATHS), min_size=2, max_size=9))
    topics = [
        (
            path,
            draw(st.lists(st.just(True) if paths.count(path) > 1 else st.booleans(), max_size=2)),
        )
        for path in paths
    ]
    names = ("files/vllm/m.py", "files/vllm/n.py", "origin/x.diff")
    more = st.dictionaries(st.sampled_from(names), st.sampled_from([b"a = 1\n", b"a = 2\n"]))
    keys = st.sampled_from(["", 'needs = ["other"]', 'merged = "0.24.0"'])
    return files_of("alpha", topics, keys=draw(keys), more=draw(more))


@given(features())
def test_another_id_changes_one_line(files: dict[str, bytes]) -> None:
    files["feature.toml"] += b'[x]\nid = "alpha"\n'
    new = renamed(files, "new")
    lines = [each["feature.toml"].splitlines() for each in (files, new)]
    assert [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]] == [
        (b'id = "alpha"', b'id = "new"')
    ]
    assert {**new, "feature.toml": b""} == {**files, "feature.toml": b""}


@settings(max_examples=30)  # each writes folders
@given(features(), st.data())
def test_split_and_folded_again_a_feature_is_what_it_was(
    files: dict[str, bytes], data: st.DataObject
) -> None:
    feature = read(files)
    names = [topic.name for topic in feature.topics]
    going = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    if len(going) == len(names):
        going.pop()
    title = data.draw(st.sampled_from(["", "Its title"]))
    rest, new = split(feature, files, going, "new", title)
    assert {**new, **rest, "feature.toml": b""} == {**files, "feature.toml": b""}
    assert rest.keys() & new.keys() == {"feature.toml"}
    assert rest_of(rest, "upstreamed") == rest_of(files, "upstreamed")
    new_words = {"id": "new", "title": title or "Of alpha: new"}
    assert rest_of(new, "upstreamed") == {**rest_of(files, "upstreamed"), **new_words}
    topics = topics_of(rest) | topics_of(new)
    assert topics == topics_of(files)
    assert topics_of(new).keys() == {*going}
    assert all(about(rest) + about(new))
    if "needs" in rest_of(files):
        return  # which holds for all of a feature
    parts, halves = {"alpha": rest, "new": new}, (rest, new)
    first, second = read(rest), read(new)
    order = [topic.name for each in (first, second) for topic in each.topics]
    for id_, half in parts.items():
        back = folded(first, second, halves, id_)
        assert rest_of(back, "upstreamed") == rest_of(half, "upstreamed")
        numbers = [f"{number}0{name[2:]}" for number, name in enumerate(order, 1)]
        assert topics_of(back) == dict(zip(numbers, map(topics.get, order), strict=True))
        assert all(about(back))
        beside = {name for name in files if not name[:1].isdigit()}
        assert {name: back[name] for name in back if not name[:1].isdigit()} == {
            **{name: files[name] for name in beside},
            "feature.toml": back["feature.toml"],
        }


ALPHA = [(PATHS[0], [False]), (PATHS[1], [True])]


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        (["09-x", "05-t1"], "--split 09-x: expected topics of alpha: 05-t1, 06-t2"),
        ([], "--split 05-t1: expected topics of alpha: none"),
        (["06-t2", "05-t1"], "found all: --rename does that"),
    ],
)
def test_what_is_not_split_is_said(topics: list[str], words: str) -> None:
    module = {"files/vllm/m.py": b"a = 1\n"}
    files = files_of("alpha", ALPHA if topics else [], more=module)
    topics = topics or ["05-t1"]
    with pytest.raises(UsageError, match=words):
        split(read(files), files, topics, "new", "")


def test_a_feature_is_folded_over_the_releases_that_both_serve() -> None:
    files = files_of("alpha", ALPHA), files_of("beta", ALPHA, span="0.21.0..0.24.0")
    for id_ in ("alpha", "beta"):
        new = folded(read(files[0]), read(files[1]), files, id_)
        assert rest_of(new, "upstreamed") == {
            **rest_of(files_of(id_, []), "upstreamed"),
            "releases": "0.21.0..0.23.0",
        }
        names = ["10-t1", "20-t2", "30-t1", "40-t2"]
        assert [topic.name for topic in read(new).topics] == names
        assert [name for name in sorted(new) if name[:1].isdigit()] == [
            f"{name}/0.21.0..0.23.0.patch" for name in names
        ]
        tests = [(test["path"], test["topic"]) for test in rest_of(new)["upstreamed"]]
        assert tests == [(PATHS[number % 2], name) for number, name in enumerate(names)]


def test_ten_topics_and_more_keep_their_order_and_each_origin_is_kept() -> None:
    more = {"origin/x.diff": b"a\n", "files/vllm/m.py": b"a = 1\n"}
    files = [files_of(id_, [(PATHS[0], [])] * 5, more=more) for id_ in ("alpha", "beta")]
    new = folded(read(files[0]), read(files[1]), files, "alpha")
    names = [f"{number:02}-t{(number - 1) % 5 + 1}" for number in range(1, 11)]
    assert [topic.name for topic in read(new).topics] == names
    assert {name for name in new if not name[:1].isdigit()} == {
        *more,
        "origin/beta-x.diff",
        "feature.toml",
    }


@pytest.mark.parametrize(
    ("beta", "words"),
    [
        (files_of("beta", ALPHA, span="0.24.0..0.25.0"), "0.24.0..0.25.0: expected features that"),
        (
            files_of("beta", ALPHA, span="0.23.0..0.24.0"),
            "alpha: a variant is made on a release ou",
        ),
        (files_of("beta", ALPHA, keys='merged = "0.24.0"'), "alpha and beta: upstream has one"),
        (files_of("beta", ALPHA, keys="required = true"), "beta: .*says required, which holds"),
        (files_of("beta", ALPHA, more={"files/vllm/m.py": b"b = 1\n"}), "both add files/vllm/m.py"),
        (files_of("beta", [(PATHS[0], [False])] * 2), "beta: .*may be about 05-t1, 06-t2: name"),
        (
            {
                **(files := files_of("beta", ALPHA)),
                "feature.toml": files["feature.toml"].replace(b'path = "vllm/a', b'path = "vllm/z'),
            },
            "for vllm/z.py that may be about any topic: name",
        ),
    ],
)
def test_what_is_not_folded_is_said(beta: dict[str, bytes], words: str) -> None:
    alpha = files_of("alpha", ALPHA, more={"files/vllm/m.py": b"a = 1\n"})
    with pytest.raises(UsageError, match=words):
        folded(read(alpha), read(beta), (alpha, beta), "alpha")


def test_a_test_of_a_file_that_no_topic_changes_is_about_the_only_topic() -> None:
    alpha, beta = (files_of(id_, [(PATHS[0], [False])]) for id_ in ("alpha", "beta"))
    beta["feature.toml"] = beta["feature.toml"].replace(b'path = "vllm/a', b'path = "vllm/z')
    new = folded(read(alpha), read(beta), (alpha, beta), "alpha")
    tests = [(test["path"], test["topic"]) for test in rest_of(new)["upstreamed"]]
    assert tests == [("vllm/a.py", "10-t1"), ("vllm/z.py", "20-t1")]


@pytest.mark.parametrize(
    ("needs", "new"),
    [
        ('needs = ["alpha"]', 'needs = ["new"]'),
        ('needs = ["beta-alpha", "alpha", "alpha-b"]', 'needs = ["beta-alpha", "new", "alpha-b"]'),
        ('needs=["b",  "alpha"] # "alpha"', 'needs=["b",  "new"] # "alpha"'),
        ('needs = ["alpha"]\n[x]\nneeds = ["alpha"]', 'needs = ["new"]\n[x]\nneeds = ["alpha"]'),
        ('needs = ["alphas"]', None),
        ("", None),
    ],
)
def test_who_needs_a_feature_needs_it_by_its_new_id(needs: str, new: str | None) -> None:
    before, after = (
        files_of("gamma", ALPHA, keys=keys, more={"origin/x.diff": b"a\n"})
        for keys in (f'# "alpha"\n{needs}', f'# "alpha"\n{new}')
    )
    assert needing(before, "alpha", "new") == (None if new is None else after)


def test_what_is_written_otherwise_is_refused() -> None:
    files = files_of("alpha", ALPHA, keys='needs = [\n  "beta",\n]')
    with pytest.raises(UsageError, match="expected needs on one line"):
        needing(files, "beta", "new")
    files["feature.toml"] = files["feature.toml"].replace(b'"alpha"', b'"""\nalpha"""')
    with pytest.raises(UsageError, match="expected id on a line of its own"):
        renamed(files, "new")
