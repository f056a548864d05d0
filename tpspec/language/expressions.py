"""Arithmetic over config names, parsed with `ast` and a whitelist, never evaluated as Python.

`+ - * // %`, exact `/` (a remainder is an error), comparisons, `and or not in is`,
`x if c else y`, subscripts, dotted names, text, numbers and lists, and the functions below.
A name that the config does not carry is None; only `and`, `or`, `not`, `if`, `is`, `in` and
`==` accept None, anything else says which name is missing.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, isqrt, sqrt
from typing import Any, Protocol

MAX_LENGTH = 500
MAX_DEPTH = 60
MAX_MAGNITUDE = 2**62
MAX_COUNT = 2**48
"""A size, width or divisor beyond this is no model's."""


class ExpressionError(ValueError):
    """An expression cannot be parsed, or has no value for this config."""


class Scope(Protocol):
    """Where an expression's names come from."""

    def lookup(self, name: str) -> Any:
        """Value of a name; None where the config does not carry it."""

    def local(self, axis: str) -> int:
        """Units of an axis that one rank holds."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below `value`."""
    return -(-value // multiple) * multiple


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": int, "len": len, "min": min, "max": max, "ceil": ceil, "isqrt": isqrt, "sqrt": sqrt,
    "round_up": round_up, "index": list.index,
}  # fmt: skip
CONSTANTS = {"true": True, "false": False, "null": None}

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, items: items is not None and item in items,
    ast.NotIn: lambda item, items: items is None or item not in items,
}  # fmt: skip
_NONE_IS_FINE = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple,
    ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Call,
    ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.Div, *_ARITHMETIC, *_COMPARISONS,
)  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A parsed expression. `names` are the free names it reads, `axes` the arguments of `local`."""

    text: str
    tree: ast.expr = field(repr=False, compare=False)
    names: frozenset[str] = field(compare=False)
    axes: frozenset[str] = field(compare=False)

    def __str__(self) -> str:
        return self.text

    def count(self, scope: Scope, least: int = 1) -> int:
        """The expression's value where it has to be a count. Raises ExpressionError where it is none."""
        value = self.evaluate(scope)
        if value is None:
            raise ExpressionError(f"config.json has no {self.text}")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
            kind = "a positive count" if least else "a count"
            raise ExpressionError(f"{self.text} = {shown(value)} is not {kind}")
        return value

    def evaluate(self, scope: Scope) -> Any:
        """The expression's value. Raises ExpressionError naming what is missing or wrong."""
        try:
            return _evaluate(self.tree, scope)
        except (TypeError, ValueError, ArithmeticError, IndexError, KeyError, AttributeError) as error:
            if isinstance(error, ExpressionError):
                raise
            raise ExpressionError(f"'{self.text}' has no value: {error}") from None


def _holds(comparison: ast.cmpop, value: Any, other: Any) -> bool:
    """A comparison of two values. Raises TypeError that quotes what is no number."""
    try:
        return bool(_COMPARISONS[type(comparison)](value, other))
    except TypeError:
        for side in (value, other):
            if not isinstance(side, (int, float)):
                raise TypeError(f"{shown(side)} is not a number") from None
        raise


@lru_cache(maxsize=4096)
def parse(source: str | int) -> Expression:
    """Parses an expression. Raises ExpressionError for what the language does not have."""
    text = str(source).strip()
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters, this one {len(text)}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"'{text}' is not an expression: {getattr(error, 'msg', error)}") from None
    names: set[str] = set()
    axes: set[str] = set()
    _check(tree, text, names, axes)
    return Expression(text, tree, frozenset(names), frozenset(axes))


