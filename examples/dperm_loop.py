"""A training loop of your own with dperm; examples/opacus_loop.py is the same with Opacus. docs/from-opacus.md compares them."""

from __future__ import annotations

import torch
from torch import nn

from dperm.torch import PrivateTrainer

torch.manual_seed(0)
inputs = torch.randn(2000, 20)
targets = (inputs[:, :3].sum(1) > 0).long()

model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
trainer = PrivateTrainer(
    model,
    nn.CrossEntropyLoss(reduction="none"),
    optimizer,
    epsilon=3.0,
    delta=1e-5,
    epochs=10,
    expected_batch_size=100,
    clipping_norm=1.0,
    public_size=2000,
)

for step in trainer.steps((inputs, targets)):
    optimizer.step()  # the noisy gradient is in .grad; nothing to zero, nothing to call backward on
    if step.number % 100 == 0:
        print(f"step {step.number} of {step.total}")

print(f"accuracy {(model(inputs).argmax(1) == targets).float().mean():.3f}")
print(trainer.certificate)
