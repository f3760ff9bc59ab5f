"""Functions on public values beside a private run: what they see is released, what they do to the private model goes nowhere, and
data that they lead to are found where they can be."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dperm.audit import Pair, Training, replay
from dperm.release import SpendLog
from dperm.torch import Callback, ModuleObjective, PrivateTrainer
from helpers.recorded_draws import Again, Recorded, example
from helpers.said import flat

#: the critic below stores what it can, on purpose
pytestmark = pytest.mark.filterwarnings("ignore:The model or the loss changes Critic")

gan = example("gan")
N = 40
X, Y = torch.randn(N, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(N)
STOLEN: list[Any] = []


class Critic(nn.Module):
    """A discriminator with a buffer, that keeps features as a careless one does."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 1)
        self.register_buffer("count", torch.zeros(()))
        self.features: Any = None
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.body(x).tanh()
        self.seen.append(float(x.detach().mean()) if len(self.seen) < 3 else 0.0)
        self.count += 1
        return self.head(self.features)[:, 0]


def trainer(model: nn.Module | None = None, loss: Any = None, **settings: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = Critic() if model is None else model
    given: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5, "public_size": N, "epochs": 1, "expected_batch_size": 10}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = loss or (lambda outputs, targets: F.softplus(-outputs) + 0 * targets)
    return PrivateTrainer(model, loss, optimizer, clipping_norm=1.0, **(given | settings))


RUNNING: list[Any] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Runs that a test leaves open end with it."""
    yield
    while RUNNING:
        RUNNING.pop().close()


def stepped(made: PrivateTrainer, data: Any = (X, Y), steps: int = 2) -> Any:
    """The run's steps, after a few of them."""
    running = made.steps(data)
    RUNNING.append(running)
    for _ in range(steps):
        next(running)
        made.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
    return running


def state_of(made: PrivateTrainer) -> dict[str, Any]:
    gradients = {
        f"{name}.grad": parameter.grad.clone() for name, parameter in made.model.named_parameters() if parameter.grad is not None
    }
    moments = {
        f"{number} {name}": value.clone()
        for number, held in made.optimizer.state_dict()["state"].items()  # pyright: ignore[reportOptionalMemberAccess]
        for name, value in held.items()
    }
    return {**{name: tensor.clone() for name, tensor in made.model.state_dict().items()}, **gradients, **moments}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_copy_at_released_weights_is_what_a_function_sees() -> None:
    """Gradients flow through it to its input, and whatever is done to it goes nowhere."""
    made = trainer()
    running = stepped(made)
    before, z = state_of(made), torch.randn(4, 6, requires_grad=True)

    def look(released: nn.Module) -> Tensor:
        assert released is not made.model and not any(p.requires_grad or p.grad is not None for p in released.parameters())
        assert all(torch.equal(tensor, before[name]) for name, tensor in released.state_dict().items())
        assert {p.data_ptr() for p in released.parameters()}.isdisjoint(p.data_ptr() for p in made.model.parameters())
        released(z).sum().backward()
        for parameter in released.parameters():
            parameter.data.zero_()
        released.requires_grad_(True)
        released(z.detach()).sum().backward()
        released.count.fill_(7)
        return released.head.weight

    returned = made.public_step(look)
    assert float(returned.detach().abs().sum()) == 0 and same(state_of(made), before)
    (expected,) = torch.autograd.grad(Critic.forward(made.model, w := z.detach().requires_grad_()).sum(), w)
    assert z.grad is not None and torch.allclose(z.grad, expected)
    made.model.count.zero_()
    assert len(list(running)) == 2, "and the run goes on"


@pytest.mark.fast_cases("fit")
@pytest.mark.parametrize("own_loop", [True, False], ids=["steps", "fit"])
def test_nothing_that_a_pass_stored_is_seen(own_loop: bool) -> None:
    """Activations in an attribute, numbers in a list, counts in a buffer: all are as before the run."""
    seen: list[tuple[Any, ...]] = []
    made = trainer()

    def look(released: Any) -> None:
        seen.append((released.features, tuple(released.seen), float(released.count)))
        seen.append((made.model.features, tuple(made.model.seen), float(made.model.count)))  # nor in the model itself

    class Looks(Callback):
        def on_step(self, step: Any) -> None:
            made.public_step(look)

    if own_loop:
        for _ in made.steps((X, Y)):
            made.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
            made.public_step(look)
    else:
        made.fit((X, Y), callbacks=[Looks()], progress=False)
    assert len(seen) == 8 and set(seen) == {(None, (), 0.0)}


