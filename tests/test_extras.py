"""The core works without any optional library; whatever needs one says which, and how it is installed, in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dperm._extras import LIBRARIES, needed

ROOT = Path(__file__).resolve().parents[1]
ALSO = ("dask", "polars", "tensorboard", "duckdb", "pydantic")  # no front door of their own, and not needed by the core either

REFUSE = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
"""

CORE = """
import dperm, dperm.audit, dperm.estimators, dperm.mechanisms, dperm.privacy
import numpy as np
from dperm.audit import Training, replay
from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPRidge, model_from_json, model_to_json
from dperm.privacy import Certificate, Gaussian, PoissonSampled, SelfComposed, calibrate, epsilon
from dperm.privacy.certificates.signing import SigningKey

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3))
score = X @ [1.0, -1.0, 0.5]
dp_sgd = lambda noise: SelfComposed(PoissonSampled(0.01, Gaussian(noise)), 500)
assert 0 < epsilon(dp_sgd(calibrate(dp_sgd, epsilon=1.0, delta=1e-5)), 1e-5) <= 1
labels = np.where(score > 0, "yes", "no")
for model, target, more in (
    (DPLogisticRegression(classes=["no", "yes"]), labels.astype(object), {}),
    (DPLogisticRegression(classes=["no", "yes"], max_rows_per_unit=4), labels, {"groups": [f"p{i // 4}" for i in range(400)]}),
    (DPLinearSVC(classes=["no", "yes"], mechanism="gradient", public_size=400), labels, {}),
    (DPRidge(target_bound=3.0), score, {}),
):
    model.set_params(epsilon=1.0, delta=1e-5).fit(X, target, **more)
    text = model_to_json(model)
    again = model_from_json(text)[0]
    assert (again.predict(X) == model.predict(X)).all() and np.isfinite(model.score(X, target))
    certificate = Certificate.from_json(model.certificate_.to_json())
    certificate.verify()
    assert certificate.epsilon <= 1.0
try:
    DPLogisticRegression().fit(X, np.where(score > 0, "yes", None))
except ValueError as error:
    assert "without one" in str(error), error
else:
    raise AssertionError("labels that are missing were taken")
assert not replay(Training.of_mechanism(*DPLogisticRegression().mechanism_for(features=3))).refuted
loaded = {name.partition(".")[0] for name in sys.modules} & names
assert not loaded, loaded
print("fitted")
"""

#: Of each library a front door that needs it, and how its one line begins.
DOORS = {
    "pandas": ("import dperm.data", "A table"),
    "pyarrow": ("import dperm.data", "A table"),
    "charset_normalizer": (
        "from dperm.data import read_dataset\nfrom pathlib import Path\n"
        "Path('t.csv').write_bytes('όνομα,y\\nΑθήνα,1\\nΠάτρα,0\\n'.encode('iso-8859-7'))\nread_dataset('t.csv', 'y')",
        "Guessing the encoding",
    ),
    "pooch": ("import os\nos.environ.pop('DPERM_DATA', None)\nfrom dperm.data import load\nload('adult')", "Fetching"),
    "jinja2": ("import dperm.report.card", "A page"),
    "matplotlib": ("import dperm.report.card", "A figure"),
    "typer": ("import dperm.cli", "The command line"),
    "rich": ("import dperm.report.summary", "A table on the terminal"),
    "openpyxl": (
        "from dperm.data import read_dataset\nfrom pathlib import Path\n"
        "Path('t.xlsx').write_bytes(b'PK')\nread_dataset('t.xlsx', 'y')",
        "Reading t.xlsx",
    ),
    "distributed": (
        "import dask.array as da\nfrom dperm.estimators import DPLogisticRegression\n"
        "DPLogisticRegression(classes=[0, 1]).fit(da.ones((8, 2), chunks=4), da.ones(8, chunks=4))",
        "Fitting rows in parts",
    ),
    "psycopg": ("from dperm.release import SpendLog\nSpendLog('postgresql://me@host/base')", "A spend log in PostgreSQL"),
    "skl2onnx": (
        "import numpy as np\nfrom dperm.estimators import DPRidge\nfrom dperm.estimators.onnx_models import model_to_onnx\n"
        "model_to_onnx(DPRidge().fit(np.eye(30), np.zeros(30)))",
        "A model as ONNX",
    ),
    "torch": ("import dperm.torch", "Training networks"),
    "safetensors": ("import dperm.torch", "A checkpoint"),
    "tensorboard": ("from dperm.torch import TensorBoard\nTensorBoard('folder')", "A log for TensorBoard"),
    "flwr": ("import dperm.flower", "A Flower strategy"),
    "transformers": ("import dperm.torch.integrations.hugging_face_trainer", "A trainer of Transformers"),
    "lightning": ("import dperm.torch.integrations.lightning_trainer", "A trainer of Lightning"),
}


