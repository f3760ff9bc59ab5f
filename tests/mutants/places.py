"""Where a mutant can stand, and what it changes: found in the syntax tree by rule, so that new code is covered on its first day.

A mutant is named by its file, its function and the two texts before and after, so that a name holds when lines move.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

__all__ = ["SCOPE", "Mutant", "functions_of", "in_scope", "mutants_of", "mutated", "statements_of"]

#: What functions that pay for privacy are called, in parts of their names.
_PAYS = (
    "sensitivity|event|nois|calibrat|residual|tolerance|factors|bound|draw|indices|rate|leaves|parts|pay|threshold|above|test|cut|cost"
    "|budget|charge|clip|share|spent|slots|lipschitz|smoothness|row_norm|move|capacity|log_ratio|multipliers|levels|contraction|mu|limit"
    "|astray|overflow|release|excess|statistics|query|empty|read|noisy|answer|claims|level|on_grid|_settle|_admit|thin|reserve"
    "|filtered|regularised|gaussian|laplace"
)

#: What functions that say how far a record moves an objective are called.
_FACTS = "lipschitz|smoothness|bend|row_norm|sensitivity|facts"

#: What functions that say how large noise is, or how far a step goes, are called in mechanisms.
_SCALES = "_std|_scales|_scores|rates"

#: Files under src/dperm, and which of their functions charge, calibrate, bound, clip or draw: by the first pattern that fits.
SCOPE = (
    ("data/schema_search/private_search.py", "of|event|_kinds|_ends|_common|_planned"),
    ("gradient/bounding.py", ""),
    ("privacy/events/*.py", ""),
    ("privacy/accountants/dominating_pairs.py", ""),
    ("privacy/accountants/budget_costs.py", ""),
    ("privacy/accountants/calibration.py", "calibrate|_certify|_within"),
    ("privacy/certificates/certificate.py", _PAYS),
    ("privacy/*.py", f"{_PAYS}|epsilon|delta"),
    ("mechanisms/tuning.py", "strong_convexity"),
    ("mechanisms/entrywise.py", _PAYS),
    # The steps of these are hidden, and what leaves at their end is charged for all of them. Where each step is released, the
    # rest is post-processing, and what a release is handed is noted in every function.
    ("mechanisms/[bl]*_*.py", f"{_PAYS}|{_SCALES}|^train$|^split$"),
    ("mechanisms/o[bu]*.py", f"{_PAYS}|{_SCALES}|^train$"),
    ("mechanisms/noisy_size.py", f"{_PAYS}|{_SCALES}|^train$"),
    ("mechanisms/[!e]*.py", f"{_PAYS}|{_SCALES}"),  # but extremes.py: records for audits alone
    ("gradient/recipes/*.py", _PAYS),
    ("gradient/*.py", f"{_PAYS}|__call__|epsilon|check"),
    ("objectives/facts.py", ""),
    ("objectives/constraints.py", ""),
    ("objectives/records.py", "^(?!nbytes|of$|_at_once|_is_mapped|forget_table)"),  # all but what says how much memory is used
    ("objectives/sums.py", ""),
    ("objectives/linear.py", f"{_FACTS}|weighted_sum|clip|factors|limit|_held|_truncated"),
    ("objectives/[!c]*.py", f"{_FACTS}|weighted_sum|clip|factors|limit"),
    ("release/ledger/rules/*.py", ""),
    ("release/ledger/[bl]*.py", "charged|left|cost|epsilon|delta|total|_counted"),
    ("release/ledger/*.py", "^$"),
    ("release/allowance.py", ""),
    ("release/draws.py", "coins_of|tossed|draw|indices|rate"),
    ("release/threshold.py", ""),
    ("release/*.py", f"{_PAYS}|^split$|hidden|_check_process"),
    ("estimators/search.py", "_planned|_score|_certificate"),
    ("report/released.py", "release|_numbers|_counted"),
    ("report/card.py", "_charged|_not_added_up|_up$"),
    ("torch/features/channel_normalisation.py", f"{_PAYS}|normalise"),
    ("torch/engine/gradient_pass.py", "weighted_sum|norms|_picked"),
    ("torch/engine/layer_taps.py", "collected"),
    ("torch/engine/clipped_sums.py", "_add|measured|usual"),
    ("torch/training/planner.py", _PAYS),
    ("torch/data/units.py", "_weighed"),
    ("torch/ranks/*_noise.py", _PAYS),
    ("torch/ranks/rank_channel.py", _PAYS),
    ("torch/engine/rules/patches.py", "^$"),
)

#: Constants by these names divide work into pieces, bound its memory and its time, or say how fine a grid is on which bounds are
#: rounded up: none pays for anything.
_PIECES = re.compile(
    "AT_ONCE|CHUNK|BYTES|REMEMBERED|ROUNDS|FORMAT|MARK|BLOCK|DRAWS|POINTS|NODES|LINES|CELLS|GRID|ANCHORS|LEVELS|BINS"
)

#: Set in whatever function, these pay.
_SETS = re.compile(r"sensitivity|\bmoves?\b|moved|noise|\bstd\b|tolerance|residual|clips?\b|multiplier")

#: Noted in every function of these files, whatever it is called.
_EVERYWHERE = ("handed", "part", "count", "clip", "end", "unnoised", "tolerance")

#: Functions that only describe: their results are texts or pages, or say how long an accountant takes, and pay for nothing.
_DESCRIBES = re.compile(
    r"accounting_cost|__str__|__repr__|name|title|paper|kind|words|settings|describe|description|summary|assumptions|strangers|trace|public_facts"
)
_TEXTS = re.compile(r"(str|list\[str\]|tuple\[str, \.\.\.\]|Mapping\[str, Any\]|dict\[str, Any\]|(Sequence|list)\[Assumption\])$")

#: Return annotations of numbers: a mutant returns less.
_NUMBERS = re.compile(r"(float|Array|Numbers|NDArray\[.*\]|Any|torch\.Tensor|Tensor)( \| None)?")

#: Calls of one part after another: a mutant leaves one out.
_MOVES = re.compile(r"sensitivity|bound|residual|noise")

#: Arguments by these names are counts or places of an axis, or steer no number that pays.
_NO_NUMBERS = ("axis", "dim", "dtype", "minimum", "indent", "ndmin", "stacklevel")

#: Calls whose result is their first argument made no longer: a mutant leaves it as it is.
_CLIPS = re.compile("project|clip$|_at_least|truncated|_shortened")

#: Calls that release: a mutant hands them less noise, or a smaller sensitivity.
_RELEASES = re.compile(r"release|summed|(Noise|Choice)$")
#: Those of them that answer with their first argument and noise: a mutant leaves the noise out.
_ANSWERS = re.compile(r"release|noisy")

_PAYING = re.compile(r"sensitivity|noise|move|multiplier|scale|rate|bound|signal|spread|std|epsilon|most|clip")

_BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_WHOLE = re.compile(
    r"^(steps?|number|count|records|rows|start|stop|first|last|place|index|capacity|largest|size|epoch|period|most|models|outputs|copies|order)$"
)
_OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change: `before`, in the function `function` of `file`, reads `after`.

    `line` is where it stands, `text` that line, `statement` the first line of the statement; 0 for a constant of the module,
    which then is `function`.
    """

    file: str
    function: str
    operator: str
    before: str
    after: str
    line: int
    statement: int
    text: str
    nth: int = 1
    apply: Callable[[], None] = field(repr=False, compare=False, default=lambda: None)

    @property
    def key(self) -> str:
        """Its name, which does not change when lines move."""
        again = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.file}::{self.function}::{self.operator}::{self.before} → {self.after}{again}"


