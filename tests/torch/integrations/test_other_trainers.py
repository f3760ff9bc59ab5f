"""Private runs under Lightning's and Hugging Face's trainers: the same steps, one charge. `make zoo` runs these."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.release import spend_log
from dperm.torch import PrivateTrainer

N = 200


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries, of fixed seeds and small sizes
        yield


def private(seed: int | None = 1, **given: Any) -> tuple[PrivateTrainer, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    inputs = torch.randn(N, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    settings: dict[str, Any] = {
        "epsilon": 3.0, "delta": 1e-5, "epochs": 2, "expected_batch_size": 40, "public_size": N, "random_state": seed,
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = PrivateTrainer(model, nn.CrossEntropyLoss(reduction="none"), optimizer, **settings, **given)
    return trainer, (inputs, (inputs.sum(1) > 0).long())


def own_loop() -> dict[str, Tensor]:
    trainer, data = private()
    for _ in trainer.steps(data):
        trainer.optimizer.step()
    return copy.deepcopy(trainer.model.state_dict())


def lightning_trainer(folder: Path, **given: Any) -> Any:
    lightning = pytest.importorskip("lightning", reason="needs lightning: make zoo")
    settings: dict[str, Any] = {
        "max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "default_root_dir": folder, "enable_checkpointing": False,
    }  # fmt: skip
    return lightning.Trainer(**{**settings, **given})


def test_lightning_runs_the_private_steps(tmp_path: Path) -> None:
    trainer = lightning_trainer(tmp_path)
    from dperm.torch.integrations.lightning_trainer import PrivateModule

    run, data = private()
    with spend_log(tmp_path / "log.db") as log:
        trainer.fit(PrivateModule(run, data))
        assert len(log.charges()) == 1
    assert run.certificate is not None
    assert run.epsilon_spent == pytest.approx(run.certificate.epsilon)
    assert trainer.callback_metrics["epsilon"] == pytest.approx(run.epsilon_spent)
    for name, value in own_loop().items():
        torch.testing.assert_close(run.model.state_dict()[name], value, rtol=0, atol=0)


def test_lightning_may_stop_early_and_the_charge_stands(tmp_path: Path) -> None:
    trainer = lightning_trainer(tmp_path, max_steps=3)
    from dperm.torch.integrations.lightning_trainer import PrivateModule

    run, data = private()
    with spend_log(tmp_path / "log.db") as log:
        trainer.fit(PrivateModule(run, data))
        assert len(log.charges()) == 1
    assert run.certificate is not None
    assert 0 < run.epsilon_spent < run.certificate.epsilon


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_epochs": 2}, "max_epochs=1"),
        ({"precision": "bf16-mixed"}, "32-true"),
        ({"devices": 2, "strategy": "ddp_spawn"}, "world_size=1"),
        ({"fast_dev_run": True}, "fast_dev_run=False"),
        ({"overfit_batches": 2}, "overfit_batches=0"),
    ],
)
def test_settings_of_lightning_that_change_a_run_are_refused(given: Any, message: str, tmp_path: Path) -> None:
    trainer = lightning_trainer(tmp_path, **given)
    from dperm.torch.integrations.lightning_trainer import PrivateModule

    run, data = private()
    module = PrivateModule(run, data)
    module.trainer = trainer
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match=message):
            module.train_dataloader()
        assert not log.charges()


def test_lightning_continues_no_run_from_weights_alone(tmp_path: Path) -> None:
    trainer = lightning_trainer(tmp_path, max_steps=3)
    from dperm.torch.integrations.lightning_trainer import PrivateModule

    run, data = private()
    trainer.fit(PrivateModule(run, data))
    trainer.save_checkpoint(tmp_path / "weights.ckpt")
    again, data = private()
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="which know what was charged"):
            lightning_trainer(tmp_path).fit(PrivateModule(again, data), ckpt_path=tmp_path / "weights.ckpt", weights_only=False)
        assert not log.charges()


def test_lightning_with_a_loader_of_data_says_what_to_do(tmp_path: Path) -> None:
    trainer = lightning_trainer(tmp_path)
    from dperm.torch.integrations.lightning_trainer import PrivateModule

    run, data = private()
    with pytest.raises(RuntimeError, match="without a loader of data"):
        trainer.fit(PrivateModule(run, data), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data)))


class Records(torch.utils.data.Dataset[Any]):
    """Named entries, as Hugging Face's data sets have."""

    def __init__(self, data: tuple[Tensor, Tensor]) -> None:
        self.data = data

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.data[0][index], "labels": self.data[1][index]}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        torch.randn(N, 6)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        outputs = self.layers(x)
        return outputs if labels is None else {"loss": nn.functional.cross_entropy(outputs, labels), "logits": outputs}


