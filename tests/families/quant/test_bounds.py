"""The values that the bounds of gated values accept and reject."""

import pytest
import torch

from gemmill.families.quant import bounds, reference
from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat, Scaling, all_configs
from gemmill.space.names import to_name
from gemmill.vocab import DType

GATED = [c for c in all_configs() if c.activation is not Activation.NONE and c.in_dtype is DType.BF16 and not c.format]
STATIC_SCALE = torch.tensor([0.0123])


def gated_rows(seed: int = 3) -> torch.Tensor:
    x = torch.randn((16, 512), generator=torch.Generator().manual_seed(seed)) * 3
    x[0, :4] = torch.tensor([float("inf"), float("nan"), -0.0, -90.0])
    return x.to(torch.bfloat16)


def run(config: QuantConfig, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if config.scaling is Scaling.STATIC:
        codes = reference.static_quant(
            x, STATIC_SCALE, config.out_dtype, activation=config.activation, vllm=config.vllm
        )
        return codes, STATIC_SCALE
    if config.scaling is Scaling.TOKEN:
        return reference.token_quant(x, config.out_dtype, activation=config.activation)
    codes, scales = reference.group_quant(
        x,
        config.group_size,
        config.out_dtype,
        smallest_scale=reference.SMALLEST_SCALE[config.out_dtype],
        scale_format=config.scale_format,
        activation=config.activation,
        vllm=config.vllm,
    )
    return codes, reference.pack_ue8m0(scales) if config.scale_format is ScaleFormat.PACKED_UE8M0 else scales


def moved(activation: Activation, units: float) -> object:
    """A stand-in for `activated` whose library function is off by so many units of 2^-24."""
    true = reference.activated

    def activated(x: torch.Tensor, _: Activation, *, contracted: bool = False) -> torch.Tensor:
        hidden = x.shape[-1] // 2
        factor = x[..., hidden:].float() if activation.is_gated else 1.0
        product = 0.5 * (x[..., :hidden] if activation.is_gated else x).float() * factor
        value = true(x, activation, contracted=contracted)
        error = (value if activation is Activation.SILU else product) * (units * 2.0**-24)
        return value + torch.where(torch.isfinite(value), error, 0.0)

    return activated


@pytest.mark.parametrize("config", GATED, ids=to_name)
@pytest.mark.parametrize("units", [0.0, 2.0, -2.0])
def test_another_library_function_of_two_units_is_within(
    config: QuantConfig, units: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gated_rows()
    silu = reference.divided_silu
    monkeypatch.setattr(reference, "divided_silu", lambda gate: silu(gate) * (1.0 + units * 2.0**-24))
    monkeypatch.setattr(reference, "activated", moved(config.activation, units))
    codes, scales = run(config, x)
    monkeypatch.undo()
    assert bounds.outside_of_gate_bounds(config, x, codes, scales) == (0, 0)


@pytest.mark.parametrize("config", GATED, ids=to_name)
def test_another_activation_is_outside(config: QuantConfig) -> None:
    other = Activation.GELU_ERF if config.activation is Activation.SILU else Activation.SILU
    x = gated_rows()
    codes, scales = run(config, x)
    axes = {name: getattr(config, name) for name in ("scaling", "in_dtype", "out_dtype", "group_size", "scale_format")}
    assert bounds.outside_of_gate_bounds(QuantConfig.of(**axes, activation=other), x, codes, scales)[0] > 100


@pytest.mark.parametrize("config", GATED, ids=to_name)
def test_one_code_a_few_steps_off_is_outside(config: QuantConfig) -> None:
    x = gated_rows()
    codes, scales = run(config, x)
    codes.view(torch.int8)[5, 7] ^= 16
    assert bounds.outside_of_gate_bounds(config, x, codes, scales) == (1, 0)


def test_a_scale_beyond_the_ends_is_outside() -> None:
    config = QuantConfig.of(Scaling.TOKEN, DType.BF16, Activation.SILU, out_dtype=DType.E4M3)
    x = gated_rows()
    codes, scales = run(config, x)
    scales[3] *= 1.0 + 2.0**-20
    assert bounds.outside_of_gate_bounds(config, x, codes, scales)[1] == 1
    scales[3] = float("nan")
    assert bounds.outside_of_gate_bounds(config, x, codes, scales)[1] == 1


def test_unpacking_undoes_packing() -> None:
    scales = torch.exp2(torch.randint(-30, 30, (7, 10), generator=torch.Generator().manual_seed(1)).float())
    assert (bounds.unpack_ue8m0(reference.pack_ue8m0(scales), 10) == scales).all()


def test_ranks_are_in_the_order_of_values() -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
    values = codes.float()
    number = ~torch.isnan(values)
    ranks = bounds.code_rank(codes)
    assert (ranks[number].argsort(stable=True) == values[number].argsort(stable=True)).all()
    assert (ranks[~number] == 127).all()


BLOCKS = [
    c
    for c in all_configs()
    if c.scaling is Scaling.BLOCK
    and c.activation not in (Activation.NONE, Activation.MODULATE)
    and c.in_dtype is DType.BF16
    and not c.vllm  # whose own arithmetic is held, not any library's: test_vllm_blocks.py
]


@pytest.mark.parametrize(
    ("config", "rounded"),
    [(c, rounded) for c in BLOCKS for rounded in (False, True) if not (rounded and c.activation.is_gated)],
    ids=lambda given: f"rounded={given}" if isinstance(given, bool) else to_name(given),
)
def test_block_scaled_codes_of_another_library_are_within(
    config: QuantConfig, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gated_rows()
    given = torch.tensor([40.0]) if config.format.has_global_scale else None

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        return reference.block_quant(
            x, config.format, global_scale=given, activation=config.activation, rounded=rounded
        )

    def outside(codes: torch.Tensor, scales: torch.Tensor) -> tuple[int, int]:
        return bounds.outside_of_block_bounds(config, x, codes, scales, global_scale=given, rounded=rounded)

    right = made()
    monkeypatch.setattr(reference, "activated", moved(config.activation, 2.0))
    codes, scales = made()
    monkeypatch.undo()
    assert outside(codes, scales) == (0, 0)
    assert outside(right[0] ^ 2, right[1])[0] > 0
    assert outside(right[0], right[1].clamp(min=1) - 1)[1] > 0
