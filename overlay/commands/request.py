"""What every command is asked with: the folders of patches, and the features that are meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import UsageError

if TYPE_CHECKING:
    from overlay.model import Feature


@dataclass(frozen=True)
class Request:
    """The part of a command's arguments that all commands share.

    :ivar patches: folders with features beside those shipped, in order.
    :ivar features: ids of the features that are meant; empty: all.
    """

    patches: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def load(self) -> tuple[Feature, ...]:
        """Every feature, whether it is meant or not.

        :raises PatchFormatErrors: with everything that is malformed.
        :raises UsageError: if a folder is not there.
        """
        from overlay.features import load, shipped_folder

        return load([shipped_folder(), *(Path(folder).expanduser() for folder in self.patches)])

    def select(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """The features that are meant, in their own order.

        :raises UsageError: naming every id that there is not, and those that there are.
        """
        known = [feature.id for feature in features]
        unknown = [name for name in dict.fromkeys(self.features) if name not in known]
        if unknown:
            raise UsageError(
                f"--feature {', '.join(unknown)}: expected one of {', '.join(known) or 'none'}; "
                "name the folder of a further feature with --patches DIR before the command"
            )
        if not self.features:
            return features
        return tuple(feature for feature in features if feature.id in self.features)
