"""What a process of vLLM decides about the features on disk, and how its receipt keeps that.

The plugin decides so at its start.  ``overlay apply`` comes to the same decision for the process
that starts next (``keep``), so that even the first one reads a receipt and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from overlay.errors import OverlayError
from overlay.on_disk import receipt
from overlay.results import State, Way
from overlay.settings import Mode

if TYPE_CHECKING:
    from overlay.on_disk.ledger import Ledger
    from overlay.settings import Switches
    from overlay.targets.target import Target

#: The fields of a ``features.switches.Switch``, which a process without variables never imports.
SwitchRow: TypeAlias = tuple[str, tuple[str, ...], str, str, tuple[tuple[str, str], ...]]

#: States of a feature that is not active and needs not be.
HARMLESS = (State.UPSTREAMED, State.INAPPLICABLE)


class FeatureDecision(NamedTuple):
    """What became of one feature in a process.

    :ivar state: its state before the process did anything; :ivar active: whether its code runs.
    :ivar asked: whether ``OVERLAY_FEATURES`` allows it, or it is on disk.
    """

    id: str
    digest: str
    state: State
    active: bool
    why: str | None = None
    asked: bool = True

    @property
    def harmless(self) -> bool:
        """Whether it needs no attention, active or not."""
        return self.state in HARMLESS

    @property
    def reason(self) -> str:
        """Why it is not active, a line for everything that is in its way."""
        return self.why or "not applied on disk"


class Kept(NamedTuple):
    """A decision as a receipt keeps it; none of a process that patches modules in memory.

    :ivar way: ``DISK``, or ``NONE`` where no feature is active.
    :ivar vllm: the version of vLLM; :ivar root: the folder that holds it.
    :ivar required: whether vLLM must not start without one of the features that are active.
    :ivar switches: those that features declare, with the fields of ``features.switches.Switch``.
    :ivar others: name and version of each package beside vLLM that has an active feature.
    """

    way: Way
    vllm: str
    root: str
    features: tuple[FeatureDecision, ...]
    warnings: tuple[str, ...]
    required: bool
    switches: tuple[SwitchRow, ...]
    others: tuple[tuple[str, str], ...] = ()


def digest(features: Iterable[FeatureDecision], variables: Mapping[str, str]) -> str:
    """Hash what runs and every switch; equal wherever the same code runs, by whichever way."""
    active = sorted((each.id, each.digest) for each in features if each.active)
    settings = {name: value for name, value in variables.items() if name != "OVERLAY"}
    return hashlib.sha256(json.dumps([active, settings], sort_keys=True).encode()).hexdigest()


def from_disk(target: Target, ledger: Ledger) -> tuple[list[FeatureDecision], bool]:
    """Judge the features on disk.

    :returns: the features, none where the ledger is void; and whether a file of theirs is not as
        the overlay left it.
    """
    from overlay.on_disk.disk_state import Condition, conditions, void

    states = conditions(ledger, target.read)
    if void(ledger, states, _release(target)) is not None and all(
        state in (Condition.PRISTINE, Condition.GONE) for state in states.values()
    ):
        return [], False  # vLLM was installed again: as if nothing had been applied
    wrong = sorted(path for path, state in states.items() if state is not Condition.OURS)
    why = None
    if wrong:
        why = f"not as overlay apply left it: {', '.join(wrong)}; run `overlay status`"
    return [
        FeatureDecision(each.result.feature, each.digest, State.APPLIED, why is None, why)
        for each in ledger.applied
    ], why is not None


def needless(target: Target, ledger: Ledger, switches: Switches) -> list[FeatureDecision] | None:
    """The features that are not on disk and need not be; ``None`` where only a plan can tell."""
    from overlay.on_disk import patch_folders

    folders = patch_folders.patches_folders(switches)
    rest = patch_folders.needless(ledger, _release(target), switches, folders)
    if rest is None:
        return None
    decisions = []
    for each in rest:
        asked = switches.allows(each.result.feature)
        told = each.result.reason and str(each.result.reason)
        why = told if asked else patch_folders.NOT_ASKED
        decisions.append(
            FeatureDecision(each.result.feature, each.digest, each.result.state, False, why, asked)
        )
    return decisions


def further_roots(folders: Iterable[Path]) -> dict[str, Path]:
    """The packages beside vLLM that features are for and that this Python would import.

    Nothing is imported: the module that is there tells, or else whoever would find it.

    :param folders: the patches folders.
    :returns: import name -> the folder that holds the package, by name.
    """
    from overlay.on_disk.patch_folders import further_packages

    roots = {}
    for name in further_packages(folders):
        origin = getattr(sys.modules.get(name), "__file__", None) or _origin(name)
        if isinstance(origin, str) and os.path.basename(origin) == "__init__.py":
            roots[name] = Path(os.path.realpath(os.path.dirname(origin))).parent
    return roots


def _origin(name: str) -> str | None:
    """The file that the import of a package would begin with; ``None`` where there is none."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None else spec.origin


