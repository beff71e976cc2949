"""Every small change that could be made to a file: Python's by its syntax tree, C's by its text.

A mutation replaces a few characters, so that its line and its diff can be shown. What cannot change
what a program does is left out: docstrings, annotations, ``TYPE_CHECKING``, comments; assertions
that become weaker, which of two equal numbers is taken, arrays in C that become longer.

Knows nothing of tests.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import NamedTuple


class Mutation(NamedTuple):
    """``new`` in place of ``text[start:end]`` of a file."""

    file: str
    start: int
    end: int
    new: str
    what: str  # kind of change
    inside: str  # the function or class that it is in; "" outside

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def line(self, text: str) -> int:
        return text.count("\n", 0, self.start) + 1

    def lines(self, text: str) -> tuple[str, str]:
        """The first line that it changes, before and after, without the spaces around it."""
        old, new = text.splitlines(), self.apply(text).splitlines()
        at = next(i for i in range(len(old)) if i >= len(new) or old[i] != new[i])
        return old[at].strip(), new[at].strip() if at < len(new) else ""


# ---- Python ------------------------------------------------------------------------------------

COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
DEFAULT = "default"  # the kind of whatever changes what an argument is that was left out
NOBODY_COMES_THERE = ("NotImplementedError", "AssertionError")
# Calls that give the same whichever of their arguments comes first.
ANY_ORDER = {
    *("suppress", "max", "min", "gcd", "lcm", "hypot", "maximum", "minimum", "fmax", "fmin"),
    *("array_equal", "logical_and", "logical_or", "samefile", "broadcast_shapes", "result_type"),
    *("eq", "ne", "isclose", "allclose", "add", "mul", "multiply", "equal", "not_equal"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "logical_xor"),
}


class Python(ast.NodeVisitor):
    """Collects the mutations of one Python file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self.found: list[Mutation] = []
        self._inside: list[str] = []
        self._is_default = False
        self._lines = [0]
        for line in text.encode().splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._bytes = text.encode()
        self.visit(ast.parse(text))

    def _at(self, line: int, column: int) -> int:
        return len(self._bytes[: self._lines[line - 1] + column].decode())

    def _add(self, node: ast.AST, new: str | ast.AST, what: str) -> None:
        start = self._at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        end = self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        words = new if isinstance(new, str) else ast.unparse(new)
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Constant, ast.Call)):
            words = f"({words})"
        if words.strip("()") != self.text[start:end].strip("()"):
            inside = self._inside[-1] if self._inside else ""
            kind = DEFAULT if self._is_default else what
            self.found.append(Mutation(self.file, start, end, words, kind, inside))

    # -- what is left out --

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages; their parts' positions are not reliable, either."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        was, self._is_default = self._is_default, True
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)
        self._is_default = was

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name.rpartition(".")[2] in ("cast", "TypeVar", "ParamSpec", "NewType"):
            return
        plain = [one for one in node.args if not isinstance(one, ast.Starred)]
        is_ordered = re.findall(r"\w+", name)[-1:] not in [[one] for one in ANY_ORDER]
        if is_ordered and len(plain) >= 2 and len(plain) == len(node.args):
            other = copy.copy(node)
            other.args = [node.args[1], node.args[0], *node.args[2:]]
            self._add(node, other, "arguments swapped")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: an assertion, which no correct program fails
            self.generic_visit(node)

    # -- definitions --

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._inside.append(node.name)
        body = node.body[ast.get_docstring(node, clean=False) is not None :]
        if body and not isinstance(body[0], (ast.Pass, ast.Return, ast.Raise)):
            is_empty = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
            if not is_empty and not isinstance(body[0], (ast.FunctionDef, ast.Global)):
                first = self.text[: self._at(body[0].lineno, body[0].col_offset)]
                if first.rpartition("\n")[2].strip() == "":
                    start = len(first)
                    indent = "\n" + first.rpartition("\n")[2]
                    self.found.append(
                        Mutation(self.file, start, start, "return None" + indent, "early return",
                                 node.name)
                    )  # fmt: skip
        for one in (*node.decorator_list, node.args, *body):
            self.visit(one)
        self._inside.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside.append(node.name)
        for one in node.body[ast.get_docstring(node, clean=False) is not None :]:
            self.visit(one)
        self._inside.pop()

    # -- conditions --

    def _negate(self, test: ast.expr) -> None:
        self._add(test, f"not ({ast.unparse(test)})", "condition negated")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    # -- operators and constants --

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            for kind in COMPARED[type(operator)]:
                other = copy.copy(node)
                other.ops = [*node.ops[:index], kind(), *node.ops[index + 1 :]]
                self._add(node, other, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = copy.copy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, other, "and/or")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.USub)):
            self._add(node, node.operand, "sign or not left out")
        is_none = isinstance(node.operand, ast.Constant) and node.operand.value == 1
        if not (isinstance(node.op, ast.USub) and is_none):  # for "none of them" -2 is as good
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(
            isinstance(one, ast.JoinedStr)
            or (isinstance(one, ast.Constant) and isinstance(one.value, (str, type(None))))
            for one in (node.left, node.right)
        )
        kind = COMPUTED.get(type(node.op))
        if kind is not None and not is_text:
            other = copy.copy(node)
            other.op = kind()
            self._add(node, other, "arithmetic")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value), "constant")
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1), "constant")
        elif isinstance(node.value, float):
            self._add(node, repr(node.value * 2 + 1), "constant")

    # -- statements --

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, (ast.Call, ast.Await)):
            self._add(node, "pass", "statement left out")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [one.id for one in node.targets if isinstance(one, ast.Name)]
        if any(isinstance(one, ast.Attribute) and one.attr == "__doc__" for one in node.targets):
            return  # words
        if any(isinstance(one, (ast.Attribute, ast.Subscript)) for one in node.targets):
            self._add(node, "pass", "statement left out")
        if names not in (["__all__"], ["__slots__"], ["__doc__"]):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass", "statement left out")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is None or ast.unparse(node.exc) not in NOBODY_COMES_THERE:
            self._add(node, "pass", "statement left out")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Of one thing of several: where all of them hold, any does. Nobody reads its message."""
        is_all = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        for one in node.test.values if is_all else [node.test]:  # type: ignore[attr-defined]
            self.visit(one)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                self._add(node, "return None", "nothing returned")  # as good as False is
            self.generic_visit(node)


# ---- what nobody can measure ---------------------------------------------------------------------

WAIT = re.compile(  # the name of a time, or several, or what is one
    r"_*[A-Z][A-Z_]*_(S|MS|US|NS)\b(: \w+)? = |_*[A-Z][A-Z_]* = timedelta\("
    r"|enum \{ (?:[A-Z][A-Z_]*_(?:S|MS|US|NS) = \d+,? )+\};(?: /\*.*)?$"
)
BOUND = re.compile(
    r"(?:_*(?:MAX|MOST|KEPT)_\w+(?:: \w+)? = |@(?:functools\.)?lru_cache\(maxsize=)"
    r"(\d[\d_]*)(?: << (\d+))?(?:,|\)|, typed=True\))?(?: +[#/].*)?$"
)
ROUND = 16  # smaller bounds are counted out by tests
HASH = "0x9E3779B97F4A7C15"  # what keys of tables are multiplied by, and nothing else
FAULT = re.compile(r"(?:if \([^{};]*\) )?SHMI_FAULT(?:_ROLE)?\([^;]*\);$")


def why_nobody_measures(what: str, old: str, new: str) -> str:
    """Why a line is as good as it becomes by a change of that kind; "" if it is not."""
    if HASH in old:
        return "Another place in a table: what lies there is compared with what is looked for."
    if FAULT.match(old):
        return "Where tests have a fault strike: in what is shipped nothing stands there."
    if what != "constant":
        return ""
    if WAIT.match(old):
        return "A time that is a bit longer, which no test may measure."
    before, after = (
        int(found[1]) << int(found[2] or 0) if (found := BOUND.match(line)) else 0
        for line in (old, new)
    )
    if ROUND <= before < after <= 2 * before:
        return "The bound is round: whether a few more are kept is nobody's matter."
    return ""


# ---- C -----------------------------------------------------------------------------------------

C_SWAPS = [
    (r"==", "!="), (r"!=", "=="), (r"<=", "<"), (r">=", ">"), (r"&&", "||"), (r"\|\|", "&&"),
    (r"(?<= )<(?= )", "<="), (r"(?<= )>(?= )", ">="), (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"), (r"\+\+", "--"), (r"\+=", "-="), (r"-=", "+="),
    (r"(?<= )&(?= )", "|"), (r"(?<= )\|(?= )", "&"), (r"<<", ">>"), (r">>", "<<"),
]  # fmt: skip
# Of two whole numbers, where it is one when they are equal whichever way that is decided:
# "a > b ? a - b : 0", "a < b ? a : b", "if (a < b) a = b;".
C_TERM = r"((?:\(\w+\))?\*?[\w.>-]+)"
# What binds less than a comparison does, so that the term begins there, and where a choice ends.
C_BEGIN = r"(?:(?<=[(?:])|(?<=[^=!<>]= )|(?<=return )|(?<=[,?:] )|(?<=\|\| )|(?<=&& ))"
C_END = r"(?=[;,)\]])"
C_SAME_WHEN_EQUAL = [
    re.compile(rf"{C_BEGIN}{C_TERM} (>) {C_TERM} \? \1 - \3 : 0{C_END}"),
    re.compile(rf"{C_BEGIN}{C_TERM} ([<>]=?) {C_TERM} \? (?:\1 : \3|\3 : \1){C_END}"),
    re.compile(rf"\bif \({C_TERM} ([<>]=?) {C_TERM}\) \1 = \3;(?!\s*else\b)"),
]
C_IN_STRUCT = re.compile(r"\b(?:struct|union)\b[\w ]*\{[^}]*$")
C_FLOATING = re.compile(r"\b(?:float|double)\b")  # 0.0 and -0.0 are equal, and not the same
C_NUMBER = re.compile(r"(?<![\w.\"])(\d+)(?![\w.\"])")
C_STATEMENT = re.compile(r"(?m)^( +)((?:[a-z_][\w.>\[\]-]*(?:\(|\s*[-+|&]?=(?!=)|\+\+|--)).*;) *$")
C_FUNCTION = re.compile(r"(?m)^[a-z_][\w *]*?\b(\w+)\([^;]*$")
C_CONDITION = re.compile(r"\b(?:if|while) \(")


def masked(text: str) -> str:
    """Comments, strings, preprocessor lines and static assertions as blanks, of the same length."""
    pattern = re.compile(
        r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
        r"|^[ \t]*#(?:\\\n|[^\n])*|_Static_assert[^;]*;",
        re.DOTALL | re.MULTILINE,
    )
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def lengths_that_nobody_asks_for(code: str) -> Iterator[int]:
    """Places of lengths of a function's own arrays: one that is longer holds as much, and more."""
    for line in re.finditer(r"(?m)^ +(?:static )?(?:int|char|uint\w+|size_t) [^=;(){}]*;", code):
        before = re.findall(r"(?m)^\w.*", code[: line.start()])
        inner = code[code.rfind(before[-1], 0, line.start()) : line.start()] if before else ""
        if "(" not in inner.partition("\n")[0] or C_IN_STRUCT.search(inner):
            continue  # in a struct, whose size may be one that others know
        for found in re.finditer(r"\b(\w+)\[(\d+)\](?!\[)", line[0]):
            if not re.search(rf"\bsizeof\b[ (*]*{found[1]}\b|\b[A-Z_]+\({found[1]}\b", code):
                yield line.start() + found.start(2)


