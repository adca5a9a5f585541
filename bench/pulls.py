"""Pull requests of upstream, rebuilt out of the releases' sources: imported, on every release.

The history of vLLM is not needed: a pull request is what changed from the last release without it
to the first release with it, in its files, as far as its own lines tell it from what else changed.
With ``--checkout`` upstream's own commits are taken, by the number at the end of their subject.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.authoring.git import Checkout
from overlay.authoring.importing import prepare
from overlay.authoring.incoming import read_changes
from overlay.authoring.locating import ReleaseTexts, blob_id
from overlay.package import KNOWN_RELEASES
from overlay.planning.scope_cache import Memo
from overlay.planning.text import Edit, SourceText
from overlay.results import Outcome

LETTERS = {
    Outcome.UPSTREAM: "U",
    Outcome.EXACT: "P",
    Outcome.MERGED: "3",
    Outcome.MOVED: "3",
    Outcome.PARTLY: "h",
    Outcome.CONFLICT: "c",
    Outcome.MISSING: "M",
}


@dataclass(frozen=True)
class Pull:
    """A pull request of upstream.

    :ivar older: the last release without it; :ivar newer: the first with it, or, of a revert, the
        last one before what it takes back.
    :ivar files: path -> what a line of a changed run must match for the run to belong to it.
    :ivar expected: its letters on the known releases as measured on upstream's own diff
        (P lands, U upstream has it, 3 merges, c conflict, M missing).
    :ivar note: why other letters than the measured ones are expected or found.
    """

    number: int
    title: str
    older: str
    newer: str
    files: dict[str, str]
    expected: str
    note: str = ""

    def diff(self, texts: ReleaseTexts) -> bytes:
        """The change as git would write it, one part for each file."""
        parts = []
        for path, wanted in self.files.items():
            before, after = texts.read(self.older, path), texts.read(self.newer, path)
            if before is None or after is None:
                raise ValueError(f"{path}: expected it in {self.older} and {self.newer}")
            parts.append(_as_git(path, before, own_part(before, after, wanted)))
        return "".join(parts).encode("utf-8", "surrogateescape")

    def mail(self, checkout: Checkout) -> bytes | None:
        """Upstream's own commit; ``None`` where the checkout has none of that number."""
        subject = f"(#{self.number})"
        for entry in checkout.naming(subject):
            if entry.subject.endswith(subject):
                return checkout.mail(entry.commit)
        return None

    def letters(self, texts: ReleaseTexts, checkout: Path | None = None) -> str:
        """How an import of it lands on each release.

        :param checkout: of vLLM's history: upstream's own commit is imported, where it has it.
        """
        own = None if checkout is None else self.mail(Checkout(checkout))
        data = self.diff(texts) if own is None else own
        name = f"{self.number}.diff"
        prepared = prepare(
            read_changes(data, name),
            f"pull-{self.number}",
            texts,
            source=name,
            verbatim=data,
            today="2026-11-22",
            checkout=checkout,
            partial=own is not None,
            syntax=Memo(),
        )
        return "".join(LETTERS[prepared.summary.outcomes[name]] for name in texts.names)


def own_part(before: bytes, after: bytes, wanted: str) -> bytes:
    """``before`` with those changed runs of lines of which one matches."""
    old, new = SourceText.from_bytes(before), SourceText.from_bytes(after)
    matcher = difflib.SequenceMatcher(None, old.lines, new.lines, autojunk=False)
    made = [
        Edit(i1, i2, new.lines[j1:j2])
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
        and any(re.search(wanted, line) for line in (*old.lines[i1:i2], *new.lines[j1:j2]))
    ]
    return old.splice(made, None).to_bytes()


def _as_git(path: str, before: bytes, after: bytes) -> str:
    old, new = (
        data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        for data in (before, after)
    )
    head = f"diff --git a/{path} b/{path}\nindex {blob_id(before)}..{blob_id(after)} 100644\n"
    return head + "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))


_SAMPLE = "vllm/v1/worker/gpu"