def in_scope(file: str) -> bool:
    """Whether a file, relative to the package, is mutated."""
    return any(fnmatch(file, pattern) for pattern, _ in SCOPE)


def _pays(file: str, function: str) -> bool:
    names = next((names for pattern, names in SCOPE if fnmatch(file, pattern)), "^$")
    return re.search(names, function.rpartition(".")[2]) is not None


def mutants_of(source: str, file: str) -> list[Mutant]:
    """All mutants of a module's text, in the order in which they stand; `apply` changes the tree that they share."""
    return _found(ast.parse(source), source, file)


def mutated(source: str, file: str, key: str) -> ast.Module:
    """The module's tree with one mutant in it. KeyError where there is none of that name."""
    tree = ast.parse(source)
    chosen = [mutant for mutant in _found(tree, source, file) if mutant.key == key]
    if not chosen:
        raise KeyError(f"{file} has no mutant {key!r}.")
    chosen[0].apply()
    return ast.fix_missing_locations(tree)


def statements_of(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Each function's qualified name with each of its lists of statements, those inside others too."""
    for name, function in functions_of(tree):
        for node in ast.walk(function):
            for attribute in ("body", "orelse", "finalbody"):
                block = getattr(node, attribute, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield name, block


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and of its classes, by qualified name; those within functions are part of them."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from inside(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                of = node.args.args[0].annotation if node.name == "_" and node.args.args else None  # registered for a type
                yield f"{prefix}{node.name}" + (f"({ast.unparse(of)})" if of else ""), node

    yield from inside(tree.body, "")


def _describes(function: ast.FunctionDef) -> bool:
    returned = ast.unparse(function.returns) if function.returns else ""
    texts = _TEXTS.match(returned)
    return bool(_DESCRIBES.fullmatch(function.name) or texts)


def _found(tree: ast.Module, source: str, file: str) -> list[Mutant]:
    finder = _Finder(file, source.splitlines())
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if (
            isinstance(target, ast.Name)
            and target.id.isupper()
            and not _PIECES.search(target.id)
            and getattr(node, "value", None) is not None
        ):
            finder.function = target.id
            finder.visit(node, "value")
    for name, function in functions_of(tree):
        if not _describes(function):
            finder.enter(name, function, _pays(file, name))
    return finder.mutants


class _Finder:
    """Goes through a function, and notes what can be changed."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file, self.lines, self.function = file, lines, ""
        self.mutants: list[Mutant] = []
        self._seen: Counter[str] = Counter()
        self._numbers, self._pays, self._at = False, True, 0

    def enter(self, name: str, function: ast.FunctionDef, pays: bool) -> None:
        self.function, self._pays = name, pays
        self._numbers = bool(function.returns) and bool(_NUMBERS.fullmatch(ast.unparse(function.returns)))  # pyright: ignore[reportArgumentType]
        self._block(function, "body")

    def note(self, operator: str, parent: ast.AST, attribute: str, place: int | None, new: ast.expr | ast.Pass | None) -> None:
        """`new` stands where the child was; None: the child is left out of its list."""
        children = getattr(parent, attribute)
        old = children if place is None else children[place]
        shown = ast.unparse(old)
        after = "" if new is None else ast.unparse(new)
        if shown == after or (operator == "scale" and (shown.endswith("* 0.0") or shown == "math.inf")):
            return  # what changes nothing: less than nothing, or than the infinite, is the same
        if not self._pays and operator not in _EVERYWHERE and not (operator == "branch" and "relation" in shown):
            return

        def apply() -> None:
            if new is not None:
                ast.copy_location(new, old)
            if place is None:
                setattr(parent, attribute, new)
            elif new is None:
                del getattr(parent, attribute)[place]
            else:
                getattr(parent, attribute)[place] = new

        text = self.lines[old.lineno - 1].strip()
        first = Mutant(self.file, self.function, operator, shown, after, old.lineno, self._at, text)
        self._seen[first.key] += 1
        self.mutants.append(replace(first, nth=self._seen[first.key], apply=apply))

    # Going through

    def _block(self, parent: ast.AST, attribute: str) -> None:
        for place, statement in enumerate(getattr(parent, attribute)):
            self._statement(parent, attribute, place, statement)

    def _statement(self, parent: ast.AST, attribute: str, place: int, statement: ast.stmt) -> None:
        """Note what can be changed in a statement; all of it where it sets a number that pays, in whatever function."""
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        outer = self._pays
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._pays = outer or any(target is not None and _SETS.search(ast.unparse(target)) for target in targets)
        self._noted(parent, attribute, place, statement)
        self._pays = outer

    def _noted(self, parent: ast.AST, attribute: str, place: int, statement: ast.stmt) -> None:
        self._at = statement.lineno
        match statement:
            case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.ClassDef():
                return
            case ast.Expr(value=ast.Constant()):  # a docstring
                return
            case ast.FunctionDef():
                outer, self._numbers = self._numbers, False
                self._block(statement, "body")
                self._numbers = outer
                return
            case ast.Return(value=value) if value is not None:
                if self._numbers and not isinstance(value, (ast.Constant, ast.Tuple, ast.Lambda, ast.Dict)):
                    for factor in (0.5, 0.9) if _MOVES.search(self.function) else (0.9,):
                        self.note("scale", statement, "value", None, _times(value, factor))
            case ast.AnnAssign():
                if statement.value is not None:
                    self.visit(statement, "value")
                return
            case ast.AugAssign(op=ast.Add() | ast.Sub()):
                self.note("statement", parent, attribute, place, ast.Pass())
            case _:
                pass
        for name, child in ast.iter_fields(statement):
            if name in ("targets", "target", "type_comment", "annotation"):
                continue
            if isinstance(child, ast.expr):
                self._at = statement.lineno
                self.visit(statement, name)
            elif isinstance(child, list):
                for number, each in enumerate(child):
                    if isinstance(each, ast.stmt):
                        self._statement(statement, name, number, each)
                    elif isinstance(each, ast.ExceptHandler):
                        self._block(each, "body")
                    elif isinstance(each, ast.withitem):
                        self.visit(each, "context_expr")
                    elif isinstance(each, ast.match_case):
                        self._block(each, "body")
                    elif isinstance(each, ast.expr):
                        self.visit(statement, name, number)

    def visit(self, parent: ast.AST, attribute: str, place: int | None = None) -> None:
        """Note what can be changed in an expression, and in the expressions within it."""
        children = getattr(parent, attribute)
        node = children if place is None else children[place]

        def put(operator: str, new: ast.expr | None) -> None:
            self.note(operator, parent, attribute, place, new)

        match node:
            case ast.JoinedStr():
                return
            case ast.Constant(value=value):
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    for other in _others(value):
                        put("constant", ast.Constant(other))
                return
            case ast.Subscript():
                self.visit(node, "value")
                return
            case ast.BinOp(left=left, op=op, right=right):
                self._operation(put, left, op, right)
            case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
                put("sign", operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                put("not", operand)
            case ast.Compare(ops=[op]):
                self._comparison(put, parent, attribute, node, op)
            case ast.BoolOp(values=values):
                if not _refuses(parent, attribute):
                    for number in range(len(values)):
                        left = values[:number] + values[number + 1 :]
                        put("condition", left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
            case ast.IfExp(body=body, orelse=orelse):
                put("branch", body)
                put("branch", orelse)
            case ast.Call():
                self._call(put, node)
            case _:
                pass
        if isinstance(parent, ast.If) and attribute == "test":
            put("guard", ast.Constant(False))
            if not _refuses(parent, attribute):
                put("guard", ast.Constant(True))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            self.visit(node, "func")
            return
        for name, child in ast.iter_fields(node):
            if isinstance(child, ast.expr) and name != "slice":
                self.visit(node, name)
            elif isinstance(child, list):
                for number, each in enumerate(child):
                    if isinstance(each, ast.expr):
                        self.visit(node, name, number)
                    elif isinstance(each, ast.keyword) and each.arg not in _NO_NUMBERS:
                        self.visit(each, "value")
                    elif isinstance(each, ast.comprehension):
                        self.visit(each, "iter")
                        for condition in range(len(each.ifs)):
                            self.visit(each, "ifs", condition)

    @staticmethod
    def _operation(put: Callable[[str, ast.expr | None], None], left: ast.expr, op: ast.operator, right: ast.expr) -> None:
        texts = any(isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) for side in (left, right))
        if texts or any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right)):
            return
        match op:
            case ast.Mult() | ast.MatMult():
                if not isinstance(left, ast.Constant):
                    put("factor", left)
                if not isinstance(right, ast.Constant):
                    put("factor", right)
            case ast.Div() | ast.FloorDiv() | ast.Sub():
                if not isinstance(left, ast.Constant) and not isinstance(right, ast.Constant):
                    put("factor" if not isinstance(op, ast.Sub) else "term", left)
            case ast.Add():
                if not isinstance(right, ast.Constant):
                    put("term", right)
                if not isinstance(left, ast.Constant):
                    put("term", left)
            case ast.Pow():
                put("power", left)
            case _:
                pass

    @staticmethod
    def _comparison(
        put: Callable[[str, ast.expr | None], None], parent: ast.AST, attribute: str, node: ast.Compare, op: ast.cmpop
    ) -> None:
        if type(op) in _BOUNDARY and (_whole(node.left) or _whole(node.comparators[0])):
            put("boundary", ast.Compare(node.left, [_BOUNDARY[type(op)]()], node.comparators))
        if attribute != "test" or not isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            put("comparison", ast.Compare(node.left, [_OPPOSITE[type(op)]()], node.comparators))

    def _call(self, put: Callable[[str, ast.expr | None], None], node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "sqrt" and len(node.args) == 1:
            put("root", node.args[0])
        if name in ("max", "min", "maximum", "minimum", "fmax", "fmin", "hypot") and len(node.args) == 2:
            put("extreme", node.args[0])
            put("extreme", node.args[1])
        if name in ("ceil", "floor") and len(node.args) == 1:
            put("rounding", _with(node, func=_renamed(node.func, "floor" if name == "ceil" else "ceil")))
        if _CLIPS.search(name) and node.args:
            put("clip", node.args[0])
        if name == "clip" and len(node.args) == 3:
            value, low, high = node.args
            if not any(isinstance(end, ast.Constant) and end.value is None for end in (low, high)):
                put("end", _with(node, func=_renamed(node.func, "minimum"), args=[value, high]))
                put("end", _with(node, func=_renamed(node.func, "maximum"), args=[value, low]))
        if name == "SelfComposed" and len(node.args) == 2:
            put("count", node.args[0])
            put("count", _with(node, args=[node.args[0], ast.BinOp(node.args[1], ast.Sub(), ast.Constant(1))]))
        if name == "Composed":
            for argument in node.args:
                if isinstance(argument, (ast.Tuple, ast.List)):
                    for place, part in enumerate(argument.elts):
                        if not isinstance(part, ast.Starred):
                            self.note("part", argument, "elts", place, None)
        if name == "solve" and len(node.args) > 3:
            for factor in (0.5, 2.0):
                self.note("tolerance", node, "args", 3, _times(node.args[3], factor))
        if _ANSWERS.fullmatch(name) and any(_PAYING.search(ast.unparse(argument)) for argument in node.args[1:]):
            asked = node.args[1] if ast.unparse(node.args[0]) == "self" else node.args[0]
            put("unnoised", asked)
        if _RELEASES.search(name):
            for place, argument in enumerate(node.args):
                plain = isinstance(argument, (ast.Name, ast.Attribute, ast.Call, ast.BinOp))
                if (place or name[0].isupper()) and plain and _PAYING.search(ast.unparse(argument)):
                    self.note("handed", node, "args", place, _times(argument, 0.9))


def _refuses(parent: ast.AST, attribute: str) -> bool:
    """Whether it is the condition of a refusal: whatever else it lets through, removing it as a whole is the fault to notice."""
    return isinstance(parent, ast.If) and attribute == "test" and isinstance(parent.body[0], ast.Raise)


def _whole(node: ast.expr) -> bool:
    """Whether it looks like a whole number. Of others, which noise and rounding make, two are hardly ever equal."""
    match node:
        case ast.Constant(value=int()):
            return True
        case ast.Call(func=ast.Name(id="len" | "int")):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return bool(_WHOLE.search(name))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right=right):
            return _whole(left) and _whole(right)
        case _:
            return False


def _others(value: float) -> list[float]:
    if isinstance(value, int):
        return [1] if value == 0 else [2] if value == 1 else [value - 1]
    return [1.0] if value == 0 else [value / 2, value * 2]


def _times(value: ast.expr, factor: float) -> ast.expr:
    return ast.BinOp(ast.Constant(factor), ast.Mult(), value)


def _with(node: ast.Call, **changes: object) -> ast.Call:
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def _renamed(function: ast.expr, name: str) -> ast.expr:
    return ast.Attribute(function.value, name, ast.Load()) if isinstance(function, ast.Attribute) else ast.Name(name, ast.Load())