def hugging_face(folder: Path, **given: Any) -> tuple[Any, PrivateTrainer]:
    transformers = pytest.importorskip("transformers", reason="needs transformers: make zoo")
    from dperm.torch.integrations.hugging_face_trainer import PrivateHuggingFaceTrainer

    _, data = private()
    model = Named()
    run = PrivateTrainer(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5), epsilon=3.0, delta=1e-5,
        epochs=2, expected_batch_size=40, public_size=N, random_state=1,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "output_dir": str(folder), "num_train_epochs": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True,
        "report_to": [], "logging_steps": 2, "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(**{**settings, **given})
    return PrivateHuggingFaceTrainer(run, arguments, Records(data), eval_dataset=Records(data)), run


def test_hugging_face_runs_the_private_steps(tmp_path: Path) -> None:
    trainer, run = hugging_face(tmp_path)
    with spend_log(tmp_path / "log.db") as log:
        trainer.train()
        assert len(log.charges()) == 1
    assert run.certificate is not None
    assert run.epsilon_spent == pytest.approx(run.certificate.epsilon)
    assert all("loss" not in entry and "train_loss" not in entry for entry in trainer.state.log_history)
    spent = [entry["epsilon"] for entry in trainer.state.log_history]
    assert spent == sorted(spent)
    assert len(spent) >= 5
    found = {name.removeprefix("layers."): value for name, value in run.model.state_dict().items()}
    for name, value in own_loop().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    assert trainer.evaluate()["eval_loss"] < 1.0


@pytest.mark.parametrize(
    "given",
    [{"num_train_epochs": 3}, {"max_grad_norm": 1.0}, {"gradient_accumulation_steps": 4}, {"bf16": True}],
    ids=lambda given: next(iter(given)),
)
def test_settings_of_hugging_face_that_change_a_run_are_refused(given: Any, tmp_path: Path) -> None:
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match=next(iter(given))):
            hugging_face(tmp_path, **given)
        assert not log.charges()


def test_hugging_face_stops_with_the_run_and_continues_none_from_weights_alone(tmp_path: Path) -> None:
    trainer, run = hugging_face(tmp_path, max_steps=500)
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="which know what was charged"):
            trainer.train(resume_from_checkpoint=str(tmp_path))
        assert not log.charges()
        trainer.train()
        assert len(log.charges()) == 1
    assert run.certificate is not None
    assert run.epsilon_spent == pytest.approx(run.certificate.epsilon)


def test_hugging_face_takes_the_private_optimizer(tmp_path: Path) -> None:
    _, run = hugging_face(tmp_path)
    from transformers import TrainingArguments

    from dperm.torch.integrations.hugging_face_trainer import PrivateHuggingFaceTrainer

    arguments = TrainingArguments(output_dir=str(tmp_path), num_train_epochs=1, max_grad_norm=0.0, use_cpu=True)
    with pytest.raises(TypeError, match="optimizer is the PrivateTrainer's"):
        PrivateHuggingFaceTrainer(run, arguments, Records(private()[1]), optimizers=(None, None))
