"""The emulated instructions on the CPU, against references written from the tables of the PTX ISA: threads are fibers, and a register's
elements are placed by the formulas of the manual's fragments."""

import ctypes
import random
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir

HERE = Path(__file__).parent
FIBERS = HERE.parents[1] / "families/kv_cache/compile/host"
TYPES = {"e4m3": (4, 3), "e5m2": (5, 2), "e3m2": (3, 2), "e2m3": (2, 3), "e2m1": (2, 1)}
"""Bits of exponent and mantissa, in the order of on_host.cpp's numbers."""
NAMES = tuple(TYPES)


class Call(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.POINTER(ctypes.c_uint32)) for name in ("a", "b", "scale_a", "scale_b")),
        ("c", ctypes.POINTER(ctypes.c_float)),
        ("d", ctypes.POINTER(ctypes.c_float)),
        ("selectors", ctypes.c_int * 4),
    ]


@pytest.fixture(scope="module")
def host(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("host") / "host.so"
    includes = [f"-I{FIBERS}", f"-I{kernels_dir()}", *(f"-isystem{path}" for path in toolchain.include_dirs)]
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared"]
    command = [toolchain.gxx, *options, *includes, HERE / "on_host.cpp", "-o", made]
    subprocess.run(list(map(str, command)), check=True)
    return ctypes.CDLL(str(made))


def value(code: int, kind: str) -> Fraction:
    """The value of a finite code."""
    exponent_bits, mantissa_bits = TYPES[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    mantissa = code & (2**mantissa_bits - 1)
    exponent = code >> mantissa_bits & (2**exponent_bits - 1)
    sign = -1 if code >> (mantissa_bits + exponent_bits) else 1
    whole = Fraction(mantissa, 2**mantissa_bits) + (exponent > 0)
    return sign * whole * Fraction(2) ** (max(exponent, 1) - bias)


def finite(kind: str, draw: random.Random) -> int:
    while True:
        code = draw.randrange(2 ** (1 + sum(TYPES[kind])))
        if not (kind == "e4m3" and code & 0x7F == 0x7F) and not (kind == "e5m2" and code & 0x7F >= 0x7C):
            return code


def quad(lane: int) -> tuple[int, int]:
    """The manual's groupID and threadID_in_group."""
    return lane >> 2, lane % 4


def words(elements: list[list[int]], bits: int) -> list[int]:
    """Registers of lanes, one after another: elements of a lane from low to high."""
    result = []
    for of_lane in elements:
        per_word = 32 // bits
        for first in range(0, len(of_lane), per_word):
            result.append(sum(code << (bits * i) for i, code in enumerate(of_lane[first : first + per_word])))
    return result


def a_place(lane: int, i: int, k: int) -> tuple[int, int]:
    """Row and column of element a_i, for m16n8k32 of 8-bit containers (k = 32) and m16n8k64 of e2m1 (k = 64)."""
    group, thread = quad(lane)
    if k == 32:
        row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
        return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)
    row = group if 0 <= i < 8 or 16 <= i < 24 else group + 8
    return row, thread * 8 + (i & 7) + (32 if i >= 16 else 0)


def b_place(lane: int, i: int, k: int) -> tuple[int, int]:
    """Row and column of element b_i."""
    group, thread = quad(lane)
    if k == 32:
        return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group
    return thread * 8 + (i & 7) + (32 if i >= 8 else 0), group


def d_place(lane: int, i: int) -> tuple[int, int]:
    """Row and column of element c_i or d_i."""
    group, thread = quad(lane)
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def contained(code: int, kind: str) -> int:
    return code << 2 if kind == "e2m1" else code


def called(host: ctypes.CDLL, run, a, b, scales_a, scales_b, c, selectors) -> list[float]:
    def array(kind, values):
        return (kind * len(values))(*values)

    result = (ctypes.c_float * 128)(*([float("nan")] * 128))
    kept = [array(ctypes.c_uint32, values) for values in (a, b, scales_a, scales_b)]
    given = Call(*kept, array(ctypes.c_float, c), result, (ctypes.c_int * 4)(*selectors))
    run(given)
    return list(result)


def scale_value(byte: int, kind: str) -> Fraction:
    return Fraction(2) ** (byte - 127) if kind == "ue8m0" else value(byte, "e4m3")


def expected(a, b, scale_a, scale_b, c, k: int, vectors: int) -> list[float]:
    """D, exact, as lanes have it; scale_a is [row][vector], scale_b [column][vector]."""
    result = []
    for lane in range(32):
        for i in range(4):
            row, column = d_place(lane, i)
            block = k // vectors
            total = Fraction(c[4 * lane + i])
            for n in range(k):
                total += a[row][n] * b[n][column] * scale_a[row][n // block] * scale_b[column][n // block]
            result.append(float(total))
    return result


CASES = [
    *(("f8f6f4", a, b, 1, None) for a, b in (("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e2m3", "e5m2"))),
    *(("mxf8f6f4", a, b, 1, "ue8m0") for a in ("e4m3", "e2m1") for b in NAMES),
    ("mxf4", "e2m1", "e2m1", 2, "ue8m0"),
    ("mxf4nvf4", "e2m1", "e2m1", 4, "ue8m0"),
    ("mxf4nvf4", "e2m1", "e2m1", 4, "ue4m3"),
]


@pytest.mark.parametrize(("kind", "a_type", "b_type", "vectors", "scale_type"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_mma(
    host: ctypes.CDLL, kind: str, a_type: str, b_type: str, vectors: int, scale_type: str | None, seed: int
) -> None:
    """Sums that double precision holds are exact, whichever bytes and threads hold the scales; other bytes and threads are not read."""
    draw = random.Random(f"{kind} {a_type} {b_type} {seed}")
    k = 32 if "f8f6f4" in kind else 64
    # Within a sum of doubles: wide types have few binades, so that only the end rounds.
    a_codes = [[finite(a_type, draw) for _ in range(k)] for _ in range(16)]
    b_codes = [[finite(b_type, draw) for _ in range(8)] for _ in range(k)]
    c = [float(draw.randrange(-64, 64)) for _ in range(128)]
    byte_ids = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[vectors]
    selectors = (draw.choice(byte_ids), draw.randrange(2), draw.choice(byte_ids), draw.randrange(4))
    low, high = (120, 134) if scale_type == "ue8m0" else (8, 0x70)
    scale_a = [[draw.randrange(low, high) for _ in range(vectors)] for _ in range(16)]
    scale_b = [[draw.randrange(low, high) for _ in range(vectors)] for _ in range(8)]
    poison = 0xFFFFFFFF  # NaN in either type of scale
    held_a, held_b = [poison] * 32, [poison] * 32
    for lane in range(32):
        group, thread = quad(lane)
        if thread // 2 == selectors[1]:  # the pair of threads that contributes scales of rows
            row = group + 8 * (thread % 2)
            held_a[lane] = placed(poison, scale_a[row], selectors[0])
        if thread == selectors[3]:
            held_b[lane] = placed(poison, scale_b[group], selectors[2])
    pack = (lambda code, kind: code) if k == 64 else contained
    a_elements = [
        [pack(a_codes[r][n], a_type) for r, n in (a_place(lane, i, k) for i in range(k // 2))] for lane in range(32)
    ]
    b_elements = [
        [pack(b_codes[n][r], b_type) for n, r in (b_place(lane, i, k) for i in range(k // 4))] for lane in range(32)
    ]
    bits = 4 if k == 64 else 8
    if k == 32:

        def run(call: Call) -> None:
            host.mma_k32(ctypes.byref(call), scale_type is not None, NAMES.index(a_type), NAMES.index(b_type))
    else:

        def run(call: Call) -> None:
            host.mma_k64(ctypes.byref(call), vectors, scale_type == "ue4m3")

    found = called(host, run, words(a_elements, bits), words(b_elements, bits), held_a, held_b, c, selectors)
    a = [[value(code, a_type) for code in row] for row in a_codes]
    b = [[value(code, b_type) for code in row] for row in b_codes]
    one = [[Fraction(1)] * vectors] * 16
    as_values = (
        [[[scale_value(byte, scale_type) for byte in row] for row in scale] for scale in (scale_a, scale_b)]
        if scale_type
        else [one, one]
    )
    wanted = expected(a, b, *as_values, c, k, vectors)
    rounded = [ctypes.c_float(x).value for x in wanted]
    for f, w in zip(found, rounded, strict=True):
        assert f == pytest.approx(w, rel=2**-23, abs=2**-60)
    if scale_type is None or "e5m2" not in (a_type, b_type):
        assert found == rounded


def placed(word: int, scales: list[int], byte_id: int) -> int:
    for i, byte in enumerate(scales):
        shift = 8 * (byte_id + i)
        word = word & ~(0xFF << shift) | byte << shift
    return word


@pytest.mark.parametrize(("kind", "bit"), [("e3m2", 6), ("e2m3", 7), ("e2m1", 0), ("e2m1", 6)])
def test_a_bit_in_the_padding_of_a_container_shows(host: ctypes.CDLL, kind: str, bit: int) -> None:
    a, zeros = [0] * 128, [0] * 64
    a[4 * 9] = 1 << bit  # lane 9: row 2 of A
    found = called(
        host,
        lambda call: host.mma_k32(ctypes.byref(call), False, NAMES.index(kind), 0),
        a,
        zeros,
        [0] * 32,
        [0] * 32,
        [0.0] * 128,
        (0,) * 4,
    )
    wrong = {d_place(lane, i)[0] for lane in range(32) for i in range(4) if found[4 * lane + i] != 0}
    assert wrong == {2}


@pytest.mark.parametrize(
    ("kind", "code", "shown"), [("e4m3", 0x7F, "nan"), ("e5m2", 0x7C, "inf"), ("e5m2", 0xFE, "nan")]
)
def test_codes_that_are_no_numbers(host: ctypes.CDLL, kind: str, code: int, shown: str) -> None:
    a, b = [0] * 128, [0x38383838] * 64
    a[0] = code
    found = called(
        host,
        lambda call: host.mma_k32(ctypes.byref(call), False, NAMES.index(kind), 0),
        a,
        b,
        [0] * 32,
        [0] * 32,
        [0.0] * 128,
        (0,) * 4,
    )
    assert {str(found[4 * lane + i]) for lane in range(4) for i in range(2)} == {shown}
    assert set(found[16:]) == {0.0}


@pytest.mark.parametrize("bits", [4, 6])
def test_ldmatrix(host: ctypes.CDLL, bits: int) -> None:
    """Rows lie anywhere, padding is full of ones, and each code comes to the low bits of its byte."""
    draw = random.Random(bits)
    memory = (ctypes.c_uint8 * 4096)(*([0xFF] * 4096))
    codes = [[[draw.randrange(2**bits) for _ in range(16)] for _ in range(8)] for _ in range(4)]
    slots = draw.sample(range(256), 32)
    for matrix in range(4):
        for row in range(8):
            packed = sum(code << (bits * i) for i, code in enumerate(codes[matrix][row])).to_bytes(2 * bits, "little")
            at = 16 * slots[8 * matrix + row]
            memory[at : at + 2 * bits] = list(packed)
    result = (ctypes.c_uint32 * 128)()
    host.ldmatrix(memory, bits, (ctypes.c_uint32 * 32)(*(16 * slot for slot in slots)), result)
    for lane in range(32):
        for matrix in range(4):
            found = list(result[4 * lane + matrix].to_bytes(4, "little"))
            assert found == codes[matrix][lane // 4][lane % 4 * 4 :][:4], (lane, matrix)


U4, U4_GAPS, U6_GAPS = 13, 14, 15
"""CUtensorMapDataType's 16U4_ALIGN8B, 16U4_ALIGN16B, 16U6_ALIGN16B."""


def loaded(host: ctypes.CDLL, kind: int, data: bytes, dims, strides, box, swizzle: int, at) -> tuple[int, bytes]:
    source = ctypes.create_string_buffer(len(data) + 64)
    begin = -ctypes.addressof(source) % 32
    ctypes.memmove(ctypes.addressof(source) + begin, data, len(data))
    memory = (ctypes.c_uint8 * 65536)(*([0x77] * 65536))
    told = host.load_packed(
        memory, 1024, kind, len(dims), ctypes.c_void_p(ctypes.addressof(source) + begin), (ctypes.c_uint64 * 5)(*dims),
        (ctypes.c_uint64 * 4)(*strides), (ctypes.c_uint32 * 5)(*box), swizzle, (ctypes.c_int32 * 5)(*at),
    )  # fmt: skip
    return told, bytes(memory[1024:])


@pytest.mark.parametrize(
    ("kind", "bits", "slot", "columns", "box", "swizzle"),
    [
        (U4, 4, 8, 378, (256, 64), 3),
        (U4, 4, 8, 378, (128, 64), 2),
        (U4, 4, 8, 330, (64, 64), 1),
        (U4, 4, 8, 330, (64, 64), 0),
        (U4_GAPS, 4, 16, 384, (128, 64), 3),
        (U6_GAPS, 6, 16, 384, (128, 64), 3),
    ],
)
def test_load_of_packed_elements(
    host: ctypes.CDLL, kind: int, bits: int, slot: int, columns: int, box: tuple[int, int], swizzle: int
) -> None:
    """A box past the end in both directions: outside is zero, chunks of 16 bytes change places, and gaps hold no code."""
    rows, first = 70, (256, 32)
    stride = -(-columns * bits // 8 // 32) * 32 + 32
    draw = random.Random(kind)
    data = bytes(draw.randrange(256) for _ in range(stride * rows))
    told, memory = loaded(host, kind, data, (columns, rows), (stride,), box, swizzle, first)
    assert told == box[0] * box[1] * bits // 8
    per_row = box[0] // 16 * slot
    for row in range(box[1]):
        for group in range(box[0] // 16):
            at = row * per_row + group * slot
            # The manual's swizzles: within 32, 64 or 128 bytes, bits from 4 on by as many from 7 on.
            at ^= (at >> 7 & (2**swizzle - 1)) << 4
            found = int.from_bytes(memory[at : at + slot], "little")
            for i in range(16):
                x, y = first[0] + 16 * group + i, first[1] + row
                code = found >> (bits * i) & (2**bits - 1)
                of_row = int.from_bytes(data[stride * y : stride * (y + 1)], "little")
                here = of_row >> (bits * x) & (2**bits - 1) if x < columns and y < rows else 0
                assert code == here, (row, group, i)
            if slot == 16:
                assert memory[at + 2 * bits : at + 16] == b"\xa5" * (16 - 2 * bits)


@pytest.mark.parametrize(
    ("kind", "dims", "strides", "box", "swizzle"),
    [
        (U4, (255, 8), (128,), (256, 8), 3),
        (U4, (256, 8), (136,), (256, 8), 3),
        (U4, (256, 8), (128,), (512, 8), 3),
        (U4, (256, 8), (128,), (256, 8), 2),
        (U4_GAPS, (192, 8), (96,), (128, 8), 3),
        (U4_GAPS, (256, 8), (144,), (128, 8), 3),
        (U4_GAPS, (256, 8), (128,), (64, 8), 3),
        (U6_GAPS, (256, 8), (192,), (128, 8), 1),
        (U6_GAPS, (256, 8), (192,), (128, 257), 3),
    ],
)
def test_maps_that_the_driver_would_refuse(host: ctypes.CDLL, kind: int, dims, strides, box, swizzle: int) -> None:
    assert loaded(host, kind, bytes(4096), dims, strides, box, swizzle, (0,) * 5)[0] == -1
