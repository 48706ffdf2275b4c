"""Codebooks against published tables, the two conditions of Lloyd and Max, and an independent quadrature."""

import math
from itertools import pairwise

import mpmath
import pytest

from gemmill.families.kv_cache.codebooks import OFFERED_BITS, codebook
from gemmill.families.kv_cache.vllm_codebooks import vllm_codebook

HEAD_DIMS = (64, 96, 128, 192, 256, 512)

# Max, "Quantizing for minimum distortion", 1960, table I: outputs and end points at x > 0, mean squared error.
MAX_1960 = {
    1: ((0.7980,), (), 0.3634),
    2: ((0.4528, 1.510), (0.9816,), 0.1175),
    3: ((0.2451, 0.7560, 1.344, 2.152), (0.5006, 1.050, 1.748), 0.03454),
    4: (
        (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733),
        (0.2582, 0.5224, 0.7996, 1.099, 1.437, 1.844, 2.401),
        0.009497,
    ),
}


@pytest.mark.parametrize("bits", OFFERED_BITS)
def test_gaussian_equals_the_table_of_max(bits: int) -> None:
    outputs, ends, error = MAX_1960[bits]
    found = codebook(None, bits)
    half = 1 << (bits - 1)
    # The table has four significant digits, of which the last is off by one below 1: 0.7980 is sqrt(2 / pi) = 0.79788.
    for value, stated in zip((*found.centroids[half:], *found.boundaries[half:]), (*outputs, *ends), strict=True):
        assert abs(value - stated) < (1.3e-4 if stated < 1 else 5.5e-4)
    assert found.distortion == pytest.approx(error, rel=5e-4)


def test_closed_forms() -> None:
    """One bit: the mean of |x|. On the sphere in three dimensions the density is flat, so the cells are equal."""
    assert codebook(None, 1).centroids[1] == math.sqrt(2 / math.pi)
    assert codebook(None, 1).distortion == pytest.approx(1 - 2 / math.pi, rel=1e-15)
    mean_128 = math.exp(math.lgamma(64) - math.lgamma(64.5)) / math.sqrt(math.pi)
    assert codebook(128, 1).centroids[1] == pytest.approx(mean_128, rel=1e-12)
    for bits in OFFERED_BITS:
        levels = 1 << bits
        assert codebook(3, bits).centroids == tuple((2 * i + 1 - levels) / levels for i in range(levels))
        assert codebook(3, bits).distortion == pytest.approx(0.25**bits, rel=1e-14)


@pytest.mark.parametrize(
    ("bits", "scaled", "error"),
    [
        (1, (0.7994,), 0.3609),
        (2, (0.4525, 1.5052), 0.1160),
        (3, (0.2444, 0.7533, 1.3366, 2.1315), 0.0340),
        (4, (0.1279, 0.3864, 0.6536, 0.9371, 1.2478, 1.6043, 2.0459, 2.6889), 0.0093),
    ],
)
def test_head_dim_128(bits: int, scaled: tuple[float, ...], error: float) -> None:
    found = codebook(128, bits)
    assert [round(c * math.sqrt(128), 4) for c in found.centroids[1 << (bits - 1) :]] == list(scaled)
    assert round(found.distortion, 4) == error


def test_distortion_of_the_paper() -> None:
    """TurboQuant, theorem 1: about 0.36, 0.117, 0.03 and 0.009, and never above sqrt(3) pi / 2 times 4^-b.

    Theorem 2's 1.57, 0.56, 0.18 and 0.047 over d are pi / 2 times the distortion at one bit fewer, the last from the
    rounded 0.03.
    """
    for bits, stated, digits in ((1, 0.36, 2), (2, 0.117, 3), (3, 0.03, 2), (4, 0.009, 3)):
        limit = codebook(None, bits).distortion
        assert abs(limit - stated) < 0.6 * 10.0**-digits, bits
        assert limit < math.sqrt(3) * math.pi / 2 * 0.25**bits
        assert limit > 0.25**bits, "below the bound of any quantiser (theorem 3)"
    residual = (1.0, *(codebook(None, bits).distortion for bits in (1, 2)))
    for left, stated, tolerance in zip(residual, (1.57, 0.56, 0.18), (0.01, 0.02, 0.01), strict=True):
        assert math.pi / 2 * left == pytest.approx(stated, abs=tolerance)


