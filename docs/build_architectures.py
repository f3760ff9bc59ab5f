"""Write docs/architectures.md: what becomes of each architecture of the zoo. Needs the extras test, torch and zoo."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dperm.torch import ModuleObjective
from helpers.architectures import every, versions

HEAD = """# Architectures

What `PrivateTrainer` makes of models that people take from other libraries, small and with random weights:
{right} of {all} train, the rest are refused before anything is charged. *Right* means that per-example norms and weighted
sums agree with autograd on single records, to 1e-8 in double precision (to 3e-5 in single precision for models that
compute a part in it whatever they are cast to), and that the checks of [networks](networks-exact.md#what-is-tested) pass in
training mode.
`make zoo` makes this page and runs `tests/torch/engine/test_architectures.py`. Versions: {versions}.

That records cannot influence each other is *proved* for all of them, by how they run. *By rules* is the fast way; each record has
its own copy of parameters that go to functions without a rule; what `torch.vmap` cannot run runs one record at a time. All are
exact.

| library | architecture | result | how |
| --- | --- | --- | --- |
"""


def main() -> None:
    rows: list[str] = []
    found = list(every())
    for item in found:
        torch.manual_seed(0)
        case = item.make()
        case.model.train()
        if item.refused:
            how = "batch normalisation mixes the records of a batch"
        else:
            objective = ModuleObjective(case.model, case.loss)
            objective.prepare(case.inputs, case.targets)
            how = _how(objective)
        rows.append(f"| {item.package} | {item.name} | {'refused' if item.refused else 'right'} | {how} |")
        print(rows[-1], flush=True)
    right = sum(not item.refused for item in found)
    text = HEAD.format(right=right, all=len(found), versions=", ".join(versions())) + "\n".join(rows) + "\n"
    (Path(__file__).parent / "architectures.md").write_text(text, encoding="utf-8")


def _how(objective: ModuleObjective) -> str:
    if objective.one_by_one is not None:
        return f"one record at a time: {objective.one_by_one}"
    return f"{len(objective.copied)} parameters copied for each record" if objective.copied else "by rules"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
