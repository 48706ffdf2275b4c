"""The parts that build, as far as this environment has the packages that they import."""

from typing import Any

try:
    from gemmill.build.dsl import find_dsl
    from gemmill.build.errors import BuildError
    from gemmill.build.options import BuildOptions, free_memory
    from gemmill.build.sass import architectures
    from gemmill.build.toolchain import find_toolchain
except ModuleNotFoundError as error:
    _WHY = f"{error.name} is not installed: pip install 'gemmill[toolchain]'"

    class BuildError(Exception):  # type: ignore[no-redef]
        """Nothing can be built here."""

    def find_toolchain() -> Any:
        """Raises BuildError."""
        raise BuildError(_WHY)

    find_dsl = architectures = BuildOptions = free_memory = find_toolchain  # without a toolchain nothing calls them

__all__ = ["BuildError", "BuildOptions", "architectures", "find_dsl", "find_toolchain", "free_memory"]
