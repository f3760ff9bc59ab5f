"""Write docs/api.pyi: the whole public API as one stub listing, from the package itself.

python docs/build_api.py [--check]
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import dperm
from dperm._extras import LIBRARIES

TARGET = Path(__file__).parent / "api.pyi"
PRIVATE = {"cli"}
PACKAGES = [package.name for package in pkgutil.iter_modules(dperm.__path__) if package.ispkg and package.name not in PRIVATE]
MODULES = [*(f"dperm.{name}" for name in sorted(PACKAGES)), "dperm.gradient.recipes", "dperm.torch.language"]

#: Extras whose libraries need not be installed where the listing is made: modules that need one are read, and not imported.
READ_EXTRAS = ("flower", "zoo")
SOURCES = Path(dperm.__file__).parent


def signature(thing: object, method: bool = False) -> str:
    """The signature as valid Python: annotations unquoted, defaults that have no literal as `...`."""
    try:
        text = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(self, *args, **kwargs)" if method else "(*args, **kwargs)"
    text = re.sub(r"""(: |-> )"([^"]+)\"""", r"\1\2", text)
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", text)
    text = re.sub(r"<(Relation\.\w+)[^>]*>", r"\1", text)
    text = re.sub(r"<function (\w+) at [^>]*>", r"\1", text)
    text = re.sub(r"= (<[^>]*>|array\(.*?\]\))", "= ...", text, flags=re.DOTALL)
    return re.sub(r"\b(np|pd|sp)\.", r"\1.", text)


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


def members(cls: type) -> list[str]:
    """Public methods and properties that the class itself defines."""
    lines: list[str] = []
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"    @property\n    def {name}(self): ...")
        elif isinstance(member, classmethod):
            lines.append(f"    @classmethod\n    def {name}{signature(member.__func__, True)}: ...")
        elif inspect.isfunction(member):
            lines.append(f"    def {name}{signature(member, True)}: ...")
    return lines


def listing() -> str:
    parts = ["# The public API of dperm, one line of documentation each. Made by docs/build_api.py; checked by the tests."]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        parts.append(f"\n\n# --- {module_name}: {first_line(module)}")
        for name in module.__all__:
            thing = getattr(module, name)
            comment = f"  # {first_line(thing)}" if first_line(thing) else ""
            if inspect.isclass(thing):
                head = f"\nclass {name}:{comment}"
                arguments = signature(thing).removesuffix(" -> None")
                start = "(self" + (", " if arguments != "()" else "") + arguments[1:]
                body = [f"    def __init__{start}: ...", *members(thing)]
                parts.append("\n".join([head, *body]))
            elif callable(thing):
                parts.append(f"\ndef {name}{signature(thing)}: ...{comment}")
            else:
                parts.append(f"\n{name}: {type(thing).__name__}")
    for module_name, extra, tree in read_modules():
        parts.append(f"\n\n# --- {module_name} (dperm[{extra}]): {first_doc_line(tree)}")
        parts += read_listing(tree)
    return "\n".join(parts) + "\n"


def read_modules() -> list[tuple[str, str, ast.Module]]:
    """Name, extra and source of each module that begins by `with needed(...)` of a library in `READ_EXTRAS`."""
    found: list[tuple[str, str, ast.Module]] = []
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for block in tree.body:
            call = block.items[0].context_expr if isinstance(block, ast.With) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "needed":
                extra = LIBRARIES[ast.literal_eval(call.args[0])][1]
                if extra in READ_EXTRAS:
                    found.append((".".join(path.relative_to(SOURCES.parent).with_suffix("").parts), extra, tree))
    return found


def read_listing(tree: ast.Module) -> list[str]:
    """The public classes and functions of a module's source, as `listing` writes those of a module that is imported."""
    parts: list[str] = []
    for thing in tree.body:
        if not isinstance(thing, ast.ClassDef | ast.FunctionDef) or thing.name.startswith("_"):
            continue
        comment = f"  # {first_doc_line(thing)}" if first_doc_line(thing) else ""
        if isinstance(thing, ast.FunctionDef):
            parts.append(f"\ndef {thing.name}{read_signature(thing)}: ...{comment}")
            continue
        lines = [f"\nclass {thing.name}:{comment}"]
        for member in thing.body:
            if isinstance(member, ast.FunctionDef) and (member.name == "__init__" or not member.name.startswith("_")):
                lines += read_member(member)
        parts.append("\n".join(lines))
    return parts


def read_member(member: ast.FunctionDef) -> list[str]:
    marks = [mark.id for mark in member.decorator_list if isinstance(mark, ast.Name)]
    if "property" in marks:
        return ["    @property", f"    def {member.name}(self): ..."]
    text = read_signature(member)
    if member.name == "__init__":
        text = text.removesuffix(" -> None")
    return [*(f"    @{mark}" for mark in marks), f"    def {member.name}{text}: ..."]


def read_signature(function: ast.FunctionDef) -> str:
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    defaults = [*function.args.defaults, *(value for value in function.args.kw_defaults if value is not None)]
    spaced = ast.unparse(function.args)
    for value in defaults:  # `x: T=1` as the package's own style, `x: T = 1`
        spaced = re.sub(rf"(: [^=]*?)={re.escape(ast.unparse(value))}(?=, |$)", rf"\1 = {ast.unparse(value)}", spaced, count=1)
    return f"({spaced}){returns}"


def first_doc_line(thing: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(thing) or "").split("\n")[0]


def main() -> None:
    text = listing()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == text else "docs/api.pyi is out of date: run `make docs`")
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
