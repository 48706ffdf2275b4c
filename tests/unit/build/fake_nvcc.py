"""Stands in for nvcc. Files in ../control change its behaviour:

version    is printed for --version
bad        a variant whose name this occurs in does not compile
killed     a number: units of more variants are killed
diskfull   there is no room
edit       a file to write to, without changing its date
says       an exit code and the output with it
slow       seconds to take
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
CONTROL = HOME / "control"


def control(name):
    path = CONTROL / name
    return path.read_text() if path.is_file() else None


def after(flag):
    return sys.argv[sys.argv.index(flag) + 1]


def main():
    if "--version" in sys.argv:
        print(control("version") or "Cuda compilation tools, release 13.0, V13.0.88")
        return 0
    unit = Path(after("-c"))
    sources = [Path(name) for name in re.findall(r'#include "(.+\.cu)"', unit.read_text())]
    text = "".join(path.read_text() for path in sources)
    symbols = re.findall(r'extern "C" int32_t (gemmill_\w+)\(', text)
    with (HOME / "calls.log").open("a") as log:
        log.write(" ".join(path.stem for path in sources) + "\n")
    with (HOME / "processes.log").open("a") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(float(control("slow") or 0))
    if control("killed") is not None and len(sources) > int(control("killed")):
        os.kill(os.getpid(), signal.SIGKILL)
    if control("diskfull") is not None:
        print("fatal error: error writing to /tmp/a.s: No space left on device", file=sys.stderr)
        return 1
    if (edited := control("edit")) is not None:
        before = Path(edited).stat()
        with Path(edited).open("a") as file:
            file.write("// edited\n")
        os.utime(edited, ns=(before.st_atime_ns, before.st_mtime_ns))
    if (says := control("says")) is not None:
        code, _, text = says.partition(" ")
        print(text, file=sys.stderr)
        return int(code)
    bad = [path for path in sources if control("bad") is not None and control("bad") in path.name]
    if bad:
        print(
            f'warning: something else\n{bad[0]}(7): error: static assertion failed with "too big"\n1 error detected',
            file=sys.stderr,
        )
        return 1
    assert any(arg.startswith("-ccbin=") for arg in sys.argv)
    target = Path(after("-o"))
    functions = [function for symbol in symbols for function in (symbol, f"{symbol}_workspace")]
    bodies = (f".globl {name}\n.type {name}, @function\n{name}:\n    ret\n" for name in functions)
    subprocess.run(["as", "-o", str(target), "-"], input="".join(bodies), text=True, check=True)
    target.with_suffix(".symbols").write_text("\n".join(symbols))
    included = {path for name in re.findall(r'#include "([\w/.]+h)"', text) for path in locate(name)}
    Path(after("-MF")).write_text(
        f"{target} : "
        + " \\\n    ".join(str(p).replace(" ", "\\ ") for p in [unit, *sources, *sorted(included)])
        + "\n"
    )
    for symbol in symbols:
        print(
            f"ptxas info    : Compiling entry function '{symbol}_kernel' for 'sm_90a'\nptxas info    : Function properties for {symbol}_kernel"
        )
        print(
            "    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nptxas info    : Used 168 registers, used 1 barriers"
        )
    return 0


def locate(name):
    folders = [arg[2:] for arg in sys.argv if arg.startswith("-I")] + [
        arg.partition("=")[2] for arg in sys.argv if arg.startswith("-isystem=")
    ]
    return [Path(folder) / name for folder in folders if (Path(folder) / name).is_file()]


sys.exit(main())
