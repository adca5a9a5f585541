"""Why an engine of ``overlay verify`` could not be compared, and what the user can do."""

from __future__ import annotations

import re

from overlay.errors import OverlayError
from overlay.proof import verify_engine
from overlay.proof.engine_pool import EngineEnd
from overlay.proof.verification import EngineRun
from overlay.results.invocation import command
from overlay.untrusted import printable

#: The last line of a traceback, which PyTorch and vLLM's workers write with a prefix.
_RAISED = re.compile(r"(?:.*\] ?|.*: )?([\w.]*(?:Error|Exception|Refused|Mismatch)\b(?::.*)?)$")
#: What vLLM says of an error that another of its processes has printed.
_ELSEWHERE = "See root cause above"
#: Parts of what vLLM and PyTorch say where memory is short -> what the user can do.
_MEMORY = (
    "out of memory",
    "less than desired GPU memory utilization",
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "larger than the maximum number of tokens that can be stored in KV cache",
)
_MEMORY_HELP = (
    "the GPU is too small for these engines, or another process holds its memory: give vLLM a "
    "smaller --max-model-len or --max-num-seqs, or another --gpu-memory-utilization behind --"
)
#: The same of a port.
_PORT = ("Address already in use", "EADDRINUSE")
_PORT_HELP = (
    "a port that the engine was told to use is taken: end what holds it, or unset VLLM_PORT and "
    "MASTER_PORT so that the engine takes a free one"
)
#: What vLLM says where another process gave memory back while it measured what it needs itself.
_UNSTEADY = "release GPU memory while vLLM is profiling"
_UNSTEADY_HELP = (
    "another process of this GPU ended or gave memory back meanwhile: run it again alone"
)
_LINES = 15


def usable(ended: EngineEnd) -> EngineRun:
    """The run of an engine that served.

    :raises OverlayError: if it did not: with what it said, and what the user can do.
    """
    if ended.result is not None and "problem" not in ended.result:
        return EngineRun.read(ended.result)
    raise OverlayError(failure_text(ended))


def raised_by(ended: EngineEnd, *, with_graphs: bool) -> str | None:
    """Why an engine with draft graphs died; ``None`` where it served.

    :raises OverlayError: if the engine has no graphs, or can have none, whatever the mode.
    """
    if ended.result is not None and "problem" not in ended.result:
        return None
    kind = None if ended.result is None else str(ended.result["problem"])
    text = failure_text(ended)
    if with_graphs and (kind is None or kind == verify_engine.RAISED) and _UNSTEADY not in text:
        return text
    raise OverlayError(text)


def _fixed_help(kind: str) -> str:
    if kind == verify_engine.NOT_PATCHED:
        return f"run {command('apply')}, then {command('status')}"
    if kind == verify_engine.NO_DRAFTER:
        return "name a draft with --draft, or --speculative-config behind --"
    if kind == verify_engine.NOT_STOCK:
        return (
            "a folder before it on the import path, or OVERLAY, brings the overlay in: unset "
            "PYTHONPATH, or name the environment with --python"
        )
    return ""


def failure_text(ended: EngineEnd) -> str:
    """What an engine that did not serve said, and what the user can do."""
    last = "\n".join(ended.log.rstrip().splitlines()[-_LINES:])
    cause = _cause(ended.log)
    # An engine that died or was killed may have measured something, and says no problem.
    if ended.result is not None and "problem" in ended.result:
        text, kind = str(ended.result["text"]), str(ended.result["problem"])
        help_ = _fixed_help(kind) or _help(f"{text}\n{ended.log}")
        if kind == verify_engine.NOT_SERVED:
            text = "\n".join(filter(None, (text, "" if cause in last else cause, last)))
        return printable(f"{text}{'; ' + help_ if help_ else ''}", lines=True)
    if ended.status is None:
        how = f"did not end within {ended.seconds:.0f} s and was killed (--deadline)"
    elif ended.status < 0:
        how = f"was ended by signal {-ended.status}"
    else:
        measured = "no result" if ended.result is None else "a part of its result"
        how = f"ended with status {ended.status} and {measured}"
    why = f": {cause}" if cause else ""
    help_ = _help(ended.log)
    return printable(
        f"the engine {how}{why}{'; ' + help_ if help_ else ''}\nits last lines:\n{last}", lines=True
    )


def _cause(log: str) -> str:
    """The last error of a log that says what went wrong; empty where there is none.

    The process that others have failed under only says that it is somewhere above.
    """
    lines = [match[1] for match in map(_RAISED.match, log.splitlines()) if match]
    causes = [line for line in lines if _ELSEWHERE not in line]
    return (causes or lines or [""])[-1]


def _help(output: str) -> str:
    """What the user can do; vLLM has no codes for these, so its sentences are looked for."""
    if any(part in output for part in _MEMORY):
        return _MEMORY_HELP
    if _UNSTEADY in output:
        return _UNSTEADY_HELP
    return _PORT_HELP if any(part in output for part in _PORT) else ""
