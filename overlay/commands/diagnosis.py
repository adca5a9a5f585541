"""Collect what ``overlay doctor`` shows: everything that a bug report needs.

Nothing of vLLM or torch is imported; a part that cannot be told says why instead.  Of environment
variables it says what would stop vLLM, or do nothing.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import overlay
from overlay import _processes, settings
from overlay import settings as switches
from overlay._features.folder import load_all
from overlay._features.switches import Declaration, check_values, declarations
from overlay._features.vllm_defaults import (
    Runs,
    advice,
    has_ascend,
    requested_runner,
    runs,
)
from overlay.cache import PrivateFolder, cache_folder, size_of
from overlay.commands.cache import PARTS
from overlay.commands.request import find_project
from overlay.errors import OverlayError, UsageError, close_names
from overlay.on_disk import ledger as ledgers
from overlay.package import VLLM
from overlay.results import ModelRunner
from overlay.settings import kept_out
from overlay.targets.environments import (
    environment_at,
    is_environment,
    named_interpreter,
    resolve_environment,
    resolve_installed,
)
from overlay.untrusted import problem_of_owner, read_regular

if TYPE_CHECKING:
    from overlay.targets import Target
    from overlay.targets.environments import Environment


GROUP = "vllm.general_plugins"

_OTHERS = ("vllm.platform_plugins",)


class PythonFacts(NamedTuple):
    """The interpreter that runs this, and the machine."""

    version: str
    implementation: str
    executable: str
    prefix: str
    platform: str


def interpreter() -> PythonFacts:
    """The Python that runs this, and the machine."""
    return PythonFacts(
        version=platform.python_version(),
        implementation=platform.python_implementation(),
        executable=sys.executable,
        prefix=sys.prefix,
        platform=platform.platform(),
    )


class OverlayFacts(NamedTuple):
    """The overlay itself.

    :ivar patches: the folders of patches that the command was given.
    :ivar project: the file that names folders for the project, or that there is none.
    """

    version: str
    folder: str
    patches: tuple[str, ...]
    project: str


def this_overlay(patches: tuple[str, ...]) -> OverlayFacts:
    """The overlay itself."""
    return OverlayFacts(
        version=overlay.__version__,
        folder=str(Path(overlay.__file__).parent),
        patches=patches,
        project=str(find_project().file or "no overlay.toml at or above the working folder"),
    )


class VllmFacts(NamedTuple):
    """The vLLM that this Python would import.

    :ivar found: how it was found, in words; :ivar record: its list of files.
    """

    version: str | None
    root: str
    found: str
    record: str | None


def vllm(target: Target, elsewhere: Environment | None = None) -> VllmFacts:
    """The vLLM that this Python would import, or that of another environment; how it was found."""
    return VllmFacts(
        version=target.vllm,
        root=str(target.root),
        found=_how(target) if elsewhere is None else f"in the environment {elsewhere.prefix}",
        record=None if target.record_file is None else str(target.record_file),
    )


def _how(target: Target) -> str:
    root = str(target.root)
    for entry in sys.path:
        if os.path.realpath(entry or ".") == os.path.realpath(root):
            return f"on sys.path as {entry or 'the current folder'}"
    return "by an editable installation"


class TorchFacts(NamedTuple):
    """torch, from its files; ``None`` where it is not installed."""

    version: str | None
    built_for: str | None


def torch(elsewhere: Environment | None = None) -> TorchFacts:
    """torch's version and what it was built for, from its files."""
    path = sys.path if elsewhere is None else list(elsewhere.path)
    distribution = next(iter(metadata.distributions(name="torch", path=path)), None)
    if distribution is None:
        return TorchFacts(None, None)
    folder = Path(str(distribution.locate_file("torch")))
    built = torch_built_for(folder)
    return TorchFacts(distribution.version, built or "unknown: it has no torch/version.py")


def torch_built_for(folder: Path) -> str | None:
    """What a torch was built for, from its files; ``None`` where it does not say.

    :param folder: that of the package.
    """
    try:
        data = read_regular(folder / "version.py", 1 << 20)
        if data is None:
            return None
        text = data.decode("utf-8")
        built = [
            f"{name} {value}"
            for name in ("cuda", "hip", "xpu")
            if (value := _assigned(text, name)) is not None
        ]
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        return f"unknown: torch/version.py cannot be read ({error})"
    return ", ".join(built) or "cpu"


