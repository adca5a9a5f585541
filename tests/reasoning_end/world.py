"""A request whose answer is held to a grammar, served by a release's own functions. Needs vLLM.

Its scheduler's lines and its manager of structured output, pristine or patched; the model, the
reasoning parser, the grammar and the drafts are doubles.
"""

from __future__ import annotations

import ast
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from overlay._features.folder import load
from overlay._features.sources import shipped_folder
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.targets.resolution import resolve
from tests.support.beside_vllm import put_beside_vllm

put_beside_vllm("reasoning-end")

# isort: split
from vllm.v1.structured_output import reasoning_end

FEATURE = "reasoning-end"
MANAGER = "vllm/v1/structured_output/__init__.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
END, EOS, VOCABULARY, K, MOST = 7, 9, 10, 4, 18
PROMPT = (1, 2, 3)


@functools.cache
def text(release: str, path: str, *, patched: bool) -> str:
    """A file of a release, with the feature's hunks or without."""
    target = resolve(release)
    if patched:
        features = [each for each in load([shipped_folder()]) if each.id == FEATURE]
        for change in plan(features, target, target.release, target.record, Syntax()).changes:
            if change.path == path and change.after is not None:
                return change.after.decode()
    content = target.read(path)
    assert content is not None
    return content.decode()


def class_of(release: str, path: str, name: str, *, patched: bool) -> ast.ClassDef:
    """A class of a release."""
    body = ast.parse(text(release, path, patched=patched)).body
    (kind,) = (each for each in body if isinstance(each, ast.ClassDef) and each.name == name)
    return kind


