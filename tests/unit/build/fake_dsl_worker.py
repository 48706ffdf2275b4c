"""Stands in for gemmill.build.dsl_worker. Files in the control folder, named by the first argument, change its behaviour:

bad        a variant whose name this occurs in does not compile
failure    the kind of failure, instead of the source's
error      the line that says why
killed     a variant whose name this occurs in kills the process; with `once` after a blank, the first time only
nostart    the process ends before it is ready
header     text in place of a C header
slow       seconds to take
parameters parameters of the exported function, in place of the kernels' own
wrapped    machine code lies in a section of its own, in a file as fatbinary makes them; this file's content comes after it
"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

CONTROL = Path(sys.argv[1])
LOG = CONTROL.parent / "dsl.log"
HEADER = """\
typedef struct {{ void *module; }} {symbol}_Kernel_Module_t;
void _mlir_{symbol}__mlir_ciface_call(void **args, int32_t num_args);

static inline int32_t cute_dsl_{symbol}_wrapper({symbol}_Kernel_Module_t *module, {parameters}) {{
"""
OBJECT = """\
extern "C" {{
extern const unsigned char kernels_binary[] {section}= {{ {cubin} }};
void _mlir_{symbol}_cuda_init(void** library) {{ *library = const_cast<unsigned char*>(kernels_binary); }}
void _mlir_{symbol}_cuda_load_to_device(void**) {{}}
void _mlir_{symbol}__mlir_ciface_call(void** arguments, int count) {{
  int const of_call = ***static_cast<int***>(arguments[0]), sm_count = (*static_cast<int**>(arguments[1]))[5];
  *static_cast<int*>(arguments[count - 1]) = of_call + sm_count + *static_cast<int*>(arguments[3]) + count;
}}
}}
"""
CODE_BYTES = 48  # three instructions, as fake_cuobjdump.py has them


def cubin_of(symbol):
    """A file of CUDA machine code: header, names of sections, code, and the table of sections, which comes last."""
    names = f"\0.text.{symbol}_kernel\0".encode()
    table = 64 + len(names) + CODE_BYTES
    header = ("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, table, 0, 64, 56, 0, 64, 2, 0)
    sections = ((0, 3, 0, 0, 64, len(names), 0, 0, 1, 0), (1, 1, 0, 0, 64 + len(names), CODE_BYTES, 0, 0, 1, 0))
    return struct.pack(*header) + names + bytes(CODE_BYTES) + b"".join(struct.pack("<IIQQQQIIQQ", *x) for x in sections)


def wrapped(cubin, more):
    """A cubin in a file that wraps it, with more behind it."""
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(cubin)) + cubin + more


def control(name):
    path = CONTROL / name
    return path.read_text() if path.is_file() else None


def reply(error=""):
    failure = error and (control("failure") or "source")
    row = {"failure": failure, "error": error, "cpu_seconds": 0.5, "peak_memory_bytes": 200 << 20}
    print(json.dumps(row), flush=True)


def compile_one(source, folder):
    if (killed := control("killed")) is not None and killed.split()[0] in source.name:
        if killed.endswith("once"):
            (CONTROL / "killed").unlink()
        print("out of memory", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(control("slow") or 0))
    if control("bad") is not None and control("bad") in source.name:
        return control("error") or "ValueError: the tile is too big"
    symbol = "gemmill_" + re.search(r'^NAME = "(\w+)"$', source.read_text(), re.MULTILINE)[1]
    parameters = control("parameters") or "void *call, void *how, int64_t ticket, cudaStream_t stream"
    (folder / f"{symbol}.h").write_text(control("header") or HEADER.format(symbol=symbol, parameters=parameters))
    (folder / f"{symbol}.symbols").write_text(symbol)
    held, section = cubin_of(symbol), ""
    if (more := control("wrapped")) is not None:
        held, section = wrapped(held, more.encode()), '__attribute__((section(".lrodata"))) '
    text = OBJECT.format(symbol=symbol, section=section, cubin=", ".join(map(str, held)))
    target = str(folder / f"{symbol}.o")
    subprocess.run(["g++", "-x", "c++", "-fPIC", "-c", "-o", target, "-"], input=text, text=True, check=True)
    return ""


(CONTROL.parent / "pid").write_text(str(os.getpid()))
with LOG.open("a") as log:
    log.write(f"started {os.environ['CUTE_DSL_ARCH']}\n")
if control("nostart") is not None:
    sys.exit("ImportError: libsomething.so: cannot open shared object file")
reply()
for line in sys.stdin:
    request = json.loads(line)
    with LOG.open("a") as log:
        log.write(f"{Path(request['source']).stem}\n")
    reply(compile_one(Path(request["source"]), Path(request["folder"])))
