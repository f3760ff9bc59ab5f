"""White-box audits of Opacus 1.6 in several settings, each against the event that its accountant charges.

pip install 'dperm[torch]' opacus==1.6.0
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from dperm.audit.opacus import audit_opacus

warnings.filterwarnings("ignore")
SIZE, CANARIES, BATCH, SIGMA, STEPS = 600, 200, 100, 1.0, 80
SETTINGS = {
    "defaults": {},
    "grad_sample_mode='ew'": {"grad_sample_mode": "ew"},
    "poisson_sampling=False": {"poisson_sampling": False},
    "clipping='per_layer'": {"clipping": "per_layer", "max_grad_norm": [0.5, 0.5, 0.5, 0.5, 1.0]},
    "clipping='adaptive', frozen bound": {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.0,
        "max_clipbound": 2.0,
        "min_clipbound": 0.5,
        "unclipped_num_std": 10.0,
    },
}


def private(**settings):
    def make(model, dataset):
        return PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=BATCH, shuffle=True),
            **({"noise_multiplier": SIGMA, "max_grad_norm": 1.0} | settings),
        )

    return make


torch.manual_seed(0)
inputs = torch.randn(SIZE, 10)
for name, settings in SETTINGS.items():
    norm = settings.get("max_grad_norm", 1.0)
    result = audit_opacus(
        private(**settings),
        lambda: nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2)),
        nn.CrossEntropyLoss(reduction="none"),
        inputs,
        (inputs[:, 0] > 0).long(),
        noise_multiplier=SIGMA,
        max_grad_norm=sum(n * n for n in norm) ** 0.5 if isinstance(norm, list) else norm,
        rate=BATCH / (SIZE + CANARIES),
        steps=STEPS,
        delta=1e-5,
        canaries=CANARIES,
    )
    print(f"{name}: {result}\n   ratio {result.details['signal_to_claimed_signal']:.3f}", flush=True)
