"""Influence of records on a network's parameters θ̂, near a minimum of J = (1/n)Σ_j ℓ_j + (weight_decay/2)‖θ‖².

Where record i leaves, θ̂ moves by about H⁻¹∇ℓ_i/n (Koh & Liang 2017). H is the Gauss–Newton matrix of J, which is positive
whatever θ̂ is, or its Hessian; `damping` is added to the diagonal of either (Bae, Ng, Lo, Ghassemi, Grosse 2022, say what the
answer then means: the move of a training that is held near θ̂). H is never made: products with it cost about two passes over the
records, and conjugate gradients or LiSSA (Agarwal, Bullins, Hazan 2017) solve by them. What a score feels of all records is one
solve and one forward derivative: v·∇ℓ_i is the derivative of ℓ_i along v.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._extras import needed
from dperm._types import Array
from dperm.influence.linear import admit_indices
from dperm.torch.data.records import TorchRecords
from dperm.torch.engine.ordinary_losses import evaluating
from dperm.torch.tensors.nested import FAILURES, batch_size, call_model, tensors

with needed("torch", "The influence of records on a network"):
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call, jvp, vjp

#: a score of a model, by its parameters: handed a function from inputs to outputs, returns a number
Score = Callable[[Callable[[Any], Any]], Tensor]

_KINKS = (
    *("Relu", "LeakyRelu", "Prelu", "Elu", "Hardtanh", "Hardswish", "Threshold", "MaxPool", "AdaptiveMaxPool"),
    *("Abs", "Clamp", "Max", "Min", "Sort", "Sign"),
)
_REPEATS, _LISSA_LEFT = 2, 0.3  # of LiSSA: batches differ, so that little less can be asked of it


class NetworkInfluence:
    """The influence of records on a trained network.

    `loss_fn(outputs, targets) -> (b,)` as for training; `data` (inputs, targets), or a data set. `layers`: prefixes of the names
    of the parameters that may move (None: all trainable ones); the others count as fixed. `curvature` "gauss_newton" (of any
    network, for losses that are convex in the outputs) or "hessian" (of networks without kinks: ReLU and max-pooling have none
    there). `solver` "cg", to a relative residual of `tolerance` within `iterations`, or "lissa", so many stochastic ones. The
    model is run in evaluation mode and is not changed. Nothing of this is private.

    ValueError for a network with kinks under "hessian", for curvature that is not positive with this damping, for a solver that
    does not arrive.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        data: Any,
        *,
        damping: float = 1e-3,
        weight_decay: float = 0.0,
        layers: Sequence[str] | None = None,
        curvature: Literal["gauss_newton", "hessian"] = "gauss_newton",
        solver: Literal["cg", "lissa"] = "cg",
        tolerance: float = 1e-3,
        iterations: int = 500,
        batch_size: int = 1024,
        random_state: int | None = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        check.non_negative("damping", damping)
        check.non_negative("weight_decay", weight_decay)
        if damping + weight_decay == 0:
            raise ValueError("Expected damping > 0 or weight_decay > 0: a network's curvature is singular.")
        self.curvature = check.choice("curvature", curvature, ("gauss_newton", "hessian"))
        self.solver = check.choice("solver", solver, ("cg", "lissa"))
        self.tolerance, self.iterations = check.fraction("tolerance", tolerance), check.integer("iterations", iterations)
        self.model, self.loss_fn = model, loss_fn
        self.damping, self.weight_decay = damping, weight_decay
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        if isinstance(layers, str):
            raise TypeError(f"Expected a sequence of layers, got the text {layers!r}: write [{layers!r}].")
        if layers is not None and not layers:
            raise ValueError("Expected at least one layer, or None for all.")
        if layers is not None:
            if unknown := [prefix for prefix in layers if not any(_below(name, prefix) for name, _ in named)]:
                raise ValueError(f"Expected layers among the trainable parameters, got {', '.join(unknown)}.")
            named = [(name, value) for name, value in named if any(_below(name, prefix) for prefix in layers)]
        if not named:
            raise ValueError("Expected a model with trainable parameters, got none.")
        self._names, self._shapes = [name for name, _ in named], [value.shape for _, value in named]
        self._sizes = [value.numel() for _, value in named]
        self.theta = torch.cat([value.detach().flatten() for _, value in named])  # (p,)
        self._fixed = {
            name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()] if name not in self._names
        }
        self.records = TorchRecords(
            data, physical_batch_size=check.integer("batch_size", batch_size), device=self.theta.device, protected=False
        )
        self._draws = np.random.default_rng(random_state)
        self._progress = progress
        _load_forward_derivatives()
        self._check()
        if curvature == "hessian" and (kinks := self._kinks()):
            raise ValueError(
                f"The loss is not twice differentiable in the parameters ({', '.join(kinks)}): use curvature='gauss_newton'."
            )

    def __len__(self) -> int:
        return len(self.records)

    # What records do

    def on(self, score: Score | Tensor) -> Array:
        """(n,): the change of a score where each record leaves, to first order.

        `score`: a function that is handed the model, as a function from inputs to outputs, and returns a number; or its gradient
        (p,) in the parameters that may move.
        """
        direction = score if isinstance(score, Tensor) else self.gradient(score)
        if direction.shape != self.theta.shape:
            raise ValueError(f"Expected a score's gradient of shape {tuple(self.theta.shape)}, got {tuple(direction.shape)}.")
        return self.along(self.solve(direction)) / len(self)

    def on_prediction(self, inputs: Any, output: int = 0) -> Array:
        """(n,): the change of one output for one input (a batch of one)."""
        if batch_size(inputs) != 1:
            raise ValueError(f"Expected a batch of one input, got {batch_size(inputs)}: `on` takes any score.")

        def score(run: Callable[[Any], Any]) -> Tensor:
            outputs = run(inputs).reshape(-1)
            if not 0 <= output < len(outputs):
                raise ValueError(f"Expected output below {len(outputs)}, the number of outputs, got {output}.")
            return outputs[output]

        return self.on(score)

    def on_loss(self, inputs: Any, targets: Any) -> Array:
        """(n,): the change of the mean loss of other records. Above 0: the record helps them."""
        return self.on(lambda run: self._losses(run(inputs), targets).mean())

    def parameters(self, index: int) -> Tensor:
        """(p,): the change of θ where this record leaves."""
        return self.solve(self._sum_of_gradients(admit_indices(index, len(self)))) / len(self)

    def without(self, indices: Sequence[int] | NDArray[np.intp]) -> Tensor:
        """θ (p,) after these records have left together: one step of Newton's method on what is left of J."""
        chosen = np.sort(admit_indices(indices, len(self)))
        rest = np.setdiff1d(np.arange(len(self)), chosen)
        return self.theta + self.solve(self._sum_of_gradients(chosen), rest) / len(self)

    def with_more(self, inputs: Any, targets: Any) -> Tensor:
        """θ (p,) after these records have arrived, by one such step."""
        more = (inputs, targets)
        gradient = self._batch_gradient(self.theta, more)
        return self.theta - self.solve(gradient, more=more) / len(self)

    # Parts

    def gradient(self, score: Score) -> Tensor:
        """(p,): of a score, in the parameters that may move."""
        with self._still():
            theta = self.theta.clone().requires_grad_()
            (found,) = torch.autograd.grad(score(lambda inputs: self._outputs(theta, inputs)), theta)
        return found.detach()

    def along(self, direction: Tensor) -> Array:
        """(n,): v·∇ℓ_i of all records, for v (p,)."""
        parts: list[Array] = []
        with self._still():
            for inputs, targets in self.records.batches():

                def losses(theta: Tensor, inputs: Any = inputs, targets: Any = targets) -> Tensor:
                    return self._losses(self._outputs(theta, inputs), targets)

                change = jvp(losses, (self.theta,), (direction,))[1]
                parts.append(change.detach().double().cpu().numpy())
        return np.concatenate(parts)

    def product(self, vector: Tensor, chosen: NDArray[np.intp] | None = None, more: Any = None) -> Tensor:
        """(H + damping)·v (p,), of all records, or of the `chosen` ones and of `more`; either way divided by n."""
        total = torch.zeros_like(vector)
        with self._still():
            for batch in self._batches(chosen, more):
                total += self._batch_product(vector, batch)
        return total / len(self) + (self.damping + self.weight_decay) * vector

    def solve(self, right: Tensor, chosen: NDArray[np.intp] | None = None, more: Any = None) -> Tensor:
        """(H + damping)⁻¹·right, (p,)."""
        if not bool(torch.isfinite(right).all()):
            raise ValueError("Expected a finite gradient: the loss or the score is not finite at these parameters.")
        if self.solver == "lissa" and chosen is None and more is None:
            return self._lissa(right)
        return self._conjugate_gradients(right, chosen, more)

    def _conjugate_gradients(self, right: Tensor, chosen: NDArray[np.intp] | None, more: Any) -> Tensor:
        found, residual = torch.zeros_like(right), right.clone()
        direction, square = residual.clone(), float(residual @ residual)
        start = math.sqrt(square)
        if start == 0:
            return found
        for number in range(self.iterations):
            moved = self.product(direction, chosen, more)
            curved = float(direction @ moved)
            if not curved > 0:
                raise ValueError(
                    f"The curvature along a direction is {curved / float(direction @ direction):.3g} with damping "
                    f"{self.damping:g}, not positive: raise damping, or use curvature='gauss_newton'."
                )
            step = square / curved
            found += step * direction
            residual -= step * moved
            before, square = square, float(residual @ residual)
            if self._progress is not None:
                self._progress(number + 1, math.sqrt(square) / start)
            if math.sqrt(square) <= self.tolerance * start:
                return found
            direction = residual + (square / before) * direction
        raise ValueError(
            f"Conjugate gradients came to {math.sqrt(square) / start:.2g} of the start in {self.iterations} iterations, not to "
            f"{self.tolerance:g}: raise damping or iterations."
        )

    def _lissa(self, right: Tensor) -> Tensor:
        """h ← right + h − (H_B + damping)h/scale on drawn batches B, scale above the largest eigenvalue; the mean of repeats."""
        size, count = min(self.records.physical_batch_size, len(self)), len(self)
        scale = 1.2 * self._largest_eigenvalue()
        total = torch.zeros_like(right)
        shift = self.damping + self.weight_decay
        for repeat in range(_REPEATS):
            found = right / scale
            for _ in range(self.iterations):
                drawn = np.sort(self._draws.choice(count, size, replace=False))
                moved = torch.zeros_like(right)
                with self._still():
                    for batch in self._batches(drawn, None):
                        moved += self._batch_product(found, batch)
                found = right / scale + found - (moved / size + shift * found) / scale
                if not bool(torch.isfinite(found).all()):
                    raise ValueError("LiSSA diverged: raise damping or batch_size, or use solver='cg'.")
            total += found
            if self._progress is not None:
                self._progress(repeat + 1, 1 - (repeat + 1) / _REPEATS)
        found = total / _REPEATS
        left = float(torch.linalg.vector_norm(right - self.product(found)) / torch.linalg.vector_norm(right))
        if left > _LISSA_LEFT:
            raise ValueError(
                f"LiSSA came to {left:.2g} of the start in {self.iterations} iterations, not to {_LISSA_LEFT:g}: raise "
                "iterations, batch_size or damping, or use solver='cg'."
            )
        return found

    def _largest_eigenvalue(self, steps: int = 12) -> float:
        """Of H with damping, by the power method."""
        generator = torch.Generator().manual_seed(0)
        vector = torch.randn(len(self.theta), generator=generator, dtype=self.theta.dtype).to(self.theta.device)
        value = 0.0
        for _ in range(steps):
            vector = vector / torch.linalg.vector_norm(vector)
            moved = self.product(vector)
            value, vector = float(torch.linalg.vector_norm(moved)), moved
        return value

    def _sum_of_gradients(self, chosen: Any) -> Tensor:
        total = torch.zeros_like(self.theta)
        for batch in self._batches(np.asarray(chosen, dtype=np.intp), None):
            total += self._batch_gradient(self.theta, batch)
        return total

    def _batch_gradient(self, at: Tensor, batch: Any) -> Tensor:
        with self._still():
            theta = at.clone().requires_grad_()
            (found,) = torch.autograd.grad(self._losses(self._outputs(theta, batch[0]), batch[1]).sum(), theta)
        return found.detach()

    def _batch_product(self, vector: Tensor, batch: Any) -> Tensor:
        inputs, targets = batch
        if self.curvature == "hessian":
            theta = self.theta.clone().requires_grad_()
            loss = self._losses(self._outputs(theta, inputs), targets).sum()
            (gradient,) = torch.autograd.grad(loss, theta, create_graph=True)
            (found,) = torch.autograd.grad(gradient @ vector, theta)
            return found.detach()

        def run(theta: Tensor) -> Tensor:
            return self._outputs(theta, inputs)

        def slope(outputs: Tensor) -> Tensor:
            return torch.func.grad(lambda each: self._losses(each, targets).sum())(outputs)

        tangent: Any = jvp(run, (self.theta,), (vector,))
        curved = jvp(slope, (tangent[0],), (tangent[1],))[1]
        return vjp(run, self.theta)[1](curved)[0].detach()

    def _batches(self, chosen: NDArray[np.intp] | None, more: Any) -> Iterator[Any]:
        yield from next(self.records.stream([chosen]))
        if more is not None:
            yield more

    def _outputs(self, theta: Tensor, inputs: Any) -> Any:
        parts = [part.view(shape) for part, shape in zip(theta.split(self._sizes), self._shapes, strict=True)]
        values = {**self._fixed, **dict(zip(self._names, parts, strict=True))}
        return functional_call(_Called(self.model), {f"model.{name}": value for name, value in values.items()}, (inputs,))

    def _check(self) -> None:
        """ValueError for a loss that is not one number a record, and for a model without the derivatives that are needed."""
        inputs, targets = self.records.sample(2)
        self._losses(self._outputs(self.theta, inputs), targets)
        try:
            with self._still():
                self._batch_product(torch.zeros_like(self.theta), (inputs, targets))
                jvp(lambda theta: self._outputs(theta, inputs), (self.theta,), (torch.zeros_like(self.theta),))
        except NotImplementedError as error:
            raise ValueError(f"The model has no forward derivative: {str(error).splitlines()[0]}") from error

    def _losses(self, outputs: Any, targets: Any) -> Tensor:
        """(b,). ValueError for a loss that is not one number a record."""
        size = batch_size(targets)
        try:
            losses = self.loss_fn(outputs, targets)
        except FAILURES as error:
            found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(targets)) or type(targets).__name__
            raise ValueError(f"Expected targets that loss_fn takes, got {found}: {error}") from error
        if tuple(losses.shape) != (size,):
            raise ValueError(
                f"Expected loss_fn to give one loss per record, shape ({size},), got {tuple(losses.shape)}: use reduction='none'."
            )
        return losses

    def _kinks(self) -> list[str]:
        """Operations of the loss, on the first records, whose derivative jumps."""
        inputs, targets = self.records.sample(2)
        with self._still():
            theta = self.theta.clone().requires_grad_()
            loss = self._losses(self._outputs(theta, inputs), targets).sum()
        waiting, seen, found = [loss.grad_fn], set[Any](), set[str]()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = type(node).__name__.removesuffix("Backward0").removesuffix("Backward1")
            if name.startswith(_KINKS):
                found.add(name)
            waiting += [following for following, _ in node.next_functions]
        return sorted(found)

    def _still(self) -> contextlib.AbstractContextManager[None]:
        return evaluating(self.model)


def _load_forward_derivatives() -> None:
    """Now, when a warning of torch's about itself, on their first use, can be kept from the caller."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.square, (torch.ones(1),), (torch.ones(1),))


class _Called(nn.Module):
    """A model that takes its inputs as one argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return call_model(self.model, inputs)


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
