"""The KV cache: a pool of blocks, the sequences that are stored in them, and what can be used again."""

from outrider.cache.blocks import BlockPool
from outrider.cache.paged import KVCache, key_places, value_places
from outrider.cache.sequence import BLOCK, KVSequence

__all__ = ["BLOCK", "BlockPool", "KVCache", "KVSequence", "key_places", "value_places"]
