"""The loop of examples/dperm_loop.py with Opacus 1.6 (pip install opacus), for comparison."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(2000, 20)
targets = (inputs[:, :3].sum(1) > 0).long()

model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
engine = PrivacyEngine()
wrapped, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=100),
    target_epsilon=3.0,
    target_delta=1e-5,
    epochs=10,
    max_grad_norm=1.0,
)
criterion = nn.CrossEntropyLoss()

for _ in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

print(f"accuracy {(model(inputs).argmax(1) == targets).float().mean():.3f}")
print(f"epsilon {engine.get_epsilon(1e-5):.3f}")
