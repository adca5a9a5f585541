"""Switches: the environment variables that a feature declares in its ``feature.toml``.

::

    [[switches]]
    name = "OVERLAY_DEMO"
    values = ["off", "on"]            # left out, any text is accepted
    default = "on"
    text = "what it does, in one line"
    deprecated = { "0" = "off" }      # former spellings, accepted with a warning

``read_switches``, ``read_model_runner`` and ``read_flag`` serve the full reader of a feature;
``declarations`` reads these keys alone, without a feature's patches, for the start of a process;
``check_values`` compares what an environment sets with what features declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from overlay._features.sources import EFFECTS_PATH, feature_documents, table_of
from overlay.errors import close_names
from overlay.results import ModelRunner
from overlay.settings import KNOWN

#: Reports a malformed place: the key, and what is wrong with it.
ErrorAt = Callable[[str, str], None]

_NAME = re.compile(r"OVERLAY_[A-Z0-9]+(_[A-Z0-9]+)*")

_KEYS = ("name", "values", "default", "text", "deprecated")


class Switch(NamedTuple):
    """An environment variable that a feature's code reads.

    :ivar name: of the variable; starts with ``OVERLAY_``.
    :ivar values: those that it accepts, in the order in which they are told; none, and any text is.
    :ivar default: what an unset or empty variable means.
    :ivar text: one line that says what it does.
    :ivar deprecated: former spelling and the value that it means; accepted with a warning.
    """

    name: str
    values: tuple[str, ...]
    default: str
    text: str
    deprecated: tuple[tuple[str, str], ...] = ()

    @property
    def off(self) -> str | None:
        """The value that turns the feature off, ``None`` where the switch has none."""
        return "off" if "off" in self.values and self.default != "off" else None


class Declaration(NamedTuple):
    """What a feature declares about the processes that run it.

    :ivar reports: whether it adds the module through which patched code reports its effect.
    :ivar situational: whether it has an effect in some configurations only, and is rightly idle in
        all others: ``all`` in ``OVERLAY_REQUIRED`` does not ask that it be used.
    """

    id: str
    title: str
    switches: tuple[Switch, ...]
    model_runner: ModelRunner | None
    reports: bool
    situational: bool = False


def declarations(folders: Iterable[Path]) -> tuple[Declaration, ...]:
    """What the features of patches folders declare, folder by folder, by name within each.

    A folder or document that cannot be read declares nothing: loading the features reports it.
    """
    by_id: dict[str, Declaration] = {}
    for folder in folders:
        for document in feature_documents(folder):
            feature = document.parent
            table = table_of(feature)
            declared = None if table is None else _declaration(feature, table)
            if declared is not None:
                by_id.setdefault(declared.id, declared)
    return tuple(by_id.values())


def _declaration(feature: Path, table: dict[str, Any]) -> Declaration | None:
    errors: list[str] = []

    def error(key: str, problem: str) -> None:
        errors.append(f"{key}: {problem}")

    switches = read_switches(table, error)
    model_runner = read_model_runner(table, error)
    situational = read_flag(table, "situational", error)
    if errors:
        return None
    shared = table.get("shared")
    reports = (feature / "files" / EFFECTS_PATH).is_file() or (
        isinstance(shared, list) and EFFECTS_PATH in shared
    )
    return Declaration(
        feature.name,
        str(table.get("title", "")),
        switches,
        model_runner,
        reports,
        situational,
    )


def read_model_runner(table: dict[str, Any], error: ErrorAt) -> ModelRunner | None:
    """The key ``model_runner`` of a feature.toml, ``None`` where it is left out."""
    value = table.get("model_runner")
    if value is None:
        return None
    try:
        return ModelRunner(value)
    except ValueError:
        names = " or ".join(each.value for each in ModelRunner)
        error(
            "model_runner",
            f"model_runner: expected {names}, found {value!r}; leave it out where the feature does "
            "not depend on it",
        )
        return None


def read_flag(table: dict[str, Any], key: str, error: ErrorAt) -> bool:
    """A key of a feature.toml that is true or false; false where it is left out."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        error(key, f"{key}: expected true or false, found {value!r}")
    return value is True


