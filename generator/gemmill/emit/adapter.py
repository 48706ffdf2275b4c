"""The C++ between the extension's table and a kernel of the CuTe DSL: a function that the DSL exported, or machine code."""

import re
from dataclasses import dataclass

from gemmill.emit.render import render
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name

ADAPTER = "dsl/adapter.cpp.jinja"
HOST_CODE = "dsl/host_code.cpp.jinja"
_ENTRY = re.compile(r"^void (\w+)\(void \*\*args, int32_t num_args\);", re.MULTILINE)
_WRAPPER = re.compile(r"^static inline int32_t \w+_wrapper\(([^)]*)\) \{", re.MULTILINE)
_PARAMETER = re.compile(r"\s*(\S.*?)\s*(\w+)\s*")
_LOCAL = ("ticket",)
"""Arguments that the adapter itself makes."""
_LAUNCH = ("stream", "workspace", "device", "sm_count", "programmatic_launch", "constant_weights")
"""Fields of `gemmill_launch` in kernels/core/abi.h; others are the family's."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The declarations of a DSL's C header."""

    entry: str
    """The function that launches the kernel: it takes the addresses of its arguments and of a status."""
    parameters: tuple[tuple[str, str], ...]
    """(C type, name) of its arguments."""


ANY_EXPORTED = Exported(entry="entry", parameters=(("void*", "a"), ("int32_t", "m"), ("cudaStream_t", "stream")))
"""A function with a parameter of each kind. The adapter of it changes where adapters do."""


@dataclass(frozen=True, kw_only=True)
class MachineCode:
    """Where the assembler finds a kernel's machine code."""

    file: str
    """A file as fatbinary makes it."""
    kernel: str
    """The kernel's name in it."""


ANY_CODE = MachineCode(file="code", kernel="kernel")
"""A stand-in for machine code where only the C++ around it matters."""


def read_header(header: str) -> Exported:
    """The exported function. Raises ValueError where there is none."""
    entry, wrapper = _ENTRY.search(header), _WRAPPER.search(header)
    # The wrapper's first parameter is the module, which the entry function does not take.
    texts = wrapper[1].split(",")[1:] if wrapper else []
    parameters = tuple((m[1], m[2]) for text in texts if (m := _PARAMETER.fullmatch(text)))
    if entry is None or not parameters or len(parameters) != len(texts):
        raise ValueError("the C header that the CuTe DSL wrote declares no entry function that can be read")
    return Exported(entry=entry[1], parameters=parameters)


def emit_adapter(symbol: str, name: str, exported: Exported) -> str:
    """The source of the launch function `symbol` of the variant of a name. Raises TemplateError."""
    config = parse_name(name)
    dsl = REGISTRY.kernels_of(config).dsl
    assert dsl is not None  # its kernel was exported by the DSL
    values = {
        "header": f"{REGISTRY.family_of(config).name}/abi.h",
        "struct": dsl.arguments,
        "symbol": symbol,
        "init": f"_mlir_{symbol}_cuda_init",
        "load": f"_mlir_{symbol}_cuda_load_to_device",
        "entry": exported.entry,
        "split": dsl.split(config),
        "tickets": any(name in _LOCAL for _, name in exported.parameters),
        "arguments": [_argument(type_, name) for type_, name in exported.parameters],
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


def _argument(c_type: str, name: str) -> str:
    """The address of an argument: a field of gemmill's structs of the same name, whose type the C++ compiler checks."""
    field = f"how->{name}" if name in _LAUNCH else name if name in _LOCAL else f"args->{name}"
    if c_type.endswith("*") or name == "stream":
        return f"gemmill_cutedsl_pointer(&{field})"
    return f"gemmill_cutedsl_number<{c_type}>(&{field})"