def _check(node: ast.AST, text: str, names: set[str], axes: set[str], depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"'{text[:40]}…' is nested more than {MAX_DEPTH} deep")
    if not isinstance(node, _NODES):
        raise ExpressionError(f"'{text}': {type(node).__name__} is not part of the language")
    match node:
        case ast.Constant(value=value) if not isinstance(value, (int, float, str, type(None))):
            raise ExpressionError(f"'{text}': {value!r} is not part of the language")
        case ast.Call(func=ast.Name(id="local"), args=[ast.Name(id=axis)], keywords=[]):
            axes.add(axis)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            for argument in arguments:
                _check(argument, text, names, axes, depth + 1)
        case ast.Call():
            raise ExpressionError(f"'{text}': the functions are {', '.join(FUNCTIONS)}, and local(AXIS)")
        case ast.Name(id=name):
            names.update({name} - CONSTANTS.keys())
        case _:
            for child in ast.iter_child_nodes(node):
                _check(child, text, names, axes, depth + 1)


def _evaluate(node: ast.expr, scope: Scope) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return CONSTANTS[name] if name in CONSTANTS else scope.lookup(name)
        case ast.Attribute(value=inner, attr=attr):
            mapping = _evaluate(inner, scope)
            return mapping.get(attr) if isinstance(mapping, dict) else None
        case ast.Subscript(value=inner, slice=index):
            container = _present(inner, scope)
            position = _present(index, scope)
            if isinstance(container, dict):
                return _entry(container, position)
            if isinstance(position, int) and position < 0:
                raise ExpressionError(f"'{ast.unparse(node)}': index {position} is negative")
            return container[position]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate(item, scope) for item in items]
        case ast.BoolOp(op=op, values=values):
            value = None
            for operand in values:
                value = _evaluate(operand, scope)
                if bool(value) is isinstance(op, ast.Or):
                    break
            return value
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, scope)
        case ast.UnaryOp(operand=operand):
            return -_number(operand, scope)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, scope) else orelse, scope)
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(node, op, _number(left, scope), _number(right, scope))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            value = _operand(left, ops[0], scope)
            for comparison, comparator in zip(ops, comparators, strict=True):
                other = _operand(comparator, comparison, scope)
                if not _holds(comparison, value, other):
                    return False
                value = other
            return True
        case ast.Call(func=ast.Name(id="local"), args=[ast.Name(id=axis)]):
            return scope.local(axis)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_present(argument, scope) for argument in arguments))
    raise AssertionError(node)


def _arithmetic(node: ast.BinOp, op: ast.operator, left: float, right: float) -> Any:
    if isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)) and right == 0:
        raise ExpressionError(f"'{ast.unparse(node)}' divides by zero")
    if isinstance(op, ast.Div):
        if isinstance(left, float) or isinstance(right, float):
            return left / right
        if left % right:
            raise ExpressionError(f"'{ast.unparse(node)}': {left} / {right} leaves {left % right}")
        return left // right
    result = _ARITHMETIC[type(op)](left, right)
    if abs(result) > MAX_MAGNITUDE:
        raise ExpressionError(f"'{ast.unparse(node)}' is too large: {shown(left)}, {shown(right)}")
    return result


def _operand(node: ast.expr, comparison: ast.cmpop, scope: Scope) -> Any:
    return (_evaluate if isinstance(comparison, _NONE_IS_FINE) else _present)(node, scope)


def shown(value: Any) -> str:
    """A value of the config for a message, which a value of any length must not fill."""
    if isinstance(value, int) and abs(value) > MAX_MAGNITUDE:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _entry(container: dict[str, Any], key: Any) -> Any:
    """A dict's entry; None where it has none. JSON's keys are text, and numbers may have leading zeros."""
    if isinstance(key, int):
        return next(
            (value for text, value in container.items() if text.isdecimal() and int(text) == key), None
        )
    return container.get(key)


def _present(node: ast.expr, scope: Scope) -> Any:
    value = _evaluate(node, scope)
    if value is None:
        raise ExpressionError(f"config.json has no {ast.unparse(node)}")
    return value


def _number(node: ast.expr, scope: Scope) -> int | float:
    value = _present(node, scope)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ExpressionError(f"{ast.unparse(node)} is {shown(value)}, not a number")
    return value
