"""Write docs/api.pyi: the whole public API as one stub listing, from the package itself.

python docs/build_api.py [--check]
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import dperm

TARGET = Path(__file__).parent / "api.pyi"
PRIVATE = {"cli"}
PACKAGES = [package.name for package in pkgutil.iter_modules(dperm.__path__) if package.ispkg and package.name not in PRIVATE]
MODULES = [*(f"dperm.{name}" for name in sorted(PACKAGES)), "dperm.gradient.recipes", "dperm.torch.language"]


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
    return "\n".join(parts) + "\n"


def main() -> None:
    text = listing()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == text else "docs/api.pyi is out of date: run `make docs`")
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
