"""Stands in for cuobjdump -sass, on objects that the fake nvcc made."""

import sys
from pathlib import Path

for symbol in Path(sys.argv[-1]).with_suffix(".symbols").read_text().split():
    print(f"\t\tFunction : {symbol}_kernel")
    print("        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */")
    print("                                                                    /* 0x000fe20000000800 */")
    print("        /*0010*/              @P0  QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24 ;  /* 0x0 */")
    print("        /*0020*/             @!UP1 UTMALDG.2D.MULTICAST [UR8], [UR4] ;  /* 0x0 */")
    print("\t\t..........")
    if "-res-usage" in sys.argv:
        print(f" Function {symbol}_kernel:\n  REG:168 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:556")
