"""Law 7 for both at once: a base that nothing proves, and a module that upstream may add later."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.folder import load
from overlay.authoring.writing import write_folder
from overlay.planning.planner import plan
from overlay.results import State
from tests.authoring.test_import_laws import (
    MODULE,
    NAMES,
    PATH,
    SLOW,
    import_of,
    merged_without_ids,
    new_file,
)
from tests.support.patches import MemoryTree

CONTENT = b"value = compute(1)\nother = compute(2)\n"


@SLOW
@given(merged_without_ids(), st.integers(0, len(NAMES)))
def test_a_guessed_base_with_a_module_is_made_twice_nowhere_and_retired_nowhere_early(
    history: tuple[dict[str, bytes], bytes], since: int
) -> None:
    """The second release has the hunks; the module comes with any release, or with none."""
    texts, data = history
    trees = {
        name: {PATH: texts[name], **({MODULE: CONTENT} if number >= since else {})}
        for number, name in enumerate(NAMES)
    }
    made = import_of(data + new_file(CONTENT), trees)
    assume(made is not None)
    assert made is not None
    assert made.folder is not None
    with TemporaryDirectory() as place:
        write_folder(made.folder, Path(place))
        (feature,) = load([Path(place)])
    whole = max(1, since)
    if feature.merged is not None:
        assert feature.merged in map(Version, NAMES[whole:])
    for number, name in enumerate(NAMES):
        (result,) = plan([feature], MemoryTree(dict(trees[name])), Version(name)).features
        if number:  # its hunks are there
            assert result.state is not State.PRISTINE
        if number < whole:
            assert result.state is not State.UPSTREAMED
