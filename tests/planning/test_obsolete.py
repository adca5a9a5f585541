"""Law: a feature is for nothing where a file that it names is gone, and nothing else says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from overlay.planning.planner import plan
from overlay.planning.upstream import obsolete_by
from overlay.results import RUNNER_FILES, ModelRunner, State
from tests.support.patches import MemoryTree, feature, hunk

PATHS = ("vllm/a.py", "vllm/b.py", "vllm/c.py")
SOME = st.frozensets(st.sampled_from(PATHS))
KNOWN, NEW = Version("0.33.0"), Version("0.34.0")

#: It patches one file, in releases up to 0.33.0.
DEMO = feature((PATHS[0], [hunk(["-one", "+two"])]))


@given(named=SOME, there=SOME, record=st.none() | SOME, release=st.sampled_from([None, KNOWN, NEW]))
def test_a_file_is_gone_unless_record_lists_it_or_without_one_a_variant_knows_it(
    named: frozenset[str],
    there: frozenset[str],
    record: frozenset[str] | None,
    release: Version | None,
) -> None:
    made = replace(DEMO, obsolete_without=tuple(sorted(named)))
    hashes = None if record is None else dict.fromkeys(record, "")
    known = {PATHS[0]} if release == KNOWN else set()
    lost = known if record is None else record
    gone = sorted(named - there - lost)
    said = obsolete_by(made, release, lambda path: b"" if path in there else None, hashes)
    if not gone:
        assert said is None
    else:
        assert said == f"vLLM has no {gone[0]} any more, which the feature is for"


@pytest.mark.parametrize("runner", ModelRunner)
def test_a_runner_is_called_by_its_name(runner: ModelRunner) -> None:
    made = replace(DEMO, obsolete_without=(RUNNER_FILES[runner],))
    said = obsolete_by(made, NEW, lambda _: None, None)
    assert said == f"vLLM has no model runner {runner.value.upper()} any more"


@given(named=SOME, there=SOME)
def test_the_plan_says_so_and_changes_nothing(named: frozenset[str], there: frozenset[str]) -> None:
    made = replace(DEMO, obsolete_without=tuple(sorted(named)))
    tree = MemoryTree(dict.fromkeys(there, b"one\n"))
    planned = plan([made], tree, NEW)
    (result,) = planned.features
    assert (result.state is State.INAPPLICABLE) == bool(named - there)
    if named - there:
        assert (result.files, planned.changes) == ((), ())
        assert not result.untested
    else:
        assert result.state is (State.PRISTINE if PATHS[0] in there else State.MISSING)


def test_what_upstream_has_merged_is_upstreamed_all_the_same() -> None:
    made = replace(DEMO, obsolete_without=PATHS, merged=KNOWN)
    (result,) = plan([made], MemoryTree({}), NEW).features
    assert result.state is State.UPSTREAMED
