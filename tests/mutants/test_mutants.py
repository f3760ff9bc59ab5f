"""The tool itself, on a made package whose survivors are known."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.places import mutants_of, mutated
from mutants.run import read_equivalents, reasons_of

HERE = Path(__file__).resolve().parent

MODULE = '''
"""Sensitivities."""

import math

from made.mechanisms.registry import noted_bound

SLACK = 1e-3


class Sum:
    def __init__(self, bound):
        self.bound_ = bound

    def sensitivity(self, relation) -> float:
        """Of a sum."""
        return (1 if relation == "add" else 2) * self.bound_

    @property
    def noise(self) -> float:
        scale = math.sqrt(2.0) * self.bound_
        return scale + SLACK

    def unasked_bound(self) -> float:
        return 3.0 * self.bound_


@noted_bound(2.0)
def released(total):
    return total


def clipped(values, bound):
    return [min(value, bound) for value in values]


def paper():
    return 1.0
'''

REGISTRY = """
KNOWN = {}


def noted_bound(bound):
    KNOWN["bound"] = 2 * bound
    return lambda function: function
"""

TESTS = """
import math
import pytest
from made.mechanisms.sums import Sum, clipped
from made.mechanisms.registry import KNOWN

TWICE = Sum(1.0).sensitivity("replace")


@pytest.mark.parametrize(("relation", "expected"), [("add", 3.0), ("replace", 6.0)])
def test_sensitivity(relation, expected):
    assert Sum(3.0).sensitivity(relation) == expected


def test_noise_is_large_enough():
    assert Sum(1.0).noise == pytest.approx(math.sqrt(2), rel=0.01) and TWICE == 2


def test_registered():
    assert KNOWN == {"bound": 4.0}


def test_clipped():
    assert clipped([1.0, 5.0], 2.0) == [1.0, 2.0]


def test_fails_without_a_mutant_too():
    assert Sum(1.0).sensitivity("add") == 7


@pytest.mark.slow
def test_slow():
    assert Sum(1.0).unasked_bound() == 3.0
"""

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from mutants.run import Project, options, tried
root = Path({root!r})
project = Project(root, root / "made", root / "tests", lambda file: file.startswith("mechanisms/"))
raise SystemExit(tried(project, options().parse_args(sys.argv[1:]), root / "lists", ["pytest", "hypothesis"]))
"""

