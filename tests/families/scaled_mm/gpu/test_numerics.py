"""Every variant against the reference."""

from itertools import product

import pytest
import torch

from families.scaled_mm.gpu.shapes import FIRST, takes_any_rows, with_groups
from families.scaled_mm.gpu.specs import MAY, MUST, REFUSES, acceptance, of_variant, sum_error_fraction
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.cases.calls import CallSpec, compare, make_call
from gemmill.families.scaled_mm.reference import scaled_mm

MIXES = tuple(product(("one", "each"), ("one", "each"), (False, True)))
"""(scale of a, scale of b, bias)"""


def check(subject, entry, spec, device, note_error=None):
    """The variant gives the spec's result, and writes nothing else."""
    call = make_call(spec, device)
    expected = acceptance(accepted(entry.config), call)
    assert expected != REFUSES, f"the test is wrong: {entry.name} does not take {spec}"
    try:
        subject.run(call, entry.name)
    except RuntimeError:
        if expected == MAY:
            assert call.untouched()
            return
        raise
    comparison = compare(call, entry.config.design.accumulation)
    assert comparison.ok, f"{spec}: {comparison.report}"
    assert call.guards_hold(), f"{spec}: elements outside the result were written"
    if note_error is not None:
        note_error(entry, sum_error_fraction(call, entry.config.design.accumulation))


def spec_of(entry, shape, **settings):
    m, n, k = shape
    return of_variant(accepted(entry.config), CallSpec(m=m, n=n, k=k, **settings))


def test_integers_are_exact(subject, entry, shape, device):
    """Small integers and powers of two: no rounding anywhere but in the stored result, so no tolerance."""
    mix = MIXES[sum(shape) % len(MIXES)]
    check(subject, entry, spec_of(entry, shape, data="integers", a_scale=mix[0], b_scale=mix[1], bias=mix[2]), device)


@pytest.mark.parametrize("k", [4096, 14336, 32768])
def test_long_sums_of_integers_are_exact(subject, entry, k, device):
    """The bound of random data grows with K, and from K = 4096 on hides missing products; this hides nothing."""
    check(subject, entry, spec_of(entry, (77, 136, k), data="integers", bias=True), device)


def test_random_data(subject, entry, shape, device, note_error):
    mix = MIXES[sum(shape) % len(MIXES)]
    check(subject, entry, spec_of(entry, shape, a_scale=mix[0], b_scale=mix[1], bias=mix[2]), device, note_error)


def test_every_epilogue_argument(subject, entry, device, note_error):
    """All mixes of scale kinds, bias and zero points that the variant takes, at one ragged shape."""
    for (a_scale, b_scale, bias), azp in product(MIXES, accepted(entry.config).azp):
        if bias and not accepted(entry.config).bias:
            continue
        spec = spec_of(entry, FIRST, a_scale=a_scale, b_scale=b_scale, bias=bias, azp=azp)
        check(subject, entry, spec, device, note_error)


@pytest.mark.parametrize("layout", ["padded", "odd", "shifted"])
def test_row_strides(subject, entry, layout, device):
    """Rows longer than they must be are honoured by variants that can, and refused by the others with nothing written."""
    for shape in (FIRST, (33, 48, 144), (5, 131, 67)):
        spec = spec_of(entry, shape, layout=layout, bias=True)
        call = make_call(spec, device)
        if acceptance(accepted(entry.config), call) != REFUSES:
            check(subject, entry, spec, device)
            continue
        with pytest.raises(RuntimeError):
            subject.run(call, entry.name)
        assert call.untouched()


def test_rows_of_any_length(subject, entry, device):
    """K, N and M with no even factor: the unaligned variants take them, the others refuse in words."""
    call = make_call(spec_of(entry, with_groups(entry, (7, 13, 17))), device)
    if takes_any_rows(entry):
        assert acceptance(accepted(entry.config), call) == MUST
        check(subject, entry, call.spec, device)
        return
    with pytest.raises(RuntimeError, match=r"align|multiple"):
        subject.run(call, entry.name)
    assert call.untouched()


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (64, 64, 0), (0, 0, 0), (1, 8, 0)])
def test_zero_sizes(subject, entry, sizes, device):
    """No rows, no columns: nothing to do. No K: the bias alone."""
    check(subject, entry, spec_of(entry, sizes, bias=True), device)


def test_nan_and_infinity(subject, entry, device):
    """NaN in an operand fills its row or column; NaN and infinity in scales and bias go where arithmetic takes them."""
    spec = spec_of(entry, FIRST, data="integers", bias=True)
    for place in ("a", "b", "a_scales", "b_scales", "bias", "infinite a_scales", "infinite b_scales", "huge"):
        call = make_call(spec, device)
        if not spoil(call, place, entry):
            continue
        subject.run(call, entry.name)
        expected = reference_of(call)
        same = (call.out == expected) | (call.out.isnan() & expected.isnan())
        assert bool(same.all()), f"{place}: {int((~same).sum())} elements differ"
        assert not bool(expected.isfinite().all()), f"the test is wrong: nothing is spoiled by {place}"


def spoil(call, place, entry) -> bool:
    """Put a NaN or an infinity into the call; False where the variant has no such place."""
    is_float = accepted(entry.config).a_dtype.is_float
    if place in ("a", "b"):
        if is_float:
            matrix = call.a if place == "a" else call.b.t()
            matrix[1:2, 3:4] = torch.full((1, 1), torch.nan, device=call.a.device).to(matrix.dtype)
        return is_float
    if place == "bias":
        if call.bias is not None:
            call.bias[5] = torch.nan
        return call.bias is not None
    if place == "huge":
        call.a_scales.fill_(1e30)
        call.b_scales.fill_(1e30)
        return True
    value = torch.inf if place.startswith("infinite") else torch.nan
    scales = getattr(call, place.removeprefix("infinite "))
    scales[divmod(2, scales.shape[1])] = value
    return True


def reference_of(call):
    """The right result for the operands' present values."""
    return scaled_mm(
        call.a, call.b, call.a_scales, call.b_scales, call.out.dtype, call.bias, azp_adj=call.azp_adj, azp=call.azp
    )


def test_repeats_to_the_last_bit(subject, entry, device):
    """Partial sums are added in a fixed order."""
    spec = spec_of(entry, (48, 264, 4096))
    call = make_call(spec, device)
    subject.run(call, entry.name)
    first = call.out.clone()
    for _ in range(3):
        call.poison()
        subject.run(call, entry.name)
        assert torch.equal(call.out.view(torch.int16), first.view(torch.int16))


@pytest.mark.needs_cuda
def test_graph_capture_and_replay(subject, entry, device):
    """A replay reads the operands' values at that time."""
    spec = spec_of(entry, FIRST, data="integers", bias=True)
    call = make_call(spec, device)
    subject.run(call, entry.name)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        subject.run(call, entry.name)
    fresh = make_call(spec, device)
    for turn in range(2):
        call.a.copy_(fresh.a.view(torch.uint8).roll(turn, 0).view(fresh.a.dtype))
        call.poison()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(call.out, reference_of(call))
        assert call.guards_hold()


@pytest.mark.needs_cuda
def test_two_streams(subject, entry, device):
    """Calls on two streams at once do not share a workspace."""
    spec = spec_of(entry, (48, 264, 4096), data="integers")
    calls = [make_call(spec, device) for _ in range(2)]
    calls[1].a_scales.mul_(0.5)
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(4):
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                subject.run(call, entry.name)
    torch.cuda.synchronize()
    for call in calls:
        assert torch.equal(call.out, reference_of(call))
