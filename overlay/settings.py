"""The environment variables of the overlay, read and checked in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from overlay.errors import UsageError, did_you_mean


def in_home(folder: str | os.PathLike[str]) -> Path:
    """A path without ``~`` or ``~user`` before it; that of a user who is not there is left alone.

    ``Path.expanduser`` raises ``RuntimeError`` for such a user.
    """
    return Path(os.path.expanduser(folder))


def kept_out(why: str) -> str:
    """The warning where vLLM's allow-list keeps the plugin out."""
    return (
        f"{why}: vLLM does not load the plugin, so nothing is patched in memory; add overlay to it"
    )


def require_known(switches: Switches, ids: Iterable[str]) -> None:
    """Refuse an ``OVERLAY_FEATURES`` that names an unknown feature.

    :raises UsageError: naming every unknown id, and the known ones.
    """
    there = sorted(ids)
    if unknown := sorted((switches.features or frozenset()).difference(there)):
        raise UsageError(
            f"OVERLAY_FEATURES names {', '.join(unknown)}: expected ids among "
            f"{', '.join(there) or 'none'}"
            + did_you_mean(
                unknown, there, "name the folder of a further feature in OVERLAY_PATCHES"
            )
        )


#: What was a feature of its own once -> the feature that it is a part of now.
FORMER_IDS = dict.fromkeys(("dbo-drafts", "dbo-eagle3", "dbo-lengths"), "dbo")


def current_ids(names: Iterable[str], note: Callable[[str], object]) -> tuple[str, ...]:
    """Ids of features, each once; a former one means the feature that it is a part of now.

    :param note: is called with a sentence about each former one.
    """
    names = tuple(names)
    for name in names:
        if name in FORMER_IDS:
            note(f"{name} is a part of {FORMER_IDS[name]} now, all of which is meant")
    return tuple(dict.fromkeys(FORMER_IDS.get(name, name) for name in names))


#: Every variable of the overlay starts with this; vLLM warns about unknown ones with its prefix.
PREFIX = "OVERLAY_"


class Mode(str, Enum):
    """What ``OVERLAY`` asks of the plugin."""

    #: Patch in memory what is not on disk, and verify what is.
    AUTO = "auto"
    #: Verify what is on disk, and patch nothing in memory.
    DISK = "disk"
    OFF = "off"


#: What vLLM lists for its plugins; ``VLLM_PLUGINS`` names plugins by it.
PLUGIN_NAME = "overlay"

#: Variables that name places of one machine: they may differ between nodes.
_LOCAL = frozenset({"OVERLAY_CACHE", "OVERLAY_PATCHES"})

#: What the plugin itself reads; further variables belong to features.
KNOWN = frozenset(
    {
        "OVERLAY",
        "OVERLAY_FEATURES",
        "OVERLAY_REQUIRED",
        "OVERLAY_REQUIRED_PRESENT",
        "OVERLAY_UNTESTED",
        *_LOCAL,
    }
)

_RAY_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"


class Switches(NamedTuple):
    """What the environment asks of the plugin.

    :ivar mode: whether it patches in memory, only verifies what is on disk, or does nothing.
    :ivar features: ids of the features that may be patched in memory; ``None`` for every one.
    :ivar required: ids of features without whose effect vLLM must not serve; ``all`` is every one.
    :ivar present: ids of features without whose patched code the process must not start; ``all`` is
        every one.  Holds those of ``required``.
    :ivar patches: further patches folders.
    :ivar untested: whether a release that no variant's range holds may be patched in memory.
    :ivar all: every ``OVERLAY`` variable that is set, for the digest that ranks compare.
    :ivar warnings: former spellings and former ids among the values.
    """

    mode: Mode
    features: frozenset[str] | None
    required: frozenset[str]
    patches: tuple[Path, ...]
    untested: bool
    all: Mapping[str, str]
    present: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def allows(self, feature: str) -> bool:
        """Whether ``feature`` may be patched in memory."""
        return self.features is None or feature in self.features

    @property
    def further(self) -> tuple[str, ...]:
        """The variables that are set and that the plugin itself does not read."""
        return tuple(name for name in self.all if name not in KNOWN)

    def requires(self, feature: str) -> bool:
        """Whether vLLM must not serve where ``feature`` has no effect."""
        return feature in self.required or "all" in self.required


