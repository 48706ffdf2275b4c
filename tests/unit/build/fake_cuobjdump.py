"""Stands in for cuobjdump -sass, and for -res-usage, on objects that the fake nvcc made, and for nvdisasm on raw code."""

import sys
from pathlib import Path

INSTRUCTIONS = (
    "        /*{:04x}*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */\n"
    "                                                                    /* 0x000fe20000000800 */",
    "        /*{:04x}*/              @P0  QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24 ;  /* 0x0 */",
    "        /*{:04x}*/             @!UP1 UTMALDG.2D.MULTICAST [UR8], [UR4] ;  /* 0x0 */",
)


def print_instructions(count):
    for i in range(count):
        print(INSTRUCTIONS[i % len(INSTRUCTIONS)].format(16 * i))


if "-b" in sys.argv:
    assert sys.argv[sys.argv.index("-b") + 1] == "SM90a"
    print('\t.headerflags\t@"EF_CUDA_SM90"')
    print_instructions(Path(sys.argv[-1]).stat().st_size // 16)
    sys.exit()
for symbol in Path(sys.argv[-1]).with_suffix(".symbols").read_text().split():
    if "-sass" in sys.argv:
        print(f"\t\tFunction : {symbol}_kernel")
        print_instructions(len(INSTRUCTIONS))
        print("\t\t..........")
    if "-res-usage" in sys.argv:
        print(f" Function {symbol}_kernel:\n  REG:168 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:556")
