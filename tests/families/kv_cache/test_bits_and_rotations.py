"""Streams of codes, seeds, Hadamard matrices and rotations."""

import random

import pytest
import torch

from gemmill.families.kv_cache import hadamard, seeds
from gemmill.families.kv_cache.formats import RotationKind
from gemmill.families.kv_cache.reference.bits import pack_codes, pack_float16, unpack_codes, unpack_float16
from gemmill.families.kv_cache.reference.rotations import hadamard_transform, projection, rotate, rotate_back


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_every_code_at_every_place(bits: int) -> None:
    """A code alone sets its own bits and no others, in vectors of odd lengths too."""
    for count in (1, 2, 3, 5, 7, 8, 9, 31, 96):
        for place in {0, 1, count // 2, count - 1}:
            for code in range(1 << bits):
                codes = torch.zeros(count, dtype=torch.int64)
                codes[place % count] = code
                packed = pack_codes(codes, bits)
                assert int.from_bytes(bytes(packed.tolist()), "little") == code << (place % count * bits)
                assert packed.shape == ((count * bits + 7) // 8,)
                assert torch.equal(unpack_codes(packed, bits, count), codes)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_random_streams_against_a_whole_number(bits: int) -> None:
    draw = random.Random(bits)
    for count in (1, 13, 64, 127, 128):
        codes = [draw.randrange(1 << bits) for _ in range(count)]
        number = sum(code << (j * bits) for j, code in enumerate(codes))
        packed = pack_codes(torch.tensor([codes, codes[::-1]]), bits)
        assert bytes(packed[0].tolist()) == number.to_bytes((count * bits + 7) // 8, "little")
        assert unpack_codes(packed, bits, count).tolist() == [codes, codes[::-1]]


def test_three_bits_are_grouped_as_in_vllm() -> None:
    """Its store kernel packs 8 codes in 24 bits, byte 0 the lowest: codes 1..8 mod 8 make 0xd1, 0x58, 0x1f."""
    assert pack_codes(torch.tensor([1, 2, 3, 4, 5, 6, 7, 0]), 3).tolist() == [0xD1, 0x58, 0x1F]
    assert pack_codes(torch.tensor([1, 2]), 4).tolist() == [0x21]


def test_padding_is_written_as_zero_and_not_read() -> None:
    packed = pack_codes(torch.tensor([7, 7, 7]), 3)
    assert packed.tolist() == [0xFF, 0x01]
    assert unpack_codes(torch.tensor([0xFF, 0xFF], dtype=torch.uint8), 3, 3).tolist() == [7, 7, 7]


def test_refused_codes() -> None:
    with pytest.raises(ValueError, match=r"^Codes from 0 to 8 were to be packed in 3 bits; they hold 0 to 7: clamp"):
        pack_codes(torch.tensor([0, 8]), 3)
    with pytest.raises(
        ValueError, match=r"^128 codes of 3 bits .* torch.uint8 of 47 bytes; they are torch.uint8 of 48:"
    ):
        unpack_codes(torch.zeros(47, dtype=torch.uint8), 3, 128)


def test_float16_scalars() -> None:
    packed = pack_float16(torch.tensor([1.0, -2.0, 65519.0, 65520.0, torch.nan], dtype=torch.float64))
    assert packed[:2].tolist() == [[0x00, 0x3C], [0x00, 0xC0]]
    found = unpack_float16(packed, torch.float64)
    assert found[2] == 65504.0
    assert torch.isinf(found[3])
    assert torch.isnan(found[4])


def test_splitmix64() -> None:
    """First outputs for the seeds 0 and 1234567, as in Vigna's splitmix64.c and Rosetta Code's task of that name."""
    assert seeds.outputs(0, 1) == [0xE220A8397B1DCDAF]
    assert seeds.outputs(1234567, 5) == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    assert seeds.outputs(1234567, 2, start=3) == seeds.outputs(1234567, 5)[3:]
    for bad in (-1, 1 << 64):
        with pytest.raises(ValueError, match=rf"^Seed {bad} was given; seeds are whole numbers from 0 to 2\^64 - 1: "):
            seeds.outputs(bad, 1)


def test_streams_are_fixed() -> None:
    """A seed's rotation may never change: caches on disk depend on it."""
    assert seeds.signs(0, 12) == [-1, -1, 1, -1, -1, 1, -1, 1, 1, -1, 1, 1]
    assert seeds.normals(0, seeds.Purpose.PROJECTION, 4) == [
        1.477935791015625, 0.8922557830810547, 0.1272268295288086, -0.09241962432861328,
    ]  # fmt: skip
    assert seeds.normals(0, seeds.Purpose.PROJECTION, 4) != seeds.normals(0, seeds.Purpose.DENSE_ROTATION, 4)
    assert seeds.signs(0, 64) != seeds.signs(1, 64)
    many = torch.tensor(seeds.normals(5, seeds.Purpose.PROJECTION, 100_000))
    assert abs(float(many.mean())) < 5 / 100_000**0.5
    assert abs(float(many.square().mean()) - 1) < 5 * (2 / 100_000) ** 0.5


def test_base_matrices() -> None:
    """Hadamard, and the rows of Dao's tables: had_12_paley, had_20_will and had_28_will."""
    rows = {
        12: {0: "+-++++++++++", 1: "--+-+-+-+-+-", 4: "+++++-++----", 11: "+-+--+-++---"},
        20: {0: "+----+----++--++-++-", 7: "++-++--+---+-+--+++-", 13: "++---++-+----+-+++-+", 19: "+--+--++------+----+"},
        28: {0: "+------++----++-+--+-+--++--", 9: "+---+++--+----++-++--+-+-+--", 26: "+--++-+-++-+-+----+++-----+-"},
    }  # fmt: skip
    for base, wanted in rows.items():
        matrix = torch.tensor(hadamard.base_matrix(base))
        assert torch.equal(matrix @ matrix.T, base * torch.eye(base, dtype=matrix.dtype))
        for index, text in wanted.items():
            assert "".join("+" if s > 0 else "-" for s in hadamard.base_matrix(base)[index]) == text


@pytest.mark.parametrize("size", [1, 2, 8, 12, 20, 28, 40, 96, 128, 192, 224, 256])
def test_hadamard_transform_is_the_kronecker_product(size: int) -> None:
    base, power = hadamard.split(size)
    assert base << power == size
    sylvester = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(power):
        sylvester = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), sylvester)
    matrix = torch.kron(torch.tensor(hadamard.base_matrix(base), dtype=torch.float64), sylvester)
    x = torch.randint(-8, 9, (3, 2, size), generator=torch.Generator().manual_seed(size)).double()
    assert torch.equal(hadamard_transform(x, 1.0), x @ matrix.T)
    assert torch.equal(hadamard_transform(x, 1.0, transpose=True), x @ matrix)
    assert torch.allclose(hadamard_transform(hadamard_transform(x), transpose=True), x, atol=1e-13)


def test_sizes_that_are_not_offered() -> None:
    for size in (0, 3, 36, 100, 65536):
        with pytest.raises(
            ValueError, match=rf"^A Hadamard transform of {size} columns was asked for; 2\^n and 12, 20"
        ):
            hadamard.split(size)


@pytest.mark.parametrize("size", [64, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("kind", list(RotationKind))
def test_rotations_are_orthogonal_and_seeded(kind: RotationKind, size: int) -> None:
    if size > 128 and kind is RotationKind.DENSE:
        pytest.skip("the same code at a quarter of the time for 128")
    eye = torch.eye(size, dtype=torch.float64)
    matrix = rotate(eye, kind, 3).T
    assert torch.allclose(matrix @ matrix.T, eye, atol=1e-12)
    assert torch.allclose(rotate_back(eye, kind, 3), matrix, atol=1e-12), "row i of rotate_back(eye) is R^T e_i"
    is_seeded = kind in (RotationKind.RANDOM_HADAMARD, RotationKind.DENSE)
    assert torch.equal(matrix, rotate(eye, kind, 4).T) is not is_seeded
    single = rotate(eye.float(), kind, 3).T
    assert single.dtype is torch.float32
    assert torch.allclose(single.double(), matrix, atol=1e-6)


def test_randomised_hadamard_negates_columns_by_the_seed() -> None:
    eye = torch.eye(128, dtype=torch.float64)
    plain, random_signs = (rotate(eye, kind, 9).T for kind in (RotationKind.HADAMARD, RotationKind.RANDOM_HADAMARD))
    assert torch.equal(random_signs, plain * torch.tensor(seeds.signs(9, 128)))


def test_dense_rotation_is_the_factor_with_a_positive_diagonal() -> None:
    """R^T times the Gaussian matrix of the seed is upper triangular, its diagonal positive."""
    gauss = torch.tensor(seeds.normals(3, seeds.Purpose.DENSE_ROTATION, 64 * 64), dtype=torch.float64).reshape(64, 64)
    upper = rotate_back(gauss.T.contiguous(), RotationKind.DENSE, 3).T
    assert float(upper.tril(-1).abs().max()) < 1e-12
    assert float(upper.diagonal().min()) > 0


def test_projection_is_gaussian() -> None:
    matrix = projection(128, 0)
    assert matrix[0, 0] == 1.477935791015625
    assert abs(float(matrix.square().mean()) - 1) < 5 * (2 / 128**2) ** 0.5
