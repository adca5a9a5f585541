"""A feature that should run and does not is told by whoever asks the process later."""

from __future__ import annotations

from tests.in_memory.boxes import PATCHED, PRISTINE, PROPOSER, Box
from tests.in_memory.test_process import EARLY, second_feature

SAYS = """
import os
from overlay import _processes as records
from overlay._processes import live
[own] = [one for one in records.read_all() if one.pid == os.getpid()]
print(live.problem(own, [own]))
"""


def says(box: Box, code: str, **changes: str) -> str:
    """What ``status --live`` has to say of a process that is alone in its engine."""
    done = box.attempt(code + SAYS, **changes)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_record_says_what_was_left_out_and_why(box: Box) -> None:
    assert says(box, PATCHED) == "None"
    assert says(box, PRISTINE, OVERLAY="disk") == "None"
    assert says(box, PRISTINE, OVERLAY="off") == "None"
    said = says(box, EARLY + PRISTINE)
    assert said.startswith("runs without demo (pristine): already imported, so it cannot be")
    second_feature(box)
    assert says(box, PRISTINE, OVERLAY_FEATURES="second") == "None"
    file = box.site / PROPOSER
    text = file.read_text()
    file.write_text(text.replace("return self.model(tokens)", "return 'drifted'"))
    said = says(box, "register(); assert runs() == 'drifted'\n")  # second is patched all the same
    assert said.startswith(f"runs without demo (drifted): {PROPOSER}, SpecDecodeBaseProposer.")
    file.write_text(text)
    (box.site / ".vllm-overlay").mkdir()
    (box.site / ".vllm-overlay/journal.json").write_text("{}")
    assert says(box, PRISTINE).startswith("runs without every feature: an apply or revert in")
