"""Compression and decompression of vectors: definitions, statistics, NaN, bounds."""

import math

import pytest
import torch

from gemmill.families.kv_cache.bounds import outside
from gemmill.families.kv_cache.codebooks import codebook
from gemmill.families.kv_cache.formats import OWN_METHODS, Method, RotationKind, VectorFormat, VectorSpec
from gemmill.families.kv_cache.reference.bits import unpack_codes
from gemmill.families.kv_cache.reference.rotations import projection, rotate
from gemmill.families.kv_cache.reference.vectors import compress, decompress, from_bytes, to_bytes

CASES = [(m, b) for m in OWN_METHODS for b in (2, 3, 4)]
ROTATIONS = 800
CONFIDENCE_Z = 5.0
"""Of 16 means each: with the right formats one lies beyond it in 1e5 choices of seeds (16 x 5.7e-7)."""


def spec_of(
    method: Method, bits: int, head_dim: int = 128, seed: int = 0, rotation: str = "random_hadamard"
) -> VectorSpec:
    return VectorSpec(
        format=VectorFormat(method=method, bits=bits), head_dim=head_dim, rotation=RotationKind(rotation), seed=seed
    )


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("method", "bits"), CASES)
def test_definition_by_hand(method: Method, bits: int) -> None:
    """One vector in plain Python: nearest centroids found by search, scalars rounded to float16, every sum written out."""
    d, spec = 64, spec_of(method, bits, head_dim=64, seed=11)
    x = gaussian(d, seed=bits)
    matrix = rotate(torch.eye(d, dtype=torch.float64), spec.rotation, 11).T.tolist()
    norm = math.sqrt(math.fsum(v * v for v in x.tolist()))
    y = [math.fsum(m * v for m, v in zip(row, x.tolist(), strict=True)) for row in matrix]
    centroids = codebook(d, spec.format.code_bits).centroids
    chosen = [min(centroids, key=lambda c, t=t: abs(c - t / norm)) for t in y]
    scale = norm
    if method is Method.EDEN:
        scale = norm**2 / math.fsum(a * b for a, b in zip(chosen, y, strict=True))
    scale = float(torch.tensor(scale, dtype=torch.float64).half())
    wanted = [math.fsum(matrix[j][i] * chosen[j] for j in range(d)) * scale for i in range(d)]
    if method is Method.TURBOQUANT_PROD:
        s = projection(d, 11).tolist()
        residual = [a - b for a, b in zip(x.tolist(), wanted, strict=True)]
        size = float(torch.tensor(math.sqrt(math.fsum(r * r for r in residual)), dtype=torch.float64).half())
        signs = [1 if math.fsum(a * b for a, b in zip(row, residual, strict=True)) >= 0 else -1 for row in s]
        factor = math.sqrt(math.pi / 2) / d * size
        wanted = [w + factor * math.fsum(s[j][i] * signs[j] for j in range(d)) for i, w in enumerate(wanted)]
    found = decompress(compress(x, spec), spec)
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256, 512])
@pytest.mark.parametrize(("method", "bits"), CASES)
def test_squared_error_is_the_codebooks(method: Method, bits: int, head_dim: int) -> None:
    """Over 2,000 Gaussian vectors: D, for prod pi / 2 D(b - 1).

    For eden it is D / (1 - D), less a few parts in d, because its scale fits the vector's own length.
    """
    spec = spec_of(method, bits, head_dim=head_dim)
    x = gaussian(2000, head_dim)
    error = float(((decompress(compress(x, spec), spec) - x).square().sum(-1) / x.square().sum(-1)).mean())
    distortion = codebook(head_dim, spec.format.code_bits).distortion
    if method is Method.EDEN:
        limit = distortion / (1 - distortion)
        assert limit * (1 - 3.5 / head_dim) < error < limit * 1.005
    elif method is Method.TURBOQUANT_PROD:
        assert error == pytest.approx(distortion * math.pi / 2, rel=0.05)
    else:
        assert error == pytest.approx(distortion, rel=0.02)


def test_plain_bytes() -> None:
    spec = spec_of(Method.TURBOQUANT_PROD, 3)
    fields = compress(gaussian(5, 2, 128), spec)
    packed = to_bytes(fields, spec)
    assert packed.shape == (5, 2, 52)
    assert {name: part.shape[-1] for name, part in fields.items()} == {
        "codes": 32, "norm": 2, "signs": 16, "residual_norm": 2,
    }  # fmt: skip
    order = ("codes", "signs", "norm", "residual_norm")
    assert torch.equal(packed, torch.cat([fields[name] for name in order], dim=-1))
    assert all(torch.equal(part, fields[name]) for name, part in from_bytes(packed, spec).items())
    with pytest.raises(
        ValueError, match=r"^Packed vectors torch.uint8 of 51 bytes were given; turboquant_prod in 3 bits of"
    ):
        from_bytes(packed[..., :51], spec)
    with pytest.raises(
        ValueError, match=r"^Vectors torch.float32 \[3, 64\] were to be compressed; the cache holds vectors o"
    ):
        compress(torch.zeros(3, 64), spec)
    with pytest.raises(
        ValueError, match=r"^Vectors torch.int64 \[3, 128\] were to be compressed; .* of a float type: pass \["
    ):
        compress(torch.zeros(3, 128, dtype=torch.int64), spec)


def test_a_coordinate_on_a_boundary_takes_the_upper_code() -> None:
    """Of e_0 + e_1, Sylvester's matrix makes 2 and 0 in turn; 0 is the boundary between codes 3 and 4 of 3 bits."""
    spec = spec_of(Method.EDEN, 3, head_dim=64, rotation="hadamard")
    x = torch.zeros(64, dtype=torch.float64)
    x[:2] = 1
    codes = unpack_codes(compress(x, spec)["codes"], 3, 64)
    assert codes[1::2].unique().tolist() == [4]
    assert codes[0::2].unique().tolist() == [6]


