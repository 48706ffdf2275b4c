"""A process whose registry has the toy too."""

from importlib import import_module

import_module("toy.registered")
import_module("toy.life").main()