def without(names: set[str], code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python where these libraries are not installed."""
    text = f"{REFUSE.format(names=names)}\nnames = {names!r}\n{code}"
    env = {**os.environ, "DPERM_SPEND_LOG": str(folder / "spend.db"), "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=env
    )


def test_the_core_works_without_any_optional_library(tmp_path: Path) -> None:
    done = without({*LIBRARIES, *ALSO}, CORE, tmp_path)
    assert done.stdout == "fitted\n", done.stderr


def test_each_optional_library_has_a_front_door_that_is_tried() -> None:
    assert set(DOORS) == set(LIBRARIES)


@pytest.mark.fast_cases("openpyxl", "pooch")
@pytest.mark.parametrize("library", sorted(DOORS))
def test_a_missing_library_is_one_line_that_says_how_it_is_installed(library: str, tmp_path: Path) -> None:
    code, begins = DOORS[library]
    name, extra = LIBRARIES[library]
    done = without({library}, code, tmp_path)
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(rf"ModuleNotFoundError: {begins}.* needs {name}: pip install 'dperm\[{extra}\]'\.", last), done.stderr


@pytest.mark.parametrize(
    ("library", "arguments", "line"),
    [
        ("typer", ["account", "--noise", "4"], "The command line needs Typer: pip install 'dperm[cli]'."),
        ("pandas", ["data", "list"], "A table needs pandas: pip install 'dperm[tables]'."),
        pytest.param(
            "rich",
            ["bounds", "--size", "1000"],
            "A table on the terminal needs Rich: pip install 'dperm[cli]'.",
            marks=pytest.mark.slow,
        ),
        ("torch", ["train", "t.csv", "--model", "mlp", "-o", "m.json"], "--model mlp needs PyTorch: pip install 'dperm[torch]'."),
    ],
)
def test_a_command_without_its_library_prints_one_line(library: str, arguments: list[str], line: str, tmp_path: Path) -> None:
    done = without({library}, "from dperm.__main__ import main\nmain()", tmp_path, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {line}\n")


def test_a_library_that_is_there_and_does_not_load_says_why() -> None:
    line = re.escape("A table needs pandas: pip install 'dperm[tables]' (its NumPy is another).")
    with pytest.raises(ModuleNotFoundError, match=f"^{line}$"), needed("pandas", "A table"):
        raise ImportError("its NumPy is another")


def test_the_extras_bring_what_their_lines_promise() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bare = {extra: [re.split(r"[\[><=]", need)[0] for need in needs] for extra, needs in project["optional-dependencies"].items()}
    for library, (_, extra) in LIBRARIES.items():
        brings = "dask" if library == "distributed" else library.replace("_", "-")
        assert brings in bare[extra], f"dperm[{extra}] does not bring {brings}"
    core = {re.split(r"[><=]", need)[0] for need in project["dependencies"]}
    assert core == {"numpy", "scipy", "scikit-learn", "array-api-compat", "cryptography", "mpmath"}
    for name in ("tables", "pages", "cli", "excel"):  # what README shows beside networks
        assert name in project["optional-dependencies"]["all"][0]