def _assigned(text: str, name: str) -> str | None:
    """What ``name: Optional[str] = 'value'`` assigns in a Python text; ``None`` for None."""
    for node in ast.walk(ast.parse(text)):
        targets: list[ast.expr] = [node.target] if isinstance(node, ast.AnnAssign) else []
        targets += node.targets if isinstance(node, ast.Assign) else []
        if any(getattr(target, "id", None) == name for target in targets):
            value = getattr(node, "value", None)
            constant = value.value if isinstance(value, ast.Constant) else None
            return None if constant is None else str(constant)
    return None


class DeviceFacts(NamedTuple):
    """The graphics drivers and devices that the kernel tells of."""

    nvidia_driver: str | None
    amd_driver: str | None
    devices: tuple[str, ...]


def devices(root: Path = Path("/")) -> DeviceFacts:
    """The graphics drivers and devices that the kernel tells of, without asking any of them."""
    models = []
    for place in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+?)\s*$", _text(place), re.MULTILINE)
        models.append(model[1] if model else f"{place.parent.name}, model not told")
    return DeviceFacts(
        nvidia_driver=_version(root / "proc/driver/nvidia/version", r"(\d+(?:\.\d+)+)"),
        amd_driver=_version(root / "sys/module/amdgpu/version", r"(\S+)"),
        devices=tuple(models),
    )


def _version(file: Path, pattern: str) -> str | None:
    match = re.search(pattern, _text(file))
    return match[1] if match else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # no such driver, or one that hides it
        return ""


class PluginFacts(NamedTuple):
    """A plugin of vLLM that this Python sees.

    :ivar value: what it loads, as ``module:function``.
    :ivar runs: whether vLLM runs it; :ivar why: what decides that.
    """

    group: str
    name: str
    value: str
    distribution: str | None
    runs: bool
    why: str


def plugins(elsewhere: Environment | None) -> tuple[PluginFacts, ...]:
    """Every plugin of vLLM that this Python, or another environment, sees; why it runs or not."""
    allowed = os.environ.get("VLLM_PLUGINS")
    facts = []
    for group in (GROUP, *_OTHERS):
        for entry in _entry_points(group, elsewhere):
            runs = allowed is None or entry.name in allowed.split(",")
            why = "VLLM_PLUGINS is not set, so all run"
            if allowed is not None:
                why = f"VLLM_PLUGINS={allowed} {'names' if runs else 'does not name'} it"
            mode = os.environ.get("OVERLAY")
            if runs and entry.name == switches.PLUGIN_NAME and mode in ("off", "disk"):
                why += f"; OVERLAY={mode}"
            distribution = getattr(entry, "dist", None)
            facts.append(
                PluginFacts(
                    group=group,
                    name=entry.name,
                    value=entry.value,
                    distribution=distribution and f"{distribution.name} {distribution.version}",
                    runs=runs,
                    why=why,
                )
            )
    return tuple(facts)


def _entry_points(group: str, elsewhere: Environment | None) -> Iterable[metadata.EntryPoint]:
    if elsewhere is None:
        return metadata.entry_points(group=group)
    installed = metadata.distributions(path=list(elsewhere.path))
    return [entry for each in installed for entry in each.entry_points if entry.group == group]


def plugin_problems(facts: Sequence[PluginFacts]) -> Iterator[str]:
    """What keeps the overlay's plugin from doing its work, one sentence each.

    :param facts: every plugin of vLLM that this Python sees.
    """
    ours = [
        plugin for plugin in facts if plugin.group == GROUP and plugin.name == switches.PLUGIN_NAME
    ]
    if not ours:
        yield (
            "vLLM does not find the overlay's plugin: install vllm-overlay into the environment of "
            "vLLM, or patch on disk with `overlay apply`"
        )
    if len(ours) > 1:
        names = ", ".join(f"{plugin.distribution} ({plugin.value})" for plugin in ours)
        yield f"several distributions bring a plugin called overlay: {names}; uninstall all but one"
    for plugin in ours[:1]:
        if not plugin.runs:
            yield kept_out(plugin.why)


