"""The table of docs/kv_cache.md: made here, printed (pytest -s), and held against the page."""

import re
from pathlib import Path

import pytest

from families.kv_cache.quality import Case, Quality, quality
from gemmill.families.kv_cache.codebooks import codebook
from gemmill.families.kv_cache.formats import (
    CacheFormat,
    Method,
    PageLayout,
    RotationKind,
    VectorFormat,
    cache_format,
    preset,
)

PAGE = Path(__file__).parents[3] / "docs" / "kv_cache.md"


def plain(name: str, method: Method, bits: int) -> CacheFormat:
    """Keys and values by one of vLLM's methods, not rotated, as articles compare with them."""
    vectors = VectorFormat(method=method, bits=bits)
    none = RotationKind.NONE
    return CacheFormat(
        name=name, keys=vectors, values=vectors, key_rotation=none, value_rotation=none, layout=PageLayout.SLOTS
    )


def own(method: Method, bits: int) -> CacheFormat:
    return cache_format(*(VectorFormat(method=method, bits=bits),) * 2)


FORMATS = {
    "e4m3": plain("e4m3", Method.E4M3, 8),
    "int4, scale and zero a vector": plain("int4", Method.UNIFORM, 4),
    **{name: preset(name) for name in ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc")},
    **{name: preset(name) for name in ("turboquant_3bit_nc", "ultraquant_4bit")},
    **{f"{method.value}, {bits}": own(method, bits) for bits in (4, 3, 2) for method in
       (Method.EDEN, Method.TURBOQUANT_MSE, Method.TURBOQUANT_PROD)},
    "article: prod keys 3, mse values 2": cache_format(
        VectorFormat(method=Method.TURBOQUANT_PROD, bits=3), VectorFormat(method=Method.TURBOQUANT_MSE, bits=2)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> dict[str, Quality]:
    return {name: quality(format) for name, format in FORMATS.items()}


def cells(found: Quality) -> list[float]:
    return [found.bits, found.bias, found.variance, *(found.errors[case] for case in Case)]


def test_the_page_holds_the_table(measured: dict[str, Quality]) -> None:
    rows = [
        f"| {name} | "
        + " | ".join(f"{value:.4g}" if i == 0 else f"{value:.4f}" for i, value in enumerate(cells(found)))
        + " |"
        for name, found in measured.items()
    ]
    print("\n" + "\n".join(rows))
    lines = [re.split(r" *\| *", line.strip("| ")) for line in PAGE.read_text().splitlines()]
    written = {
        name: values for name, *values in reversed(lines) if len(values) == 3 + len(Case)
    }  # the first table so wide
    for name, found in measured.items():
        assert name in written, name
        for value, text in zip(cells(found), written[name], strict=True):
            assert float(text) == pytest.approx(value, rel=0.03, abs=2e-4), (name, text)


def test_our_default_is_unbiased_and_varies_least(measured: dict[str, Quality]) -> None:
    for bits in (2, 3, 4):
        eden, mse, prod = (measured[f"{m}, {bits}"] for m in ("eden", "turboquant_mse", "turboquant_prod"))
        distortion = codebook(128, bits).distortion
        assert abs(eden.bias) < 1e-4
        assert mse.bias == pytest.approx(-distortion, rel=0.02)
        assert 4 < prod.variance / eden.variance < 6
        assert eden.errors[Case.PEAKED] < prod.errors[Case.PEAKED]


def test_more_bits_lose_less(measured: dict[str, Quality]) -> None:
    for method in ("eden", "turboquant_mse", "turboquant_prod"):
        for case in Case:
            errors = [measured[f"{method}, {bits}"].errors[case] for bits in (2, 3, 4)]
            assert errors[0] > 1.5 * errors[1] > 2 * errors[2], (method, case, errors)


def test_rotation_is_what_outliers_need(measured: dict[str, Quality]) -> None:
    """At fewer bits than int4's 4.25, eden loses less than int4 does where a few channels are large."""
    assert measured["eden, 4"].errors[Case.OUTLIER] < measured["int4, scale and zero a vector"].errors[Case.OUTLIER]