def read_switches(table: dict[str, Any], error: ErrorAt) -> tuple[Switch, ...]:
    """The tables ``[[switches]]`` of a feature.toml; malformed ones are reported and left out."""
    tables = table.get("switches", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        error("switches", "switches: expected tables, written [[switches]]")
        return ()
    switches: list[Switch] = []
    for each in tables:
        problem = _problem(each)
        if problem is None and any(each["name"] == switch.name for switch in switches):
            problem = f"{each['name']} is declared twice"
        if problem is not None:
            error("switches", f"[[switches]]: {problem}")
            continue
        switches.append(
            Switch(
                each["name"],
                tuple(each.get("values", ())),
                each["default"],
                each["text"],
                tuple(each.get("deprecated", {}).items()),
            )
        )
    return tuple(switches)


def _problem(table: dict[str, Any]) -> str | None:
    """What is wrong with one ``[[switches]]`` table, ``None`` where nothing is."""
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        return f"unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}"
    for key in ("name", "default", "text"):
        if not isinstance(table.get(key), str) or not table[key]:
            return f"it needs a text as {key}, found {table.get(key)!r}"
    if not _NAME.fullmatch(table["name"]):
        return f"name: expected OVERLAY_ and capital letters, found {table['name']!r}"
    if table["name"] in KNOWN:
        return f"name: {table['name']} is a variable of the overlay itself"
    if "\n" in table["text"].strip():
        return f"text: expected one line, found {table['text']!r}"
    values = table.get("values", [])
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        return f"values: expected a list of texts, found {values!r}"
    if values and table["default"] not in values:
        return f"default: expected one of {', '.join(values)}, found {table['default']!r}"
    return _deprecated_problem(table.get("deprecated", {}), values)


def _deprecated_problem(deprecated: object, values: list[str]) -> str | None:
    if not isinstance(deprecated, dict) or not all(
        isinstance(value, str) for value in deprecated.values()
    ):
        return f"deprecated: expected a table of former to present values, found {deprecated!r}"
    for former, value in deprecated.items():
        if value not in values:
            return f"deprecated: {former!r} must stand for one of values, found {value!r}"
        if former in values:
            return f"deprecated: {former!r} is one of values, too"
    return None


class SwitchCheck(NamedTuple):
    """Result of comparing the variables that are set with the declared ones.

    :ivar wrong: values that no feature accepts; vLLM must not start with them.
    :ivar unknown: variables that no feature declares; they do nothing.
    :ivar former: values in a former spelling, which are accepted.
    """

    wrong: tuple[str, ...]
    unknown: tuple[str, ...]
    former: tuple[str, ...]


def check_values(variables: Mapping[str, str], declared: Iterable[Declaration]) -> SwitchCheck:
    """Compare the ``OVERLAY_`` variables that are set with what features declare.

    :param variables: name -> value of every variable that is set and not empty.
    """
    switches: dict[str, list[Switch]] = {}
    for declaration in declared:
        for switch in declaration.switches:
            switches.setdefault(switch.name, []).append(switch)
    wrong, unknown, former = [], [], []
    for name in sorted(variables.keys() - KNOWN):
        if name not in switches:
            unknown.append(_unknown(name, switches.keys() | KNOWN))
        elif (text := _value_problem(variables[name], switches[name])) is not None:
            wrong.append(text)
        else:
            former += _former(variables[name], switches[name])
    return SwitchCheck(tuple(wrong), tuple(unknown), tuple(former))


def _unknown(name: str, names: Iterable[str]) -> str:
    text = f"{name} is set, but neither the overlay nor a feature that is at hand declares it"
    close = close_names(name, sorted(names), cutoff=0.8)
    return f"{text}; did you mean {close[0]}?" if close else text


def _value_problem(value: str, switches: list[Switch]) -> str | None:
    """Why no feature accepts ``value``, ``None`` where one does."""
    if any(
        not switch.values or value in switch.values or value in dict(switch.deprecated)
        for switch in switches
    ):
        return None
    switch = switches[0]
    close = close_names(value.lower(), switch.values)
    return (
        f"{switch.name}={value!r}: expected one of {', '.join(switch.values)}"
        f"{f'; did you mean {close[0]}?' if close else ''}"
        f"{'' if close else '; set one of them or unset it'}"
    )


def _former(value: str, switches: list[Switch]) -> list[str]:
    for switch in switches:
        present = dict(switch.deprecated).get(value)
        if present is not None:
            return [f"{switch.name}={value} is deprecated: write {switch.name}={present}"]
    return []
