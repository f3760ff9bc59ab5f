"""Data-parallel runs on several processes: one charge, one sample and one noise for all ranks.

Users start the same script under `torchrun` (`docs/ranks.md`). Other rooms communicate between ranks through `Ranks`, and call
it on every rank in the same order.
"""

from dperm.torch.ranks.group import RankError, Ranks
from dperm.torch.ranks.rank_channel import LogOfFirst, RankSource
from dperm.torch.ranks.rank_share import Share, share_of
from dperm.torch.ranks.shard_noise import Lengthened, Shards, ShardSource

__all__ = ["Lengthened", "LogOfFirst", "RankError", "RankSource", "Ranks", "ShardSource", "Shards", "Share", "share_of"]
