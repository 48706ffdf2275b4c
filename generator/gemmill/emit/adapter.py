"""The C++ between the extension's table and a kernel of the CuTe DSL: a function that the DSL exported, or machine code."""

import re
from dataclasses import dataclass

from gemmill.emit.render import render
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name

ADAPTER = "dsl/adapter.cpp.jinja"
HOST_CODE = "dsl/host_code.cpp.jinja"
_ENTRY = re.compile(r"^void (\w+)\(void \*\*args, int32_t num_args\);", re.MULTILINE)
_PARAMETERS = "void *call, void *how, int64_t ticket, cudaStream_t stream"
"""The parameters of the entry function, by their addresses, behind the module (`__call__` of gemmill.gemm.kernel)."""
ANY_ENTRY = "entry"
"""A stand-in for an entry function where only the C++ around it matters."""


@dataclass(frozen=True, kw_only=True)
class MachineCode:
    """Where the assembler finds a kernel's machine code."""

    file: str
    """A file as fatbinary makes it."""
    kernel: str
    """The kernel's name in it."""


ANY_CODE = MachineCode(file="code", kernel="kernel")
"""A stand-in for machine code where only the C++ around it matters."""


def entry_of(header: str) -> str:
    """The exported function in the DSL's C header. Raises ValueError where there is none with gemmill's parameters."""
    entry = _ENTRY.search(header)
    if entry is None or f", {_PARAMETERS}) {{" not in header:
        raise ValueError(f"the C header that the CuTe DSL wrote declares no entry function of ({_PARAMETERS})")
    return entry[1]


def emit_adapter(symbol: str, name: str, entry: str) -> str:
    """The source of the launch function `symbol` of the variant of a name, around the DSL's entry function.

    Raises TemplateError.
    """
    config = parse_name(name)
    dsl = REGISTRY.kernels_of(config).dsl
    assert dsl is not None  # its kernel was exported by the DSL
    values = {
        "header": f"{REGISTRY.family_of(config).name}/abi.h",
        "struct": dsl.arguments,
        "symbol": symbol,
        "init": f"_mlir_{symbol}_cuda_init",
        "load": f"_mlir_{symbol}_cuda_load_to_device",
        "entry": entry,
        "split": dsl.split(config),
    }
    return render(ADAPTER, values)


def has_host_code(name: str) -> bool:
    """Whether gemmill has host code of its own for the variant of a name, which the CuTe DSL compiles."""
    dsl = REGISTRY.kernels_of(parse_name(name)).dsl
    return dsl is not None and dsl.host is not None


def emit_host_code(symbol: str, name: str, code: MachineCode) -> str:
    """The source of the launch function `symbol` of the variant of a name, which needs nothing of the DSL.

    `has_host_code` holds for the name. Raises TemplateError.
    """
    config = parse_name(name)
    dsl = REGISTRY.kernels_of(config).dsl
    assert dsl is not None and dsl.host is not None  # the caller checks that
    host = dsl.host
    values = {
        "header": host.header,
        "struct": dsl.arguments,
        "facts_struct": host.struct,
        "facts": host.facts(config),
        "threads": host.threads(config),
        "shared_bytes": host.shared_bytes(config),
        "symbol": symbol,
        "split": dsl.split(config),
        "code": code.file,
        "kernel": code.kernel,
    }
    return render(HOST_CODE, values)
