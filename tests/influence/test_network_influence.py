"""Influence on networks: against linear models, dense matrices, and refits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dperm.influence import LinearInfluence, NetworkInfluence
from dperm.objectives import LinearObjective, Softmax

N, D, K = 120, 4, 3
losses = nn.CrossEntropyLoss(reduction="none")


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(N, D))), torch.from_numpy(rng.integers(K, size=N))


def softmax_model() -> tuple[LinearInfluence, nn.Module]:
    x, y = data()
    objective = LinearObjective(Softmax(K), D, data_norm=10.0, strong_convexity=3.0)
    linear = LinearInfluence.at_minimiser(objective, objective.records(x.numpy(), y.double().numpy()))
    model = nn.Linear(D, K, bias=False).double()
    model.weight.data = torch.from_numpy(linear.theta.reshape(D, K).T.copy())
    return linear, model


def of(model: nn.Module, **settings: Any) -> NetworkInfluence:
    chosen: dict[str, Any] = {"damping": 0.0, "weight_decay": 3.0 / N, "tolerance": 1e-10, "batch_size": 50}
    return NetworkInfluence(model, losses, data(), **(chosen | settings))


@pytest.mark.parametrize("curvature", ["gauss_newton", "hessian"])
def test_on_a_softmax_model_it_is_the_linear_influence(curvature: str) -> None:
    linear, model = softmax_model()
    network, (x, y) = of(model, curvature=curvature), data(1)
    told = network.on_prediction(x[:1], 2)
    assert told == pytest.approx(linear.on_predictions(x[:1].numpy(), step=False)[:, 0, 2], rel=1e-4, abs=1e-7)
    assert network.on_loss(x, y) == pytest.approx(
        linear.on(_flat(network.gradient(lambda run: losses(run(x), y).mean())), step=False), rel=1e-4, abs=1e-7
    )
    assert network.parameters(7).numpy() == pytest.approx(_turned(linear.parameters([7], step=False)[0]), rel=1e-4, abs=1e-8)
    group = [3, 17, 50, 51]
    assert network.without(group).numpy() == pytest.approx(_turned(linear.without(group)), rel=1e-4, abs=1e-7)
    arrived = network.with_more(x[:3], y[:3]).numpy()
    assert arrived == pytest.approx(_turned(linear.with_more(x[:3].numpy(), y[:3].double().numpy())), rel=1e-4, abs=1e-7)


def _turned(theta: Any) -> Any:
    return theta.reshape(D, K).T.ravel()


def _flat(weight: Tensor) -> Any:
    return weight.reshape(K, D).T.numpy().ravel()


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 5), activation(), nn.Dropout(0.5), nn.Linear(5, K)).double()


def dense(model: nn.Module, curvature: str) -> tuple[Tensor, Tensor]:
    """(H of the mean loss, all gradients (n, p)), by automatic differentiation of every number."""
    x, y = data()
    model.eval()
    names, values = zip(*model.named_parameters(), strict=True)
    theta = torch.cat([value.detach().flatten() for value in values])

    def outputs(flat: Tensor) -> Tensor:
        parts = [part.view(value.shape) for part, value in zip(flat.split([v.numel() for v in values]), values, strict=True)]
        return torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,))

    def mean(flat: Tensor) -> Tensor:
        return losses(outputs(flat), y).mean()

    gradients = torch.func.jacrev(lambda flat: losses(outputs(flat), y))(theta)
    if curvature == "hessian":
        return torch.func.hessian(mean)(theta), gradients
    jacobian, probabilities = torch.func.jacrev(outputs)(theta), outputs(theta).softmax(1)
    middle = torch.diag_embed(probabilities) - probabilities[:, :, None] * probabilities[:, None, :]
    return torch.einsum("nkp,nkl,nlq->pq", jacobian, middle, jacobian) / N, gradients


@pytest.mark.parametrize("curvature", ["gauss_newton", "hessian"])
def test_against_dense_matrices(curvature: str) -> None:
    """In a network with dropout, which is off: whose modes are left as they were."""
    model, (x, _) = mlp(), data(1)
    matrix, gradients = dense(model, curvature)
    model.train()
    shift = 0.5  # a network that was not trained has negative curvature
    network = of(model, curvature=curvature, damping=shift, weight_decay=0.0)
    inverse = torch.linalg.inv(matrix + shift * torch.eye(len(matrix)))
    score = network.gradient(lambda run: run(x[:1])[0, 1])
    assert network.on_prediction(x[:1], 1) == pytest.approx((gradients @ inverse @ score / N).detach().numpy(), rel=1e-6)
    assert all(module.training for module in model.modules())
    before = [value.clone() for value in model.parameters()]
    network.without([1, 2])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_layers_can_be_chosen() -> None:
    model, (x, _) = mlp(), data(1)
    matrix, gradients = dense(model, "gauss_newton")
    last = slice(D * 5 + 5, None)
    network = of(model, layers=["3"], damping=0.1, weight_decay=0.0)
    inverse = torch.linalg.inv(matrix[last, last] + 0.1 * torch.eye(6 * K))
    score = network.gradient(lambda run: run(x[:1])[0, 1])
    assert len(score) == 6 * K
    assert network.on_prediction(x[:1], 1) == pytest.approx((gradients[:, last] @ inverse @ score / N).detach().numpy(), rel=1e-6)
    with pytest.raises(ValueError, match="Expected layers among"):
        of(model, layers=["4"])


def test_lissa_comes_near_conjugate_gradients() -> None:
    model, (x, _) = mlp(), data(1)
    exact = of(model, damping=0.3).on_prediction(x[:1])
    near = of(model, damping=0.3, solver="lissa", iterations=150, batch_size=60, random_state=0).on_prediction(x[:1])
    assert np.corrcoef(exact, near)[0, 1] > 0.99
    assert near == pytest.approx(exact, abs=0.1 * np.abs(exact).max())


def test_what_leaving_out_does_is_told_before_it_is_done() -> None:
    """A small network trained to its optimum in double precision, and refitted from there without groups."""
    model, (x, y) = mlp(), data()
    decay = 0.02

    def fit(keep: Tensor) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=400, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = (losses(model(x), y) * keep).sum() / N
            value = value + decay / 2 * sum(p.square().sum() for p in model.parameters())
            value.backward()
            return value

        optimizer.step(closure)

    model.eval()
    fit(torch.ones(N))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    influence = of(model, damping=0.0, weight_decay=decay, curvature="hessian", tolerance=1e-8)
    point = data(5)[0][:1]
    told = influence.on_prediction(point)
    with torch.no_grad():
        base = float(model(point)[0, 0])
    groups = [np.random.default_rng(seed).choice(N, 5, replace=False) for seed in range(12)]
    happened = []
    for group in groups:
        model.load_state_dict(start)
        keep = torch.ones(N)
        keep[torch.from_numpy(group)] = 0
        fit(keep)
        with torch.no_grad():
            happened.append(float(model(point)[0, 0]) - base)
    model.load_state_dict(start)
    assert np.corrcoef([told[group].sum() for group in groups], happened)[0, 1] > 0.9


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x.reshape(len(x), 2, 2))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.TransformerEncoderLayer(2, 1, 4, activation="gelu", batch_first=True), nn.Linear(2, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.reshape(len(x), 2, 2)).mean(1))


@pytest.mark.parametrize("kind", [Recurrent, Attentive])
def test_layers_with_fused_kernels(kind: type[nn.Module]) -> None:
    """They have no forward derivatives, and are left out for as long."""
    torch.manual_seed(0)
    model, fused = kind().double(), torch.backends.mha.get_fastpath_enabled()
    network, (x, y) = of(model, damping=0.1), data()
    told = network.on_prediction(x[:1])
    weights = network.solve(network.gradient(lambda run: run(x[:1])[0, 0]))
    model.eval()
    for place in (0, 57):
        loss = losses(model(x[place : place + 1]), y[place : place + 1]).sum()
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        assert told[place] == pytest.approx(float(gradient @ weights) / N, rel=1e-6)
    assert torch.backends.mha.get_fastpath_enabled() == fused


def test_bad_input_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"not twice differentiable.*Relu.*gauss_newton"):
        of(mlp(nn.ReLU), curvature="hessian")
    assert len(of(mlp(nn.ReLU)).on_prediction(data(1)[0][:1])) == N
    with pytest.raises(ValueError, match="singular"):
        of(mlp(), weight_decay=0.0)
    with pytest.raises(ValueError, match="raise damping"):
        of(mlp(), curvature="hessian", weight_decay=0.0, damping=1e-6).on_prediction(data(1)[0][:1])
    with pytest.raises(ValueError, match=r"came to .* in 2 iterations"):
        of(mlp(), iterations=2).on_prediction(data(1)[0][:1])
    with pytest.raises(ValueError, match="finite gradient"):
        of(mlp()).on(lambda run: run(torch.full((1, D), torch.nan).double()).sum())
    network, x = of(mlp()), data()[0]
    with pytest.raises(ValueError, match="output below 3"):
        network.on_prediction(x[:1], 3)
    with pytest.raises(ValueError, match=r"shape \(43,\), got \(2,\)"):
        network.on(torch.zeros(2))
    with pytest.raises(ValueError, match="indices from 0 to 119"):
        network.parameters(120)
    with pytest.raises(ValueError, match="reduction='none'"):
        NetworkInfluence(mlp(), nn.CrossEntropyLoss(), data(), damping=1.0)
    for wrong in ([3, 3], [1.5], np.ones(5, dtype=bool), [-1]):
        with pytest.raises(ValueError, match="Expected"):
            network.without(wrong)
    assert torch.equal(network.without(np.arange(N) < 3), network.without([0, 1, 2]))
    with pytest.raises(ValueError, match="batch of one"):
        network.on_prediction(x[:3])
    with pytest.raises(ValueError, match="LiSSA came to"):
        of(mlp(), solver="lissa", iterations=2, damping=1e-3).on_prediction(x[:1])
    with pytest.raises(TypeError, match="sequence of layers"):
        of(mlp(), layers="3")
    frozen = mlp()
    frozen.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable"):
        of(frozen)
