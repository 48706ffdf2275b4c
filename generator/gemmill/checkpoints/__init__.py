"""Checkpoints: safetensors files read and written in bounded memory, their key names, and conversion between formats."""

from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.folder import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "CheckpointError", "open_checkpoint"]
