"""The forms of issues are what GitHub's form schema takes, and ask for what an answer needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from overlay.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github/ISSUE_TEMPLATE"
FORMS = sorted(file for file in FOLDER.glob("*.yml") if file.name != "config.yml")

#: Type of an element -> attributes that it must and may have.
ELEMENTS = {
    "markdown": ({"value"}, set[str]()),
    "textarea": ({"label"}, {"description", "placeholder", "value", "render"}),
    "input": ({"label"}, {"description", "placeholder", "value"}),
    "dropdown": ({"label", "options"}, {"description", "multiple", "default"}),
    "checkboxes": ({"label", "options"}, {"description"}),
}

each_form = pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)


def _form(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@each_form
def test_a_form_has_the_keys_of_the_schema(file: Path) -> None:
    form = _form(file)
    assert {"name", "description", "body"} <= form.keys()
    assert form.keys() <= {"name", "description", "body", "title", "labels", "assignees"}
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    assert all(isinstance(label, str) for label in form.get("labels", []))
    for element in form["body"]:
        required, optional = ELEMENTS[element["type"]]
        attributes = element["attributes"]
        assert required <= attributes.keys() <= required | optional, element
        assert all(isinstance(text, str) and text for text in attributes.values())
        if element["type"] == "markdown":
            assert element.keys() == {"type", "attributes"}
            continue
        assert element.keys() == {"type", "id", "attributes", "validations"}
        assert re.fullmatch(r"[A-Za-z0-9_-]+", element["id"])
        assert element["validations"].keys() == {"required"}
        assert isinstance(element["validations"]["required"], bool)
    asked = [element for element in form["body"] if element["type"] != "markdown"]
    assert asked
    for values in (
        [element["id"] for element in asked],
        [element["attributes"]["label"] for element in asked],
    ):
        assert len(set(values)) == len(values)


def test_forms_have_names_of_their_own() -> None:
    assert {file.stem for file in FORMS} == {"bug", "release", "import"}
    assert len({_form(file)["name"] for file in FORMS}) == len(FORMS)
    assert _form(FOLDER / "config.yml").keys() <= {"blank_issues_enabled", "contact_links"}


def test_a_bug_asks_for_what_an_answer_needs() -> None:
    body = _form(FOLDER / "bug.yml")["body"]
    required = {each["id"] for each in body if each.get("validations", {}).get("required")}
    assert {"doctor", "vllm", "command", "expected"} <= required
    assert "SECURITY.md" in body[0]["attributes"]["value"]


@each_form
def test_commands_that_a_form_names_exist(file: Path) -> None:
    named = re.findall(r"`overlay ([a-z]+)", file.read_text(encoding="utf-8"))
    names = [getattr(command, "name", command) for command in COMMANDS]
    assert named
    assert set(named) <= set(names)


def test_what_the_template_and_the_code_of_conduct_name_is_there() -> None:
    for name in (".github/pull_request_template.md", "CODE_OF_CONDUCT.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "@" not in text, "no address is invented"
        for path in re.findall(r"(?<![\w/.])((?:[\w-]+/)*[\w-]+\.(?:md|py))(?![\w.])", text):
            assert (ROOT / path).is_file(), path
