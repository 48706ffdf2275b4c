"""Puts gemmill's passes behind those that vLLM compiles a model's graph with, by the names that vLLM asks its platform for.

The configuration of an engine says which builds are there, for vLLM keeps compiled graphs by a hash of it: a process without
gemmill, or with another build, compiles again. Layers of FP8 that vLLM leaves to Inductor quantise by vLLM's ops, which its passes
fuse with norms, and gemmill's kernels compute. GEMMILL_VLLM_OPS=0 leaves graphs as they are.
"""

from functools import wraps
from importlib import import_module
from typing import Any

from gemmill import settings
from gemmill.compat.vllm import ahead
from gemmill.runtime import builds
from gemmill.version import __version__
from gemmill.vocab import Arch

_OF_VLLM = "vllm.compilation.passes.pass_manager.PostGradPassManager"
_OWN = "gemmill.compat.vllm.passes.GemmillPassManager"
_NAME, _DEFAULTS = "get_pass_manager_cls", "apply_config_platform_defaults"
_KEY, _QUANT_OP = "gemmill", "quant_fp8"


def put_before() -> None:
    """Have vLLM's platform name gemmill's manager, and note in each configuration the builds that graphs depend on.

    A second call changes nothing. A platform that names a manager of its own keeps it.
    """
    platform = type(import_module("vllm.platforms").current_platform)
    of_vllm = getattr(platform, _DEFAULTS)
    if hasattr(of_vllm.__func__, "__wrapped__") or getattr(platform, _NAME)() != _OF_VLLM:
        return

    @wraps(of_vllm.__func__)
    def defaults(cls: Any, vllm_config: Any) -> None:
        of_vllm.__func__(cls, vllm_config)
        _note(vllm_config)
        ahead.read(vllm_config)

    setattr(platform, _DEFAULTS, classmethod(defaults))
    setattr(platform, _NAME, classmethod(lambda cls: _OWN))


def key_of(config: Any) -> str | None:
    """The builds on which graphs of a configuration depend; None where graphs are left as they are."""
    given = config.additional_config
    return given.get(_KEY) if isinstance(given, dict) else None


def _note(config: Any) -> None:
    """Write into a configuration of vLLM's, before a GPU is touched."""
    if not (settings.rewrites("vLLM") and isinstance(config.additional_config, dict)):
        return
    found = sorted(folder.name for folder in builds.find_builds())
    if not found:
        return
    chosen = settings.build() or [builds.current(arch) for arch in Arch]
    untimed = "" if settings.times_layers() else ", untimed"  # layers of such a process are one way's at all rows
    config.additional_config[_KEY] = f"{__version__}, {chosen} of {', '.join(found)}{untimed}"
    custom = config.compilation_config.custom_ops
    given = {"all", "none", f"+{_QUANT_OP}", f"-{_QUANT_OP}"}
    if config.quant_config is not None and not given.intersection(custom):
        custom.append(f"+{_QUANT_OP}")
