"""Text of a condition -> typed tree: a tokenizer and a Pratt parser, written out so that every fault can be pointed at.

The language has numbers, quoted strings, ``true``/``false``, the names of ``astra.space.names.NAMES``,
``+ - * / // %``, comparisons (chained), ``in (...)``, ``and``/``or``/``not`` and parentheses. Nothing is executed.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple, NoReturn

import numpy as np

from astra.errors import InputError, nearest_names
from astra.space._nodes import (
    ADDING,
    COMPARING,
    DIVIDING,
    Arithmetic,
    Comparison,
    Constant,
    Name,
    Negative,
    Node,
    NodeKind,
    Not,
    ZeroDivisor,
    depth_of,
    join,
    names_of,
    tabulated,
)
from astra.space.names import NAMES, Kind, Names

MAX_LENGTH: Final = 2_000  # characters of one condition
MAX_DEPTH: Final = 50  # nested parts of one condition
_SHOWN_WIDTH: Final = 100  # characters of a line quoted in an error
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<comment>\#)
    | (?P<number>(?:[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"[^"\n]*"|'[^'\n]*')
    | (?P<sign>==|!=|<=|>=|//|[-+*/%<>(),\[\]=!&|:"'])
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = {"and", "or", "not", "in", "true", "false", "True", "False"}
_POWER: Final = {"or": 1, "and": 2, "not": 3, **dict.fromkeys((*COMPARING, "in"), 4), **dict.fromkeys(ADDING, 5)} | (
    dict.fromkeys(("*", *DIVIDING), 6)
)
_SIGN_POWER: Final = 7
_KINDS: Final[dict[Kind, NodeKind]] = {"number": "number", "switch": "truth", "choice": "choice", "text": "text"}
_SPOKEN: Final[dict[NodeKind, str]] = {
    "number": "a number",
    "truth": "a condition",
    "choice": "a choice",
    "text": "a word",
    "string": "a quoted word",
}
_MISTAKES: Final = {"=": "==", "!": "not", "&": "and", "|": "or"}


class Token(NamedTuple):
    """A piece of the text."""

    kind: str
    text: str
    position: int


class Source(NamedTuple):
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
        picture = f"\n    {shown.rstrip()}\n    {' ' * (column - first)}^"
        where = f"{self.where}:{self.line + before.count(chr(10))}:{column + 1}"
        raise InputError(where, got, want=want, fix=fix + picture)


class Condition:
    """A parsed condition: call it with names to get its truth on every row."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text, self.comment, tokens = tokenize(source)
        root = _Parser(source, tokens).parse()
        self.needs: tuple[str, ...] = tuple(dict.fromkeys(names_of(root)))
        self._root = tabulated(root)

    def __call__(self, names: Names) -> Any:
        """A bool column, or one bool where no column is involved."""
        try:
            with np.errstate(all="ignore"):
                return self._root.evaluate(names, None)
        except ZeroDivisor as fault:
            self.source.fail(
                fault.position,
                None,
                "a divisor that is never 0",
                "Guard it, as in: experts > 0 and heads % experts == 0.",
            )

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"


def tokenize(source: Source) -> tuple[str, str, list[Token]]:
    """The text without its comment, the comment, and the tokens."""
    if len(source.text) > MAX_LENGTH:
        source.fail(MAX_LENGTH, f"{len(source.text):,} characters", f"at most {MAX_LENGTH:,} characters in a rule")
    tokens: list[Token] = []
    for match in _TOKEN.finditer(source.text, source.start):
        kind, text, position = str(match.lastgroup), match.group(), match.start()
        if kind == "comment":
            return source.text[source.start : position].strip(), source.text[position + 1 :].strip(), tokens
        if kind == "other" or (kind == "sign" and text in "\"':"):
            want = "a closing quote" if text in "\"'" else "a condition such as tp > 8 and not sp"
            source.fail(position, text, want)
        if kind != "space":
            tokens.append(Token(kind, text, position))
    return source.text[source.start :].strip(), "", tokens


