"""``overlay verify`` of all features: stock, and the overlay as an engine gets it by itself.

That is what there is to verify on model runner V2, where no draft graphs are; ``--mode overlay``
asks for it on V1.  Which runner an engine will have is known before one starts: by the user's
variable, by the release, or by vLLM's own configuration, which takes seconds and loads no weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from overlay.errors import OverlayError, UsageError
from overlay.proof.commands.verify_failures import failure_text, usable
from overlay.proof.commands.verify_stage import VerifyStage, result_of, title
from overlay.proof.commands.verify_tiny import ModelSet
from overlay.proof.graph_mode import GraphMode
from overlay.proof.rounding import partings, rounding_of
from overlay.proof.verification import EngineRun, ModeOutcome, ModeResult, first_difference
from overlay.results import ModelRunner

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
