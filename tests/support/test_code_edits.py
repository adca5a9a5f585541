"""Edits by syntax: they fit whatever the layout, and only where they are meant."""

from __future__ import annotations

import ast

import pytest

from tests.support.code_edits import EditError, edited

SOURCE = '''
LIMITS = {"a": 1, "b": 2}

class Passes:
    """Two methods."""

    def step(self, reqs):
        # a comment
        if reqs < 1:
            return None
        self.copy(
            reqs,
            mask=reqs > 2,
        )
        return self.later(reqs)

    def loop(self, reqs):
        for index in range(1, reqs):
            self.copy(index, mask=True)
        return index


def copy(reqs):
    return reqs
'''


def made(scope: str, old: str, new: str) -> str:
    return edited(SOURCE, [(scope, old, new)])


STEP = "Passes.step"


@pytest.mark.parametrize(
    ("scope", "old", "new", "holds"),
    [
        (STEP, "reqs < 1", "False", "if False:"),
        (STEP, "mask=reqs > 2", "mask=True", "self.copy(reqs, mask=True)"),
        (STEP, "mask=...", "mask=True", "self.copy(reqs, mask=True)"),
        (STEP, "self.copy(...)", "f(MATCH)", "        f(self.copy(reqs, mask=reqs > 2))"),
        (STEP, "self.copy(reqs, mask=...)", "pass", "    pass\n        return self.later(reqs)"),
        (STEP, "self.copy(...)", "MATCH\nreqs += 1", "reqs += 1\n        return"),
        (STEP, "return None", "if reqs:\n    MATCH", "if reqs:\n                return None\n"),
        (STEP, "if ...:\n    ...", "", "def step(self, reqs):\n        self.copy"),
        (STEP, "self.copy(...)\n...", "return 1", "return None\n        return 1\n"),
        (STEP, "...", "return 1", "def step(self, reqs):\n        return 1\n"),
        ("Passes.loop", "range(1, reqs)", "range(reqs)", "in range(reqs):\n            self.copy"),
        ("<module>", "{'a': ..., 'b': 2}", "{}", "LIMITS = {}"),
        ("copy", "reqs", "reqs + 1", "return reqs + 1"),
    ],
)
def test_an_edit_is_made_in_its_scope(scope: str, old: str, new: str, holds: str) -> None:
    text = made(scope, old, new)
    assert holds in text, text
    # Everything else is as it was.
    assert ast.unparse(ast.parse(SOURCE)).count("self.copy(index, mask=True)") == 1
    assert "self.copy(index, mask=True)" in text


@pytest.mark.parametrize(
    ("scope", "old", "says"),
    [
        ("Passes.step", "reqs < 2", "0 times"),
        ("Passes", "self.copy(...)", "2 times"),
        ("Passes.step", "reqs", "4 times"),
        ("Passes.gone", "reqs", "'gone'"),
        ("Passes.loop", "mask=False", "0 times"),
        ("Passes.loop", "index = 2", "0 times"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(scope: str, old: str, says: str) -> None:
    new = "mask=1" if old == "mask=False" else "pass" if old == "index = 2" else "None"
    with pytest.raises(EditError, match=says):
        made(scope, old, new)


def test_layout_comments_and_quotes_do_not_count() -> None:
    other = SOURCE.replace("# a comment", "# another").replace('"a"', "'a'")
    other = other.replace("self.copy(\n            reqs,\n            mask=reqs > 2,\n        )",
                          "self.copy(reqs, mask=(reqs > 2))")  # fmt: skip
    assert other != SOURCE
    edit = ("Passes.step", "self.copy(reqs, mask=reqs > 2)", "pass")
    assert edited(other, [edit]) == edited(SOURCE, [edit])


def test_edits_follow_each_other() -> None:
    text = edited(SOURCE, [("copy", "reqs", "reqs * 2"), ("copy", "reqs * 2", "0")])
    assert "return 0" in text