class _Parser:
    """Pratt parser: each operator binds with a power; a stronger one takes its operands first."""

    def __init__(self, source: Source, tokens: list[Token]) -> None:
        self._source = source
        end = tokens[-1].position + len(tokens[-1].text) if tokens else source.start
        self._tokens = [*tokens, Token("end", "", end)]
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        """The whole condition."""
        root = self._expression(0)
        token = self._tokens[self._at]
        if token.kind != "end":
            self._unexpected(token, "the end of the condition, or and/or")
        self._want(root, "truth", "A rule is a condition, such as tp > 8.")
        return root

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _peek(self, *texts: str) -> bool:
        token = self._tokens[self._at]
        return token.text in texts and token.kind in ("sign", "word")

    def _expression(self, power: int) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._too_deep(self._tokens[self._at])
        left = self._operand()
        while self._binding() > power:
            token = self._next()
            left = self._extend(left, token)
            if depth_of(left) > MAX_DEPTH:
                self._too_deep(token)
        self._depth -= 1
        return left

    def _binding(self) -> int:
        """How strongly the next token binds as an infix operator; 0 if it is none. ``not`` is one in ``not in``."""
        token = self._tokens[self._at]
        if token.text == "not":
            return _POWER["in"] if self._tokens[self._at + 1].text == "in" else 0
        return _POWER.get(token.text, 0)

    def _extend(self, left: Node, token: Token) -> Node:
        """``left`` with the operator that follows it and its right side."""
        if token.text in ("and", "or"):
            return self._logic(left, token)
        if token.text in COMPARING:
            return self._comparisons(left, token)
        if token.text in ("in", "not"):
            return self._membership(left, token)
        right = self._expression(_POWER[token.text])
        for side in (left, right):
            self._want(side, "number", f"{token.text} works on numbers.")
        if token.text in DIVIDING and isinstance(right, Constant) and right.value == 0:
            self._source.fail(right.position, None, "a divisor that is not 0")
        return Arithmetic(token.position, token.text, (left, right))

    def _operand(self) -> Node:
        token = self._next()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "string":
            return Constant(token.position, "string", token.text[1:-1])
        if token.kind == "word" and token.text not in _WORDS:
            return self._name(token)
        return self._prefixed(token)

    def _prefixed(self, token: Token) -> Node:
        """A truth value, a parenthesis, or what follows ``not`` or a sign."""
        if token.text.lower() in ("true", "false"):
            return Constant(token.position, "truth", token.text.lower() == "true")
        if token.text == "not":
            inner = self._want(self._expression(_POWER["not"]), "truth", "not turns a condition.")
            return Not(token.position, (inner,))
        if token.text == "-":
            return Negative(
                token.position, (self._want(self._expression(_SIGN_POWER), "number", "- works on numbers."),)
            )
        if token.text != "(":
            self._unexpected(token, "a name, a number or a parenthesis")
        inner = self._expression(0)
        self._close(")", token)
        return inner

    def _number(self, token: Token) -> Node:
        digits = token.text.replace("_", "")
        whole = digits.isdigit()
        if len(digits) > 18 or (not whole and not np.isfinite(float(digits))):
            self._source.fail(token.position, token.text, "a number with at most 18 digits")
        return Constant(token.position, "number", int(digits) if whole else float(digits))

    def _name(self, token: Token) -> Node:
        word = NAMES.get(token.text)
        if word is not None:
            return Name(token.position, _KINDS[word.kind], token.text)
        choice_of = [name for name, known in NAMES.items() if token.text in known.choices]
        if choice_of:
            fix = f'Put it in quotes: {choice_of[0]} == "{token.text}".'
        elif token.text in ("on", "off"):
            fix = "Write true or false."
        else:
            near = nearest_names(token.text, NAMES)
            fix = f"Did you mean {', '.join(near)}?" if near else "docs/rules.md lists the names."
        return self._source.fail(token.position, token.text, "a known name", fix)

    def _logic(self, left: Node, token: Token) -> Node:
        symbol: Literal["and", "or"] = "and" if token.text == "and" else "or"
        items = [left]
        while True:
            items.append(self._expression(_POWER[symbol]))
            if not self._peek(symbol):
                break
            self._next()
        for item in items:
            self._want(item, "truth", f"{symbol} joins conditions.")
        return join(token.position, symbol, tuple(items))

    def _comparisons(self, left: Node, token: Token) -> Node:
        pairs: list[Node] = []
        while True:
            right = self._expression(_POWER[token.text])
            pairs.append(self._compare(left, token, right))
            if not self._peek(*COMPARING):
                return join(token.position, "and", tuple(pairs))
            left, token = right, self._next()

    def _membership(self, left: Node, token: Token) -> Node:
        """``x in (a, b)`` or ``x not in (a, b)``."""
        negated = token.text == "not"
        if negated:
            self._next()
        opening = self._next()
        if opening.text not in ("(", "["):
            self._unexpected(opening, "a list in parentheses, as in tp in (4, 8)")
        closing = ")" if opening.text == "(" else "]"
        equal = Token("sign", "==", token.position)
        items: list[Node] = []
        while not (items and self._peek(closing)):
            items.append(self._compare(left, equal, self._expression(0)))
            if not self._peek(","):
                break
            self._next()
        self._close(closing, opening)
        found = join(token.position, "or", tuple(items))
        return Not(token.position, (found,)) if negated else found

    def _compare(self, left: Node, token: Token, right: Node) -> Node:
        kinds = {left.kind, right.kind}
        if kinds == {"number"} or (kinds == {"truth"} and token.text in ("==", "!=")):
            return Comparison(token.position, token.text, (left, right))
        for name, literal in ((left, right), (right, left)):
            if isinstance(name, Name) and name.kind in ("choice", "text") and literal.kind == "string":
                if token.text not in ("==", "!="):
                    self._source.fail(token.position, token.text, f"== or !=, because {name.name} has no order")
                return Comparison(token.position, token.text, (name, self._choice(name, literal)))
        named = next((side.name for side in (left, right) if isinstance(side, Name) and side.kind != "number"), "")
        choices = NAMES[named].choices if named else ()
        fix = f"{named} is one of {_quoted(choices)}." if choices else f"Write {named} or not {named}." if named else ""
        unlike = f"{_SPOKEN[left.kind]} {token.text} {_SPOKEN[right.kind]}"
        return self._source.fail(right.position, None, f"two values of one kind, not {unlike}", fix)

    def _choice(self, name: Name, literal: Node) -> Node:
        """The constant that stands for a quoted choice: its code in a column, the word itself in a fact."""
        text = literal.value if isinstance(literal, Constant) else ""
        choices = NAMES[name.name].choices
        if text not in choices:
            near = nearest_names(text, choices)
            fix = f'Did you mean "{near[0]}"?' if near else ""
            self._source.fail(literal.position, text, f"{name.name} to be one of {_quoted(choices)}", fix)
        value = choices.index(text) if name.kind == "choice" else text
        return Constant(literal.position, name.kind, value)

    def _want(self, node: Node, kind: NodeKind, why: str) -> Node:
        if node.kind != kind:
            fix = why
            if isinstance(node, Name) and kind == "truth":
                choices = NAMES[node.name].choices
                fix += f" Write, for example, {node.name} " + (f'== "{choices[0]}".' if choices else "> 1.")
            self._source.fail(node.position, None, f"{_SPOKEN[kind]}, not {_SPOKEN[node.kind]}", fix.strip())
        return node

    def _close(self, closing: str, opening: Token) -> None:
        if not self._peek(closing):
            self._unexpected(self._tokens[self._at], f"{closing} to close the {opening.text} at {opening.position + 1}")
        self._next()

    def _unexpected(self, token: Token, want: str) -> NoReturn:
        fix = f"Write {_MISTAKES[token.text]}." if token.text in _MISTAKES else ""
        ending = ", but the rule ends here" if token.kind == "end" else ""
        self._source.fail(token.position, token.text or None, want + ending, fix)

    def _too_deep(self, token: Token) -> NoReturn:
        self._source.fail(token.position, None, f"at most {MAX_DEPTH} nested parts", "Split the rule in two.")


def _quoted(choices: tuple[str, ...]) -> str:
    return ", ".join(f'"{choice}"' for choice in choices)