def compiled(nodes: list[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
    """The names after the nodes were run."""
    future = ast.parse("from __future__ import annotations").body
    tree = ast.fix_missing_locations(ast.Module([*future, *nodes], []))
    exec(compile(tree, "<world>", "exec"), names)
    return names


class Bounds(NamedTuple):
    """`ConstraintBounds` of 0.33.0."""

    grammar_start: int
    constraint_start: int


@functools.cache
def manager_class(release: str) -> Any:
    """A release's StructuredOutputManager without what makes it."""
    kind = class_of(release, MANAGER, "StructuredOutputManager", patched=False)
    others = {"__init__", "_get_reasoner", "grammar_init"}
    kind.body = [
        each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name not in others
    ]
    names: dict[str, Any] = {
        "TYPE_CHECKING": False,
        "itertools": itertools,
        "StructuredOutputGrammar": Grammar,
        "StructuredOutputOptions": SimpleNamespace(STRUCTURAL_TAG="structural tag"),
        "ParserEngineReasoningAdapter": Bounds,
        "ConstraintBounds": Bounds,
        "_CONSTRAINED_FROM_START": Bounds(0, 0),
        "_NO_SPEC_TOKENS": Bounds(1, 1),
        "strip_speculative_padding": lambda tokens: list(
            itertools.takewhile(lambda token: token >= 0, tokens)
        ),
    }
    return compiled([kind], names)["StructuredOutputManager"]


@functools.cache
def scheduler_functions(release: str, *, patched: bool) -> dict[str, Any]:
    """A release's functions that take drafts, and the lines that tell the grammar of a step."""
    kind = class_of(release, SCHEDULER, "Scheduler", patched=patched)
    functions = {each.name: each for each in kind.body if isinstance(each, ast.FunctionDef)}
    drafts = [functions["update_draft_token_ids"], functions["update_draft_token_ids_in_output"]]
    (update,) = (
        loop.body
        for loop in ast.walk(functions["update_from_output"])
        if isinstance(loop, ast.For) and any(map(_tells, loop.body))
    )
    (at,) = (number for number, each in enumerate(update) if _tells(each))
    tell = ast.parse("def tell(self, request, req_id, new_token_ids): stopped = False").body[0]
    assert isinstance(tell, ast.FunctionDef)
    tell.body += update[at - 2 * patched : at + 1 + patched]
    tell.body.append(ast.Return(ast.parse("(stopped, new_token_ids)", mode="eval").body))
    names = {
        "StructuredOutputGrammar": Grammar,
        "RequestStatus": SimpleNamespace(FINISHED_ERROR="error"),
        "logger": SimpleNamespace(error=lambda *_: None),
    }
    return compiled([*drafts, tell], names)


def begin(release: str, manager: Any) -> None:
    """Give a scheduler's line behind its manager to a manager, as the patched release has it."""
    kind = class_of(release, SCHEDULER, "Scheduler", patched=True)
    (made,) = (each for each in kind.body if getattr(each, "name", "") == "__init__")
    calls = [each for each in ast.walk(made) if isinstance(each, ast.Expr)]
    (call,) = (each for each in calls if "begin_behind_reasoning" in ast.unparse(each))
    compiled(
        [call],
        {
            "begin_behind_reasoning": reasoning_end.begin_behind_reasoning,
            "structured_output_manager": manager,
        },
    )


def _tells(node: ast.stmt) -> bool:
    """Whether it is the statement that tells the grammar of a step."""
    asked = ("should_advance", "structured_output_manager.accept_tokens")
    return isinstance(node, ast.If) and any(name in ast.unparse(node.test) for name in asked)


class Grammar:
    """Holds an answer to a few tokens at each place; at last comes the token that ends it."""

    def __init__(self, length: int = 4) -> None:
        self.said: list[int] = []
        self.length = length

    def allowed(self) -> set[int]:
        """What may come next."""
        place = len(self.said)
        if place >= self.length:
            return {EOS}
        return {place % 3, 4 + (place + sum(self.said)) % 3}

    def is_terminated(self) -> bool:
        return bool(self.said) and self.said[-1] == EOS

    def accept_tokens(self, _: str, tokens: Sequence[int]) -> bool:
        for token in tokens:
            assert token >= 0  # a grammar's library does not take it
            if self.is_terminated() or token not in self.allowed():
                return False
            self.said.append(token)
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        before = list(self.said)
        prefix = list(itertools.takewhile(lambda token: self.accept_tokens("", [token]), tokens))
        self.said = before
        return prefix

    def rollback(self, number: int) -> None:
        assert 0 < number <= len(self.said)
        del self.said[-number:]

    def fill_bitmask(self, mask: Any, row: int) -> None:
        mask[row] = False
        mask[row, sorted(self.allowed())] = True


class InDelta:
    """Reasoning ends with a token, looked for in what is new."""

    def is_reasoning_end(self, tokens: Sequence[int]) -> bool:
        return END in tokens

    def is_reasoning_end_streaming(self, tokens: Sequence[int], delta: Iterable[int]) -> bool:
        return END in list(delta)


class InAll(InDelta):
    """It is looked for in all tokens."""

    def is_reasoning_end_streaming(self, tokens: Sequence[int], delta: Iterable[int]) -> bool:
        return END in tokens


class OfTwo(InDelta):
    """It ends with two tokens, one after the other."""

    def is_reasoning_end_streaming(self, tokens: Sequence[int], delta: Iterable[int]) -> bool:
        last = list(tokens)[-len(list(delta)) - 1 :]
        return (8, END) in itertools.pairwise(last)


class Remembering(InDelta):
    """It ends with the token behind the one, and the parser remembers that it has seen that."""

    pending = False

    def is_reasoning_end_streaming(self, tokens: Sequence[int], delta: Iterable[int]) -> bool:
        fresh = list(delta)
        if END in fresh:
            self.pending = fresh[-1] == END
            return not self.pending
        ended, self.pending = self.pending and bool(fresh), False
        return ended


REASONERS: tuple[Callable[[], Any], ...] = (InDelta, InAll, OfTwo)


def model(seed: int, tokens: Sequence[int], mask: Any) -> int:
    """What a model says behind these tokens, of what the mask allows."""
    wishes = list(range(VOCABULARY))
    rng = random.Random(hash((seed, *tokens)))
    rng.shuffle(wishes)
    if rng.random() < 0.25:
        wishes.insert(0, END)
    if len(tokens) and tokens[-1] == 8 and rng.random() < 0.5:
        wishes.insert(0, END)
    if mask is None:
        wishes = [wish for wish in wishes if wish != EOS]
    return next(wish for wish in wishes if mask is None or mask[wish])


class Served(NamedTuple):
    """What a request said, and what its grammar was told of it."""

    tokens: list[int]
    told: list[int]


def expected(seed: int, reasoner: Any) -> Served:
    """A request served one token at a time, and held to the grammar behind the reasoning."""
    grammar, tokens, ended = Grammar(), list(PROMPT), False
    while len(tokens) < MOST + len(PROMPT):
        mask = [token in grammar.allowed() for token in range(VOCABULARY)] if ended else None
        tokens.append(model(seed, tokens, mask))
        if ended:
            assert grammar.accept_tokens("", tokens[-1:])
        else:
            ended = reasoner.is_reasoning_end_streaming(tokens, tokens[-1:])
        if tokens[-1] == EOS:
            break
    return Served(tokens[len(PROMPT) :], grammar.said)


class World:
    """A release that serves one request."""

    def __init__(
        self, release: str, reasoner: Any, *, patched: bool, ahead: bool, key: str = "json"
    ) -> None:
        self.manager = manager_class(release)()
        self.manager.enable_in_reasoning = False
        self.manager.reasoner = reasoner
        self.manager._get_reasoner = lambda _: reasoner
        if release == "0.20.0":
            del self.manager._get_reasoner
        self.manager._grammar_bitmask = torch.ones(K + 1, VOCABULARY, dtype=torch.bool)
        self.manager._full_mask = True
        self.manager.fill_bitmask_parallel_threshold = 9
        self.manager.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=K),
            num_speculative_tokens=K,
            model_config=SimpleNamespace(is_diffusion=False),
            structured_outputs_config=SimpleNamespace(reasoning_parser="double"),
        )
        if patched:
            begin(release, self.manager)
        self.functions = scheduler_functions(release, patched=patched)
        self.grammar = Grammar()
        self.request = SimpleNamespace(
            request_id="r",
            use_structured_output=True,
            structured_output_request=SimpleNamespace(
                grammar=self.grammar,
                reasoning_ended=None,
                reasoning_end_token_index=None,
                masked_reasoning_end_ids=None,
                structured_output_key=(key, "{}"),
                reasoner=reasoner,
            ),
            prompt_token_ids=list(PROMPT),
            all_token_ids=list(PROMPT),
            num_computed_tokens=0,
            num_output_placeholders=0,
            spec_token_ids=[],
            is_prefill_chunk=False,
            is_finished=lambda: False,
            status="running",
            resumable=True,
        )
        self.scheduler = SimpleNamespace(
            structured_output_manager=self.manager, requests={"r": self.request}
        )
        self.ahead = ahead

    def serve(self, seed: int, draft: Callable[[Sequence[int]], list[int]]) -> Served:
        """Serve it to its end; each step has the drafts that come of the tokens before it."""
        request, drafts = self.request, list[int]()
        while len(request.all_token_ids) < MOST + len(PROMPT):
            tokens = self.step(seed, drafts)
            if tokens[-1] == EOS or request.status == "error":
                break
            drafts = self.drafts(draft(request.all_token_ids))
        return Served(request.all_token_ids[len(PROMPT) :], self.grammar.said)

    def step(self, seed: int, drafts: list[int]) -> list[int]:
        """Verify drafts, and tell the scheduler."""
        request = self.request
        known = request.spec_token_ids if drafts else []
        mask = self.manager.grammar_bitmask({"r": request}, ["r"], {"r": known} if known else {})
        before, tokens = list(request.all_token_ids), list[int]()
        for row in range(len(known) + 1):
            tokens.append(model(seed, [*before, *tokens], self._row(mask[row])))
            if row == len(known) or drafts[row] != tokens[-1] or tokens[-1] == EOS:
                break
        request.all_token_ids.extend(tokens)
        # Upstream counts a step that is on its way as computed, with all its drafts.
        underway = K + 1 if self.ahead else 0
        request.num_computed_tokens = len(request.all_token_ids) - 1 + underway
        request.num_output_placeholders = underway
        _, said = self.functions["tell"](self.scheduler, request, "r", tokens)
        assert said == tokens
        return tokens

    def _row(self, row: Any) -> Any:
        """A row of the mask, None where it masks nothing."""
        return None if row.all() else row

    def drafts(self, drafts: list[int]) -> list[int]:
        """Give the scheduler drafts of the next step; those that the model verifies."""
        batch = SimpleNamespace(req_ids=["r"], draft_token_ids=[list(drafts)])
        if not self.ahead:
            self.functions["update_draft_token_ids"](self.scheduler, batch)
            return list(self.request.spec_token_ids)
        scheduled = SimpleNamespace(scheduled_spec_decode_tokens={"r": [-1] * len(drafts)})
        if drafts:
            self.functions["update_draft_token_ids_in_output"](self.scheduler, batch, scheduled)
        self.request.spec_token_ids = scheduled.scheduled_spec_decode_tokens["r"]
        return drafts


def served(
    release: str,
    seed: int,
    luck: float,
    *,
    patched: bool,
    ahead: bool = False,
    reasoner: Callable[[], Any] = InDelta,
    key: str = "json",
    most: int = K,
) -> Served:
    """A request of a release, with drafts of which a share is what the model will say.

    :param most: drafts of a step.
    """
    truth = expected(seed, reasoner()).tokens
    rng = random.Random(seed)

    def draft(tokens: Sequence[int]) -> list[int]:
        coming = truth[len(tokens) - len(PROMPT) :][: rng.randint(0, most)]
        return [each if rng.random() < luck else rng.randrange(VOCABULARY) for each in coming]

    return World(release, reasoner(), patched=patched, ahead=ahead, key=key).serve(seed, draft)
