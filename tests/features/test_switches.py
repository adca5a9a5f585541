"""The switches that features declare in ``feature.toml``."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from overlay._features.folder import load
from overlay._features.sources import feature_documents
from overlay._features.switches import check_values, declarations, read_switches
from overlay.errors import PatchFormatErrors

SHIPPED = Path(__file__).parents[2] / "patches"
READING = [path.parent for path in feature_documents(SHIPPED) if (path.parent / "files").is_dir()]


def variables_of(folder: Path) -> set[str]:
    """Each ``OVERLAY_`` name that is a whole string in a feature's code or hunks."""
    names: set[str] = set()
    for file in (folder / "files").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"OVERLAY_\w+", text):
                names.add(text)
    for patch in folder.glob("*/*.patch"):
        names.update(re.findall(r"""^\+.*["'](OVERLAY_\w+)["']""", patch.read_text(), re.MULTILINE))
    return names


@pytest.mark.parametrize("folder", READING, ids=lambda folder: str(folder.name))
def test_a_shipped_feature_declares_what_its_code_reads_and_nothing_else(folder: Path) -> None:
    (declared,) = [each for each in declarations([SHIPPED]) if each.id == folder.name]
    assert {switch.name for switch in declared.switches} == variables_of(folder)
    assert variables_of(folder)


def test_both_readers_of_a_feature_agree() -> None:
    declared = {each.id: each for each in declarations([SHIPPED])}
    for feature in load([SHIPPED]):
        assert declared[feature.id].switches == feature.switches
        assert declared[feature.id].model_runner == feature.model_runner
        assert declared[feature.id].reports == any(
            added.path == "vllm/v1/overlay_effects.py" for added in feature.added
        )


GOOD: dict[str, Any] = {"name": "OVERLAY_A", "values": ["off", "on"], "default": "on", "text": "t"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "A"}, "expected OVERLAY_ and capital letters"),
        ({"name": "OVERLAY_CACHE"}, "a variable of the overlay itself"),
        ({"name": 3}, "it needs a text as name"),
        ({"text": ""}, "it needs a text as text"),
        ({"text": "a\nb"}, "expected one line"),
        ({"default": "maybe"}, "default: expected one of off, on"),
        ({"values": "on"}, "expected a list of texts"),
        ({"deprecated": {"1": "yes"}}, "must stand for one of values"),
        ({"deprecated": {"on": "on"}}, "is one of values, too"),
        ({"deprecated": 1}, "expected a table"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_malformed_switch_is_reported(change: dict[str, Any], said: str) -> None:
    errors: list[str] = []
    read = read_switches({"switches": [GOOD | change]}, lambda key, text: errors.append(text))
    assert read == ()
    (error,) = errors
    assert said in error


def test_a_switch_that_is_declared_twice_is_reported() -> None:
    errors: list[str] = []
    read_switches({"switches": [GOOD, GOOD]}, lambda key, text: errors.append(text))
    assert "declared twice" in errors[0]


def test_no_table_is_reported() -> None:
    errors: list[str] = []
    assert read_switches({"switches": 3}, lambda key, text: errors.append(text)) == ()
    assert errors


@pytest.mark.parametrize(
    ("line", "declared"),
    [("", False), ("situational = false", False), ("situational = true", True)],
)
def test_a_feature_declares_that_it_is_rightly_idle_elsewhere(
    tmp_path: Path, line: str, declared: bool
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/feature.toml").write_text(f'title = "A"\n{line}\n')
    (found,) = declarations([tmp_path])
    assert found.situational is declared


def test_situational_is_true_or_false(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/feature.toml").write_text('id = "a"\nsituational = "yes"\n')
    assert declarations([tmp_path]) == ()
    with pytest.raises(
        PatchFormatErrors, match=r"feature.toml:2: situational: expected true or false"
    ):
        load([tmp_path])


def test_a_document_that_cannot_be_read_declares_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/feature.toml").write_text("= 3")
    assert declarations([tmp_path, tmp_path / "nowhere"]) == ()


def test_every_default_of_a_shipped_switch_is_a_good_value() -> None:
    declared = declarations([SHIPPED])
    for each in declared:
        for switch in each.switches:
            assert check_values({switch.name: switch.default}, declared) == ((), (), ())
            for former, _ in switch.deprecated:
                assert check_values({switch.name: former}, declared).wrong == ()
