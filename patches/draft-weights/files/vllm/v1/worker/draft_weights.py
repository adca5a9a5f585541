# SPDX-License-Identifier: Apache-2.0
"""Gives the draft its weights back where vLLM gives them to the target alone.

A sleep of level 2 forgets all weights, and whoever wakes the engine loads those of the target
again.  So what the draft has of its own is copied to the host before such a sleep, and back at the
wake.  `reload_weights` from disk loads the draft's checkpoint, too.  Where somebody else loads the
target's weights, such as a trainer, and nobody the draft's, one WARNING says so.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from vllm.logger import init_logger
from vllm.v1.overlay_effects import active, count, idle
from vllm.v1.overlay_switches import is_on

logger = init_logger(__name__)

#: The feature's name in `vllm.v1.overlay_effects`.
FEATURE = "draft-weights"
VARIABLE = "OVERLAY_DRAFT_WEIGHTS"
RESTORED = "wakes at which the draft got its weights back"
RELOADED = "times that the draft's checkpoint was loaded again"
#: How many objects, lists or mappings may lie between a module and a tensor of its own.
DEPTH = 3
#: What a module's attribute leads to and is not the module's own.
_OTHERS = (type, torch.nn.Module, torch.device, torch.dtype)
_CONFIGURATION = ("vllm.config", "transformers", "builtins", "torch")


def watch(worker: Any) -> None:
    """Begin to look after the draft's weights; worker: one whose runner has loaded its models.

    Raises ValueError if the switch is neither on nor off.
    """
    worker.draft_weights = None
    runner = worker.model_runner
    if not is_on(VARIABLE):
        idle(FEATURE, f"{VARIABLE}=off")
    elif getattr(runner, "speculative_config", None) is None:
        idle(FEATURE, "there is no speculative decoding")
    else:
        weights = DraftWeights(worker)
        if weights.is_needed():
            worker.draft_weights = weights
            weights.listen()
            active(FEATURE, "the draft's weights are looked after where the target's are loaded")
        else:
            idle(FEATURE, "the draft has no weights of its own on this rank")


def before_sleep(worker: Any, level: int) -> None:
    """Keep the draft's weights over a sleep of level 2, and give the draft graphs' memory back."""
    weights = _weights_of(worker)
    if level == 2 and weights is not None:
        weights.keep()
        graphs = getattr(getattr(worker.model_runner, "drafter", None), "draft_graphs", None)
        give_back = getattr(graphs, "give_back", None)
        if give_back is not None:
            give_back()


def at_wake(worker: Any, tags: list[str] | None) -> None:
    """Give the draft its weights back as soon as there is memory for weights."""
    weights = _weights_of(worker)
    if weights is not None and (tags is None or "weights" in tags):
        weights.restore()


def reload(
    worker: Any,
    weights_iterator: object = None,
    weights_path: str | None = None,
    *_: object,
    **__: object,
) -> None:
    """Load the draft's checkpoint again behind the target's, with the arguments of its reload.

    An iterator has the target's weights alone, so nothing is loaded of it.
    """
    weights = _weights_of(worker)
    if weights is not None and weights_iterator is None:
        weights.reload(weights_path)


def note_update(worker: Any) -> None:
    """Note that a trainer sends weights through vLLM's weight transfer."""
    weights = _weights_of(worker)
    if weights is not None:
        weights.note_update()


def _weights_of(worker: Any) -> DraftWeights | None:
    weights: DraftWeights | None = getattr(worker, "draft_weights", None)
    return weights


class Held(NamedTuple):
    """A tensor as `container[key]`, and its values on the host."""

    container: Any
    key: Any
    values: torch.Tensor


