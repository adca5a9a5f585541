"""Judge the change of a whole file: it is for one text alone, which its id tells.  Pure."""

from __future__ import annotations

from overlay._features.model import FILE_SCOPE, Hunk, WholeFile, blob_id
from overlay.results import HunkResult, Reason, State

#: How much of an id messages show, as git does.
_SHOWN = 12


def match_whole(whole: WholeFile, data: bytes | None) -> HunkResult:
    """The state of the change of a whole file in these bytes.

    A file that is to be removed and is not there was removed by the release itself.
    """
    if data == whole.after:
        return HunkResult(FILE_SCOPE, State.UPSTREAMED)
    if data is None:
        reason = Reason(f"expected the file {_identity(whole)}, found none")
        return HunkResult(FILE_SCOPE, State.MISSING, reason=reason)
    if blob_id(data) == whole.before:
        return HunkResult(FILE_SCOPE, State.PRISTINE)
    what = "remove" if whole.after is None else "replace"
    reason = Reason(
        f"expected the file {_identity(whole)}, the only text that it may {what}, found "
        f"{blob_id(data)[:_SHOWN]}"
    )
    return HunkResult(FILE_SCOPE, State.DRIFTED, reason=reason)


def removed_by(hunks: tuple[Hunk, ...]) -> bool:
    """Whether the hunks of a patch remove its file."""
    return any(hunk.whole is not None and hunk.whole.after is None for hunk in hunks)


def _identity(whole: WholeFile) -> str:
    return f"with git's id {whole.before[:_SHOWN]}"
