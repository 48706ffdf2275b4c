"""The division of kernels/coding/code.cuh, in numpy: x r, and one correction by the residual, r being 1 / s rounded.

Divisors are sampled here; every one of the 2^23 mantissas was tried against every boundary in the same way, in C.
"""

import numpy as np
import pytest

f32, f64 = np.float32, np.float64


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """round(a b + c) in f32: the f64 sum is rounded to odd, so that the second rounding is the only one that shows."""
    product, addend = a.astype(f64) * b.astype(f64), c.astype(f64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    outwards = (error > 0) == (total > 0)
    odd = np.where((error != 0) & (bits & 1 == 0), np.where(outwards, bits + 1, bits - 1), bits)
    # An exact zero is the hardware's: the sum of zeros of unlike sign is positive, and of two negative ones negative.
    return np.where(error == 0, total, odd.view(f64)).astype(f32)


def quotient(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    r = f32(1) / s
    guess = x * r
    return fma(-fma(guess, s, -x), r, guess)


def short_quotient(x: np.ndarray, s: np.ndarray, bias: int = 1) -> np.ndarray:
    """Of values of 16 bits: the reciprocal in two parts, the first not above it, the second `bias` units too large."""
    r = f32(1) / s
    r = np.where(fma(-s, r, np.ones_like(s)) < 0, (r.view(np.int32) - 1).view(f32), r)
    low = ((fma(-s, r, np.ones_like(s)) * r).view(np.int32) + bias).view(f32)
    return fma(x, r, x * low)


def nearest_of_bits(x: np.ndarray, bits: int) -> np.ndarray:
    """The values of so many bits of mantissa below and above."""
    below = x.view(np.int32) & -(1 << (24 - bits))
    return np.stack([below, below + (1 << (24 - bits))], axis=1).view(f32)


def neighbours(x: np.ndarray, steps: int) -> np.ndarray:
    return (x.view(np.int32)[:, None] + np.arange(-steps, steps + 1, dtype=np.int32)).view(f32)


@pytest.fixture(scope="module")
def divisors() -> np.ndarray:
    rng = np.random.default_rng(7)
    mantissas = np.concatenate([rng.integers(0, 1 << 23, 4096), np.arange(64), (1 << 23) - 1 - np.arange(64)])
    return (0x3F800000 | mantissas.astype(np.int32)).view(f32)


def test_quotients_at_every_boundary_between_codes_are_those_of_division(divisors: np.ndarray) -> None:
    # Boundaries of s8 are half-integers up to 127.5; those of e4m3 have the same mantissas, and fewer.
    wrong = 0
    for odd in range(1, 256, 2):
        boundary = f32(odd) / f32(2 ** (odd.bit_length() - 1))
        x = neighbours(boundary * divisors, 3)
        s = np.broadcast_to(divisors[:, None], x.shape)
        wrong += int((quotient(x.ravel(), s.ravel()) != (x / s).ravel()).sum())
    assert wrong == 0


@pytest.mark.parametrize("bits", [8, 11])
def test_short_quotients_lie_on_the_same_side_of_every_boundary_of_e4m3(divisors: np.ndarray, bits: int) -> None:
    # Of 5 bits, and below the smallest normal code of fewer. All 2^23 divisors were tried in the same way, 2026-11-21.
    for odd in range(1, 32, 2):
        boundary = f32(odd) / f32(2 ** (odd.bit_length() - 1))
        x = nearest_of_bits(boundary * divisors, bits)
        s = np.broadcast_to(divisors[:, None], x.shape)
        sides = [np.sign(q.ravel() - boundary) for q in (short_quotient(x.ravel(), s.ravel()), x / s)]
        assert (sides[0] == sides[1]).all()


def test_the_short_quotients_second_part_must_not_be_too_small() -> None:
    s, x = np.array([2 - 2**-23], dtype=f32), np.array([2.0], dtype=f32)
    assert x / s > 1 and short_quotient(x, s) > 1
    assert short_quotient(x, s, bias=0) == 1


@pytest.mark.parametrize("constant", [448.0, 255.0, 127.0])
def test_the_scale_is_the_maximum_divided(constant: float) -> None:
    x = (0x3F800000 + np.arange(0, 1 << 24, 3, dtype=np.int32)).view(f32)
    s = np.full_like(x, constant)
    assert (quotient(x, s) == x / s).all()


def test_the_correction_is_needed() -> None:
    x = (0x3F800000 + np.arange(1 << 20, dtype=np.int32)).view(f32)
    s = np.full_like(x, 448.0)
    assert (x * (f32(1) / s) != x / s).any()


def test_zeros_keep_their_sign() -> None:
    x = np.array([0.0, -0.0, 1e-45, -1e-45], dtype=f32)
    for s in (f32(3.0), f32(0.3), f32(1.0)):
        assert (np.signbit(quotient(x, np.full_like(x, s))) == np.signbit(x)).all()
        assert (np.signbit(short_quotient(x, np.full_like(x, s))) == np.signbit(x)).all()
