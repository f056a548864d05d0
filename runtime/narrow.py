"""Telling a built model that it is one rank's: attributes, config values, computed tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tpspec.axes import Axis, held_units
from tpspec.errors import Finding, TpspecError
from tpspec.language.expressions import ExpressionError
from tpspec.language.patterns import compile_pattern, expand
from tpspec.language.schema import Slice
from tpspec.quantization import detect_format
from tpspec.rules import Rules
from tpspec.runtime.memory_names import MemoryNames
from tpspec.scope import ConfigScope


def narrow_model(model: PreTrainedModel, names: MemoryNames, scope: ConfigScope, rank: int) -> None:
    """Applies the spec's `runtime` section. Raises TpspecError for what the model does not have."""
    try:
        _set_config(model, scope)
        _set_attributes(names, scope)
        _cut_buffers(names, scope, rank)
        _cut_computed(names, scope, rank)
    except ExpressionError as error:
        raise TpspecError(
            f"{scope.spec.where}: `runtime` does not fit", [Finding("runtime", str(error))]
        ) from None
    for module in names.modules.values():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # a row of the whole vocabulary, which this rank may not hold


def _set_config(model: PreTrainedModel, scope: ConfigScope) -> None:
    config = model.config.get_text_config()
    for key, expression in scope.spec.runtime.config.items():
        per_layer = scope.free([expression])
        if per_layer:
            value: Any = [
                scope.evaluate(expression, binding) for binding in scope.bindings(sorted(per_layer))
            ]
        else:
            value = scope.evaluate(expression)
        _set_value(config, key, value)


def _set_value(config: PretrainedConfig, key: str, value: Any) -> None:
    """Sets a config's value; what its class computes from others is this config's own from here on."""
    if isinstance(getattr(type(config), key, None), property):
        config.__class__ = type(type(config).__name__, (type(config),), {key: property(lambda _: value)})
    else:
        setattr(config, key, value)


def _set_attributes(names: MemoryNames, scope: ConfigScope) -> None:
    for template, attributes in scope.spec.runtime.attributes.items():
        for module, binding in _modules(template, names, scope):
            for key, expression in attributes.items():
                setattr(names.modules[module], key, scope.evaluate(expression, binding))


def _cut_buffers(names: MemoryNames, scope: ConfigScope, rank: int) -> None:
    for template, cut in scope.spec.runtime.buffers.items():
        owner, _, leaf = template.rpartition(".")
        for module, binding in _modules(owner, names, scope):
            buffers = names.modules[module]._buffers  # noqa: SLF001 - torch has no public setter
            whole = buffers[leaf]
            assert whole is not None
            buffers[leaf] = taker(cut, scope, binding, rank)(whole)


def _cut_computed(names: MemoryNames, scope: ConfigScope, rank: int) -> None:
    """Cuts what a function of a module returns, or an argument of its forward, by name."""
    for template, cut in scope.spec.runtime.slice.items():
        owner, _, leaf = template.rpartition(".")
        for module, binding in _modules(owner, names, scope):
            _cut_one(names.modules[module], leaf, taker(cut, scope, binding, rank))


def _cut_one(module: nn.Module, leaf: str, take: Callable[[Tensor], Tensor]) -> None:
    signature = list(inspect.signature(module.forward).parameters)
    if leaf in signature:
        position = signature.index(leaf)

        def before(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            del module
            if isinstance(kwargs.get(leaf), Tensor):
                return args, {**kwargs, leaf: take(kwargs[leaf])}
            if position < len(args) and isinstance(args[position], Tensor):
                return (*args[:position], take(args[position]), *args[position + 1 :]), kwargs
            return args, kwargs

        module.register_forward_pre_hook(before, with_kwargs=True)
        return
    function = getattr(module, leaf, None)
    if not callable(function):
        raise TpspecError(f"{type(module).__name__} has neither an argument nor a function '{leaf}' to cut")
    setattr(module, leaf, lambda *args, **kwargs: take(function(*args, **kwargs)))


def taker(
    cut: Slice, scope: ConfigScope, binding: Mapping[str, int], rank: int
) -> Callable[[Tensor], Tensor]:
    """The function that takes a rank's part of a computed value."""
    assert scope.tp is not None
    if cut.axis is not None:
        return partial(_take, axis=scope.axis(cut.axis, binding), dim=cut.dim, scope=scope, rank=rank)
    rules = Rules(scope, detect_format({}))
    (placed,) = (p for p in scope.spec.rules if p.template == cut.like and rules.applies(p, binding))
    share = rules.sharing(placed, binding, "weight", None).cut(scope.tp).shares[rank] or ()
    held = [0 if first is None else first + i for first, n in share for i in range(n)]
    return lambda tensor: tensor.index_select(cut.dim, torch.tensor(held, device=tensor.device))


def _take(tensor: Tensor, axis: Axis, dim: int, scope: ConfigScope, rank: int) -> Tensor:
    """The rank's units of a dimension that holds all units, once or batch after batch.

    A dimension too small for the axis is broadcast over it, and stays. A zero unit gets the first
    unit's values: they are finite (a mask of zeros might not be), and nothing comes of them.
    """
    size = tensor.shape[dim]
    if size % axis.units or size < axis.units:
        return tensor
    assert scope.tp is not None
    held = [unit or 0 for unit in held_units(axis, scope.tp, rank)]
    unfolded: Tensor = tensor.unflatten(dim, (size // axis.units, axis.units))
    return unfolded.index_select(dim + 1, torch.tensor(held, device=tensor.device)).flatten(dim, dim + 1)


def _modules(
    template: str, names: MemoryNames, scope: ConfigScope
) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The modules of a template that the model has, with their bindings."""
    found = False
    for pattern in map(compile_pattern, expand(template)):
        for binding in scope.bindings(pattern.variables):
            module = names.module(pattern.name(binding))
            if module is not None:
                found = True
                yield module, binding
    if not found:
        raise TpspecError(f"{scope.spec.where}: `runtime` names {template}, and the model has no such module")
