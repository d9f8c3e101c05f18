"""The language of rules: Python's own expressions, cut down to conditions on names, and run on columns.

A condition has numbers, quoted words, ``true``/``false``, the names of ``astra.rules.names.NAMES``, ``+ - * / // %``,
comparisons (chained), ``in (...)``, ``and``/``or``/``not`` and parentheses. The order of the words is checked first, so
that every fault can be pointed at; Python's ``ast`` then says what binds to what; each node that is allowed becomes a
function over columns (``astra.rules.parts``), any other is refused. Nothing of the text is ever executed.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, NoReturn

import numpy as np

from astra.errors import InputError, did_you_mean, nearest_names
from astra.rules import parts
from astra.rules.names import NAMES, Names
from astra.rules.parts import ConditionPart, Kind, ZeroDivisor

SENSES: Final = ("refuse", "require")  # one of which may stand in front of a condition
MAX_LENGTH: Final = 2_000  # characters of one condition
MAX_DEPTH: Final = 50  # nested parts of one condition
_SHOWN_WIDTH: Final = 100  # characters of a line quoted in an error
_WORD: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<comment>\#)
    | (?P<number>(?:[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"[^"\n]*"|'[^'\n]*')
    | (?P<sign>==|!=|<=|>=|//|[-+*/%<>(),\[\]=!&|])
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_TRUTHS: Final = {"true": "True", "false": "False", "True": "True", "False": "False"}
_CLOSING: Final = {"(": ")", "[": "]"}
_MISTAKES: Final = {"=": "==", "!": "not", "&": "and", "|": "or"}
_ARITHMETIC: Final = ("+", "-", "*", "/", "//", "%")
_SIGNS: Final = ("==", "!=", "<", "<=", ">", ">=", *_ARITHMETIC)
_INFIX: Final = (*_SIGNS, "and", "or")
_OPERATORS: Final = frozenset((*_INFIX, "in", "not"))
_SIDE: Final = {"value": "operator", "(": "value", "-": "side"}
_VALUE: Final = {**_SIDE, "not": "value"}
# What may come next, by what is due: values and operators take turns, and a list stands after in.
_ORDER: Final[Mapping[str, Mapping[str, str]]] = {
    "value": _VALUE,
    "side": _SIDE,  # of a sign
    "item": {**_VALUE, "close": "operator"},  # after a comma
    "list": {"(": "value", "[": "value"},
    "in": {"in": "list"},  # after the not of not in
    "operator": {**dict.fromkeys(_SIGNS, "side"), **dict.fromkeys(("and", "or"), "value"), "in": "list", "not": "in"}
    | {"close": "operator", ",": "item", "end": ""},
}
_DUE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("value", "side", "item"), "a name, a number or a parenthesis"),
    "list": "a list in parentheses, as in tp in (4, 8)",
    "in": "in, as in tp not in (4, 8)",
    "operator": "the end of the condition, or and/or",
}
_SPOKEN: Final[Mapping[Kind, str]] = {
    "number": "a number",
    "truth": "a condition",
    "choice": "a choice",
    "text": "a word",
    "string": "a quoted word",
}


class RuleText(NamedTuple):
    """A condition's text and where it was written, to point at faults."""

    text: str
    where: str = "rule"
    line: int = 1
    start: int = 0  # where the condition begins, after the rule's name

    def fail(self, position: int, got: object, want: str, fix: str = "") -> NoReturn:
        """Raise an InputError with line, column and a caret under the fault."""
        before = self.text[:position]
        line_start = before.rfind("\n") + 1
        column = position - line_start
        text = self.text[line_start:].split("\n", 1)[0]
        first = max(0, column - _SHOWN_WIDTH // 2)
        shown = "".join(c if c.isprintable() else " " for c in text[first : first + _SHOWN_WIDTH])
        picture = f"    {shown.rstrip()}\n    {' ' * (column - first)}^"
        where = f"{self.where}:{self.line + before.count(chr(10))}:{column + 1}"
        raise InputError(where, got, want=want, fix=fix, picture=picture)

    def too_deep(self, position: int) -> NoReturn:
        """Refuse a condition with too many nested parts."""
        self.fail(position, None, f"at most {MAX_DEPTH} nested parts", "Split the rule in two.")


class Token(NamedTuple):
    """A piece of the text."""

    kind: str
    text: str
    position: int


class Condition:
    """A parsed condition: call it with names to get its truth (or, ``opposite``, its untruth) on every row."""

    def __init__(self, source: RuleText, *, opposite: bool = False) -> None:
        self.source = source
        self.said, self.comment, words = _split(source)
        self.text = f"not ({self.said})" if opposite else self.said  # true where the strategy is refused
        root = _RuleReader(source, words).condition()
        self.needs: tuple[str, ...] = tuple(dict.fromkeys(root.names))
        self._computes = any(word.text in _ARITHMETIC for word in words if word.kind == "sign")
        self._run = parts.looked_up(parts.opposite(root.position, root) if opposite else root)

    def __call__(self, names: Names) -> Any:
        """A bool column, or one bool where no column is involved."""
        if not self._computes:
            return self._run(names, None)
        try:
            with np.errstate(all="ignore"):
                return self._run(names, None)
        except ZeroDivisor as fault:
            fix = "Guard it, as in: experts > 0 and heads % experts == 0."
            self.source.fail(fault.args[0], None, "a divisor that is never 0", fix)

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"


def _split(source: RuleText) -> tuple[str, str, list[Token]]:
    """The text without its comment, the comment, and the words."""
    if len(source.text) > MAX_LENGTH:
        source.fail(MAX_LENGTH, f"{len(source.text):,} characters", f"at most {MAX_LENGTH:,} characters in a rule")
    words: list[Token] = []
    for match in _WORD.finditer(source.text, source.start):
        kind, text, position = str(match.lastgroup), match.group(), match.start()
        if kind == "comment":
            return source.text[source.start : position].strip(), source.text[position + 1 :].strip(), words
        if kind == "other":
            source.fail(position, text, "a closing quote" if text in "\"'" else "a condition such as tp > 8 and not sp")
        if kind != "space":
            words.append(Token(kind, text, position))
    return source.text[source.start :].strip(), "", words


def _in_python(source: RuleText, words: list[Token]) -> Iterator[str]:
    """Each word as Python spells it; the first one that cannot stand where it stands is refused."""
    opened: list[tuple[Token, bool]] = []  # brackets, and whether they hold a list
    due = "value"
    end = words[-1].position + len(words[-1].text) if words else source.start
    for word in (*words, Token("end", "end", end)):
        what = word.text
        if opened and what == _CLOSING[opened[-1][0].text]:
            what = "close"
        elif word.kind in ("number", "string") or (word.kind == "name" and what not in _OPERATORS):
            what = "value"
        after = _ORDER[due].get(what)
        wrong = what == "," and not (opened and opened[-1][1])
        if after is None or wrong or (what == "end" and opened):
            _unexpected(source, word, due, opened[-1][0] if opened else None)
        if what == "close":
            opened.pop()
        elif what in _CLOSING:
            opened.append((word, due == "list"))
            if len(opened) > MAX_DEPTH:
                source.too_deep(word.position)
        if word.kind != "end":
            yield _spelled(source, word)
        due = after


def _unexpected(source: RuleText, word: Token, due: str, bracket: Token | None) -> NoReturn:
    want = _DUE[due]
    if due == "operator" and bracket is not None:
        want = f"{_CLOSING[bracket.text]} to close the {bracket.text} at {bracket.position + 1}"
    if word.kind == "end":
        source.fail(word.position, None, f"{want}, but the rule ends here")
    fix = f"Write {_MISTAKES[word.text]}." if word.text in _MISTAKES else ""
    source.fail(
        word.position, word.text, want, "Put not and what follows in parentheses." if word.text == "not" else fix
    )


def _spelled(source: RuleText, word: Token) -> str:
    if word.kind == "string":
        return ascii(word.text[1:-1])
    if word.kind == "number":
        digits = word.text.replace("_", "")
        number = int(digits) if digits.isdigit() else float(digits)
        if len(digits) > 18 or not math.isfinite(number):
            source.fail(word.position, word.text, "a number with at most 18 digits")
        return repr(number)
    if word.kind == "sign" or word.text in NAMES or word.text in _OPERATORS:
        return word.text
    return _TRUTHS.get(word.text) or _unknown(source, word)


def _unknown(source: RuleText, word: Token) -> NoReturn:
    choice_of = [name for name, known in NAMES.items() if word.text in known.choices]
    if choice_of:
        fix = f'Put it in quotes: {choice_of[0]} == "{word.text}".'
    elif word.text in ("on", "off"):
        fix = "Write true or false."
    elif source.text[: word.position].strip()[-1:] in ("", ":"):  # the first word, with no sense before it
        begins = f"A rule begins with {' or '.join(SENSES)}, or with its condition; docs/rules.md lists the names."
        fix = did_you_mean(word.text, (*SENSES, *NAMES), begins)
    else:
        fix = did_you_mean(word.text, NAMES, "docs/rules.md lists the names.")
    source.fail(word.position, word.text, "a known name", fix)


class _RuleReader(ast.NodeVisitor):
    """Turns words into one part: ``ast`` groups them, and a node without a method here is refused."""

    def __init__(self, source: RuleText, words: list[Token]) -> None:
        self._source, self._words, self._depth = source, words, 0
        self._place: dict[int, int] = {}  # column in the text given to ast -> place of the word there

    def condition(self) -> ConditionPart:
        """The whole condition."""
        plain = ""
        for place, text in enumerate(_in_python(self._source, self._words)):
            self._place[len(plain)] = place
            plain += text + " "
        try:
            tree = ast.parse(plain.rstrip(), mode="eval").body
        except (RecursionError, MemoryError):
            self._source.too_deep(self._source.start)
        return self._want(tree, "truth", "A rule is a condition, such as tp > 8.")

    def visit(self, node: ast.AST) -> ConditionPart:
        """A node as a part, unless it lies too deep."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._source.too_deep(self._position(node))
        part: ConditionPart = super().visit(node)
        self._depth -= 1
        return part

    def generic_visit(self, node: ast.AST) -> NoReturn:
        """Refuse what is not part of the language."""
        self._source.fail(self._position(node), None, "names, numbers, comparisons, and, or, not")

    def visit_Constant(self, node: ast.Constant) -> ConditionPart:
        """A number, a truth value or a quoted word."""
        return parts.constant(self._position(node), node.value)  # type: ignore[arg-type]

    def visit_Name(self, node: ast.Name) -> ConditionPart:
        """A column or a fact."""
        return parts.name(self._position(node), node.id)

    def visit_BoolOp(self, node: ast.BoolOp) -> ConditionPart:
        """Conditions joined by and, or."""
        symbol: Literal["and", "or"] = "and" if isinstance(node.op, ast.And) else "or"
        sides = [self._want(side, "truth", f"{symbol} joins conditions.") for side in node.values]
        return parts.joined(self._position(node), symbol, sides)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ConditionPart:
        """A condition turned round, or a number with a minus."""
        if isinstance(node.op, ast.Not):
            return parts.opposite(self._position(node), self._want(node.operand, "truth", "not turns a condition."))
        return parts.negative(self._position(node), self._want(node.operand, "number", "- works on numbers."))

    def visit_BinOp(self, node: ast.BinOp) -> ConditionPart:
        """A number made of two."""
        sign = self._operator(node.right)
        left, right = (self._want(side, "number", f"{sign.text} works on numbers.") for side in (node.left, node.right))
        if sign.text in parts.DIVIDING and right.said == 0:
            self._source.fail(right.position, None, "a divisor that is not 0")
        return parts.arithmetic(sign.position, sign.text, left, right)

    def visit_Compare(self, node: ast.Compare) -> ConditionPart:
        """A chain of comparisons: each pair of neighbours must hold."""
        left, pairs = self.visit(node.left), []
        for kind, comparator in zip(node.ops, node.comparators, strict=True):
            sign = self._operator(comparator)
            if isinstance(kind, (ast.In, ast.NotIn)):
                equal = [self._compared(left, "==", item, sign.position) for item in self._items(node, comparator)]
                found = parts.joined(sign.position, "or", equal)
                pairs.append(parts.opposite(sign.position, found) if isinstance(kind, ast.NotIn) else found)
            else:
                right = self.visit(comparator)
                pairs.append(self._compared(left, sign.text, right, sign.position))
                left = right
        return parts.joined(pairs[0].position, "and", pairs)

    def _items(self, node: ast.Compare, listed: ast.expr) -> list[ConditionPart]:
        """The values of a list, which ends its comparison."""
        items = listed.elts if isinstance(listed, (ast.Tuple, ast.List)) else None
        place = self._place[listed.col_offset]
        if listed is not node.comparators[-1] or (items is None and self._words[place - 1].text == "in"):
            want = "nothing more to be done with a list"
            self._source.fail(self._words[place].position, None, want, "Put the part with in into parentheses.")
        return [self.visit(item) for item in items or [listed]]

    def _position(self, node: ast.AST) -> int:
        return self._words[self._place[getattr(node, "col_offset", 0)]].position

    def _operator(self, right: ast.expr) -> Token:
        """The operator in front of a right side."""
        place = self._place[right.col_offset] - 1
        while self._words[place].text in _CLOSING:
            place -= 1
        return self._words[place]

    def _compared(self, left: ConditionPart, sign: str, right: ConditionPart, at: int) -> ConditionPart:
        kinds = {left.kind, right.kind}
        if kinds == {"number"} or (kinds == {"truth"} and sign in ("==", "!=")):
            return parts.comparison(at, sign, left, right)
        for named, literal in ((left, right), (right, left)):
            if named.kind in ("choice", "text") and literal.kind == "string":
                if sign not in ("==", "!="):
                    self._source.fail(at, sign, f"== or !=, because {named.said} has no order")
                return parts.comparison(at, sign, named, self._choice(named, literal))
        word = next((side.said for side in (left, right) if side.names and side.said and side.kind != "number"), "")
        choices = NAMES[word].choices if word else ()
        fix = f"{word} is one of {_quoted(choices)}." if choices else f"Write {word} or not {word}." if word else ""
        unlike = f"{_SPOKEN[left.kind]} {sign} {_SPOKEN[right.kind]}"
        return self._source.fail(right.position, None, f"two values of one kind, not {unlike}", fix)

    def _choice(self, named: ConditionPart, literal: ConditionPart) -> ConditionPart:
        """The constant that stands for a quoted choice: its code in a column, the word itself in a fact."""
        choices = NAMES[named.said].choices
        if literal.said not in choices:
            near = nearest_names(literal.said, choices)
            fix = f'Did you mean "{near[0]}"?' if near else ""
            self._source.fail(literal.position, literal.said, f"{named.said} to be one of {_quoted(choices)}", fix)
        value = choices.index(literal.said) if named.kind == "choice" else literal.said
        return parts.constant(literal.position, value)

    def _want(self, node: ast.expr, kind: Kind, why: str) -> ConditionPart:
        part = self.visit(node)
        if part.kind != kind:
            if part.names and part.said and kind == "truth":
                choices = NAMES[part.said].choices
                why += f" Write, for example, {part.said} " + (f'== "{choices[0]}".' if choices else "> 1.")
            self._source.fail(part.position, None, f"{_SPOKEN[kind]}, not {_SPOKEN[part.kind]}", why)
        return part


def _quoted(choices: tuple[str, ...]) -> str:
    return ", ".join(f'"{choice}"' for choice in choices)
