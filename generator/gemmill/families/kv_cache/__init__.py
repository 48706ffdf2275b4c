"""Compressed KV caches: codebooks, packed formats, references, and the ops that store and attend."""

NAME = "kv_cache"