class Question:
    """What a process asks its receipt: the decision with these variables on the vLLM of a root.

    :ivar others: import name -> root of each package beside it that features are for.
    :raises OverlayError: if this installation lacks the shipped patches.
    :raises RuntimeError: if there is no home folder, and so no cache.
    """

    def __init__(self, asked: Switches, root: Path) -> None:
        from overlay.cache import cache_folder
        from overlay.on_disk.patch_folders import patches_folders

        self.root = root
        self.folders = [os.path.abspath(folder) for folder in patches_folders(asked)]
        self.others = further_roots(map(Path, self.folders))
        own = {name: value for name, value in asked.all.items() if name not in asked.further}
        self._cache = cache_folder() / "receipts"
        roots = [str(root), *(f"{name} {place}" for name, place in self.others.items())]
        self._name = receipt.name_of(roots, {**own, "OVERLAY": asked.mode.value}, self.folders)

    @property
    def is_answered(self) -> bool:
        """Whether there is a receipt, up to date or not."""
        return os.path.lexists(self._cache / f"{self._name}.json")

    def answer(self) -> Kept | None:
        """The decision of the receipt, ``None`` where there is none that is valid."""
        decision = receipt.read(self._cache, self._name)
        if decision is None:
            return None
        try:
            return _decoded(decision)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def evidence(self) -> receipt.Evidence | None:
        """What each decision rests on, as it is now: the ledger, a journal, which release it is.

        :returns: ``None`` where it cannot be read, or no file says which release it is.
        """
        from overlay.package import VLLM, package_named

        files: list[Path] = []
        told = []
        packages = {VLLM: self.root}
        packages |= {package_named(name): root for name, root in self.others.items()}
        for package, root in packages.items():
            stem = package.distribution.replace("-", "_")
            metadata = sorted(root.glob(f"{stem}*.dist-info/METADATA"))
            told.append([root / package.name / "_version.py", *metadata])
            files += [root / package.ledger_path, root / package.journal_path, *told[-1]]
        try:
            evidence = receipt.Evidence(map(str, files), self.folders)
        except OSError:
            return None
        known = all(any(evidence.files[str(path)] for path in paths) for paths in told)
        return evidence if known else None

    def keep(
        self, decision: Kept, inputs: Mapping[str, str | None], evidence: receipt.Evidence
    ) -> None:
        """Write the receipt, unless something has changed since ``evidence`` was taken.

        A cache that cannot be written costs the next process its time, and nothing else.

        :param inputs: path, below vLLM's root or absolute -> sha256 of what was read, ``None`` for
            no file.
        """
        files = {str(self.root / path): known for path, known in inputs.items()}
        with contextlib.suppress(OSError, OverlayError):
            receipt.write(self._cache, self._name, _encoded(decision), files, evidence)


