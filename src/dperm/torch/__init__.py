"""Networks: exact per-example gradients for PyTorch models, and private training with them."""

from dperm.torch.objective import ModuleObjective, TorchPass, per_example

__all__ = ["ModuleObjective", "TorchPass", "per_example"]
