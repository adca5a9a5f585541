"""``overlay verify``: the user's engine without draft graphs and in each mode, on the same prompts.

Arguments become jobs, an engine each (``proof.engine_pool``); what the engines served is compared
by ``proof.verification``.  Only the engines, in processes of their own, import vLLM.

On model runner V2 no draft graphs are; there stock is compared with the overlay as an engine gets
it by itself, which ``--mode overlay`` asks for on V1.  Which runner an engine will have is known
before one starts: by the user's variable, by the release, or by vLLM's own configuration, which
takes seconds and loads no weight.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from overlay.errors import OverlayError, UsageError
from overlay.proof.commands.installation import (
    Device,
    DevicePlace,
    device_of,
    expect_device,
    expect_feature,
    features_at_hand,
    interpreter,
    known_runner,
    make_stock,
)
from overlay.proof.commands.pair import Pair, expect_pair, names_draft, pair_of
from overlay.proof.commands.question import method_of
from overlay.proof.commands.verify_report import VerifyReport, verified
from overlay.proof.commands.verify_stage import (
    ModelSet,
    OnEngine,
    VerifyQuestion,
    VerifyStage,
    failure_text,
    result_of,
    runner_variable,
    tiny_sets,
    title,
    usable,
)
from overlay.proof.engine_compat import DRAFT_GRAPHS, DRAFT_GRAPHS_PACKAGE, GraphMode
from overlay.proof.engine_pool import link_packages
from overlay.proof.oracle import TEXTS
from overlay.proof.rounding import partings, rounding_of
from overlay.proof.verification import (
    EngineRun,
    ModeOutcome,
    ModeResult,
    first_difference,
    without_graphs,
)
from overlay.proof.verify_engine import VerifySpec
from overlay.results import ModelRunner
from overlay.untrusted import read_regular

_ELSEWHERE = "run it where vLLM has a GPU"
_ON_CPU = (
    "; --tiny compares on a CPU what a CPU can show, and --mode overlay your models with stock"
)
_COMPARED = "on model runner{} the overlay, as an engine gets it by default, is compared with stock"


def verify(
    question: VerifyQuestion, on_engine: OnEngine, on_remark: Callable[[str], None]
) -> VerifyReport:
    """Run the engines and compare what they served.

    :param on_remark: takes a sentence that the user should read before the engines have ended.
    :raises UsageError: if the arguments do not go together, or name models that are not there.
    :raises OverlayError: if no engine can be compared: vLLM is not patched, its model runner is
        another one, or the engine without draft graphs does not serve.
    """
    check_question(question)
    remark = expect_pair(_pair(question))
    if remark is not None:
        on_remark(remark)
    python = interpreter(question.python)
    variables = runner_variable(question, os.environ)
    runner = known_runner(question.python, {**os.environ, **variables})
    refuse_modes(question.modes, question.check, runner)
    on_cpu = _expect_device(question, runner)
    with tempfile.TemporaryDirectory(prefix="overlay-verify-") as folder:
        work = Path(folder)
        stage = VerifyStage(question, python, work, link_packages(work / "code"), on_engine)
        whole = GraphMode.OVERLAY in question.modes
        if whole or runner is not ModelRunner.V1:
            make_stock(question.python, work / "release")
        if not whole and runner is None:
            runner = chosen_runner(stage, own_set(question))
            expect_pair(_pair(question))  # what vLLM has downloaded can be read now
            refuse_modes(question.modes, question.check, runner)
        if whole := whole or runner is ModelRunner.V2:
            on_remark(_COMPARED.format("" if runner is None else f" {runner.name}"))
        else:
            expect_feature(question.python, DRAFT_GRAPHS, DRAFT_GRAPHS_PACKAGE)
        sets = [own_set(question)]
        if question.tiny:
            for_tiny = (question.arguments, question.modes, question.draft)
            sets = tiny_sets(python, work / "models", *for_tiny, on_cpu=on_cpu, whole=whole)
        if whole:
            features = features_at_hand()
            sets = [each._replace(spec=replace(each.spec, features=features)) for each in sets]
        parts = against_stock(stage, sets) if whole else _in_order(stage, sets, on_cpu=on_cpu)
        results = [result for models in parts for result in models]
    if on_cpu and not whole:
        results = [without_graphs(result) for result in results]
    verdict = verified(results, question.modes)
    return VerifyReport(
        verdict, question.check, ModelRunner.V1 if variables else None, tuple(results)
    )


def _expect_device(question: VerifyQuestion, runner: ModelRunner | None) -> bool:
    """Refuse what needs a GPU where there is none; whether engines run on a CPU.

    :param runner: that engines will have, where it is known.
    :raises OverlayError: naming what is missing.
    """
    device: Device = device_of(question.python, question.arguments)
    whole = runner is ModelRunner.V2 or GraphMode.OVERLAY in question.modes
    if device.place is not DevicePlace.CPU or not (question.tiny or whole):
        instead = "" if question.tiny else _ON_CPU
        expect_device(device, "verify", otherwise=f"{_ELSEWHERE}{instead}")
        return False
    if question.modes and not whole:
        expect_device(device, "verify", otherwise="omit --mode: there are no draft graphs on a CPU")
    return True


def check_question(question: VerifyQuestion) -> None:
    """Refuse what cannot be meant.

    :raises UsageError: naming what was expected and what was found.
    """
    if question.modes == (GraphMode.OFF,):
        raise UsageError("--mode off alone compares nothing: name another mode as well")
    if question.tiny and question.model:
        raise UsageError("--tiny brings models of its own: omit it, or --model")
    if question.tiny:
        _refuse_ignored(question, "--tiny brings models and prompts of its own", prompts=True)
        return
    if question.model is None:
        raise UsageError(
            "expected the models to serve, found none: name them with --model and --draft, or "
            "give --tiny, which makes models of its own"
        )
    refuse_unknown_models(question.model, question.draft, question.arguments)
    if question.draft is None:
        _refuse_ignored(question, "--speculative-config says both itself")
    if question.prompts is not None and not question.prompts.is_file():
        raise UsageError(
            f"--prompts {question.prompts}: expected a file with a prompt on each line"
        )


def refuse_unknown_models(model: str, draft: str | None, arguments: Sequence[str]) -> None:
    """Refuse a model without a draft, with two, or in a folder that has none.

    :param arguments: of vLLM's engine, which may name the draft.
    :raises UsageError: naming what was expected and what was found.
    """
    has_draft = any(map(names_draft, arguments))
    if draft is None and not has_draft:
        raise UsageError(
            "expected a draft, found none: name it with --draft, or give vLLM's own "
            "--speculative-config behind --, such as for MTP layers of the model itself"
        )
    if draft is not None and has_draft:
        raise UsageError("--draft and --speculative-config both name a draft: give one of them")
    for option, place in (("--model", model), ("--draft", draft)):
        if place is not None and _is_path(place) and not Path(place, "config.json").is_file():
            raise UsageError(
                f"{option} {place}: expected a folder with config.json, found none there; name the "
                "folder of a model, or its id on the hub"
            )


def _pair(question: VerifyQuestion) -> Pair | None:
    """The user's own model and its draft."""
    return pair_of(question.model, question.draft, question.method, question.arguments)