def of_c(file: str, text: str) -> Iterator[Mutation]:
    code = masked(text)
    functions = [(found.start(), found[1]) for found in C_FUNCTION.finditer(code)]

    def made(start: int, end: int, new: str, what: str) -> Mutation:
        inside = next((name for at, name in reversed(functions) if at <= start), "")
        return Mutation(file, start, end, new, what, inside)

    same = set()  # places of comparisons of which it is no matter whether they hold for equals
    if not C_FLOATING.search(code):
        for one in C_SAME_WHEN_EQUAL:
            same.update(found.start(2) for found in one.finditer(code))
    for pattern, new in C_SWAPS:
        for found in re.finditer(pattern, code):
            if found.start() in same and new in ("<", "<=", ">", ">="):
                continue
            yield made(found.start(), found.end(), new, "operator")
    longer = set(lengths_that_nobody_asks_for(code))
    for found in C_NUMBER.finditer(code):
        # 1 is mostly a truth, and so becomes none: 2 would be as good.
        other = "0" if found[1] == "1" else str(int(found[1]) + 1)
        if found.start() in longer and other != "0":
            continue
        yield made(found.start(), found.end(), other, "constant")
    for found in C_STATEMENT.finditer(code):
        if not re.match(r"(return|goto|struct|const|int|uint\w+|size_t|static)\b", found[2]):
            yield made(found.start(2), found.end(2), ";", "statement left out")
    for found in C_CONDITION.finditer(code):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        inner = text[found.end() : end - 1]
        yield made(found.end(), end - 1, f"!({inner})", "condition negated")


def of(file: str, text: str) -> list[Mutation]:
    """All of a file, in order of their place."""
    found = Python(file, text).found if file.endswith(".py") else list(of_c(file, text))
    return sorted(found)