def read(environment: Mapping[str, str] = os.environ) -> Switches:
    """Read the switches; an empty variable is an unset one.

    :raises UsageError: for a value that is none of those allowed.
    """
    value = environment.get("OVERLAY")
    try:
        mode = Mode(value) if value else Mode.AUTO
    except ValueError as error:
        modes = ", ".join(each.value for each in Mode)
        raise UsageError(
            f"OVERLAY={value!r}: expected one of {modes}; set one of them or unset it"
        ) from error
    folders = environment.get("OVERLAY_PATCHES", "")
    untested, deprecated = _flag(environment, "OVERLAY_UNTESTED")
    warnings = list(deprecated)
    features = _features(environment, warnings)
    required = _ids(environment, "OVERLAY_REQUIRED", warnings)
    return Switches(
        mode=mode,
        features=features,
        required=required,
        patches=tuple(in_home(folder) for folder in folders.split(os.pathsep) if folder),
        untested=untested,
        all={
            name: value for name, value in sorted(ours(environment).items()) if name not in _LOCAL
        },
        present=required | _ids(environment, "OVERLAY_REQUIRED_PRESENT", warnings),
        warnings=tuple(warnings),
    )


def ours(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Every variable of the overlay that is set and not empty, those of features included."""
    return {
        name: value
        for name, value in environment.items()
        if value and (name == "OVERLAY" or name.startswith(PREFIX))
    }


def _ids(environment: Mapping[str, str], variable: str, warnings: list[str]) -> frozenset[str]:
    names = (name.strip() for name in environment.get(variable, "").split(","))

    def note(text: str) -> None:
        warnings.append(f"{variable}: {text}")

    return frozenset(current_ids(filter(None, names), note))


def _features(environment: Mapping[str, str], warnings: list[str]) -> frozenset[str] | None:
    value = environment.get("OVERLAY_FEATURES")
    if not value:
        return None
    if not (ids := _ids(environment, "OVERLAY_FEATURES", warnings)):
        raise UsageError(
            f"OVERLAY_FEATURES={value!r}: expected ids of features, separated by commas; unset it "
            "for every feature, or set OVERLAY=off for none"
        )
    return ids


def _flag(environment: Mapping[str, str], name: str) -> tuple[bool, tuple[str, ...]]:
    """Whether a switch is on, and a warning about its spelling."""
    value = environment.get(name) or "off"
    former = {"0": "off", "1": "on"}
    if value in former:
        text = f"{name}={value} is deprecated: write {name}={former[value]}"
        return former[value] == "on", (text,)
    if value not in ("on", "off"):
        raise UsageError(f"{name}={value!r}: expected on or off; set one of them or unset it")
    return value == "on", ()


def carry_to_ray(environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Have vLLM's Ray executors copy the overlay's variables, if any is set, to other nodes.

    They copy those with prefixes of their own and those whose prefix this variable lists (vLLM
    0.20.0 to 0.33.0, ``vllm/ray/ray_env.py``).  It is left alone where there is nothing to carry,
    since vLLM's compile cache is keyed on it.
    """
    if not ours(environment):
        return
    prefixes = [part.strip() for part in environment.get(_RAY_PREFIXES, "").split(",")]
    if "OVERLAY" not in prefixes:
        environment[_RAY_PREFIXES] = ",".join([part for part in prefixes if part] + ["OVERLAY"])


def plugin_allowed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether vLLM's allow-list of plugins lets the overlay's run."""
    allowed = environment.get("VLLM_PLUGINS")
    return allowed is None or PLUGIN_NAME in allowed.split(",")