@pytest.mark.parametrize("bits", OFFERED_BITS)
@pytest.mark.parametrize("head_dim", [3, 4, 7, *HEAD_DIMS, None])
def test_conditions(head_dim: int | None, bits: int) -> None:
    """Symmetric, rising, boundaries halfway; distortion falls with every bit."""
    found = codebook(head_dim, bits)
    assert found.centroids == tuple(-c for c in reversed(found.centroids))
    assert all(a < b for a, b in pairwise(found.centroids))
    for (a, b), boundary in zip(pairwise(found.centroids), found.boundaries, strict=True):
        assert boundary == pytest.approx((a + b) / 2, rel=3e-16, abs=1e-17)
    if head_dim is not None:
        assert found.centroids[-1] < 1.0
    if bits > 1:
        assert found.distortion < codebook(head_dim, bits - 1).distortion / 2.5


@pytest.mark.parametrize(("head_dim", "bits"), [(5, 3), (64, 4), (128, 3), (128, 4), (256, 4), (None, 4)])
def test_centroids_are_means_to_the_last_bit(head_dim: int | None, bits: int) -> None:
    """Independent of the series in the module: mpmath's quadrature of the density itself, 30 digits."""
    found = codebook(head_dim, bits)
    end = mpmath.mpf(1) if head_dim is not None else mpmath.mpf(40)

    def density(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(-x * x / 2) if head_dim is None else (1 - x * x) ** (mpmath.mpf(head_dim - 3) / 2)

    half = 1 << (bits - 1)
    with mpmath.workdps(30):
        edges = [mpmath.mpf(0), *map(mpmath.mpf, found.boundaries[half:]), end]
        halves = [list(mpmath.linspace(a, min(b, a + 20 / mpmath.sqrt(head_dim or 1)), 5)) for a, b in pairwise(edges)]
        masses = [mpmath.quad(density, points) for points in halves]
        means = [mpmath.quad(lambda x: x * density(x), p) / m for p, m in zip(halves, masses, strict=True)]
        errors = [
            mpmath.quad(lambda x, c=c: (x - c) ** 2 * density(x), p)
            for p, c in zip(halves, found.centroids[half:], strict=True)
        ]
        distortion = sum(errors) / sum(masses) * (head_dim or 1)
    for mean, centroid in zip(means, found.centroids[half:], strict=True):
        # The boundaries are doubles here, so a mean moves by up to a rounding of them.
        assert abs(float(mean) - centroid) <= 4 * math.ulp(centroid)
    assert found.distortion == pytest.approx(float(distortion), rel=1e-13)


def test_cached_and_refused() -> None:
    assert codebook(128, 3) is codebook(128, 3)
    with pytest.raises(ValueError, match=r"^A codebook of 5 bits was asked for; 1, 2, 3 and 4 are offered: choose one"):
        codebook(128, 5)
    with pytest.raises(ValueError, match=r"^A codebook for vectors of 2 elements was asked for; .* take a larger head"):
        codebook(2, 1)
    with pytest.raises(ValueError, match=r"^vLLM's centroids of 2 bits were asked for; its presets have 3 and 4: "):
        vllm_codebook(128, 2)


# float32 values of vLLM 0.33.0's `get_centroids(d, bits)` at x > 0, read off its own run.
VLLM = {
    (128, 3): ("0x1.62c62ep-6", "0x1.1192aap-4", "0x1.e6487ap-4", "0x1.85413ep-3"),
    (64, 3): ("0x1.f5b9f6p-6", "0x1.82e3f8p-4", "0x1.57daa6p-3", "0x1.133ea8p-2"),
    (128, 4): (
        "0x1.73f75cp-7", "0x1.190ab2p-5", "0x1.dba1c2p-5", "0x1.5533e4p-4",
        "0x1.c6d056p-4", "0x1.24de2ep-3", "0x1.766dcep-3", "0x1.ee5988p-3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("head_dim", "bits"), VLLM)
def test_vllm_centroids(head_dim: int, bits: int) -> None:
    found = vllm_codebook(head_dim, bits)
    assert [c.hex() for c in found.centroids[1 << (bits - 1) :]] == [
        float.fromhex(text).hex() for text in VLLM[head_dim, bits]
    ]
    limit = codebook(None, bits)
    assert limit.distortion < found.distortion < 1.001 * limit.distortion
    apart = [abs(a * math.sqrt(head_dim) - b) for a, b in zip(found.centroids, limit.centroids, strict=True)]
    assert 1e-4 < max(apart) < 0.0018