class CacheFacts(NamedTuple):
    """The cache of patched modules, and the folder where processes leave their records.

    :ivar problem: why the cache cannot be used, where it cannot.
    """

    folder: str | None
    entries: int
    bytes: int
    problem: str | None
    records: str


def cache() -> CacheFacts:
    """The store of patched modules, and where processes leave their records."""
    folder = cache_folder() / "modules"
    entries, size, problem = list[str](), 0, None
    try:
        entries = PrivateFolder(folder).entries()
        size = sum(size_of(folder / name) for name in entries)
    except OSError as error:
        problem = str(error)
    wrong = (cache_problem(folder.with_name(name), allow_group=name != "modules") for name in PARTS)
    problem = next(filter(None, wrong), problem)
    return CacheFacts(str(folder), len(entries), size, problem, _records())


def _records() -> str:
    folder = next(_processes.usable(make=False), None)
    return "no folder yet; the first process of vLLM makes one" if folder is None else str(folder)


def known_runner(target: Target | None, environment: Mapping[str, str]) -> ModelRunner | None:
    """The model runner that every engine of a target has; ``None`` where that depends."""
    if (choice := requested_runner(environment)) is not None or target is None:
        return choice
    only_v1 = runs(ModelRunner.V1, target.release, environment) is Runs.YES
    return ModelRunner.V1 if only_v1 or has_ascend(target.root) else None


def model_runner(target: Target | None, elsewhere: Environment | None) -> str:
    """Which model runner the installed release chooses; see ``overlay._features.vllm_defaults``."""
    # A search on the path; nothing of vllm-ascend is imported.
    if elsewhere is None:
        ascend = find_spec("vllm_ascend") is not None
    else:
        ascend = any(Path(place, "vllm_ascend").is_dir() for place in elsewhere.path)
    return advice(target.release if target else None, os.environ, ascend=ascend)


def installed(elsewhere: Environment | None = None) -> tuple[Target | None, str | None]:
    """The vLLM of this Python or of another environment, or why there is none."""
    try:
        if elsewhere is not None:
            return resolve_environment(Path(elsewhere.name), elsewhere.name, VLLM), None
        return resolve_installed(VLLM), None
    except OverlayError as error:
        return None, str(error)


def environment_of(name: str | None, python: str | None) -> Environment | None:
    """The other environment that a command names; ``None`` for this Python's.

    :raises OverlayError: if what is named is no environment: a folder or a release has no plugins.
    """
    if name is None and python is None:
        return None
    if name is not None and not is_environment(Path(os.path.expanduser(name))):
        raise UsageError(
            f"{name}: expected a virtual environment or the interpreter of one, since doctor tells "
            f"of plugins and packages too; `overlay status` and `overlay check` tell of other "
            "targets"
        )
    place = named_interpreter(python) if name is None and python is not None else Path(name or "")
    place = Path(os.path.abspath(os.path.expanduser(place)))
    return environment_at(place, str(place))


#: Further variables that decide what of the overlay runs, or where vLLM keeps what it compiled.
_WATCHED = (
    "VLLM_PLUGINS",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_CACHE_ROOT",
    "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
)


class SwitchFacts(NamedTuple):
    """A variable that a feature reads.

    :ivar values: those that it takes; empty: any text.
    :ivar value: what it is set to; ``None`` where it is not set.
    """

    feature: str
    name: str
    values: tuple[str, ...]
    default: str
    value: str | None
    text: str


class EnvironmentFacts(NamedTuple):
    """The variables that decide what runs.

    :ivar set: name -> value of those that are set.
    """

    set: Mapping[str, str]
    switches: tuple[SwitchFacts, ...] = ()