def _refuse_ignored(question: VerifyQuestion, why: str, *, prompts: bool = False) -> None:
    """Refuse options that would change nothing.

    :param prompts: whether ``--prompts`` is one of them.
    :raises UsageError: naming them.
    """
    options = {
        "--method": question.method,
        "--k": question.k,
        "--prompts": question.prompts if prompts else None,
    }
    useless = [option for option, value in options.items() if value is not None]
    if useless:
        raise UsageError(f"{why}, so {' and '.join(useless)} would change nothing: omit it")


def _is_path(place: str) -> bool:
    return place.startswith((os.sep, ".", "~")) or place.count(os.sep) > 1


def own_set(question: VerifyQuestion) -> ModelSet:
    """The user's own models."""
    arguments = ["--model", str(question.model)]
    if question.draft is not None:
        speculative = {"model": question.draft, "num_speculative_tokens": question.k or 3}
        # vLLM goes by the folder's name, and takes a draft that is named otherwise for a model.
        method = question.method or method_of(Path(question.draft).expanduser())
        if method is not None:
            speculative["method"] = method
        arguments += ["--speculative-config", json.dumps(speculative)]
    prompts: tuple[str, ...] = TEXTS
    if question.prompts is not None:
        prompts = prompt_lines(question.prompts)
    spec = VerifySpec((*arguments, *question.arguments), (), prompts, question.tokens)
    return ModelSet("", spec)


def prompt_lines(place: Path) -> tuple[str, ...]:
    """The prompts of the file of ``--prompts``.

    :raises UsageError: if there is none, or it cannot be read as text.
    """
    try:
        content = read_regular(place)
        if content is None:
            raise UsageError(f"--prompts {place}: expected a text file, there is none")
        lines = content.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--prompts {place}: expected a text file in UTF-8, which can be read: {error}"
        ) from error
    prompts = tuple(line for line in lines if line.strip())
    if not prompts:
        raise UsageError(f"--prompts {place}: expected a prompt on each line, none")
    return prompts


def _in_order(
    stage: VerifyStage, sets: Sequence[ModelSet], *, on_cpu: bool = False
) -> Iterator[list[ModeResult]]:
    """The results of each set of models.

    Where the modes are known, all engines run, some at a time; else the one without graphs runs
    first and tells them.
    """
    question = stage.question
    if not all(models.modes for models in sets):
        for models in sets:
            yield _after_reference(stage, models)
        return
    engines = [(models, mode) for models in sets for mode in models.modes]
    ended = stage.run(engines, question.jobs or (1 if on_cpu else 4))
    for models in sets:
        by_mode = {mode: ended[title(models, mode)] for mode in models.modes}
        reference = usable(by_mode[GraphMode.OFF]) if GraphMode.OFF in by_mode else None
        results = [result_of(models, mode, by_mode[mode], reference) for mode in models.modes]
        if all(result.outcome is ModeOutcome.DIED for result in results):
            raise OverlayError(
                f"{models.name}: no engine served in any mode that was run; with --mode off as "
                f"well you see whether one serves without draft graphs\n{results[0].failure}"
            )
        yield results


