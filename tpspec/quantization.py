"""How a checkpoint is stored: the format that its config names, and what that comes to for each module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tpspec.errors import TpspecError
from tpspec.language.expressions import MAX_COUNT, Expression, ExpressionError, parse, shown
from tpspec.module_choice import (
    Chooser,
    Names,
    Settings,
    as_globs,
    as_modules,
    as_pieces,
    as_targets,
    by_expressions,
    by_groups,
    by_modules,
    over,
    texts,
)
from tpspec.stored import BIAS, PLAIN, Dimension, Parameter, Stored

if TYPE_CHECKING:
    from tpspec.language.formats import Dimensions, FormatDocument, Kind, Storage, StoredParameter

DEQUANTIZE = "dequantize the checkpoint first, or convert the unquantized one"
TELLING = ("quant_method", "quant_algo", "format", "version", "checkpoint_format", "packing_format")
"""Settings that tell one way of storing from another."""
KEYS = ("quantization_config", "compression_config")
"""Where a config keeps the settings; compressed-tensors once wrote the second."""

T = TypeVar("T")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT


KINDS: Mapping[Kind, tuple[Callable[[Any], bool], str]] = {
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "count": (_is_count, "a positive count"),
    "group": (lambda value: _is_count(value) or value == -1, "a positive count, or -1 for one group"),
    "pair": (
        lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
        "a list of two positive counts",
    ),
}
"""What tells a setting of each kind, and what reports call it."""


def settings_of(config: Mapping[str, Any]) -> Any:
    """What a config says about quantization; None where it says nothing."""
    return next((config[key] for key in KEYS if config.get(key)), None)


def detect_format(config: Mapping[str, Any]) -> Quantization:
    """How the checkpoint of a config is stored.

    Raises TpspecError for a quantization that no format describes, or that cannot be cut: its scales
    and packed weights would be cut wrongly.
    """
    settings = settings_of(config)
    if not settings:
        return Quantization(None, {})
    from tpspec.language.formats import format_documents  # not for the many models that are not quantized

    if isinstance(settings, dict):
        scope = _Scope(settings, {})
        try:
            for document in format_documents():
                if document.detect.evaluate(scope):
                    return Quantization(document, settings)
        except ExpressionError as error:
            raise TpspecError(f"config.json: quantization_config cannot be read: {error}") from None
    method = settings
    if isinstance(settings, dict):
        method = settings.get("quant_method")
        if packing := settings.get("packing_format"):
            method = f"{method} with packing_format {packing}"
    known = ", ".join(document.format for document in format_documents())
    raise TpspecError(
        f"config.json: no format describes checkpoints quantized by '{method}' (known: {known})",
        remedy=DEQUANTIZE,
    )


class Quantization:
    """The format of a checkpoint and its settings; without a format, every module is stored plainly."""

    def __init__(self, document: FormatDocument | None, settings: Settings) -> None:
        self.document = document
        self.settings = settings
        self._stored: dict[int, tuple[Settings, Stored]] = {}
        """By the settings' identity, which they keep as long as they are kept."""
        self._named: dict[Names, Stored] = {}
        if document:
            _of_settings(lambda: self._judge(self.settings))
            _of_settings(lambda: self.usual)

    @property
    def name(self) -> str:
        return self.document.format if self.document else "plain"

    @cached_property
    def parameters(self) -> frozenset[str]:
        """All names that tensors of a module may have."""
        layouts = self.document.layouts if self.document else ()
        stored = (item for layout in layouts for item in layout.parameters.items())
        names = {name for key, entries in stored for name in (key, *(n for e in entries for n in e.also))}
        return frozenset({"bias", *names})

    def is_part(self, tensor: str) -> bool:
        """Whether a stored name is that of a part of a quantized weight, not of a weight or a bias."""
        leaf = tensor.rpartition(".")[2]
        parts = self.parameters - {"bias", "weight"}
        return leaf in parts or leaf.endswith(
            tuple(p.removeprefix("weight") for p in parts if p[:7] == "weight_")
        )

    @property
    def scalars(self) -> frozenset[str]:
        """Names of scalars that may belong to any module."""
        return frozenset(self.document.scalars if self.document else ())

    @cached_property
    def by_name(self) -> bool:
        """Whether it depends on a module's name how it is stored."""
        return bool(self._plain or self._override) if self.document else False

    def of(self, names: Names, *, head: bool = False) -> Stored:
        """How a module is stored, by all that it may be called; `head` where it gives the logits."""
        if self.document is None:
            return PLAIN
        key = names if self.by_name or head else ()
        if key not in self._named:
            self._named[key] = _of_settings(lambda: self._of(names, head=head))
        return self._named[key]

    @cached_property
    def usual(self) -> Stored:
        """How modules are stored that the settings do not name."""
        assert self.document is not None
        said = self.document.overrides
        for expression in (said.groups, said.layers) if self._override else ():
            if expression and (own := expression.evaluate(_Scope(self.settings, {}))):
                return self._from(over(self.settings, next(iter(own.values()))))
        return self._from(self.settings)

    def _of(self, names: Names, *, head: bool) -> Stored:
        assert self.document is not None
        if any(match(name) for match in self._plain for name in names):
            return PLAIN
        settings = self._override(names) if self._override else self.settings
        if settings is None:
            return PLAIN
        if head and settings is self.settings and not self._quantizes_head:
            return PLAIN
        return self._from(settings)

    @property
    def _quantizes_head(self) -> bool:
        assert self.document is not None
        head = self.document.head
        return bool(head and head.evaluate(_Scope(self.settings, {})))

    @cached_property
    def _plain(self) -> list[Callable[[str], bool]]:
        assert self.document is not None
        found = []
        readings = {"modules": as_modules, "targets": as_targets, "globs": as_globs, "contains": as_pieces}
        for key, reading in readings.items():
            if entries := self._listed(key):
                found.append(reading(entries))
        if entries := self._listed("outside"):
            inside = as_pieces(entries)
            found.append(lambda name: not inside(name))
        return found

    def _listed(self, key: str) -> tuple[str, ...]:
        assert self.document is not None
        expression: Expression | None = getattr(self.document.plain, key)
        return texts(expression.evaluate(_Scope(self.settings, {})), str(expression)) if expression else ()

    @cached_property
    def _override(self) -> Chooser | None:
        assert self.document is not None
        said = self.document.overrides
        expressions = {
            "groups": said.groups,
            "dynamic": said.dynamic,
            "layers": said.layers,
            "exact": said.exact,
        }
        for key, expression in expressions.items():
            value = expression and expression.evaluate(_Scope(self.settings, {}))
            if not value:
                continue
            if key == "groups":
                return by_groups(value, self.settings)
            if key == "dynamic":
                return by_expressions(value, self.settings)
            return by_modules(value, self.settings, others=key == "exact")
        return None

    def _from(self, settings: Settings) -> Stored:
        assert self.document is not None
        if id(settings) not in self._stored:
            self._judge(settings)
            scope = _Scope(settings, self.document.let)
            fitting = (each for each in self.document.layouts if not each.when or each.when.evaluate(scope))
            layout = next(fitting, None)
            if layout is None:
                said = ", ".join(f"{k} '{settings[k]}'" for k in TELLING if isinstance(settings.get(k), str))
                raise TpspecError(
                    f"config.json: specs/quant/{self.document.format}.yaml does not describe this ({said})",
                    remedy=DEQUANTIZE,
                )
            stored = _stored(layout, scope) if layout.values else PLAIN
            self._stored[id(settings)] = settings, stored
        return self._stored[id(settings)][1]

    def _judge(self, settings: Settings) -> None:
        """Raises TpspecError for settings that are not what they are by their kind, or that are refused."""
        assert self.document is not None
        for key, kind in self.document.kinds.items():
            value = parse(key).evaluate(_Scope(settings, {}))
            holds, meaning = KINDS[kind]
            if value is not None and not holds(value):
                raise TpspecError(
                    f"config.json: quantization_config: {key} = {shown(value)} is not {meaning}",
                    remedy="is it the file that the quantizer wrote?",
                )
        scope = _Scope(settings, self.document.let)
        for refusal in self.document.refuse:
            if refusal.when.evaluate(scope):
                raise TpspecError(f"config.json: {refusal.because}", remedy=refusal.remedy)