class DraftWeights:
    """What becomes of the weights of a worker's draft model.

    worker: vLLM's Worker, of either model runner.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._runner = worker.model_runner
        self._config = worker.vllm_config.speculative_config
        # The draft that is a part of the target's checkpoint, such as MTP, moves with it.
        draft = getattr(self._config, "draft_model_config", None)
        self._of_target = draft is not None and draft.model == worker.model_config.model
        self._held: list[Held] = []
        self._target_loaded = self._draft_loaded = self._warned = False
        #: Why its checkpoint could not be loaded, each of which is said once.
        self._reasons: set[str] = set()

    # ---- whose weights

    def draft(self) -> torch.nn.Module | None:
        """The draft model, without what vLLM wraps it in; None for none."""
        drafter = getattr(self._runner, "drafter", None) or getattr(
            self._runner, "speculator", None
        )
        model: Any = getattr(drafter, "model", None)
        if not isinstance(model, torch.nn.Module):
            model = model.unwrap() if hasattr(model, "unwrap") else None
        return model if isinstance(model, torch.nn.Module) else None

    def own_modules(self) -> list[torch.nn.Module]:
        """The draft's modules that have nothing of the target's."""
        draft, target = self.draft(), self._runner.get_model()
        theirs = {id(module) for module in target.modules()}
        theirs |= {id(parameter) for parameter in target.parameters()}
        return [
            module
            for module in ([] if draft is None else draft.modules())
            if theirs.isdisjoint({id(module), *map(id, module._parameters.values())})
        ]

    def is_needed(self) -> bool:
        """Whether the draft has anything of its own."""
        return next(self._own_tensors(), None) is not None

    def _own_tensors(self) -> Iterator[tuple[Any, Any, torch.Tensor]]:
        """Container, key and tensor of all that the draft has of its own, but its KV cache."""
        target = self._runner.get_model()
        theirs = {
            tensor.untyped_storage().data_ptr()
            for module in target.modules()
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        }
        seen: set[int] = set()
        for module in self.own_modules():
            for container, key, tensor in tensors_of(module):
                if id(tensor) in seen or tensor.is_meta or not tensor.numel():
                    continue
                seen.add(id(tensor))
                if tensor.untyped_storage().data_ptr() not in theirs:
                    yield container, key, tensor

    # ---- sleep

    def keep(self) -> None:
        """Copy what the draft has of its own to the host, once a sleep."""
        if not self._held:
            self._held = self._copies()

    def restore(self) -> None:
        """Copy it back; nothing where nothing was kept."""
        if self._held:
            _put_back(self._held)
            self._held = []
            count(FEATURE, RESTORED)

    def _copies(self) -> list[Held]:
        return [
            Held(container, key, tensor.detach().to("cpu", copy=True))
            for container, key, tensor in self._own_tensors()
        ]

    # ---- loads

    def listen(self) -> None:
        """Note each load of the target's and of the draft's weights."""
        _call_first(self._runner.get_model(), "load_weights", self._note_target)
        draft = self.draft()
        if draft is not None:
            _call_first(draft, "load_weights", self._note_draft)

    def note_update(self) -> None:
        """Note an update by vLLM's weight transfer, which may go past `load_weights`."""
        engine = getattr(self._worker, "weight_transfer_engine", None)
        draft = self.draft()
        if getattr(self._worker, "_weight_update_is_draft", False) or (
            draft is not None and getattr(engine, "model", None) is draft
        ):
            self._note_draft()
        else:
            self._note_target()

    def _note_draft(self) -> None:
        self._draft_loaded = True

    def _note_target(self) -> None:
        if not self._target_loaded and not self._warned:
            self._target_loaded = True
            # Until then the trainer may load the draft's as well.
            _call_once(self._runner, "execute_model", self._judge)

    def _judge(self) -> None:
        """Before the step behind a load: say once that the draft's weights are not of it."""
        stale = self._target_loaded and not self._draft_loaded
        self._target_loaded = self._draft_loaded = False
        if stale and not self._warned:
            self._warned = True
            logger.warning(
                "The target's weights were loaded again, those of the draft were not: fewer "
                "drafts are accepted the more the weights have changed. Load them as well, by "
                "load_weights of the draft's model or by start_draft_weight_update where the "
                "release has it. %s=off ends this line, which is logged once.",
                VARIABLE,
            )

    def reload(self, path: str | None) -> None:
        """Load the draft's checkpoint again; where that fails, keep its weights and warn.

        path: of the target's new checkpoint, or None for the old one. A draft that is a part of
        the target's is loaded from there as well.
        """
        draft = self.draft()
        config = getattr(self._config, "draft_model_config", None)
        if draft is None or config is None:
            return
        if path is not None and self._of_target:
            config.model, config.revision = path, None
        before = self._copies()
        modules = self.own_modules()
        links = [(dict(each._parameters), dict(each._buffers)) for each in modules]
        try:
            self._load(draft, config, modules)
        except Exception as error:  # whatever a loader cannot do: the draft stays as it was
            logger.debug("The failed load of the draft", exc_info=True)
            _put_links_back(modules, links)
            _put_back(before)
            self._target_loaded = self._draft_loaded = False
            text = str(error).partition("\n")[0] or "no reason given"
            reason = f"{type(error).__name__}: {text}"
            if reason not in self._reasons:
                self._reasons.add(reason)
                logger.warning(
                    "The target's weights were loaded again, those of the draft were not, and are "
                    "as before (%s). Load them by load_weights of the draft's model. This line is "
                    "logged once.",
                    reason,
                )
            return
        self._note_draft()
        count(FEATURE, RELOADED)

    def _load(self, draft: Any, config: Any, modules: list[torch.nn.Module]) -> None:
        """Load the checkpoint as vLLM reloads a model, but what the target owns."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader
        from vllm.model_executor.model_loader.reload import layerwise

        load_config = getattr(self._config, "draft_load_config", None)
        loader: Any = get_model_loader(load_config or self._worker.vllm_config.load_config)
        if not hasattr(loader, "get_all_weights"):
            raise NotImplementedError("its load format cannot be loaded again")
        own: Any = OwnModules(modules)
        mine = {id(each) for module in modules for each in module._parameters.values()}
        shared = [each for each in draft.parameters() if id(each) not in mine]
        with set_current_vllm_config(self._worker.vllm_config), torch.no_grad():
            layerwise.initialize_layerwise_reload(own)
            try:
                with _untouched(shared):
                    draft.load_weights(loader.get_all_weights(config, draft))
                layerwise.finalize_layerwise_reload(own, config)
            except BaseException:
                for module in modules:
                    layerwise.get_layerwise_info(module).reset()
                raise


class OwnModules:
    """Modules for vLLM's layerwise reload, which asks a model for nothing else."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self._own = modules
        self._do_torchao_reload = False

    def modules(self) -> Iterator[torch.nn.Module]:
        """The modules."""
        return iter(self._own)


