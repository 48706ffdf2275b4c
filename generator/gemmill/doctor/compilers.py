"""What builds, as far as this installation has it: a wheel of `gemmill wheel` has the runtime alone."""

from typing import Any

try:
    from gemmill.build.dsl import find_dsl
    from gemmill.build.errors import BuildError
    from gemmill.build.sass import architectures
    from gemmill.build.toolchain import find_toolchain
except ModuleNotFoundError:

    class BuildError(Exception):  # type: ignore[no-redef]
        """Nothing can be built here."""

    def find_toolchain() -> Any:
        """Raises BuildError."""
        raise BuildError("this installation has gemmill's runtime alone: install gemmill from its sources to build")

    find_dsl = architectures = find_toolchain  # neither is asked where there is no toolchain

__all__ = ["BuildError", "architectures", "find_dsl", "find_toolchain"]
