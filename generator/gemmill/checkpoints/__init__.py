"""Checkpoints: safetensors files read and written in bounded memory, their key names, and conversion between formats."""
