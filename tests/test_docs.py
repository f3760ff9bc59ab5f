"""The documentation's examples run, and its listing of the public API is current."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import re
import runpy
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.privacy import Certificate, Provenance
from dperm.torch import PrivateTrainer
from helpers.said import flat

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_api_listing_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["build_api.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "docs" / "build_api.py"), run_name="__main__")
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def build_api() -> Any:
    spec = importlib.util.spec_from_file_location("build_api", ROOT / "docs" / "build_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_modules_of_libraries_that_may_be_missing_are_listed_from_their_sources(build_api: Any) -> None:
    """Whether they are installed or not: nothing of them is imported."""
    text = (ROOT / "docs" / "api.pyi").read_text(encoding="utf-8")
    before = set(sys.modules)
    listed = {module: build_api.read_listing(tree) for module, _, tree in build_api.read_modules()}
    assert not {name for name in set(sys.modules) - before if name.startswith("dperm")}
    assert set(listed) >= {"dperm.flower", "dperm.torch.integrations.lightning_trainer"}
    for parts in listed.values():
        assert parts and all(part in text for part in parts)
    for name in ("class DPFedAvg:", "class PrivateModule:", "class PrivateHuggingFaceTrainer:", "    def from_trainer(cls, "):
        assert name in text


@pytest.mark.parametrize("source", ["federated/rounds.py", "torch/training/trainer.py", "gradient/recipes/dp_fedavg.py"])
def test_what_is_read_is_what_an_import_shows(source: str, build_api: Any) -> None:
    tree = ast.parse((ROOT / "src" / "dperm" / source).read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "api.pyi").read_text(encoding="utf-8")
    parts = build_api.read_listing(tree)
    assert parts and all(f"{part}\n" in text for part in parts)


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", README))))
def test_readme_examples_run(number: int) -> None:
    code = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[number]
    rng = np.random.default_rng(0)
    names: dict[str, object] = {
        "X": rng.normal(size=(200, 3)),
        "y": rng.choice(["no", "yes"], 200),
        "X_new": rng.normal(size=(5, 3)),
    }
    if "torch" in code:
        from torch import nn, optim, randint, randn

        model = nn.Linear(20, 2)
        names |= {"nn": nn, "model": model, "optimizer": optim.SGD(model.parameters(), lr=0.1)}
        names |= {"inputs": randn(500, 20), "targets": randint(0, 2, (500,))}
    exec(compile(code, f"README example {number}", "exec"), names)


#: pages whose examples take long, with the least number of them: indented ones belong to a list
_LONG = {"errata.md": 5, "records.md": 3, "search.md": 2, "utility.md": 3}
#: pages whose examples take a second and more, and have in other pages or in tests what they use
_SLOW = {
    "audit.md",
    "correlated-noise.md",
    "curves.md",
    "from-fastdp.md",
    "from-opake.md",
    "from-tf-privacy.md",
    "importance-sampling.md",
    "language-models.md",
}
PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in _SLOW)) for page in PAGES if page not in _LONG],
)
def test_the_examples_in_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page's, one after the other; whatever was trained has a certificate."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(code, page, "exec"), names)
    for made in names.values():
        certificate = getattr(made, "certificate" if isinstance(made, PrivateTrainer) else "certificate_", None)
        assert not isinstance(certificate, Certificate) or (certificate.epsilon or 0) > 0
        assert certificate is not None or not isinstance(made, PrivateTrainer), "a trainer that did not run"


@pytest.mark.slow
def test_the_examples_in_long_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errata assert their own counter-examples."""
    monkeypatch.chdir(tmp_path)
    for page, least in _LONG.items():
        names: dict[str, Any] = {}
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        found = re.findall(r"^ *```python\n(.*?)```", text, flags=re.DOTALL | re.MULTILINE)
        assert len(found) >= least
        for code in found:
            with warnings.catch_warnings():  # what is only claimed says so
                warnings.simplefilter("ignore", UserWarning)
                exec(compile(textwrap.dedent(code), page, "exec"), names)


def test_the_examples_for_contributors_run(monkeypatch: pytest.MonkeyPatch) -> None:
    project = types.ModuleType("a_project_of_your_own")
    monkeypatch.setitem(sys.modules, project.__name__, project)
    names = vars(project)
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    certificate = names["mechanism"].certificate(names["objective"].facts, Provenance.audit())
    texts = " ".join(assumption.text for assumption in certificate.assumptions)
    assert "a_project_of_your_own.Squash" in texts and "a_project_of_your_own.PseudoHuber" in texts
    assert names["results"][0].details["largest_movement"] > 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["dperm_loop.py"], marks=pytest.mark.slow),
        pytest.param(
            ["gpt2.py", "--records", "60", "--batch", "20", "--layers", "1", "--width", "32", "--length", "16", "--epsilon", "8"],
            marks=pytest.mark.slow,
        ),
        pytest.param(["lora.py", "--steps", "2", "--epochs", "1"], marks=pytest.mark.slow),
        pytest.param(["hospital.py", "{tmp}", "400"], marks=pytest.mark.slow),
        pytest.param(["mnist.py", "--epochs", "0.05"], marks=pytest.mark.slow),
        pytest.param(["generative.py", "--epochs", "1", "--views", "2", "--pictures", "{tmp}"], marks=pytest.mark.slow),
        pytest.param(["gan.py", "--epochs", "1", "--pictures", "{tmp}"], marks=pytest.mark.slow),
    ],
    ids=lambda a: a[0],
)
def test_the_examples_run(arguments: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if arguments[0] == "mnist.py":
        request.getfixturevalue("data_folder")
    script = ROOT / "examples" / arguments[0]
    done = subprocess.run(
        [sys.executable, script, *(part.replace("{tmp}", str(tmp_path)) for part in arguments[1:])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "differentially private" in flat(done.stdout)


@pytest.mark.filterwarnings("default")
def test_the_shortest_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has imported what it takes seconds to import."""
    runpy.run_path(str(ROOT / "examples" / "dperm_loop.py"), run_name="__main__")
    assert "differentially private" in capsys.readouterr().out


def test_readme_numbers_are_the_measured_ones() -> None:
    """Every accuracy in the README's table is the rounded mean of benchmarks/results/accuracy.json."""
    import json

    measured: set[str] = set()
    for study in json.loads((ROOT / "benchmarks" / "results" / "accuracy.json").read_text())["studies"]:
        measured |= {f"{100 * float(np.mean(cell['scores'])):.1f}" for cell in study["cells"]}
    table = README[README.index("| data set (records") : README.index("## Which mechanism?")]
    printed = re.findall(r"\b\d\d\.\d\b", table)
    assert len(printed) > 50
    assert set(printed) <= measured


def test_doctests() -> None:
    import dperm.estimators.classifiers as module

    assert doctest.testmod(module).failed == 0
    assert importlib.util.find_spec("dperm") is not None


def _anchors(page: Path) -> set[str]:
    """Where links into a page may lead: its headings as GitHub names them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda path: path.name)
def test_links_and_named_tests_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if not link.startswith("http"):
            target = path.parent / link if link else path
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), f"{link}#{anchor}"
    sources = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for file, name in re.findall(r"`(?:tests/[\w/]*)?(test_\w+\.py)(?:::(test_\w+))?", text):
        assert list((ROOT / "tests").rglob(file)), file
        assert name in sources, name