def _stored(layout: Storage, scope: _Scope) -> Stored:
    parameters = {"bias": BIAS}
    for name, entries in layout.parameters.items():
        entry = next((e for e in entries if not e.when or e.when.evaluate(scope)), None)
        if entry:
            parameter = _parameter(name, entry, scope)
            parameters |= dict.fromkeys((name, *entry.also), parameter)
    offset = bool(layout.offset and layout.offset.evaluate(scope))
    return Stored(layout.values or "", parameters, scope.numbers(), offset)


def _parameter(name: str, entry: StoredParameter, scope: _Scope) -> Parameter:
    def evaluated(dims: Dimensions) -> tuple[Dimension, ...]:
        return tuple(
            Dimension.of(
                d.name,
                scope.count(d.divisor) if d.divisor else 1,
                scope.count(d.times) if d.times else 1,
                whole=d.name == entry.whole,
                label=_label(d.divisor) if d.divisor else "",
            )
            for d in dims
        )

    optional = bool(entry.optional and entry.optional.evaluate(scope))
    others = tuple(map(evaluated, entry.alternatives))
    return Parameter(name, evaluated(entry.dims), others, entry.dtype, optional, entry.holds or "")


def _label(divisor: Expression) -> str:
    """What reports call a divisor: by the name that the format gives it; a bare number is of a pack."""
    named = re.match("[a-z]+", divisor.text)
    return f"quantization {named[0] if named else 'pack'}"


def _of_settings(work: Callable[[], T]) -> T:
    """What is computed from the settings. Raises TpspecError where they are not what a format expects."""
    try:
        return work()
    except ExpressionError as error:
        raise TpspecError(f"config.json: quantization_config cannot be read: {error}") from None


class _Scope:
    """The settings of one module; what `let` defines goes before them, and sees them alone."""

    def __init__(self, settings: Settings, let: Mapping[str, Expression]) -> None:
        self.settings = settings
        self.let = let

    def lookup(self, name: str) -> Any:
        if name in self.let:
            return self.let[name].evaluate(_Scope(self.settings, {}))
        return self.settings.get(name)

    def count(self, expression: Expression) -> int:
        """A count; where it has none, the error names the setting and not what `let` calls it."""
        if expression.text in self.let:
            return self.let[expression.text].count(_Scope(self.settings, {}))
        return expression.count(self)

    def numbers(self) -> dict[str, Any]:
        """What `let` comes to, where it has a value here."""
        found = {}
        for name in self.let:
            with suppress(ExpressionError):
                found[name] = self.lookup(name)
        return found

    def local(self, axis: str) -> int:
        raise ExpressionError(f"local({axis}) has no meaning in a format")
