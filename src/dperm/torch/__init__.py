"""Private training of PyTorch models with exact per-example gradients; requires `dperm[torch]`.

Users start with `PrivateTrainer`. The rooms below are internal, and each imports only those before it in `docs/design.md`; to
give a function of torch cheaper per-example gradients, add a rule in `dperm.torch.engine.rules`.
"""

from importlib import import_module

from dperm._extras import needed

with needed("torch", "Training networks"):  # all modules below import it
    import_module("torch")

from dperm.torch.data.loaders import LoaderParts, from_loader
from dperm.torch.data.records import TorchRecords
from dperm.torch.engine import TorchPass
from dperm.torch.features.channel_normalisation import ChannelStatistics, private_channel_statistics
from dperm.torch.features.scattering import Scattering2D, scattering_features, scattering_scale
from dperm.torch.features.tempered_sigmoid import TemperedSigmoid
from dperm.torch.module_objective import ModuleObjective, per_example
from dperm.torch.parameters.adam_bc import AdamBC
from dperm.torch.parameters.optimizer import TorchOptimizer
from dperm.torch.training.callbacks import Callback, PrivateStep, ProgressBar, TensorBoard
from dperm.torch.training.search import Candidate, SearchedRun, search_runs
from dperm.torch.training.trainer import PrivateTrainer
from dperm.torch.training.unspent import Remaining

__all__ = [
    "AdamBC",
    "Callback",
    "Candidate",
    "ChannelStatistics",
    "LoaderParts",
    "ModuleObjective",
    "PrivateStep",
    "PrivateTrainer",
    "ProgressBar",
    "Remaining",
    "Scattering2D",
    "SearchedRun",
    "TemperedSigmoid",
    "TensorBoard",
    "TorchOptimizer",
    "TorchPass",
    "TorchRecords",
    "from_loader",
    "per_example",
    "private_channel_statistics",
    "scattering_features",
    "scattering_scale",
    "search_runs",
]
