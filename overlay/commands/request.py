"""Load the features that a command is asked about, and find the target that it is asked for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.errors import OverlayError, UsageError
from overlay.results import FeatureResult, Reason, State
from overlay.results.invocation import NOTHING_NAMED, ON_CHOSEN, Invocation, absolute, command
from overlay.settings import current_ids, in_home

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.package import Package
    from overlay.report.model import TargetReport
    from overlay.targets.target import Progress, Target


def words_of(name: str | None, python: str | None) -> tuple[str, ...]:
    """The arguments that name a target in every working folder.

    :param name: TARGET, as the user named it; :param python: the same of ``--python``.
    """
    if name is None:
        if python is None:
            return ()
        on_path = os.sep not in python and not os.path.exists(python)
        return ("--python", python if on_path else absolute(python))
    from overlay.targets.resolution import target_release

    return (name,) if target_release(name) is not None else (absolute(name),)


class Request(NamedTuple):
    """The part of a command's arguments that all commands share.

    :ivar patches: folders with features beside those shipped, in order.
    :ivar features: ids of the features that are meant; empty: all.
    :ivar python: the interpreter or virtual environment whose vLLM is meant, where no target is
        named.
    :ivar require: ids of features that must be applied, or ``all``.
    :ivar without: ids of features that are not meant although they are at hand.
    :ivar named_as: what messages call the argument by which ``features`` were named.
    :ivar target: TARGET, as the user named it.
    :ivar progress: called while something is fetched; a ``Meter`` counts targets, too.
    """

    patches: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    python: str | None = None
    require: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    named_as: str = "--feature"
    target: str | None = None
    progress: Progress | None = None

    def with_current_ids(self) -> Request:
        """The same by the ids that features have now; a former one is warned of."""

        def note(text: str) -> None:
            warnings.warn(
                text, FutureWarning, stacklevel=7
            )  # at the caller of a function of the API

        return self._replace(
            features=current_ids(self.features, note),
            require=current_ids(self.require, note),
            without=current_ids(self.without, note),
        )

    @property
    def names_target(self) -> bool:
        """Whether the user named a target, and does not mean the vLLM of this Python."""
        return self.target is not None or self.python is not None

    def invocation(self, name: str, folders: Iterable[str | Path]) -> Invocation:
        """What the commands that messages name repeat of it.

        :param name: the command that was asked; only some choose features by ``--feature``.
        :param folders: those of ``patches`` that were named: folders of the environment and of a
            project's file need no repetition.
        """
        options = (("--feature", self.features), ("--without", self.without))
        return Invocation(
            words_of(self.target, self.python),
            tuple(absolute(folder) for folder in folders),
            tuple(word for option, ids in options for id_ in ids for word in (option, id_))
            if name in ON_CHOSEN
            else (),
        )

    def resolve(self, package: Package | None = None) -> Target:
        """The target that the user named, or that of ``python``.

        :param package: the one that is meant there; default: vLLM.
        :raises TargetError: if the target does not exist.
        :raises PackageIndexError: if a release cannot be fetched.
        """
        from overlay.package import VLLM
        from overlay.targets.resolution import resolve

        return resolve(
            self.target, python=self.python, progress=self.progress, package=package or VLLM
        )

    def survey(self) -> Scene:
        """The features, and the packages of a target that they are for.

        Without ``--feature`` these are all that have features at hand, or patches of the overlay;
        with it those that are meant.  What is not installed is passed over.

        :raises OverlayError: if the features or the target cannot be read.
        """
        try:
            features = self.at_hand()
            self.select(features)
        except OverlayError:
            self.resolve()  # what is wrong with the target is said first
            raise
        return self.scene(features)

    def package(self, features: tuple[Feature, ...]) -> Package:
        """The package whose releases bare version numbers are: that of all features named, or vLLM.

        :raises UsageError: if a feature does not exist.
        """
        from overlay.features.model import packages_of
        from overlay.package import VLLM

        packages = packages_of(self.select(features)) if self.features else ()
        return packages[0] if len(packages) == 1 else VLLM

    def scene(self, features: tuple[Feature, ...]) -> Scene:
        """The same of features that were loaded."""
        from overlay.features.model import packages_of
        from overlay.package import VLLM

        meant = self.select(features)
        packages = packages_of(meant if self.features else features) or (VLLM,)
        targets = self._targets(packages)
        there = {target.package for target in targets}
        named = {*self.features, *self.require} - {*self.without}
        absent = tuple(
            feature for feature in features if feature.id in named and feature.package not in there
        )
        return Scene(features, meant, targets, absent)

    def _targets(self, packages: Sequence[Package]) -> tuple[Target, ...]:
        from overlay.package import VLLM
        from overlay.targets.resolution import resolve_each
        from overlay.targets.target import Absent

        def each(packages: Sequence[Package]) -> tuple[Target, ...]:
            return resolve_each(
                self.target,
                packages,
                python=None if self.target is not None else self.python,
                patched=not self.features,
                progress=self.progress,
            )

        try:
            return each(packages)
        except Absent:
            if VLLM in packages:
                raise
            return each((VLLM,))  # where features for something else have nothing to do

    @property
    def folders(self) -> tuple[Path, ...]:
        """The patches folders, the shipped one first.

        :raises OverlayError: if this installation lacks the shipped one.
        """
        from overlay.features.sources import shipped_folder

        return (shipped_folder(), *(in_home(folder) for folder in self.patches))

    def load(self) -> tuple[Feature, ...]:
        """Every feature, whether it is meant or not, for a command that writes patches.

        Where features are named, what else is malformed leaves itself out.

        :raises PatchFormatErrors: with everything that is malformed, among what is named if any is.
        :raises UsageError: if a folder is not there.
        """
        from overlay.features.folder import load

        if self.features:
            return tuple(feature for feature in self.at_hand() if not feature.malformed)
        return load(self.folders)

    def at_hand(self) -> tuple[Feature, ...]:
        """The same for a command that goes on without what is malformed, unless that was named.

        :returns: for each malformed feature one that says why (``Feature.malformed``).
        :raises PatchFormatErrors: for what was named, and a folder in which nothing is a feature.
        :raises UsageError: if a folder is not there.
        """
        from overlay.features.folder import load_each

        return load_each(self.folders, self.features)

    def authored(
        self, package: Package, features: tuple[Feature, ...] | None = None
    ) -> tuple[Feature, ...]:
        """The features for one package, with which a command that writes patches works.

        :param features: all of them, where they are loaded already.
        :raises UsageError: if ``--feature`` names one for another package.
        """
        from overlay.features.model import of_package

        features = self.load() if features is None else features
        for feature in features:
            if feature.package != package and feature.id in self.features:
                raise UsageError(
                    f"{feature.id}: expected a feature for {package.title}, found one for "
                    f"{feature.package.title}: name a release of that, such as "
                    f"{feature.package.distribution}=={feature.releases.last}"
                )
        return of_package(features, package)

    def select(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """The features that are meant, in their own order.

        :raises UsageError: naming every id that there is not, and those that there are.
        """
        known = [feature.id for feature in features]
        for option, ids in ((self.named_as, self.features), ("--without", self.without)):
            if unknown := [name for name in dict.fromkeys(ids) if name not in known]:
                raise UsageError(
                    f"{option} {', '.join(unknown)}: expected one of {', '.join(known) or 'none'}; "
                    f"{_meant(unknown, known)}name the folder of a further feature with --patches "
                    "DIR"
                )
        if both := sorted({*self.features} & {*self.without}):
            raise UsageError(
                f"--without {', '.join(both)}: expected features other than those of --feature"
            )
        return tuple(
            feature
            for feature in features
            if (not self.features or feature.id in self.features) and feature.id not in self.without
        )


class Scene(NamedTuple):
    """The features of a command and the packages that they are for.

    :ivar features: every feature, whether it is meant or not.
    :ivar meant: those that are meant.
    :ivar targets: the packages, at least one.
    :ivar absent: features that were named although their package is not there.
    :ivar invocation: by which arguments the user meant this target, where there are several.
    """

    features: tuple[Feature, ...]
    meant: tuple[Feature, ...]
    targets: tuple[Target, ...]
    absent: tuple[Feature, ...] = ()
    invocation: Invocation = NOTHING_NAMED

    def with_absent(self, reports: Sequence[TargetReport]) -> tuple[TargetReport, ...]:
        """The reports on the targets, the first with the features whose package is not there."""
        from dataclasses import replace  # `list` has no report on a target

        first, *others = reports
        results = tuple(
            FeatureResult(
                feature.id,
                State.INAPPLICABLE,
                reason=Reason(f"{feature.package.title} is not installed here"),
            )
            for feature in self.absent
        )
        return (replace(first, features=(*first.features, *results)), *others)


def writable(request: Request, command: str) -> Scene:
    """The features, and the packages of a target that a command writes to.

    :raises UsageError: if it is a file or a release, or a feature does not exist.
    :raises OverlayError: if the features or the target cannot be read.
    """
    refuse_release(request.target, command)
    scene = request.survey()
    for target in scene.targets:
        root_of(target, command)
    return scene


def ended(targets: Sequence[Target]) -> str | None:
    """End the transactions that were interrupted in targets; what was done, or ``None``.

    :raises OverlayError: as ``overlay.on_disk.recovery.recover``.
    """
    from overlay.on_disk.recovery import recover

    done = [recover(each.root, package=each.package) for each in targets if each.root is not None]
    return "; ".join(said for said in done if said) or None


def refuse_release(name: str | None, command: str) -> None:
    """Refuse a release as the target of a command that writes.

    :raises UsageError: if ``name`` is one.
    """
    from overlay.targets.resolution import target_release

    if name is not None and target_release(name) is not None:
        raise read_only(name, command)


def root_of(target: Target, command: str) -> Path:
    """The root of a target that a command writes to.

    :raises UsageError: if it is a file or a release.
    """
    if target.root is None:
        raise read_only(target.name, command)
    return target.root


def read_only(name: str, verb: str) -> UsageError:
    """The error of a command that writes, asked to write to what is not a folder."""
    return UsageError(
        f"{name}: expected an installed vLLM or a folder that holds vllm/, found a file or a "
        f"release, which {verb} cannot write to; {command('check')} says whether the "
        f"patches fit there, {command('diff')} prints the change"
    )


def _meant(unknown: Sequence[str], known: Sequence[str]) -> str:
    """Which ids were probably meant, as a part of a sentence; empty where none is near."""
    from difflib import get_close_matches

    close = [match for name in unknown for match in get_close_matches(name[:100], known, n=1)]
    return f"did you mean {' and '.join(dict.fromkeys(close))}? Or " if close else ""
