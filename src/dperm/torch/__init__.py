"""Networks: exact per-example gradients for PyTorch models, and private training with them."""

from dperm.torch.callbacks import Callback, PrivateStep, ProgressBar, TensorBoard
from dperm.torch.engine import TorchPass
from dperm.torch.normalisation import ChannelStatistics, private_channel_statistics
from dperm.torch.objective import ModuleObjective, per_example
from dperm.torch.records import TorchRecords
from dperm.torch.scattering import Scattering2D, scattering_features, scattering_scale
from dperm.torch.search import Candidate, SearchedRun, search_runs
from dperm.torch.tempered import TemperedSigmoid
from dperm.torch.trainer import PrivateTrainer
from dperm.torch.update import TorchOptimizer

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
