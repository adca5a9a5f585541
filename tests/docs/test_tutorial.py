"""The sample output in README and in the tutorial is what the commands print, in their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts import render_samples
from scripts.render_samples import SCENES, Scene, Session, render

PAGE = """\
A page.

<!-- file: notes/a.txt -->
```text
one
two
```

```console
$ cat notes/a.txt | wc -l
5
$ echo over there; pwd; exit 3
$ overlay aply
$ vllm serve ...
a line that stays
$ ls
```

```dockerfile
RUN nothing of this is run
```
"""


@pytest.mark.network
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.page.name)
def test_pages_show_what_the_commands_print(scene: Scene) -> None:
    different = render_samples.difference(scene)
    assert not different, f"run scripts/render_samples.py, and read the page again:\n{different}"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(replace(SCENES[1], shown="/home/you"), tmp_path)


@pytest.mark.slow
def test_commands_run_in_order_and_files_are_written(session: Session) -> None:
    page = render(PAGE, session)
    assert "wc -l\n2\n" in page
    assert "over there\n/home/you\n$ overlay" in page
    assert "there is no command" in page or "No such command 'aply'" in page
    assert "$ vllm serve ...\na line that stays\n$ ls\nbin\nnotes\n```" in page
    assert page.endswith("```dockerfile\nRUN nothing of this is run\n```\n")
    assert render(page, session) == page


@pytest.mark.slow
def test_progress_is_left_out(session: Session) -> None:
    shown = (
        "checked 7 of 19 targets",
        "1 of 2 hunks",
        "vllm 3.1 of 9.0 MB",
        "reading a, 2 s",
        "end",
    )
    command = "; ".join(f"echo {line}" for line in shown)
    assert session.run(command) == ["1 of 2 hunks", "end"]


@pytest.mark.slow
def test_no_command_sees_the_variables_of_whoever_runs_the_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OVERLAY", "off")
    monkeypatch.setenv("OVERLAY_PATCHES", "/nowhere")
    assert Session(SCENES[0], tmp_path).run('echo "<$OVERLAY$OVERLAY_PATCHES>"') == ["<>"]


def test_a_page_writes_nothing_outside_its_place(session: Session) -> None:
    with pytest.raises(ValueError, match="leaves the place of work"):
        session.write("../outside", ["a line"])


def test_output_that_changed_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = render_samples.ROOT / "docs/../docs/your-first-patch.md"
    monkeypatch.setattr(render_samples, "rendered", lambda scene: "something else\n")
    assert "+something else" in render_samples.difference(replace(SCENES[1], page=page))