@pytest.mark.parametrize(("method", "bits"), CASES)
def test_zeros_nan_and_overflow(method: Method, bits: int) -> None:
    spec = spec_of(method, bits)
    x = gaussian(6, 128)
    x[0] = 0
    x[1, 5] = torch.nan
    x[2, 7] = torch.inf
    x[3] *= 1e4
    x[4] *= 1e-12
    found = decompress(compress(x, spec), spec)
    assert bool((found[0] == 0).all())
    assert bool(torch.isnan(found[1]).all())
    assert not torch.isfinite(found[2]).all()
    assert not torch.isfinite(found[3]).all(), "a norm of 1e5 is more than float16 holds: visible, not clamped"
    assert bool((found[4] == 0).all()), "a norm of 1e-11 is less than float16 holds"
    assert torch.isfinite(found[5]).all()


def z_scores(method: Method, bits: int, rotation: str, rotations: int) -> torch.Tensor:
    """For 16 pairs (q, x) with inner products of 0 to 1: mean error of <q, x~> over seeds, in its standard errors."""
    d = 64
    x = torch.nn.functional.normalize(gaussian(16, d, seed=1), dim=-1)
    other = gaussian(16, d, seed=2)
    other = torch.nn.functional.normalize(other - (other * x).sum(-1, keepdim=True) * x, dim=-1)
    share = torch.linspace(0, 1, 16, dtype=torch.float64)[:, None]
    q = share * x + (1 - share**2).sqrt() * other
    errors = []
    for seed in range(rotations):
        spec = spec_of(method, bits, head_dim=d, seed=seed, rotation=rotation)
        errors.append((q * (decompress(compress(x, spec), spec) - x)).sum(-1))
    error = torch.stack(errors)
    # Where q is x, eden leaves nothing but float16's rounding, whose unit is added so that it is not divided by.
    return error.mean(0) / (error.std(0) / rotations**0.5 + 2.0**-12)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_unbiased(bits: int) -> None:
    """Over 800 rotations and projections: eden with dense rotations, prod with either."""
    for method, rotation in (
        (Method.EDEN, "dense"),
        (Method.TURBOQUANT_PROD, "dense"),
        (Method.TURBOQUANT_PROD, "random_hadamard"),
    ):
        assert float(z_scores(method, bits, rotation, ROTATIONS).abs().max()) < CONFIDENCE_Z, (method, rotation)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_same_statistic_finds_the_bias_of_mse(bits: int) -> None:
    """turboquant_mse shrinks: <q, x~> is (1 - D) <q, x> on average."""
    z = z_scores(Method.TURBOQUANT_MSE, bits, "dense", ROTATIONS)
    assert float(z.min()) < -2 * CONFIDENCE_Z
    assert abs(float(z[0])) < CONFIDENCE_Z, "nothing to shrink where q and x are orthogonal"


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_variance_of_eden_is_a_fraction_of_prods(bits: int) -> None:
    """Inner products with random q: D / (1 - D) against pi / 2 D(b - 1), both over d: 4.3, 5.2 and 5.7 times less."""
    x, q = gaussian(3000, 128, seed=3), gaussian(3000, 128, seed=4)
    variance = {
        method: float((q * (decompress(compress(x, spec_of(method, bits)), spec_of(method, bits)) - x)).sum(-1).var())
        for method in (Method.EDEN, Method.TURBOQUANT_PROD)
    }
    book, smaller = codebook(128, bits).distortion, codebook(128, bits - 1).distortion
    assert variance[Method.EDEN] == pytest.approx(128 * book / (1 - book), rel=0.15)
    assert variance[Method.TURBOQUANT_PROD] == pytest.approx(128 * math.pi / 2 * smaller, rel=0.15)


@pytest.mark.parametrize("rotation", ["random_hadamard", "dense"])
@pytest.mark.parametrize(("method", "bits"), CASES)
def test_float32_lies_within_the_bounds_and_faults_do_not(method: Method, bits: int, rotation: str) -> None:
    for head_dim in (96, 128):
        spec = spec_of(method, bits, head_dim=head_dim, rotation=rotation)
        x = gaussian(400, head_dim, seed=5).bfloat16()
        x[0] = 0
        assert outside(compress(x, spec), x, spec) == (0, 0)
        found = compress(x, spec, torch.float32)
        assert outside(found, x, spec) == (0, 0)
        for name, count in (("codes", 0), ("norm", 1)):
            broken = {key: field.clone() for key, field in found.items()}
            broken[name][7, 0] ^= 2 if name == "codes" else 4
            assert outside(broken, x, spec)[count] >= 1, name
        if method is Method.TURBOQUANT_PROD:
            broken = {key: field.clone() for key, field in found.items()}
            broken["signs"][9] ^= 255
            assert outside(broken, x, spec)[0] > 100 * head_dim / 128


def test_bounds_are_narrow() -> None:
    """Moving every coordinate by 1e-4 of the norm is found: the slack hides one code in ten thousand, not a fault."""
    spec = spec_of(Method.EDEN, 4)
    x = gaussian(400, 128, seed=6)
    shifted = compress(x + 1e-4 * x.norm(dim=-1, keepdim=True), spec)
    assert outside(shifted, x, spec)[0] > 20
    with pytest.raises(ValueError, match=r"^Bounds of uniform were asked for; turboquant_mse, .* byte by byte\.$"):
        uniform = VectorSpec(
            format=VectorFormat(method=Method.UNIFORM, bits=4), head_dim=128, rotation=RotationKind.NONE, seed=0
        )
        outside({}, x, uniform)
