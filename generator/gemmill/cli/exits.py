"""Exit codes, and which error ends in which."""

import sys
from enum import IntEnum

import typer

from gemmill.cli.output import plain


class ExitCode(IntEnum):
    """Exit codes for scripts; docs/cli.md lists them."""

    OK = 0
    CHECK_FAILED = 1
    """a check ran and found something: generate --check, verify, fuzz, cache verify, doctor"""
    USAGE = 2
    """an option, name or filter that means nothing here"""
    ENVIRONMENT = 3
    """something needed is missing or unusable: a toolchain, torch, a build, a file"""
    BUILD_FAILED = 4
    """nothing was built; the last good build is still in place"""
    INCOMPLETE = 5
    """built, without some of the requested variants"""
    INTERRUPTED = 130


class UsageError(Exception):
    """A request for something that does not exist; the text names the possible ones."""


class UnavailableError(Exception):
    """Something that the verb needs is missing; the text says how to get it."""


_PACKAGES = {"elftools": "pyelftools"}
"""pip's name of a package, where Python's differs."""
_CODES_OF_LAYERS = {
    "gemmill.emit": ExitCode.BUILD_FAILED,
    "gemmill.build": ExitCode.BUILD_FAILED,
    "gemmill.checkpoints": ExitCode.ENVIRONMENT,
    "gemmill.fuzz": ExitCode.ENVIRONMENT,
    "gemmill.manifest": ExitCode.ENVIRONMENT,
    "gemmill.runtime": ExitCode.ENVIRONMENT,
    "gemmill.tuner": ExitCode.ENVIRONMENT,
    "gemmill.wheel": ExitCode.ENVIRONMENT,
}


def code_of(error: BaseException) -> ExitCode | None:
    """The exit code of an error that has a sentence of its own; None for a fault of gemmill itself."""
    if isinstance(error, (typer.TyperException, UsageError)):
        return ExitCode.USAGE
    if isinstance(error, (UnavailableError, OSError)):
        return ExitCode.ENVIRONMENT
    if isinstance(error, ImportError):
        return None if (error.name or "").startswith("gemmill.") else ExitCode.ENVIRONMENT
    for layer, code in _CODES_OF_LAYERS.items():
        if type(error).__module__.startswith(layer):
            return code
    return None


def sentence_of(error: BaseException) -> str:
    """The error in one line, with the way out."""
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "gemmill"
        return f"{error.format_message().rstrip('.')}; see `{command} --help`"
    if isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]
        return f"this needs the Python package {error.name}, which is not installed: `pip install {_PACKAGES.get(package, package)}`"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}; check that it exists, may be written and has room"
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


def report(error: BaseException) -> None:
    """One line on stderr."""
    print(f"gemmill: {plain(sentence_of(error))}", file=sys.stderr)
