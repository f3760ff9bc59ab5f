"""Optional libraries: which extra installs each, and the one-line error where one is missing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from types import TracebackType

#: Optional libraries by the names that they are imported by: the name that they are known by, and the extra that brings them.
LIBRARIES = {
    "pandas": ("pandas", "tables"),
    "pyarrow": ("pyarrow", "tables"),
    "charset_normalizer": ("charset-normalizer", "tables"),
    "pooch": ("pooch", "tables"),
    "jinja2": ("Jinja", "pages"),
    "matplotlib": ("matplotlib", "pages"),
    "typer": ("Typer", "cli"),
    "rich": ("Rich", "cli"),
    "openpyxl": ("openpyxl", "excel"),
    "distributed": ("dask.distributed", "dask"),
    "psycopg": ("psycopg", "postgres"),
    "skl2onnx": ("skl2onnx", "onnx"),
    "torch": ("PyTorch", "torch"),
    "safetensors": ("safetensors", "torch"),
    "tensorboard": ("TensorBoard", "torch"),
    "flwr": ("Flower", "flower"),
    "transformers": ("Transformers", "zoo"),
    "lightning": ("Lightning", "zoo"),
}


class needed(AbstractContextManager[None]):
    """A block that imports the optional library of this name and does nothing else. ModuleNotFoundError where it is not
    installed, or does not load, with one line: `what` needs it, and how it is installed."""

    def __init__(self, library: str, what: str) -> None:
        self._library, self._what = library, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, ImportError):
            return
        name, extra = LIBRARIES[self._library]
        absent = isinstance(error, ModuleNotFoundError) and error.name == self._library
        why = "" if absent else f" ({error})"  # it is there, and wants something else
        raise ModuleNotFoundError(f"{self._what} needs {name}: pip install 'dperm[{extra}]'{why}.", name=self._library) from error


def require(library: str, what: str) -> None:
    """Refuse as `needed` does, without loading the library: before work whose later part needs it."""
    with needed(library, what):
        if find_spec(library) is None:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