SCALED = "mechanisms/sums.py::Sum.noise::scale::scale + SLACK → 0.9 * (scale + SLACK)"
SLACKER = "mechanisms/sums.py::SLACK::constant::0.001 → 0.0005"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, text in {
        "made/__init__.py": "",
        "made/mechanisms/registry.py": REGISTRY,
        "made/mechanisms/__init__.py": "",
        "made/mechanisms/sums.py": MODULE,
        "tests/test_sums.py": TESTS,
        "pytest.ini": "[pytest]\nmarkers = slow: seldom\n",
        "lists/equivalent.toml": f"[[equivalent]]\nreason = 'no test could notice'\nmutants = ['{SLACKER}']\n",
        "lists/extra.toml": "[[mutant]]\nfile = 'mechanisms/sums.py'\nbefore = 'return total'\nafter = 'return 2 * total'\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def run(root: Path, *arguments: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    """Exit status, what was printed, and results by name."""
    script = SCRIPT.format(tests=str(HERE.parent), root=str(root))
    command = [sys.executable, "-c", script, "--jobs", "2", "--out", str(root / "out"), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert not done.stderr, done.stderr
    kept = root / "out" / "results.jsonl"
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return done.returncode, done.stdout, {result["key"]: result for result in map(json.loads, lines)}


def test_planted_mutants_are_killed_and_survivors_named(project: Path) -> None:
    status, said, results = run(project)
    verdicts = {key.removeprefix("mechanisms/sums.py::"): result["verdict"] for key, result in results.items()}
    assert status == 1
    living = {key: verdict for key, verdict in verdicts.items() if verdict != "killed"}
    assert living == {
        "SLACK::constant::0.001 → 0.002": "survived",
        "Sum.noise::factor::math.sqrt(2.0) * self.bound_ → math.sqrt(2.0)": "survived",
        "Sum.noise::term::scale + SLACK → scale": "survived",
        "Sum.unasked_bound::scale::3.0 * self.bound_ → 0.5 * (3.0 * self.bound_)": "unreached",
        "Sum.unasked_bound::scale::3.0 * self.bound_ → 0.9 * (3.0 * self.bound_)": "unreached",
        "Sum.unasked_bound::factor::3.0 * self.bound_ → self.bound_": "unreached",
        "Sum.unasked_bound::constant::3.0 → 1.5": "unreached",
        "Sum.unasked_bound::constant::3.0 → 6.0": "unreached",
        "released::written::return total → return 2 * total": "unreached",
    }
    killed = {key: str(result["test"]).rpartition("::")[2] for key, result in results.items() if result["verdict"] == "killed"}
    assert killed[SCALED] == "test_noise_is_large_enough"
    assert killed["mechanisms/registry.py::noted_bound::constant::2 → 1"] == "test_registered"  # runs while it is imported
    assert set(killed.values()) == {
        "test_sensitivity[add-3.0]",
        "test_sensitivity[replace-6.0]",
        "test_noise_is_large_enough",
        "test_registered",
        "test_clipped",
    }
    assert "Equivalent (1): no test could notice" in said
    assert "SURVIVED" in said
    assert "UNREACHED" in said
    again, said, _ = run(project)
    assert again == 1 and "0 to be tried" in said  # all is kept


def test_each_mutant_is_in_one_shard_and_a_stale_name_is_an_error(project: Path) -> None:
    shards = [run(project, "--list", "--shard", f"{part}/3")[1].splitlines() for part in (1, 2, 3)]
    everything = run(project, "--list")[1].splitlines()
    assert sorted(name for shard in shards for name in shard) == sorted(everything) and all(shards)
    text = "[[equivalent]]\nreason = 'gone'\nmutants = ['mechanisms/sums.py::Sum.noise::root::x → y']\n"
    (project / "lists" / "equivalent.toml").write_text(text, encoding="utf-8")
    status, said, _ = run(project)
    assert status == 1
    assert "no longer there" in said
    assert "x → y" in said


def test_names_hold_when_lines_move() -> None:
    before = [mutant.key for mutant in mutants_of(MODULE, "mechanisms/sums.py")]
    after = [
        mutant.key
        for mutant in mutants_of("# more\n\n" + MODULE.replace("    @property", "\n    @property"), "mechanisms/sums.py")
    ]
    assert before == after and len(set(before)) == len(before) > 20


def test_equivalents_have_reasons(tmp_path: Path) -> None:
    listed = read_equivalents(HERE / "equivalent.toml")
    assert all(len(reason) > 20 for reason in listed.values())
    some = mutants_of(MODULE, "mechanisms/sums.py")
    found, stale = reasons_of({"mechanisms/sums.py::SLACK::*": "why", "mechanisms/sums.py::SLACK::": "why", SCALED: "how"}, some)
    assert found == {SLACKER: "why", SLACKER.replace("0.0005", "0.002"): "why", SCALED: "how"}
    assert stale == ["mechanisms/sums.py::SLACK::"]
    (tmp_path / "wrong.toml").write_text("[[equivalent]]\nreason = ' '\nmutants = ['a']\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="with a reason"):
        read_equivalents(tmp_path / "wrong.toml")


ASKED = """
def released_bound(self, query, sensitivity, noise):
    self.left -= 1
    total = clip(query, -sensitivity, sensitivity)
    total += self.channel.release(total, GaussianNoise(sensitivity, noise, what="sum"))
    low = np.clip(total, 0.0, None) + np.fmin(total, 1.0)
    return solve(objective, records, low, self.residual(facts)), Source.noisy(self, query, noise)
"""


def test_statements_noise_ends_of_clips_and_tolerances_are_left_out_or_changed() -> None:
    found = [(mutant.operator, mutant.before, mutant.after) for mutant in mutants_of(ASKED, "mechanisms/asked.py")]
    release = "self.channel.release(total, GaussianNoise(sensitivity, noise, what='sum'))"
    expected = [
        ("statement", "self.left -= 1", "pass"),
        ("statement", f"total += {release}", "pass"),
        ("unnoised", release, "total"),
        ("handed", "sensitivity", "0.9 * sensitivity"),
        ("unnoised", "Source.noisy(self, query, noise)", "query"),
        ("end", "clip(query, -sensitivity, sensitivity)", "minimum(query, sensitivity)"),
        ("end", "clip(query, -sensitivity, sensitivity)", "maximum(query, -sensitivity)"),
        ("extreme", "np.fmin(total, 1.0)", "total"),
        ("tolerance", "self.residual(facts)", "0.5 * self.residual(facts)"),
        ("tolerance", "self.residual(facts)", "2.0 * self.residual(facts)"),
    ]
    assert [each for each in expected if each not in found] == []
    assert sum(operator == "end" for operator, *_ in found) == 2  # a clip that has one end has none to be left out


def test_a_statement_that_is_left_out_leaves_the_rest() -> None:
    key = "mechanisms/asked.py::released_bound::statement::self.left -= 1 → pass"
    tree = mutated(ASKED, "mechanisms/asked.py", key)
    assert ast.unparse(tree) == ast.unparse(ast.parse(ASKED.replace("self.left -= 1", "pass")))
    compile(tree, "asked", "exec")
