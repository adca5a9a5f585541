"""Load the features that a command is asked about, and find the target that it is asked for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay.errors import UsageError

if TYPE_CHECKING:
    from overlay.features.model import Feature
    from overlay.targets.target import Progress, Target


class Request(NamedTuple):
    """The part of a command's arguments that all commands share.

    :ivar patches: folders with features beside those shipped, in order.
    :ivar features: ids of the features that are meant; empty: all.
    :ivar python: the interpreter or virtual environment whose vLLM is meant, where no target is
        named.
    :ivar require: ids of features that must be applied, or ``all``.
    :ivar without: ids of features that are not meant although they are at hand.
    """

    patches: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    python: str | None = None
    require: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def resolve(self, name: str | None, progress: Progress | None = None) -> Target:
        """The target that the user named, or that of ``python``.

        :raises TargetError: if the target does not exist.
        :raises PackageIndexError: if a release cannot be fetched.
        """
        if name is None and self.python is not None:
            from overlay.targets.environments import resolve_interpreter

            return resolve_interpreter(self.python)
        from overlay.targets.resolution import resolve

        return resolve(name, progress=progress)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The patches folders, the shipped one first.

        :raises OverlayError: if this installation lacks the shipped one.
        """
        from overlay.features.sources import shipped_folder

        return (shipped_folder(), *(Path(folder).expanduser() for folder in self.patches))

    def load(self) -> tuple[Feature, ...]:
        """Every feature, whether it is meant or not.

        :raises PatchFormatErrors: with everything that is malformed.
        :raises UsageError: if a folder is not there.
        """
        from overlay.features.folder import load

        return load(self.folders)

    def select(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """The features that are meant, in their own order.

        :raises UsageError: naming every unknown id, and the known ones.
        """
        known = [feature.id for feature in features]
        for option, ids in (("--feature", self.features), ("--without", self.without)):
            if unknown := [name for name in dict.fromkeys(ids) if name not in known]:
                raise UsageError(
                    f"{option} {', '.join(unknown)}: expected one of {', '.join(known) or 'none'}; "
                    "name the folder of a further feature with --patches DIR"
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


def resolve_writable(request: Request, name: str | None, command: str) -> tuple[Target, Path]:
    """The target of a command that writes, and its root.

    A release is refused before anything of it is fetched.

    :raises UsageError: if it is a file or a release.
    :raises TargetError: if the target does not exist.
    """
    from overlay.package import parse_release

    if name is not None:
        with suppress(ValueError):
            parse_release(name)
            raise read_only(name, command)
    target = request.resolve(name)
    if target.root is None:
        raise read_only(target.name, command)
    return target, target.root


def read_only(name: str, command: str) -> UsageError:
    """The error of a command that writes, asked to write to what is not a folder."""
    return UsageError(
        f"{name}: expected an installed vLLM or a folder that holds vllm/, found a file or a "
        f"release, which {command} cannot write to; `overlay check {name}` says how the patches "
        f"stand there, `overlay diff {name}` prints the change"
    )
