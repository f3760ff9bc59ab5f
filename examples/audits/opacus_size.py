"""Opacus 1.6: one record more changes the noise of the averaged gradient, whatever epsilon is (add/remove).

pip install 'dperm[torch]' opacus==1.6.0
"""

import warnings

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from dperm.audit import Pair, distinguish, one_at_a_time
from dperm.privacy import Gaussian, PoissonSampled

warnings.filterwarnings("ignore")
SIGMA, BATCH, WEIGHTS = 10.0, 100, 2_000


def noise_level(data):
    """One step of the usual loop on records that are all zero; the size of the change of the weights."""
    inputs, targets = map(torch.as_tensor, data)
    model = torch.nn.Linear(WEIGHTS, 1, bias=False)
    before = model.weight.detach().clone()
    wrapped, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=BATCH),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    x, y = next(iter(loader))
    optimizer.zero_grad()
    (wrapped(x)[:, 0] - y).square().mean().backward()
    optimizer.step()
    change = model.weight.detach() - before
    return float(change.std()), optimizer.expected_batch_size, 1 / len(loader)


if __name__ == "__main__":
    for size in (1000, 1001, 1050):
        data = torch.zeros(size, WEIGHTS), torch.zeros(size)
        seen, batch, rate = noise_level(data)
        print(f"{size} records: rate {rate:.4f}, denominator {batch}, noise std {seen:.5f} (= {SIGMA / batch:.5f})")
    for first in (1000, 1050):
        data = torch.zeros(first, WEIGHTS).numpy(), torch.zeros(first).numpy()
        pair = Pair.adding(f"{first} records against {first + 1}", data, 0.0 * data[0][0], 0.0)
        claim = PoissonSampled(0.1, Gaussian(SIGMA))
        train = one_at_a_time(lambda data: noise_level(data)[0])
        print(pair.name, distinguish(train, pair, 400, claim=claim, delta=1e-5, mechanism="Opacus"))
