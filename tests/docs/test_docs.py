"""What the pages claim about files, commands, options and variables is so."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from overlay import settings
from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.cli import COMMANDS, cli
from overlay.results import State
from tests.support import markdown
from tests.support.markdown import ROOT, Page

SHIPPED = load([shipped_folder()])
PAGES = {page.name: page for page in markdown.pages()}
#: Pages whose lines are written by a script: their first line says by which.
SCRIPT = re.compile(r"<!-- Written by (\S+\.py)\b")
WRITTEN = {
    name: script[1]
    for name in PAGES
    if (script := SCRIPT.match(PAGES[name].path.read_text(encoding="utf-8")))
}
WIDEST = 120

each_page = pytest.mark.parametrize("name", sorted(PAGES))


@each_page
def test_links_lead_to_files_and_headings_that_exist(name: str) -> None:
    page = PAGES[name]
    broken = []
    for line, target in page.links:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        if not file.exists() or not file.is_relative_to(ROOT):
            broken.append(f"{name}:{line}: {target}: there is no such file")
        elif anchor and anchor not in markdown.read(file).anchors:
            broken.append(f"{name}:{line}: {target}: the page has no such heading")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", sorted(PAGES.keys() - WRITTEN.keys()))
def test_prose_has_lines_that_a_diff_can_show(name: str) -> None:
    wide = [f"{name}:{line}" for line, text in PAGES[name].prose if len(text) > WIDEST]
    assert not wide, f"over {WIDEST} characters: {', '.join(wide)}"


def test_the_pages_that_people_read_have_25000_words_at_most() -> None:
    """Tables count, code does not; nor do evidence and lists that scripts fill."""
    evidence = ("docs/appendix/", "docs/faults.md", "docs/performance.md", "CHANGELOG.md")
    names = [name for name in PAGES if not name.startswith(evidence)]
    counts = {
        name: len(re.sub(r"```.*?```", "", (ROOT / name).read_text("utf-8"), flags=re.S).split())
        for name in (*names, "SECURITY.md", "CODE_OF_CONDUCT.md")
    }
    assert sum(counts.values()) <= 25_000, counts


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"CHANGELOG.md"}))
def test_a_page_begins_with_what_it_is_for(name: str) -> None:
    text = re.sub(r"<!--.*?-->", "", PAGES[name].path.read_text(encoding="utf-8"), flags=re.DOTALL)
    _, _, rest = text.strip().partition("\n")
    assert re.match(r"\n+(?!```|- )[^\s#|!<]", rest), (
        "a heading, a table, a list or code comes first"
    )


def test_the_index_lists_every_page() -> None:
    page = PAGES["docs/index.md"]
    listed = {target for _, target in page.links}
    there = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    assert there - listed == {"index.md"}


def test_what_writes_an_appendix_exists() -> None:
    assert len(WRITTEN) >= 10
    assert all((ROOT / script).is_file() for script in WRITTEN.values())


@each_page
def test_values_of_variables_are_those_that_they_take(name: str) -> None:
    values = {switch.name: set(switch.values) for each in SHIPPED for switch in each.switches}
    values |= {"OVERLAY": {mode.value for mode in settings.Mode}, "OVERLAY_UNTESTED": {"on", "off"}}
    text = PAGES[name].path.read_text(encoding="utf-8")
    wrong = [
        f"{name}: {variable}={value}"
        for variable, value in re.findall(r"\b(OVERLAY\w*)=([a-z0-9]+)", text)
        if value not in values.get(variable, {value})
    ]
    assert not wrong, "\n".join(wrong)


# ---- commands


def commands(page: Page) -> Iterator[tuple[int, str]]:
    """Line and text of each call of ``overlay`` in code."""
    for line, code in page.inline_code:
        if re.match(r"overlay [a-z-]", code):
            yield line, code
    for block in page.blocks:
        for offset, text in enumerate(block.lines, 1):
            for call in re.findall(r"(?:^|&& |\| |\bRUN )(?:\$ )?(overlay [a-z-][^|&#>]*)", text):
                yield block.line + offset, call


def problem_of(call: str) -> str | None:
    """What is wrong with a call of the command line, or ``None``."""
    words = shlex.split(call.replace("...", "").replace("\u2026", "").rstrip("\\ "))[1:]
    command: click.Command = cli
    while words:
        word = words.pop(0)
        if word == "--":
            return None  # what follows goes to another program
        option, _, value = word.partition("=")
        if word.startswith("-") and word != "-":
            known = {name: one for one in command.params for name in one.opts}
            if option in ("--help", "-h"):
                continue
            if option not in known:
                return f"{command.name} has no option {option}"
            parameter = known[option]
            if isinstance(parameter, click.Option) and not parameter.is_flag and not value:
                words = words[1:]
        elif isinstance(command, click.Group):
            named = command.get_command(click.Context(command), word)
            if named is None:
                return f"there is no command {word}"
            command = named
    return None


@each_page
def test_commands_and_options_exist(name: str) -> None:
    wrong = [
        f"{name}:{line}: `{call}`: {problem}"
        for line, call in commands(PAGES[name])
        if (problem := problem_of(call))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("overlay aply", "there is no command aply"),
        ("overlay check --realeses all", "check has no option --realeses"),
        ("overlay --patches DIR check --releases 0.20.0..0.33.0 -v", None),
        ("overlay apply --dry-run TARGET", None),
        ("overlay --help", None),
    ],
)
def test_wrong_commands_are_noticed(call: str, problem: str | None) -> None:
    assert problem_of(call) == problem


def test_every_command_is_on_a_page_for_users() -> None:
    text = "\n".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/commands.md")
    )
    missing = [name for name in COMMANDS if f"overlay {name}" not in text]
    assert not missing


# ---- environment variables


def declared() -> set[str]:
    """The variables that the overlay and its features read."""
    return {*settings.KNOWN, *(switch.name for each in SHIPPED for switch in each.switches)}


def named(page: Page) -> Iterator[tuple[int, str]]:
    """Line and name of each variable of the overlay on a page."""
    lines = [*page.text_lines]
    for block in page.blocks:
        lines += [(block.line + offset, text) for offset, text in enumerate(block.lines, 1)]
    for line, text in lines:
        for name in re.findall(r"\bOVERLAY(?:_[A-Z]+)*\b(?!_)", text):
            yield line, name


@each_page
def test_variables_are_declared(name: str) -> None:
    known = declared()
    wrong = [f"{name}:{line}: {each}" for line, each in named(PAGES[name]) if each not in known]
    assert not wrong, "\n".join(wrong)


def test_every_variable_is_in_the_table_of_auto_apply() -> None:
    rows = {text.split("`")[1] for _, text in PAGES["docs/auto-apply.md"].tables if "`" in text}
    assert not declared() - rows


# ---- messages


def texts_in_code() -> str:
    """Every text of the overlay and of its features, with the rest of formatted ones left out."""
    texts: list[str] = []
    for folder in ("overlay", "patches"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "\0" for p in node.values)
                    texts.append("".join(str(part) for part in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def test_messages_that_troubleshooting_explains_exist() -> None:
    code = texts_in_code()
    missing = [
        f"line {line}: {fragment}"
        for line, text in PAGES["docs/troubleshooting.md"].tables
        for fragment in re.findall(r"`([^`]+)`", text.split(" | ")[0])
        if " " in fragment and "Runner" not in fragment and fragment not in code
    ]
    assert not missing, "\n".join(missing)


# ---- one way to install


def test_the_text_about_pip_is_one_and_true() -> None:
    """No index has the project, so nothing may tell anyone to install it from there."""
    for name, page in PAGES.items():
        text = page.path.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-\S+ )*vllm-overlay\b", text), name
    assert "pip install ." in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_command_is_on_the_first_screen() -> None:
    text, _, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("```console")
    shown = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", text)
    assert len(re.findall(r"\S*\w\S*", shown)) <= 120


# ---- files


@each_page
def test_files_that_are_named_exist(name: str) -> None:
    missing = []
    for line, code in PAGES[name].inline_code:
        match = re.fullmatch(
            r"((?:tests|bench|scripts|docs|patches|overlay|\.ci)/[\w./-]+)(::\w+)?", code
        )
        if match and "*" not in code and not (ROOT / match[1]).exists():
            missing.append(f"{name}:{line}: {code}")
        elif match and match[2] and f"def {match[2][2:]}(" not in (ROOT / match[1]).read_text():
            missing.append(f"{name}:{line}: {code}: there is no such test")
    assert not missing, "\n".join(missing)


# ---- states


def test_the_page_about_states_has_them_all_in_order() -> None:
    page = PAGES["docs/states.md"]
    rows = [match[1] for _, text in page.tables if (match := re.match(r"\| \[`(\w+)`\]", text))]
    assert rows == [state.value for state in State]
    assert {state.value for state in State} <= page.anchors
    needs = {
        match[1]
        for _, text in page.tables
        if (match := re.match(r"\| \[`(\w+)`\].* yes \|$", text))
    }
    assert needs == {state.value for state in State if state.needs_attention}
