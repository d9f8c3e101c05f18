"""Variables of a launch script, and what they make of words.

``NAME=value``, ``NAME=(...)``, ``NAME+=(...)``, ``$NAME``, ``$1``, ``${NAME}``, ``"${NAME[@]}"``, ``${NAME[1]}``,
``${#NAME[@]}``, ``${NAME:-default}`` and its kin, ``${NAME##*/}`` and its kin, ``${NAME/a/b}``, ``${NAME:1:2}`` and
whole-number ``$((...))``. Anything else stays as it is written, so that a number made of it is refused. What variables
grow to is counted letter by letter before it is made, so that no script takes long or much memory.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable
from typing import Final

from astra.errors import InputError
from astra.export.bash import ShellPiece, Word, closing, opens_array

_MOST_SPENT: Final = 1_000_000  # letters and words of everything that is expanded
_MOST_DEPTH: Final = 16  # of ${...:-${...}}
_LONGEST_SUM: Final = 200
_LONGEST_CUT: Final = 2_000  # letters from which a pattern is cut
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@#*?]")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACES: Final = re.compile(r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_ARRAY: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\[@\]\}|\$@|\$\{@\}")
_BETWEEN: Final = re.compile(r"[\s|<>&;]+")
_SPECIAL: Final = re.compile(r"""(?P<dollar>\$)|(?P<join>\\\r?\n)|\\(?P<escape>[$"\\`])""")


class Expander:
    """Variables, and what they make of words."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.missed: set[str] = set()  # variables that were asked for and never set
        self.spent = 0
        self.said: Callable[[str], str | None] = lambda _: None  # what a command of the script's own says

    def assign(self, statement: list[Word], place: int) -> bool:
        """Set a variable, where the word at a place does that."""
        word = statement[place]
        match = _ASSIGNMENT.match(word[0].text) if not word[0].quote else None
        if match is None:
            return False
        if opens_array(word):
            value = [part for each in statement[place + 1 :] for part in self.expand(each)]
        else:
            value = ["".join(self.text(piece) for piece in (ShellPiece(word[0].text[match.end() :], ""), *word[1:]))]
        if match.group(2):
            self.values.setdefault(match.group(1), []).extend(value)
        else:
            self.values[match.group(1)] = value
        return True

    def expand(self, word: Word) -> list[str]:
        """The words that a word becomes."""
        if len(word) == 1 and word[0].quote == '"':
            array = _ARRAY.fullmatch(word[0].text)
            if array is not None:
                parts = self._value(array.group(1) or "@")
                self.spend(sum(map(len, parts)))
                return parts
        done: list[str] = []
        last: str | None = None  # the word so far; what is not quoted ends it at white space
        for piece in word:
            text = self.text(piece)
            if piece.quote:
                last = (last or "") + text
                continue
            if text[:1].isspace() and last is not None:
                done.append(last)
                last = None
            for place, field in enumerate(text.split()):
                if place and last is not None:
                    done.append(last)
                    last = None
                last = (last or "") + field
            if text[-1:].isspace() and last is not None:
                done.append(last)
                last = None
        return done if last is None else [*done, last]

    def _value(self, name: str) -> list[str]:
        """The words of a variable; looking at them costs, be they empty."""
        parts = self.values.get(name, [])
        if name not in self.values:
            self.missed.add(name)
        self.spend(len(parts))
        return parts

    def _joined(self, parts: list[str]) -> str:
        self.spend(sum(map(len, parts)))
        return " ".join(parts)

    def spend(self, letters: int) -> None:
        """Count letters that are made or read again: there is an end to them."""
        self.spent += letters
        if self.spent > _MOST_SPENT:
            raise InputError("script", None, want="a script whose variables do not grow beyond reason")

    def text(self, piece: ShellPiece, depth: int = 0) -> str:
        """A piece of a word with its variables in place."""
        self.spend(1 + len(piece.text))
        if piece.quote == "'":
            return piece.text
        if depth > _MOST_DEPTH:
            raise InputError("script", None, want=f"at most {_MOST_DEPTH} ${{...}} inside each other")
        text, out, at = piece.text, [], 0
        while (found := _SPECIAL.search(text, at)) is not None:
            out.append(text[at : found.start()])
            at = found.end()
            if found.lastgroup == "dollar":
                value, at = self._variable(text, at, depth)
                out.append(value)
            elif piece.quote == "":
                out.append(found.group())
            elif found.lastgroup == "escape":
                out.append(found.group("escape"))
        return "".join((*out, text[at:]))

    def _variable(self, text: str, at: int, depth: int) -> tuple[str, int]:
        if text.startswith(("(", "{"), at):
            end = closing(text, at)
            inside = text[at:end]
            if inside.startswith("((") and inside.endswith("))") and len(inside) >= 4:
                return self._sum(inside[2:-2]), end
            if len(inside) >= 2 and inside.startswith("{") and inside.endswith("}"):
                return self._braces(inside[1:-1], depth), end
            said = self.said(inside[1:-1]) if inside.startswith("(") and inside.endswith(")") else None
            return "$" + _BETWEEN.sub(
                "", inside
            ) if said is None else said, end  # what a program would say, or what is not closed: one word
        name = _NAME.match(text, at)
        if name is None:
            return "$", at
        return self._joined(self._value(name.group())), name.end()

    def _braces(self, inside: str, depth: int) -> str:
        match = _BRACES.fullmatch(inside)
        if match is None:
            return f"${{{inside}}}"
        length, name, index, rest = match.groups()
        parts = self._value(name)
        if length and not rest:
            return (
                str(len(parts) if index in ("@", "*") else len(self._joined(parts))) if not rest else f"${{{inside}}}"
            )
        parts = self._value(name)
        if index not in (None, "@", "*"):
            parts = self._at_index(parts, index)
        if re.match(r":?[-=?+]", rest):
            return self._default(name, parts, rest.lstrip(":"), depth)
        if not rest:
            return self._joined(parts)
        known = self.text(ShellPiece(rest, '"'), depth + 1)
        changed = _changed(self._joined(parts), known)
        return f"${{{inside}}}" if changed is None else changed

    def _default(self, name: str, parts: list[str], rest: str, depth: int) -> str:
        """``${NAME:-other}``, ``${NAME:=other}``, ``${NAME:?message}`` and ``${NAME:+other}``."""
        there, other = any(parts), rest[1:].strip('"')
        if rest[0] == "+":
            self.missed.discard(name)
            return self.text(ShellPiece(other, '"'), depth + 1) if there else ""
        if there or rest[0] == "?":
            return self._joined(parts)
        self.missed.discard(name)
        value = self.text(ShellPiece(other, '"'), depth + 1)
        if rest[0] == "=":
            self.values[name] = [value]
        return value

    def _at_index(self, parts: list[str], index: str) -> list[str]:
        place = self._sum(self.text(ShellPiece(index, '"'), _MOST_DEPTH)) if index else ""
        return [parts[int(place)]] if re.fullmatch(r"[0-9]{1,6}", place) and int(place) < len(parts) else []

    def _sum(self, inside: str) -> str:
        """The value of a sum; as it is written where a variable of it is not known."""
        if len(inside) > _LONGEST_SUM:
            return ""
        text = self.text(ShellPiece(inside, '"'), _MOST_DEPTH) if "${" in inside and ":" in inside else inside
        known = _IN_SUM.sub(lambda name: self._joined(self._value(name.group(1))) or "?", text)
        return whole_sum(known) or "$" + _BETWEEN.sub("", f"(({inside}))")


_IN_SUM: Final = re.compile(r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_CHOICE: Final = re.compile(r"\(?([^?:()<>=!]+)(>=|<=|==|!=|>|<)([^?:()<>=!]+)\)?\s*\?([^?:<>=!]+):([^?:<>=!]+)")
_COMPARED: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def whole_sum(text: str) -> str:
    """The value of sums and products of whole numbers, or nothing if it is anything else."""
    choice = _CHOICE.fullmatch(text.strip()) if len(text) <= _LONGEST_SUM else None
    if choice is not None:
        left, right = whole_sum(choice.group(1)), whole_sum(choice.group(3))
        if not left or not right:
            return ""
        return whole_sum(choice.group(4 if _COMPARED[choice.group(2)](int(left), int(right)) else 5))
    plain = re.sub(r"\b0+(?=[0-9])", "", " ".join(text.split()))
    if len(text) > _LONGEST_SUM or re.search(r"[^-+*/%() 0-9]|[0-9]{16}|\*\*|//", plain):
        return ""
    try:
        return str(_summed(ast.parse(plain, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return ""


_MOST_VALUE: Final = 10**18


def _summed(node: ast.AST) -> int:
    """The value of a sum; a ValueError where it is none of whole numbers below reason."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp):
        value = _summed(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.BinOp):
        raise ValueError
    left, right = _summed(node.left), _summed(node.right)
    if isinstance(node.op, ast.Add | ast.Sub):
        return left + right if isinstance(node.op, ast.Add) else left - right
    if abs(left) > _MOST_VALUE:
        raise ValueError
    if isinstance(node.op, ast.Mult):
        return left * right
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # as in bash, towards zero
    return quotient if isinstance(node.op, ast.Div) else left - quotient * right


def _changed(value: str, how: str) -> str | None:
    """A value with a part cut off or replaced; None if that is not known here."""
    if len(value) > _LONGEST_CUT or len(how) > _LONGEST_CUT:
        return None
    part = re.fullmatch(r":\s*([0-9]{1,6})(?::([0-9]{1,6}))?", how)
    if part is not None:
        start = int(part.group(1))
        return value[start : start + int(part.group(2))] if part.group(2) else value[start:]
    if how in ("^^", ",,"):
        return value.upper() if how == "^^" else value.lower()
    if how.startswith(("##", "#", "%%", "%")):
        return _cut(value, how)
    if how.startswith("/") and not re.search(r"[*?\[]", how):
        old, _, new = how.lstrip("/").partition("/")
        return value.replace(old, new, -1 if how.startswith("//") else 1) if old else value
    return None


def _cut(value: str, how: str) -> str:
    longest, front = how[:2] in ("##", "%%"), how[0] == "#"
    pattern = how[2:] if longest else how[1:]
    ends = range(len(value) + 1) if front != longest else range(len(value), -1, -1)
    for at in ends:
        piece = value[:at] if front else value[at:]
        if fnmatch.fnmatchcase(piece, pattern):
            return value[at:] if front else value[:at]
    return value
