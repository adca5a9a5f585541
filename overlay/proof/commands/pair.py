"""Whether a model and a draft belong together, by what their configurations say of each other.

vLLM finds out of some of this while it loads, with an error about shapes, and of some never: then
drafts are made of other tokens than those that are meant, and none is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from overlay.errors import UsageError
from overlay.proof.commands.question import method_of
from overlay.untrusted import parse_json, printable, read_regular

#: Methods whose drafts read the target's hidden states as they are, so that both are equally wide.
_READS_TARGET = ("eagle", "eagle3", "mtp")
#: Options of vLLM's engine, in whichever form its parser takes.
_DRAFT_OPTIONS = ("--speculative-config", "-sc")


class Pair(NamedTuple):
    """A model and its draft, as the user named them.

    :ivar method: vLLM's name for the kind of draft; ``None``: as the draft's configuration says.
    """

    model: str
    draft: str
    method: str | None = None


def pair_of(
    model: str | None, draft: str | None, method: str | None, arguments: Sequence[str]
) -> Pair | None:
    """The pair that is served; ``None`` where no draft is named, or it is not to be judged.

    :param arguments: of vLLM's engine, which may name the draft.
    """
    if model is None or any("hf-overrides" in word.replace("_", "-") for word in arguments):
        return None
    if draft is None:
        config = _speculative(arguments)
        draft, method = config.get("model"), config.get("method", method)
        # These say that the vocabularies differ, and that it is meant.
        if not isinstance(draft, str) or config.get("use_heterogeneous_vocab"):
            return None
    return Pair(model, draft, method if isinstance(method, str) else None)


def names_draft(argument: str) -> bool:
    """Whether an argument is vLLM's option for the draft, in whichever form its parser takes."""
    option = argument.partition("=")[0].partition(".")[0].replace("_", "-")
    return option in _DRAFT_OPTIONS


def without_draft(arguments: Sequence[str]) -> tuple[str, ...]:
    """Engine arguments without those that name the draft."""
    rest, skip = list[str](), False
    for word in arguments:
        if names_draft(word):
            skip = "=" not in word
        elif skip and not word.startswith("--"):
            skip = False
        else:
            rest.append(word)
    return tuple(rest)


def _speculative(arguments: Sequence[str]) -> Mapping[str, Any]:
    """What an argument in JSON says of the draft; empty where there is none."""
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if names_draft(word) and "." not in option:
            try:
                config = parse_json(value if equals else "".join(arguments[place + 1 : place + 2]))
            except ValueError:
                return {}
            return config if isinstance(config, dict) else {}
    return {}


def expect_pair(pair: Pair | None) -> str | None:
    """Refuse a draft that is another model's.

    :returns: a sentence where the draft names another target, and nothing shows that it is wrong;
        ``None`` also where a configuration is not on this machine: vLLM downloads it.
    :raises UsageError: naming what differs.
    """
    if pair is None:
        return None
    target, draft = _config(pair.model), _config(pair.draft)
    if target is None or draft is None:
        return None
    verifier = _verifier(draft)
    name = verifier.get("name_or_path")
    differences = tuple(_differences(pair, target, draft, verifier))
    if differences:
        owner = f"; the draft is for {name}" if isinstance(name, str) and name else ""
        raise UsageError(
            printable(
                f"--draft {pair.draft}: expected a draft of {pair.model}, found "
                f"{' and '.join(differences)}{owner}: name the draft that was made for this model"
            )
        )
    if isinstance(name, str) and name and not _same_name(name, pair.model, target):
        return printable(
            f"the draft {pair.draft} names {name} as its target, and serves {pair.model}: if that "
            "is another model, few drafts are accepted"
        )
    return None


def _differences(
    pair: Pair, target: Mapping[str, Any], draft: Mapping[str, Any], verifier: Mapping[str, Any]
) -> Iterator[str]:
    """What of a draft cannot be for the target, each as the part of a sentence."""
    text, own = _text(target), _text(draft)
    sizes = [_number(config, "vocab_size") for config in (text, own)]
    if None not in sizes and sizes[0] != sizes[1]:
        yield f"a vocabulary of {sizes[1]} tokens for one of {sizes[0]}"
    method = pair.method or method_of(Path(pair.draft))
    wide = _number(text, "hidden_size")
    read = _number(draft, "target_hidden_size") or _number(own, "hidden_size")
    if method in _READS_TARGET and wide and read and wide != read:
        yield f"hidden states of {read} values for {wide}"
    verified, architectures = verifier.get("architectures"), target.get("architectures")
    if isinstance(verified, list) and isinstance(architectures, list) and verified:
        classes = {str(each) for each in architectures}
        if classes.isdisjoint(map(str, verified)):
            yield f"one for {' or '.join(map(str, verified))}, not {' or '.join(sorted(classes))}"


def _config(place: str) -> Mapping[str, Any] | None:
    """The configuration of a model in a folder, or of one that the hub's cache has."""
    folder = Path(os.path.expanduser(place))
    cached = _hub_cache() / f"models--{place.replace('/', '--')}" / "snapshots"
    for path in (folder / "config.json", *sorted(cached.glob("*/config.json"))):
        try:
            config = parse_json(read_regular(path.resolve()) or b"null")
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return None


def _hub_cache() -> Path:
    """The folder in which models of the hub lie, as its own client decides it."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")))


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that is about text: all of it, or a part of its own."""
    for name in ("text_config", "transformer_layer_config"):
        part = config.get(name)
        if isinstance(part, dict):
            return part
    return config


def _number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _verifier(draft: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a draft's configuration says of its target; empty where it says nothing."""
    part = draft.get("speculators_config")
    verifier = part.get("verifier") if isinstance(part, dict) else None
    return verifier if isinstance(verifier, dict) else {}


def _same_name(name: str, model: str, target: Mapping[str, Any]) -> bool:
    """Whether a target's name may be that of the model; a copy is often named otherwise.

    A folder's name says nothing: only what its configuration or the hub calls it is compared.
    """
    own = target.get("_name_or_path")
    if not isinstance(own, str) or not own:
        if Path(os.path.expanduser(model)).exists():
            return True
        own = model
    short, long = sorted(
        (each.rstrip("/").rpartition("/")[2].lower() for each in (name, own)), key=len
    )
    return short in long
