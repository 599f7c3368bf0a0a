"""The KV cache: a pool of blocks, and the sequences that are stored in them."""

from outrider.cache.blocks import BlockPool
from outrider.cache.paged import BLOCK, KVCache, KVSequence

__all__ = ["BLOCK", "BlockPool", "KVCache", "KVSequence"]
