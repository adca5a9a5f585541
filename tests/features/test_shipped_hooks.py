"""The hooks of the draft graphs, and the modules that they call."""

from __future__ import annotations

import ast
import sys
import textwrap

from tests.support.shipped_features import (
    DRAFTS,
    OURS,
    bound_by,
    feature,
)

# The hooks and the module that they call

PACKAGE = "vllm/v1/spec_decode/draft_graphs"


def module(name: str) -> ast.Module:
    files = {file.path: file.content for file in feature(DRAFTS).added}
    return ast.parse(files[f"{PACKAGE}/{name}.py"])


def added_lines() -> list[str]:
    """What each hunk adds, as Python of its own."""
    return [
        textwrap.dedent("\n".join(text for op, text in hunk.lines if op == "+"))
        for topic in feature(DRAFTS).topics
        for variant in topic.variants
        for hunk in variant.patch.hunks
    ]


def method(name: str, cls: str, function: str) -> ast.FunctionDef:
    (owner,) = [n for n in module(name).body if isinstance(n, ast.ClassDef) and n.name == cls]
    (found,) = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == function]
    return found


def calls_on(attribute: str) -> list[ast.Call]:
    """The calls in hooks of a method of ``self.<attribute>``."""
    return [
        node
        for text in added_lines()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == f"self.{attribute}"
    ]


def test_the_hooks_import_what_the_package_has() -> None:
    imported = {
        (node.module, alias.name)
        for text in added_lines()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    dotted = PACKAGE.replace("/", ".")
    provided = {
        (f"{dotted}.{name}", bound)
        for name in ("keys", "hooks")
        for bound in bound_by(module(name).body)
    }
    assert imported
    assert imported <= provided
    # vLLM's dispatcher imports `keys` before most of vLLM exists.
    assert [type(node) for node in module("__init__").body] == [ast.Expr]


def test_the_hooks_call_the_draft_graphs_by_their_arguments() -> None:
    calls = {ast.unparse(call.func).split(".")[-1]: call for call in calls_on("draft_graphs")}
    assert set(calls) == {
        *("propose", "later_steps", "token_counts", "vote", "unpadded", "counted"),
        *("dummy_run", "later_dummy_runs"),
    }
    for name, call in calls.items():
        owner = ("replay", "Replay") if call.keywords else ("draft_graphs", "DraftGraphs")
        arguments = method(*owner, name).args
        required = [
            argument.arg
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is None
        ]
        assert [keyword.arg for keyword in call.keywords] == required
        assert len(arguments.args) == 1 + len(call.args)


def test_the_hooks_call_the_keys_by_their_arguments() -> None:
    calls = {ast.unparse(call.func).split(".")[-1]: call for call in calls_on("draft_keys")}
    assert set(calls) == {"add", "clear", "dispatch"}
    for name, call in calls.items():
        expected = [argument.arg for argument in method("keys", "DraftKeys", name).args.args]
        assert ["self", *map(ast.unparse, call.args)] == expected
        assert call.keywords == []


def test_the_package_imports_nothing_that_imports_it() -> None:
    """vLLM imports the package while it is itself being imported: no cycle may arise."""
    allowed = {"numpy", "torch", "vllm.logger", *sys.stdlib_module_names}
    foreign = []
    added = [file for name in OURS for file in feature(name).added]
    # Each of these is looked at itself.
    allowed |= {file.path.removesuffix(".py").replace("/", ".") for file in added}
    for file in added:
        pending: list[ast.AST] = list(ast.parse(file.content).body)
        while pending:
            node = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            names_ = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [
                    node.module if node.module in allowed else f"{node.module}.{alias.name}"
                    for alias in node.names
                ]
                if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
                else []
            )
            foreign += [
                (file.path, name)
                for name in names_
                if name not in allowed and name.split(".")[0] not in allowed
            ]
            pending += ast.iter_child_nodes(node)
    assert foreign == []
