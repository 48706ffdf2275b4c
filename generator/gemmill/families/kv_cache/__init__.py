"""Compressed KV caches: codebooks, packed formats and references. Nothing here is wired into an op yet."""
