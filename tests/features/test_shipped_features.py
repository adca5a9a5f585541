"""The shipped features of vLLM against the real releases they are made for.

Those of vllm-ascend are tested in `tests/ascend/test_ascend_features.py`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import holes
from overlay._features.model import Variant
from overlay._features.sources import shipped_folder
from overlay.authoring.building import derived_tests
from overlay.authoring.variants import serving
from overlay.package import KNOWN_RELEASES
from overlay.planning.attempt import Texts, attempt
from overlay.planning.diff import render
from overlay.planning.matching import innermost_scope, match
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.planning.text import SourceText
from overlay.results import Plan, State
from overlay.targets import Target
from overlay.targets.resolution import resolve
from tests.support.shipped_features import (
    BOOKKEEPING,
    DBO,
    DRAFTS,
    GREEDY,
    LORA,
    MENDS,
    OURS,
    RETIRED,
    SCHEDULER,
    SIZES,
    STEADY,
    bound_by,
    feature,
    shipped,
)

SYNTAX = Syntax()


@functools.cache
def target(release: str) -> Target:
    return resolve(release)


class Musa:
    """The tree of 0.28.0 with what vllm-musa 0.1.28 makes of it, as far as it is looked for.

    It carries the pull request, in which the drafter's graphs wait for a variable of its own.
    """

    dispatcher = "vllm/v1/cudagraph_dispatcher.py"
    proposer = "vllm/v1/spec_decode/llm_base_proposer.py"

    def read(self, path: str) -> bytes | None:
        data = target("0.28.0").read(path)
        if data is not None and path == self.dispatcher:
            at = b"class CudagraphDispatcher:\n"
            data = data.replace(at, at + b"    for_draft_model = False\n")
            assert b"for_draft_model" in data
        if data is not None and path == self.proposer:
            at = b"        self.model = self._get_model()\n"
            wrapped = (
                b"        if os.environ.get('VLLM_MUSA_DRAFT_FULL_WRAP') == '1':\n"
                b"            self.model = wrap(self.model, runtime_mode=CUDAGraphMode.FULL)\n"
            )
            assert at in data
            data = data.replace(at, at + wrapped)
        return data


@pytest.mark.network
def test_draft_graphs_are_not_upstreams_in_vllm_musas_build() -> None:
    (result,) = plan([feature(DRAFTS)], Musa(), Version("0.28.0")).features
    assert result.state is State.INAPPLICABLE
    note = str(result.reason)
    assert note.startswith("this is vllm-musa's build of the release: ")
    assert "VLLM_MUSA_DRAFT_FULL_WRAP=1" in note
    # Without knowing the build, both texts of the pull request would have retired the feature.
    (fooled,) = plan([replace(feature(DRAFTS), builds=())], Musa(), Version("0.28.0")).features
    assert fooled.state is State.UPSTREAMED


@functools.cache
def planned(release: str) -> Plan:
    found = target(release)
    return plan(shipped(), found, found.release, found.record, SYNTAX)


def past(name: str, release: str) -> bool:
    """Whether a release comes behind the last one that has the fault of a feature."""
    return name in RETIRED and Version(release) > Version(RETIRED[name])


def states(release: str) -> dict[str, State]:
    return {result.feature: result.state for result in planned(release).features}


# What needs no release


def test_the_shipped_features_have_no_holes() -> None:
    known = dict.fromkeys((LORA, *OURS), ())
    assert {one.id: holes(one) for one in shipped()} == known, (
        "a hole, or a feature that tests/support/shipped_features.py does not name"
    )


def test_nothing_that_is_added_to_a_package_imports_the_overlay() -> None:
    """Whoever uninstalls the overlay keeps a vLLM that works, patched or not."""
    modules = [path for path in shipped_folder().rglob("*.py") if "files" in path.parts]
    assert modules
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not [name for name in names if name.partition(".")[0] == "overlay"], path


def test_every_known_release_is_in_every_shipped_range() -> None:
    for one in shipped():
        outside = [text for text in KNOWN_RELEASES if Version(text) not in one.releases]
        assert [text for text in outside if one.merged is None or Version(text) < one.merged] == []


def test_every_shipped_feature_says_why_it_is_kept_or_since_when_it_is_upstream() -> None:
    unsaid = {one.id for one in shipped() if one.reason is None}
    assert unsaid == {LORA, *RETIRED}, "a feature.toml without reason"
    assert str(feature(LORA).merged) == "0.16.0"


def our_variants() -> list[Variant]:
    return [
        variant for name in OURS for topic in feature(name).topics for variant in topic.variants
    ]


def test_a_hunk_has_as_much_context_before_as_behind() -> None:
    """GNU patch takes a hunk with less context on one side for one at that end of the file."""
    uneven = []
    for variant in our_variants():
        for hunk in variant.patch.hunks:
            ops = "".join(op for op, _ in hunk.lines)
            before, behind = len(ops) - len(ops.lstrip(" ")), len(ops) - len(ops.rstrip(" "))
            if before != behind or before == 0:
                uneven.append((variant.patch.name, hunk.scope, before, behind))
    assert uneven == []


def test_hooks_only_add() -> None:
    """A hook takes no line of vLLM's away, so upstream's path is all there behind it."""
    ops = Counter(
        op for variant in our_variants() for hunk in variant.patch.hunks for op, _ in hunk.lines
    )
    assert ops["-"] == 0
    assert ops["+"] > 0


# Against the releases


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_every_known_release_takes_the_draft_graphs_and_has_the_rest(release: str) -> None:
    assert states(release) == {
        DRAFTS: State.PRISTINE,
        LORA: State.UPSTREAMED,
        STEADY: State.PRISTINE,
        GREEDY: State.PRISTINE,
        DBO: State.PRISTINE,
        BOOKKEEPING: State.PRISTINE,
        **dict.fromkeys(MENDS, State.PRISTINE),
        **{name: State.UPSTREAMED if past(name, release) else State.PRISTINE for name in RETIRED},
        SCHEDULER: State.PRISTINE,
        SIZES: State.PRISTINE,
    }
    assert planned(release).notices == ()
    assert all(not result.untested for result in planned(release).features)
    here = [feature(name) for name in OURS if not past(name, release)]
    added = {file.path for one in here for file in one.added}
    patched = {v.patch.path for one in here for _, v in serving(one, Version(release))}
    assert {change.path for change in planned(release).changes} == added | patched


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_what_is_remembered_as_upstreams_is_there(release: str) -> None:
    """Memory answers without looking; the tests of the feature look."""
    forgotten = replace(feature(LORA), merged=None)
    result = plan([forgotten], target(release), Version(release)).features[0]
    assert result.state is State.UPSTREAMED
    for name in RETIRED:
        forgotten = replace(feature(name), merged=None)
        result = plan([forgotten], target(release), Version(release)).features[0]
        assert (result.state is State.UPSTREAMED) == past(name, release)


@pytest.mark.network
@pytest.mark.parametrize("name", [STEADY, GREEDY])
def test_the_lines_that_tell_of_a_feature_are_those_of_its_newest_hunks(name: str) -> None:
    newest = KNOWN_RELEASES[-1]
    texts, now = Texts(SYNTAX), dict[str, bytes | None]()
    parts = []
    for _, variant in serving(feature(name), Version(newest)):
        path, hunks = variant.patch.path, variant.patch.hunks
        before = now.get(path) or target(newest).read(path)
        assert before is not None
        parts.append((before, path, hunks))
        now[path] = attempt(variant.patch, before, texts).after
    wanted = {(test.path, test.scope, test.lines, test.share) for test in derived_tests(parts)}
    tests = feature(name).upstream_tests
    assert {(test.path, test.scope, test.lines, test.share) for test in tests} == wanted


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_each_hunk_is_in_no_narrower_scope_than_it_says(release: str) -> None:
    """The scope that a hunk names is the innermost one that holds its pre-image."""
    wide = []
    here = [feature(name) for name in OURS if not past(name, release)]
    for topic in [topic for one in here for topic in one.topics]:
        patch = next(v.patch for v in topic.variants if Version(release) in v.releases)
        data = target(release).read(patch.path)
        assert data is not None
        lines = SourceText.from_bytes(data).lines
        scopes = SYNTAX.scopes(data, lines)
        for hunk in patch.hunks:
            found = match(hunk, lines, scopes)
            assert found.line is not None
            innermost = innermost_scope(found.line - 1, len(hunk.pre), scopes)
            if innermost != hunk.scope:
                wide.append((patch.name, hunk.scope, innermost))
    assert wide == []


@pytest.mark.network
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_git_applies_the_rendered_diff_and_each_patch_to_the_same_bytes(
    release: str, tmp_path: Path
) -> None:
    changes = planned(release).changes
    whole, series = tmp_path / "whole", tmp_path / "series"
    for root in (whole, series):
        for change in changes:
            if change.before is not None:
                (root / change.path).parent.mkdir(parents=True, exist_ok=True)
                (root / change.path).write_bytes(change.before)
        git(root, "init", "-q")
    git(whole, "apply", "-", stdin=render(changes))
    for change in changes:
        assert (whole / change.path).read_bytes() == change.after, change.path

    names = [file.patch for one in planned(release).features for file in one.files if file.patch]
    for name in names:
        git(series, "apply", str(shipped_folder() / name))
    for change in changes:
        if change.before is not None:
            assert (series / change.path).read_bytes() == change.after, change.path


def git(root: Path, *arguments: str, stdin: bytes = b"") -> None:
    done = subprocess.run(
        ["git", *arguments], cwd=root, input=stdin, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.network
@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_the_names_that_a_hook_uses_are_assigned_before_it(release: str) -> None:
    """Each name in an added line is an argument, or assigned earlier in its function, or global."""
    unknown = []
    looked_at = 0
    for change in planned(release).changes:
        if change.before is None or change.after is None:
            continue
        old = set(change.before.decode().splitlines())
        lines = change.after.decode().splitlines()
        tree = ast.parse(change.after)
        everywhere = bound_by(tree.body) | set(dir(builtins))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            if old.issuperset(lines[function.lineno - 1 : function.end_lineno]):
                continue
            known = everywhere | bound_by(list(ast.walk(function)))
            # A function inside it has arguments of its own, and is looked at itself.
            for inner in ast.walk(function):
                if isinstance(inner, ast.FunctionDef):
                    rest = [each for each in (inner.args.vararg, inner.args.kwarg) if each]
                    known |= {one.arg for one in [*inner.args.args, *inner.args.kwonlyargs, *rest]}
            stored: dict[str, int] = {}
            for name in names(function, ast.Store):
                stored[name.id] = min(name.lineno, stored.get(name.id, name.lineno))
            for name in names(function, ast.Load):
                earlier = name.id in known or stored.get(name.id, name.lineno) < name.lineno
                if lines[name.lineno - 1] not in old and not earlier:
                    unknown.append((change.path, function.name, name.id))
                looked_at += lines[name.lineno - 1] not in old
    assert unknown == []
    assert looked_at > 20


def names(function: ast.FunctionDef, context: type[ast.expr_context]) -> list[ast.Name]:
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    ]


@pytest.mark.network
def test_below_their_ranges_the_features_are_inapplicable() -> None:
    assert states("0.15.1") == dict.fromkeys((LORA, *OURS), State.INAPPLICABLE)
    assert planned("0.15.1").changes == ()


@pytest.mark.network
def test_the_history_begins_with_0_16() -> None:
    assert states("0.16.0") == {
        DRAFTS: State.INAPPLICABLE,
        LORA: State.UPSTREAMED,
        STEADY: State.INAPPLICABLE,
        GREEDY: State.INAPPLICABLE,
        DBO: State.INAPPLICABLE,
        BOOKKEEPING: State.INAPPLICABLE,
        **dict.fromkeys((*MENDS, *RETIRED), State.INAPPLICABLE),
        SCHEDULER: State.INAPPLICABLE,
        SIZES: State.INAPPLICABLE,
    }


@pytest.mark.network
def test_the_upstream_tests_do_not_hold_before_the_change() -> None:
    """Without its range, the record of history would still tell 0.15.1 from what came after."""
    found = target("0.15.1")
    for test in feature(LORA).upstream_tests:
        data = found.read(test.path)
        text = "" if data is None else data.decode()
        assert test.contains not in text, test