def keep_applied(targets: Sequence[Target], switches: Switches) -> None:
    """Write the receipt of the process that starts next in packages that were patched.

    There is one only where this Python would import just these, vLLM among them, and where what is
    on disk is all that a process needs: else the process has to decide for itself.

    :param switches: the environment's, as the next process will have them.
    """
    roots = {target.package.name: target.root for target in targets}
    root = roots.pop("vllm", None)
    if root is None or switches.mode is Mode.OFF or not _importable(root):
        return
    try:
        question = Question(switches, root)
        if question.others != roots:
            return
        evidence = None if question.is_answered else question.evidence()
        if evidence is not None:
            _keep_applied(question, evidence, targets, switches)
    except (OverlayError, RuntimeError, OSError):
        return  # the next process meets the same problem, and says so


def _keep_applied(
    question: Question, evidence: receipt.Evidence, targets: Sequence[Target], switches: Switches
) -> None:
    from overlay.on_disk import ledger as ledgers
    from overlay.on_disk.patch_folders import required_features

    features: list[FeatureDecision] = []
    inputs: dict[str, str | None] = {}
    for target in targets:
        assert target.root is not None
        ledger = ledgers.load(target.root, target.package)
        if ledger is None or not ledger.applied:
            return
        own, blocked = from_disk(target, ledger)
        rest = needless(target, ledger, switches) if switches.mode is Mode.AUTO else []
        if not own or blocked or rest is None:
            return
        features += [*own, *rest]
        inputs |= {str(target.root / entry.path): entry.after for entry in ledger.entries}
    wanted = switches.present | required_features(switches)
    if wanted - {feature.id for feature in features if feature.active}:
        return
    vllm = next(target for target in targets if target.package.name == "vllm")
    decision = Kept(
        way=Way.DISK,
        vllm=vllm.vllm or "unknown",
        root=str(vllm.root),
        features=tuple(features),
        warnings=(),
        required=bool(wanted),
        switches=declared_switches(switches),
        others=tuple(
            (target.package.title, target.vllm or "unknown")
            for target in targets
            if target is not vllm
        ),
    )
    question.keep(decision, inputs, evidence)


def declared_switches(asked: Switches) -> tuple[SwitchRow, ...]:
    """The switches that the features of a process declare."""
    from overlay.features.switches import declarations
    from overlay.on_disk.patch_folders import patches_folders

    declared = declarations(patches_folders(asked))
    return tuple(
        (switch.name, switch.values, switch.default, switch.text, switch.deprecated)
        for feature in declared
        for switch in feature.switches
    )


def _encoded(decision: Kept) -> dict[str, object]:
    features = [(*each[:2], each.state.value, *each[3:]) for each in decision.features]
    return {**decision._asdict(), "features": features}


def _decoded(kept: Mapping[str, Any]) -> Kept:
    """Read what ``_encoded`` made.

    :raises KeyError, TypeError, ValueError: if it is malformed.
    """
    return Kept(
        way=Way(kept["way"]),
        vllm=str(kept["vllm"]),
        root=str(kept["root"]),
        features=tuple(
            FeatureDecision(
                str(name), str(digest), State(state), active is True, why, asked is True
            )
            for name, digest, state, active, why, asked in kept["features"]
        ),
        warnings=tuple(map(str, kept["warnings"])),
        required=kept["required"] is True,
        switches=tuple(
            (
                str(name),
                tuple(map(str, values)),
                str(default),
                str(text),
                tuple((str(former), str(value)) for former, value in deprecated),
            )
            for name, values, default, text, deprecated in kept["switches"]
        ),
        others=tuple((str(name), str(version)) for name, version in kept["others"]),
    )


def _importable(root: Path) -> bool:
    return any(os.path.realpath(folder or ".") == str(root) for folder in sys.path)


def _release(target: Target) -> str | None:
    return None if target.release is None else str(target.release)
