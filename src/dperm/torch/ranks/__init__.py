"""A run on many processes: data parallel, with one charge, one draw and one noise."""

from dperm.torch.ranks.group import RankError, Ranks
from dperm.torch.ranks.rank_channel import LogOfFirst, RankSource
from dperm.torch.ranks.rank_share import Share, share_of
from dperm.torch.ranks.shard_noise import Lengthened, Shards, ShardSource

__all__ = ["Lengthened", "LogOfFirst", "RankError", "RankSource", "Ranks", "ShardSource", "Shards", "Share", "share_of"]
