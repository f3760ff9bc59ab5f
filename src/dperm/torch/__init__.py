"""Networks: exact per-example gradients for PyTorch models, and private training with them."""

from importlib import import_module

from dperm._extras import needed

with needed("torch", "Training networks"):  # all modules below import it
    import_module("torch")

from dperm.torch.data.records import TorchRecords
from dperm.torch.engine import TorchPass
from dperm.torch.features.channel_normalisation import ChannelStatistics, private_channel_statistics
from dperm.torch.features.scattering import Scattering2D, scattering_features, scattering_scale
from dperm.torch.features.tempered_sigmoid import TemperedSigmoid
from dperm.torch.module_objective import ModuleObjective, per_example
from dperm.torch.parameters.optimizer import TorchOptimizer
from dperm.torch.training.callbacks import Callback, PrivateStep, ProgressBar, TensorBoard
from dperm.torch.training.search import Candidate, SearchedRun, search_runs
from dperm.torch.training.trainer import PrivateTrainer

__all__ = [
    "Callback",
    "Candidate",
    "ChannelStatistics",
    "ModuleObjective",
    "PrivateStep",
    "PrivateTrainer",
    "ProgressBar",
    "Scattering2D",
    "SearchedRun",
    "TemperedSigmoid",
    "TensorBoard",
    "TorchOptimizer",
    "TorchPass",
    "TorchRecords",
    "per_example",
    "private_channel_statistics",
    "scattering_features",
    "scattering_scale",
    "search_runs",
]
