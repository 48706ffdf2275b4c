"""Config to text. Pure: no GPU, no subprocess, no decisions beyond spelling a config in C++."""

from gemmill.emit.render import EmittedFile, emit, emit_unit
