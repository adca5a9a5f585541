"""The page of ``doctor``: what a bug report needs, for people and as JSON.

A section is a named tuple whose fields are its lines and the keys of its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from overlay.report.base import Report
from overlay.report.codes import Code, Verdict
from overlay.report.lines import BLANK, MARK, Line, Span, labelled
from overlay.report.running import process_data, process_lines
from overlay.report.words import count

if TYPE_CHECKING:
    from overlay.processes.live import LiveProcess
    from overlay.report.model import TargetReport


class OverlayFacts(NamedTuple):
    """The overlay itself.

    :ivar patches: the folders of patches that the command was given.
    :ivar project: the file that names folders for the project, or that there is none.
    """

    version: str
    folder: str
    patches: tuple[str, ...]
    project: str


class PythonFacts(NamedTuple):
    """The interpreter that runs this, and the machine."""

    version: str
    implementation: str
    executable: str
    prefix: str
    platform: str


class VllmFacts(NamedTuple):
    """The vLLM that this Python would import.

    :ivar found: how it was found, in words; :ivar record: its list of files.
    """

    version: str | None
    root: str
    found: str
    record: str | None


class TorchFacts(NamedTuple):
    """torch, from its files; ``None`` where it is not installed."""

    version: str | None
    built_for: str | None


class DeviceFacts(NamedTuple):
    """The graphics drivers and devices that the kernel tells of."""

    nvidia_driver: str | None
    amd_driver: str | None
    devices: tuple[str, ...]


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


class CacheFacts(NamedTuple):
    """The cache of patched modules, and the folder where processes leave their records.

    :ivar problem: why the cache cannot be used, where it cannot.
    """

    folder: str | None
    entries: int
    bytes: int
    problem: str | None
    records: str


class Page(NamedTuple):
    """The sections of the page.

    :ivar vllm: ``None`` where this Python would import none.
    :ivar model_runner: which one the release chooses, in words.
    :ivar notes: what is worth knowing and no problem.
    """

    overlay: OverlayFacts
    python: PythonFacts
    vllm: VllmFacts | None
    torch: TorchFacts
    devices: DeviceFacts
    plugins: tuple[PluginFacts, ...]
    environment: EnvironmentFacts
    cache: CacheFacts
    model_runner: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DoctorReport(Report):
    """What a bug report needs.

    :ivar installed: the vLLM that this Python would import; ``None`` where there is none.
    :ivar processes: the running vLLM processes of this user.
    :ivar problems: what needs the user, one sentence each.
    :ivar others: the other packages there that features are for.
    """

    _command: ClassVar[str] = "doctor"
    installed: TargetReport | None
    processes: tuple[LiveProcess, ...]
    page: Page
    problems: tuple[str, ...]
    others: tuple[TargetReport, ...] = ()

    @property
    def targets(self) -> tuple[TargetReport, ...]:
        """The installed vLLM, if there is one, and the other packages."""
        return () if self.installed is None else (self.installed, *self.others)

    def first_lines(self) -> Iterator[Line]:
        """The page, section by section."""
        return _page(self.page)

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """The processes, and at the end, where it is read first, what needs somebody."""
        yield from process_lines(self.processes, verbose=verbose)
        for note in self.page.notes:
            yield labelled(0, "note: ", note)
        for problem in self.problems:
            yield labelled(0, f"{MARK} ", problem, "bad")

    def own_data(self) -> dict[str, Any]:
        """The processes, and the page with the problems under ``doctor``."""
        return {
            "processes": [process_data(process) for process in self.processes],
            "doctor": {**_plain(self.page), "problems": list(self.problems)},
        }


def diagnosed(problems: Sequence[str]) -> Verdict:
    """The verdict of ``doctor``."""
    if problems:
        return Verdict(Code.PROBLEMS, f"{count(len(problems), 'problem')} found.")
    return Verdict(Code.NO_PROBLEM, "No problem found.")


def _plain(value: Any) -> Any:
    """Named tuples as objects and tuples as arrays, as JSON has them."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _page(page: Page) -> Iterator[Line]:
    for title, section in (
        ("overlay", page.overlay),
        ("python", page.python),
        ("vllm", page.vllm),
        ("torch", page.torch),
        ("devices", page.devices),
    ):
        yield from _section(title, {"version": None} if section is None else section._asdict())
    yield Line((Span("plugins", "heading"),))
    for plugin in page.plugins:
        runs = "runs" if plugin.runs else "does not run"
        text = f"{runs} ({plugin.why}); {plugin.value} of {plugin.distribution}"
        yield labelled(2, f"{plugin.name}: ", text)
    if not page.plugins:
        yield labelled(2, "", "none")
    yield BLANK
    yield from _section("environment", page.environment.set or {"set": "none"})
    yield from _switches(page.environment.switches)
    yield from _section("cache", page.cache._asdict())
    yield Line((Span("model runner", "heading"), Span("  ")), (Span(page.model_runner),))
    yield BLANK


def _switches(switches: Sequence[SwitchFacts]) -> Iterator[Line]:
    """The variables that features declare, and what they are set to."""
    yield Line((Span("switches", "heading"),))
    for switch in switches:
        value = switch.value or f"{switch.default} (default)"
        values = "|".join(switch.values) or "any text"
        yield labelled(2, f"{switch.name}: ", f"{value}; {values}: {switch.text}")
    if not switches:
        yield labelled(2, "", "none")
    yield BLANK


def _section(title: str, values: Mapping[str, Any]) -> Iterator[Line]:
    yield Line((Span(title, "heading"),))
    for name, value in values.items():
        if name == "problem" and value is None:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        # The name of a variable stays as it is.
        label = name.replace("_", " ") if name.islower() else name
        yield labelled(2, f"{label}: ", "none" if text in ("None", "") else text)
    yield BLANK