class Variables(NamedTuple):
    """What the environment says to the overlay.

    :ivar facts: for the page of ``doctor``.
    :ivar problems: with what vLLM would not start, or what has no effect, a sentence each.
    :ivar notes: what is worth knowing and no problem.
    """

    facts: EnvironmentFacts
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def variables(folders: Iterable[Path], target: Target | None) -> Variables:
    """Check every variable of the overlay, as the plugin would when vLLM starts.

    :param folders: the patches folders that the command was given, the shipped one among them.
    :param target: the installed vLLM, whose ledger may know further features.
    """
    ours = settings.ours()
    names = sorted({*ours, *(name for name in _WATCHED if name in os.environ)})
    values = {name: os.environ[name] for name in names}
    try:
        switches = settings.read()
    except UsageError as error:
        return Variables(EnvironmentFacts(values), (str(error),), ())
    declared = declarations([*folders, *switches.patches])
    checked = check_values(switches.all, declared)
    known_ids = {declaration.id for declaration in declared} | _on_disk(target)
    problems = [*checked.wrong, *checked.unknown]
    for name, ids in (
        ("OVERLAY_FEATURES", switches.features or frozenset()),
        ("OVERLAY_REQUIRED", switches.required - {"all"}),
        ("OVERLAY_REQUIRED_PRESENT", switches.present - switches.required - {"all"}),
    ):
        problems += _unknown_ids(name, ids, known_ids)
    problems += _unread_patches(switches.patches)
    facts = EnvironmentFacts(values, tuple(_switches(declared, ours)))
    return Variables(facts, tuple(problems), (*switches.warnings, *checked.former))


def _unread_patches(folders: Iterable[Path]) -> Iterator[str]:
    """What the plugin does not read of the folders in ``OVERLAY_PATCHES``, and why."""

    for folder in folders:
        try:
            loaded = load_all([folder], private=True)
        except UsageError as error:
            yield f"OVERLAY_PATCHES: {error}"
            continue
        for malformed in loaded.malformed:
            for place in malformed.errors:
                yield f"OVERLAY_PATCHES: {place}"


def _switches(declared: Iterable[Declaration], ours: Mapping[str, str]) -> Iterator[SwitchFacts]:
    for declaration in declared:
        for switch in declaration.switches:
            yield SwitchFacts(
                feature=declaration.id,
                name=switch.name,
                values=tuple(switch.values),
                default=switch.default,
                value=ours.get(switch.name),
                text=switch.text,
            )


def _on_disk(target: Target | None) -> set[str]:
    """The features that are applied, whose folder need not be at hand."""
    if target is None or target.root is None:
        return set()

    try:
        ledger = ledgers.load(target.root)
    except OverlayError:  # told with the target's state
        return set()
    return set() if ledger is None else {entry.result.feature for entry in ledger.applied}


def _unknown_ids(name: str, ids: Iterable[str], known_ids: set[str]) -> Iterator[str]:
    for unknown in sorted(set(ids) - known_ids):
        close = close_names(unknown, sorted(known_ids))
        hint = f"did you mean {close[0]}?" if close else "name its folder in OVERLAY_PATCHES"
        yield (
            f"{name} names {unknown}: expected ids among {', '.join(sorted(known_ids)) or 'none'}; "
            f"{hint}"
        )


def cache_problem(folder: Path, *, allow_group: bool = False) -> str | None:
    """Why nothing could be kept in a ``folder`` of the cache, ``None`` if it could.

    Nothing is written to find out.

    :param allow_group: as for ``overlay.untrusted.problem_of_owner``.
    """
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    remedy = "set OVERLAY_CACHE to a folder of your own"
    why = None
    if not place.is_dir():
        why = f"{place} is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = f"{place} cannot be written"
    elif os.stat(place).st_dev in _of_the_kernel():
        why = f"{place} shows what the kernel knows, and keeps no files"  # though root may write
    elif (room := os.statvfs(place)).f_blocks and not room.f_bavail:
        why = f"no space is left at {place}"
    if why is not None:
        return f"the cache {folder} cannot be used: {why}; {remedy}"
    if place == folder:
        problem = problem_of_owner(folder, allow_group=allow_group)
        if problem is not None:
            return f"the cache cannot be used: {problem}; {remedy}"
    return None


def _of_the_kernel() -> set[int]:
    return {os.stat(place).st_dev for place in ("/proc", "/sys") if os.path.ismount(place)}