#: The thirteen, told from what else changed between two releases by lines of their own.
PULLS = (
    Pull(
        45252,
        "denial of service by prompt embeddings (security)",
        "0.23.0",
        "0.24.0",
        {"vllm/v1/worker/gpu_model_runner.py": r"M-RoPE requires|^\s+input_tokens,$"},
        "cccPPPPUUUUUUUUUUUU",
    ),
    Pull(
        44483,
        "partial wake-up",
        "0.23.0",
        "0.24.0",
        {"vllm/v1/engine/core.py": r"is_sleeping"},
        "ccccccPUUUUUUUUUUUU",
        "measured ccccccPcccccccccccc: the pull request does not compile, and #46627 mended it "
        "before a release; rebuilt from 0.24.0 it is mended, and every later release has it",
    ),
    Pull(
        49391,
        "stop strings",
        "0.26.0",
        "0.27.0",
        {"vllm/v1/engine/detokenizer.py": r"best_|stop_str"},
        "PPPPPPPPPPPUUUUUUUU",
    ),
    Pull(
        45224,
        "lost wake-ups of the shared-memory broadcast",
        "0.26.0",
        "0.27.0",
        {
            "vllm/distributed/device_communicators/shm_broadcast.py": (
                r"RECHECK|wait_ms|warning_wait_time\b|time_left_ms"
            )
        },
        "PPPPPPPPPPPUUUUUUUU",
    ),
    Pull(
        50937,
        "unused bias tensors of experts",
        "0.27.1",
        "0.28.0",
        {"vllm/model_executor/layers/fused_moe/routed_experts.py": r"w2_bias"},
        "MMMMMMMc33PPPUUUUUU",
    ),
    Pull(
        52058,
        "launch geometry of the block zeroing",
        "0.27.1",
        "0.28.0",
        {"vllm/v1/worker/utils.py": r"(?i)zero|page|seg|chunk"},
        "cccccccccccccUUUUUU",
        "rebuilt on 0.27.1, so it lands there; upstream's own diff was made on a later text",
    ),
    Pull(
        45418,
        "diffusion sampling parameters",
        "0.25.1",
        "0.26.0",
        {"vllm/sampling_params.py": r"diffusion"},
        "cccccccPPPUUUUUUUUU",
    ),
    Pull(
        47692,
        "data-parallel start rank",
        "0.27.1",
        "0.28.0",
        {"vllm/engine/arg_utils.py": r"start_rank"},
        "PPPPPPPPPPPPPUUUUUU",
    ),
    Pull(
        47845,
        "bound of the prompt list (security)",
        "0.25.1",
        "0.26.0",
        {
            "vllm/entrypoints/openai/completion/protocol.py": r"prompt_list|max_prompts",
            "vllm/envs.py": r"VLLM_MAX_COMPLETION_PROMPTS",
        },
        "333333PPPPUUUUUUUUU",
    ),
    Pull(
        47911,
        "hash of the draft's configuration",
        "0.25.1",
        "0.26.0",
        {"vllm/config/speculative.py": r"draft_model_config\.compute_hash"},
        "PPPPPPPPPPUUUUUUUUU",
    ),
    Pull(
        48630,
        "rejection sampler in chunks",
        "0.26.0",
        "0.27.0",
        {
            f"{_SAMPLE}/sample/sampler.py": r"max_num_logprobs|chunk",
            f"{_SAMPLE}/spec_decode/rejection_sampler.py": r"max_num_logprobs|chunk",
        },
        "MMMMcccccc3UUUUUUUU",
        "rebuilt on 0.26.0, so it lands there, from the two of nine files whose own lines tell it; "
        "on 0.20.0 to 0.21.0 those files conflict, and the others are missing",
    ),
    Pull(
        49144,
        "types of logprobs fields",
        "0.26.0",
        "0.27.0",
        {
            "vllm/entrypoints/openai/chat_completion/protocol.py": r"field_name",
            "vllm/entrypoints/openai/completion/protocol.py": r"field_name",
        },
        "ccccccccccPUUUUUUUU",
    ),
    Pull(
        49451,
        "a revert",
        "0.27.0",
        "0.26.0",
        {"vllm/entrypoints/chat_utils.py": r"_KIMI_MODEL_TYPES|hf_config"},
        "UUUUUUUUUUUPPccccMM",
        "made on 0.27.0, back to the text of 0.26.0; no release tells what the pull request takes "
        "back, so this is what in the files that 0.32.0 lacks gives the measured letters",
    ),
)


def release_texts() -> ReleaseTexts:
    """The known releases, from the cache or the package index."""
    from overlay.targets.resolution import resolve

    return ReleaseTexts(KNOWN_RELEASES, resolve)


def rows(checkout: Path | None = None) -> Iterator[dict[str, Any]]:
    """Each pull request with the letters that are expected, and those found today."""
    texts = release_texts()
    for pull in PULLS:
        yield {
            "pull": pull.number,
            "title": pull.title,
            "expected": pull.expected,
            "today": pull.letters(texts, checkout),
            "note": pull.note,
        }


def main() -> None:
    """Print each pull request with its letters; with ``--out`` write them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="file for the letters, as JSON")
    parser.add_argument("--checkout", type=Path, help="a git checkout of vLLM, for its own commits")
    options = parser.parse_args()
    out = options.out
    made = []
    for row in rows(options.checkout):
        made.append(row)
        print(row["pull"], row["expected"], row["today"], flush=True)
    if out is not None:
        document = {"releases": list(KNOWN_RELEASES), "pulls": made}
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