def tensors_of(module: torch.nn.Module) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Container, key and tensor of a module's parameters, buffers and other attributes."""
    for held in (module._parameters, module._buffers):
        for name, tensor in held.items():
            if tensor is not None:
                yield held, name, tensor
    own = vars(module)
    seen: set[int] = {id(own)}
    for name in list(own):
        if name not in _TORCH and name != "kv_cache":
            yield from _below(own, name, DEPTH, seen)


#: What every module has by PyTorch itself.
_TORCH = frozenset(vars(torch.nn.Module()))


def _below(
    container: Any, key: Any, depth: int, seen: set[int]
) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    value = container[key]
    if isinstance(value, torch.Tensor):
        yield container, key, value
        return
    inside: Any = None
    if isinstance(value, (dict, list, tuple)):
        inside = value
    elif not isinstance(value, _OTHERS) and not type(value).__module__.startswith(_CONFIGURATION):
        inside = getattr(value, "__dict__", None)
    if not inside or depth == 0 or id(inside) in seen:
        return
    seen.add(id(inside))
    for each in list(inside) if isinstance(inside, dict) else range(len(inside)):
        if each != "kv_cache":
            yield from _below(inside, each, depth - 1, seen)


def _put_back(held: list[Held]) -> None:
    """Write values where the tensors are now; what was replaced by another shape stays."""
    for container, key, values in held:
        try:
            tensor = container[key]
        except (KeyError, IndexError):
            continue
        if isinstance(tensor, torch.Tensor) and tensor.shape == values.shape:
            with torch.no_grad():
                tensor.data.copy_(values)


def _put_links_back(modules: list[torch.nn.Module], links: list[tuple[Any, Any]]) -> None:
    for module, (parameters, buffers) in zip(modules, links, strict=True):
        for now, before in ((module._parameters, parameters), (module._buffers, buffers)):
            now.clear()
            now.update(before)


@contextlib.contextmanager
def _untouched(parameters: list[Any]) -> Iterator[None]:
    """While this is entered, loaders write nothing to these parameters, which the target owns."""
    before = []
    for each in parameters:
        own = vars(each)
        name = "_weight_loader" if "_weight_loader" in own else "weight_loader"
        before.append((own, name, own.get(name)))
        own[name] = _write_nothing
    try:
        yield
    finally:
        for own, name, loader in before:
            if loader is None:
                del own[name]
            else:
                own[name] = loader


def _write_nothing(*args: object, **named: object) -> None:
    """Take a weight that the target has itself."""


def _call_first(model: Any, name: str, noted: Callable[[], None]) -> None:
    """Let each call of a model's function be noted before it."""
    function = getattr(model, name)

    @functools.wraps(function)
    def noting(*args: Any, **named: Any) -> Any:
        noted()
        return function(*args, **named)

    setattr(model, name, noting)


def _call_once(runner: Any, name: str, call: Callable[[], None]) -> None:
    """Call something before the runner's function runs next; then all is as it was."""
    before = vars(runner).get(name)
    function = getattr(runner, name)

    @functools.wraps(function)
    def once(*args: Any, **named: Any) -> Any:
        if vars(runner).get(name) is once:
            if before is None:
                delattr(runner, name)
            else:
                setattr(runner, name, before)
        call()
        return function(*args, **named)

    setattr(runner, name, once)
