"""The server's side of training in rounds with clients elsewhere: `FederatedRounds`, for any transport; `dperm.flower` has it for
Flower. To simulate clients on one machine, give `dp_fedavg` to `dperm.torch.PrivateTrainer`.
"""

from dperm.federated.rounds import FederatedRounds

__all__ = ["FederatedRounds"]
