"""What errors in a caller's code say, and where they come from."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def in_short(error: BaseException) -> str:
    """The first sentence of an error, and the line of the model or the loss that it came from."""
    sentence = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
    return f"{sentence}{line_of_model(traceback.extract_tb(error.__traceback__))}."


def line_of_model(frames: traceback.StackSummary) -> str:
    """The innermost of these lines that is neither PyTorch's nor dperm's, as a remark in brackets; empty where there is none."""
    lines = [line for line in frames if not line.filename.startswith(_LIBRARIES)]
    return f" (line {lines[-1].lineno} of {Path(lines[-1].filename).name}, in {lines[-1].name})" if lines else ""
