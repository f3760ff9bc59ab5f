"""A run on many processes: data parallel, with one charge, one draw and one noise."""

from dperm.torch.ranks.group import RankError, Ranks
from dperm.torch.ranks.log import LogOfFirst
from dperm.torch.ranks.shard_source import Lengthened, Shards, ShardSource
from dperm.torch.ranks.share import Share
from dperm.torch.ranks.sharing import share_of
from dperm.torch.ranks.source import RankSource

__all__ = ["Lengthened", "LogOfFirst", "RankError", "RankSource", "Ranks", "ShardSource", "Shards", "Share", "share_of"]