class Records(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = X.numpy()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.rows[index]), torch.tensor(0.0)


class Holder:
    """An object whose method is the function, or whose method the function calls."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __call__(self, released: nn.Module) -> Any:
        return released

    def matches(self, released: nn.Module) -> Any:
        return released(self.data)


def _of_globals(data: Any) -> Callable[[nn.Module], Any]:
    """A function of another module, where the data are a global name, reached by a function that it calls."""
    module = types.ModuleType("a_script")
    code = "def features(released):\n    return released(rows)\n\ndef match(released):\n    return features(released).mean()\n"
    exec(code, vars(module))
    vars(module)["rows"] = data
    return module.match  # type: ignore[no-any-return]


#: a function by the data: it leads there
LEADS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "closure": lambda data: lambda released: released(data[:8]).mean(),
    "default": lambda data: lambda released, rows=data: released(rows),
    "partial": lambda data: functools.partial(lambda rows, released: released(rows), data),
    "method": lambda data: Holder(data).matches,
    "attribute": lambda data: Holder([{"deep": (data,)}]),
    "global name": _of_globals,
    "view": lambda data: functools.partial(F.linear, data if isinstance(data, Dataset) else data[5:9]),
    "loader": lambda data: (lambda batches: lambda released: next(batches))(iter(DataLoader(_items(data)))),
    "generator": lambda data: (lambda batches: lambda released: next(batches))(row for row in data),
}


def _items(data: Any) -> Any:
    return data if isinstance(data, Dataset) else TensorDataset(torch.as_tensor(data))


@pytest.mark.parametrize("kind", ["tensor", "array", "data set", "subset"])
def test_feature_matching_on_real_records_is_refused_where_the_function_leads_to_them(kind: str) -> None:
    inner = Records()
    data = {"tensor": (X, Y), "array": (X.numpy(), Y.numpy()), "data set": inner, "subset": Subset(inner, range(N))}[kind]
    target = data[0] if isinstance(data, tuple) else inner
    made = trainer()
    stepped(made, data, 1)
    for way, leads in LEADS.items():
        with pytest.raises(RuntimeError) as found:
            made.public_step(leads(target))
        assert "leads to the private records, by" in str(found.value), way


def test_tensors_of_the_records_are_refused_by_whatever_way_they_come() -> None:
    """Where nobody looks: a list of a module of torch's, a tensor's own attribute. Nothing is done then."""
    made = trainer()
    stepped(made, steps=1)
    hidden = torch.zeros(1)
    hidden.rows = X[3:5]  # type: ignore[attr-defined]
    done: list[int] = []

    def match(released: nn.Module) -> None:
        released(torch.stack([hidden.rows[0], torch.zeros(6)]))  # type: ignore[attr-defined]
        done.append(1)

    with pytest.raises(RuntimeError, match=r"reads a tensor of the private records \(__get"):
        made.public_step(match)
    assert not done


def test_a_model_that_holds_the_records_is_refused() -> None:
    model = Critic()
    model.memory = [X]  # type: ignore[assignment]
    made = trainer(model)
    stepped(made, steps=1)
    with pytest.raises(RuntimeError, match="leads to the private records"):
        made.public_step(lambda released: None)


def test_what_is_not_seen_is_an_assumption_on_the_certificate(tmp_path: Any) -> None:
    """A copy of records, made elsewhere, is not found: the certificate says that there is none, from the first call on, and in a
    run that is continued."""
    made, copied = trainer(checkpoint=tmp_path / "run"), X.clone()
    running = stepped(made, steps=1)
    assert made.certificate is not None and "public_step" not in flat(made.certificate)
    epsilon = made.certificate.epsilon
    made.public_step(lambda released: released(copied))
    made.public_step(lambda released: None)
    said = [item for item in made.certificate.assumptions if item.key == "public steps"]
    assert [item.responsible for item in said] == ["caller"] and "made of records" in said[0].text
    assert made.certificate.epsilon == epsilon
    made.save()
    running.close()
    again = trainer(checkpoint=tmp_path / "run")
    for _ in again.steps((X, Y), resume=True):
        again.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
    assert again.certificate is not None and said[0] in again.certificate.assumptions
    assert again.total_certificate.assumptions == again.certificate.assumptions


def _replaces(made: PrivateTrainer) -> None:
    made.model.head.weight = nn.Parameter(torch.ones(1, 5))


def _adds(made: PrivateTrainer) -> None:
    made.model.body.bias.data = made.model.body.bias.data + 1


def _steps(made: PrivateTrainer) -> None:
    made.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]


def _forgets(made: PrivateTrainer) -> None:
    made.optimizer.state.clear()  # pyright: ignore[reportOptionalMemberAccess]


WRITES: dict[str, tuple[Callable[[PrivateTrainer], Any], str]] = {
    "weights": (lambda made: made.model.head.weight.data.mul_(2), "head.weight"),
    "other storage": (_adds, "body.bias"),
    "another parameter": (_replaces, "head.weight"),
    "gradient": (lambda made: made.model.head.weight.grad.add_(1), "the gradient of head.weight"),
    "no gradient": (lambda made: setattr(made.model.head.weight, "grad", None), "the gradient of head.weight"),
    "buffer": (lambda made: made.model.count.add_(1), "count"),
    "frozen": (lambda made: made.model.head.requires_grad_(False), "whether head.weight is trained"),
    "optimiser's step": (_steps, "body.weight"),
    "optimiser's state": (_forgets, "the optimizer's state"),
}


def test_what_a_function_changes_of_the_private_model_is_put_back_and_said() -> None:
    made = trainer()
    running = stepped(made)
    before = state_of(made)
    for (write, said), error in itertools.product(WRITES.values(), (None, KeyError("its own"))):

        def function(released: nn.Module, write: Any = write, error: Any = error) -> None:
            write(made)
            if error is not None:
                raise error

        with pytest.raises(RuntimeError if error is None else KeyError, match=said if error is None else "its own"):
            made.public_step(function)
        assert same(state_of(made), before)
        assert all(parameter.requires_grad for parameter in made.model.parameters())
    next(running)
    made.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
    assert not torch.equal(made.model.head.weight, before["head.weight"]), "and the run goes on with the same parameters"


def test_a_backward_pass_into_the_private_model_names_the_way() -> None:
    made = trainer()
    stepped(made)
    before = state_of(made)
    with pytest.raises(RuntimeError, match=r"trainer\.public_step"):
        made.public_step(lambda released: made.model(torch.randn(4, 6)).sum().backward())
    assert same(state_of(made), before)


def test_it_belongs_between_the_steps_of_a_run() -> None:
    made = trainer()
    with pytest.raises(ValueError, match="Expected a run"):
        made.public_step(lambda released: None)
    calls: list[int] = []
    holder: dict[str, Any] = {}

    def meddling(outputs: Tensor, targets: Tensor) -> Tensor:
        if holder["made"].certificate is not None:
            holder["made"].public_step(lambda released: calls.append(1))
        return outputs + 0 * targets

    holder["made"] = trainer(loss=meddling)
    for _ in holder["made"].steps((X, Y)):
        holder["made"].optimizer.step()
    assert not calls, "within a pass it is refused, and such a record counts nothing"
    early = trainer(loss=lambda outputs, targets: outputs * float(early.public_step(lambda released: 1.0)))
    charges = len(SpendLog.current().charges())
    with pytest.raises(ValueError, match="Expected a run"):
        early.fit((X, Y), progress=False)
    assert len(SpendLog.current().charges()) == charges


# The example


def test_each_record_is_paired_with_what_it_drew() -> None:
    """The discriminator's gradients are autograd's, at the code of each record, and follow the generator's weights."""
    torch.manual_seed(0)
    critic, generator = gan.Discriminator().double(), gan.Generator().double()
    objective = ModuleObjective(critic, gan.PairedLoss(critic, generator))
    x, y = torch.rand(6, 64).double(), torch.arange(6)
    torch.set_default_dtype(torch.float64)  # in which codes are drawn
    try:
        for _ in range(2):
            objective.evaluate((x, y), y)
            draws = objective.engine.draws = Recorded(objective.flat.device)
            found = objective.evaluate((x, y), y)
            assert objective.one_by_one is None and len(draws.numbers) == 1
            for place, one in enumerate(torch.eye(6)):
                with Again([draws.numbers[0][place]]):
                    only = slice(place, place + 1)
                    loss = gan.PairedLoss(critic, generator)(critic(x[only], y[only]), y[only])[0]
                expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(critic.parameters()))])
                assert torch.allclose(found.weighted_sum(one), expected, atol=1e-12)
            with torch.no_grad():
                generator.last.bias += 3.0
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_gan_trains() -> None:
    """With little noise the discriminator tells digits from noise within an epoch, and the generator follows it."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images[:300]).float() / 16, torch.tensor(labels[:300])
    trainer, generator = gan.trained(x, y, epochs=8, batch=60, noise_multiplier=0.05)
    with torch.no_grad():
        made = generator(torch.randn(300, 16), y)
        assert float((trainer.model(x, y) > trainer.model(torch.rand(300, 64), y)).float().mean()) > 0.9
        ink = x.mean(0)
        assert float(torch.corrcoef(torch.stack([made.mean(0), ink]))[0, 1]) > 0.5, "ink is where digits have it"
    assert any(item.key == "public steps" for item in trainer.certificate.assumptions)


class Generates(Callback):
    """Moves a number by the released critic between steps; with `stolen` records by these, too, as feature matching does."""

    def __init__(self) -> None:
        self.made: Any = None
        self.stolen: Tensor | None = None
        self.place = torch.zeros(6)

    def on_step(self, step: Any) -> None:
        self.made.public_step(self.move)

    def move(self, released: nn.Module) -> None:
        place = (self.place + 0.1 * torch.randn(6)).requires_grad_()
        (slope,) = torch.autograd.grad(released(place[None]).sum(), place)
        self.place = self.place + slope + (0 if self.stolen is None else self.stolen.mean(0))


@pytest.mark.fast_cases("feature matching on copies of records")
@pytest.mark.parametrize("stolen", [False, True], ids=["right", "feature matching on copies of records"])
def test_replay_on_neighbours(stolen: bool) -> None:
    """The critic's loss sees what the public steps made: where these read records, one more of them moves everybody's gradients,
    and replay finds what nobody could see."""
    data = X[:8], Y[:8]
    pairs = [Pair.adding("another", data, 20 * X[9], Y[9])]

    class Trainer(PrivateTrainer):
        def fit(self, dataset: Any, *args: Any, **more: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            moving.made, moving.stolen = self, dataset[0].clone() if stolen else None
            return super().fit(dataset, *args, callbacks=[moving], progress=False)

    moving = Generates()

    def make(source: Any) -> PrivateTrainer:
        torch.manual_seed(0)
        moving.place = torch.zeros(6)
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            return F.softplus(-outputs) + F.softplus(model(moving.place[None]))

        settings: dict[str, Any] = {
            "noise_multiplier": 1.0,
            "delta": 1e-5,
            "public_size": 8,
            "epochs": 1,
            "expected_batch_size": 4,
        }
        return Trainer(
            model, loss, torch.optim.SGD(model.parameters(), lr=0.1), clipping_norm=1.0, random_state=source, **settings
        )

    result = replay(Training.of_trainer(make, data, pairs))
    assert result.verdict == ("refuted" if stolen else "consistent")


class Sharing(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


def test_a_copy_that_shares_parameters_is_refused() -> None:
    made = trainer(nn.Sequential(Sharing(6, 1), nn.Flatten(0)))
    stepped(made)
    with pytest.raises(TypeError, match="shares"):
        made.public_step(lambda released: None)
    assert all(parameter.requires_grad for parameter in made.model.parameters())


class Pooled:
    """Takes what was generated between the steps, one for each record by a draw of its own."""

    def __init__(self, critic: nn.Module) -> None:
        self.critic, self.pool = critic, torch.zeros(5, 6)

    def __call__(self, real: Tensor, targets: Tensor) -> Tensor:
        return F.softplus(-real) + F.softplus(self.critic(self.pool[torch.randint(len(self.pool), (len(real),))]))


def test_a_pool_of_generated_records_is_drawn_from_for_each() -> None:
    """Records run together, and see the pool as the loop left it."""
    critic = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    loss = Pooled(critic)
    objective = ModuleObjective(critic, loss)
    alone = objective.evaluate(torch.zeros(64, 6), torch.zeros(64)).losses
    loss.pool = torch.arange(5.0)[:, None].expand(5, 6).clone()
    drawn = objective.evaluate(torch.zeros(64, 6), torch.zeros(64)).losses
    assert objective.one_by_one is None
    assert [len(losses.unique()) for losses in (alone, drawn)] == [1, 5]
