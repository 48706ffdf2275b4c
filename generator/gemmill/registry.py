"""The families of kernels: the only place that lists them."""

from gemmill.families.blockscaled.family import FAMILY as BLOCKSCALED
from gemmill.families.fused_moe.family import FAMILY as FUSED_MOE
from gemmill.families.gated_mm.family import FAMILY as GATED_MM
from gemmill.families.kv_cache.family import FAMILY as KV_CACHE
from gemmill.families.moe.family import FAMILY as MOE
from gemmill.families.quant.family import FAMILY as QUANT
from gemmill.families.scaled_mm.family import FAMILY as SCALED_MM
from gemmill.families.sparse_mm.family import FAMILY as SPARSE_MM
from gemmill.family import Registry

REGISTRY = Registry((SCALED_MM, QUANT, BLOCKSCALED, KV_CACHE, MOE, GATED_MM, SPARSE_MM, FUSED_MOE))
