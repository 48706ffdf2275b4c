"""Text to objects, objects to one versioned extension with its manifest. Never imports torch."""

from gemmill.build.driver import build
from gemmill.build.dsl import DslPackage, find_dsl
from gemmill.build.errors import BuildError
from gemmill.build.maintenance import CachedObject, CacheReport, cache_gc, cache_list, cache_verify
from gemmill.build.options import BuildObserver, BuildOptions, BuildResult, Plan
from gemmill.build.planning import plan
from gemmill.build.toolchain import ToolchainPaths, find_toolchain

__all__ = [
    "BuildError",
    "BuildObserver",
    "BuildOptions",
    "BuildResult",
    "CacheReport",
    "CachedObject",
    "DslPackage",
    "Plan",
    "ToolchainPaths",
    "build",
    "cache_gc",
    "cache_list",
    "cache_verify",
    "find_dsl",
    "find_toolchain",
    "plan",
]