def _after_reference(stage: VerifyStage, models: ModelSet) -> list[ModeResult]:
    first = stage.run([(models, GraphMode.OFF)], 1)[title(models, GraphMode.OFF)]
    reference = usable(first)
    expect_pair(_pair(stage.question))  # what vLLM has downloaded can be read now
    modes = [mode for mode in stage.question.modes or reference.modes if mode is not GraphMode.OFF]
    ended = stage.run([(models, mode) for mode in modes], stage.question.jobs or 1)
    results = [result_of(models, GraphMode.OFF, first, reference)]
    results += [result_of(models, mode, ended[title(models, mode)], reference) for mode in modes]
    return looked_into(stage, models, GraphMode.OFF, reference, results)


PARTIES = (GraphMode.STOCK, GraphMode.OVERLAY)


def chosen_runner(stage: VerifyStage, models: ModelSet) -> ModelRunner | None:
    """The model runner that vLLM chooses for models, by its own configuration.

    :raises OverlayError: if vLLM refuses the configuration; then no engine would start.
    """
    name = title(models, None)
    ended = stage.run([(models, None)])[name]
    runner = None if ended.result is None else ended.result.get("runner", "")
    if runner == "" or ended.result is None:
        raise OverlayError(f"the engine {name}: {failure_text(ended)}")
    return None if runner is None else ModelRunner(runner)


def refuse_modes(modes: Sequence[GraphMode], check: bool, runner: ModelRunner | None) -> None:
    """Refuse what is about draft graphs, where engines have none.

    :raises UsageError: naming what to do.
    """
    graphs = [f"--mode {mode.shown}" for mode in modes if mode is not GraphMode.OVERLAY]
    if graphs and GraphMode.OVERLAY in modes:
        raise UsageError(f"--mode overlay compares with stock: omit it, or {' and '.join(graphs)}")
    graphs += ["--check"] if check else []
    if graphs and runner is ModelRunner.V2:
        raise UsageError(
            f"{' and '.join(graphs)}: expected an engine on model runner V1, whose drafts the "
            "graphs are for, found that vLLM chooses V2: omit it to compare the overlay with "
            "stock, or set VLLM_USE_V2_MODEL_RUNNER=0, also where you serve"
        )


def against_stock(stage: VerifyStage, sets: Sequence[ModelSet]) -> Iterator[list[ModeResult]]:
    """The results of each set of models: stock's, and the overlay's beside it.

    :raises OverlayError: if an engine cannot be compared.
    """
    for models in sets:
        first = stage.run([(models, GraphMode.STOCK)])[title(models, GraphMode.STOCK)]
        stock = usable(first)
        second = stage.run([(models, GraphMode.OVERLAY)])[title(models, GraphMode.OVERLAY)]
        results = [
            result_of(models, mode, ended, stock)
            for mode, ended in zip(PARTIES, (first, second), strict=True)
        ]
        if models.answer is None:
            results = looked_into(stage, models, GraphMode.STOCK, stock, results)
        yield results


def looked_into(
    stage: VerifyStage,
    models: ModelSet,
    mode: GraphMode,
    reference: EngineRun,
    results: list[ModeResult],
) -> list[ModeResult]:
    """The results, those that differ with what the reference thinks of it in another engine.

    Rounding may explain it; or the reference differs from itself as much.

    :param mode: of the reference.
    """
    runs = [each.run for each in results if each.outcome is ModeOutcome.DIFFERS and each.run]
    if not runs:
        return results
    beside = tuple([list(each.tokens) for each in run.served] for run in (reference, runs[0]))
    again = models._replace(
        name=f"{models.name} again".strip(), spec=replace(models.spec, beside=beside)
    )
    itself = usable(stage.run([(again, mode)])[title(again, mode)])
    number = len(partings(reference.served, runs[0].served))
    own = rounding_of(reference.served, itself.served, itself.opinions[number:])
    unsteady = first_difference(reference.served, itself.served)

    def judged_again(result: ModeResult) -> ModeResult:
        if result.outcome is not ModeOutcome.DIFFERS or result.run is None:
            return result
        served = result.run.served
        same = partings(reference.served, served) == partings(reference.served, runs[0].served)
        opinions = itself.opinions[:number] if same else ()
        rounding = rounding_of(reference.served, served, opinions)
        if rounding.explains:
            return replace(result, outcome=ModeOutcome.ROUNDS, rounding=rounding)
        if own.explains:
            return replace(result, rounding=rounding)
        return replace(result, outcome=ModeOutcome.UNSTEADY, rounding=rounding, difference=unsteady)

    return [judged_again(result) for result in results]
