"""Calls of the quantisation kernels: what each variant is given, what it fills and what the reference says."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gemmill.reference import quant as reference
from gemmill.space.quant import Activation, QuantConfig, QuantFamily, ScaleFormat
from gemmill.vocab import DType
from quant_library import GroupArgs, Library, RmsNormArgs, StaticArgs, TensorArgs, TokenArgs, address

TORCH = {d: getattr(torch, d.torch_name) for d in DType}
GROUP_EPS = 1e-10
POISON = 0x7B


@dataclass(frozen=True, kw_only=True)
class Case:
    """Shape and layout of one call."""

    rows: int
    hidden: int
    in_padding: int = 0
    """Elements between rows of the input."""
    offset: int = 0
    """Elements by which the input is moved off its allocation's alignment."""
    transposed: bool = False
    """Scales M-major, rows padded to 4."""
    bounded: bool = False
    """With scale_ub."""
    values: str = "normal"
    residual: bool = False


@dataclass(kw_only=True)
class Call:
    """One prepared call."""

    run: Callable[[], None]
    outputs: dict[str, torch.Tensor]
    expected: Callable[[], dict[str, torch.Tensor]]
    bytes_moved: int
    x: torch.Tensor
    scale_ub: torch.Tensor | None
    static_scale: torch.Tensor | None


def make_input(config: QuantConfig, case: Case, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """[rows, hidden or 2 hidden] with the case's stride and offset, as a view of a larger allocation."""
    width = case.hidden * (1 if config.activation is Activation.NONE else 2)
    stride = width + case.in_padding
    flat = torch.randn(case.rows * stride + case.offset, device=device, generator=generator)
    if case.values == "wide":
        flat = flat * torch.exp2(torch.randint(-40, 40, flat.shape, device=device, generator=generator).float())
    elif case.values == "special":
        special = torch.tensor(
            [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -95.0, 3e38], device=device
        )
        picks = torch.randint(0, 4000, flat.shape, device=device, generator=generator)
        flat = torch.where(picks < 8, special[picks.clamp_max(7)], flat)
        flat[: width * min(case.rows, 2)] = 0.0
    elif case.values == "gates":
        flat = flat * 60.0
    flat = flat.to(TORCH[config.in_dtype])
    return flat[case.offset :].view(case.rows, stride)[:, :width]


def prepare(library: Library, config: QuantConfig, case: Case, device: torch.device, seed: int = 0) -> Call:
    """The call of a variant on random data, its outputs poisoned."""
    generator = torch.Generator(device).manual_seed(seed)
    x = make_input(config, case, device, generator)
    out = torch.full((case.rows, case.hidden), POISON, dtype=torch.uint8, device=device).view(TORCH[config.out_dtype])
    ub = torch.tensor([0.004 if config.family is QuantFamily.GROUP else 1.5], device=device) if case.bounded else None
    sizes = {"in_": address(x), "out": address(out), "rows": case.rows, "hidden": case.hidden}
    sizes |= {"in_stride": x.stride(0), "out_stride": case.hidden}
    make = {
        QuantFamily.STATIC: _static,
        QuantFamily.TENSOR: _tensor,
        QuantFamily.TOKEN: _token,
        QuantFamily.GROUP: _group,
        QuantFamily.RMS_TOKEN: _rms_norm,
        QuantFamily.RMS_GROUP: _rms_norm,
    }[config.family]
    args, outputs, expected = make(config, case, x, out, ub, sizes)

    def run() -> None:
        args.launch = library.launch()
        library.call(config, args)

    moved = x.numel() * x.element_size() + out.numel()
    for name, tensor in outputs.items():
        if name != "codes":
            moved += tensor.numel() * tensor.element_size() * (2 if name == "residual" else 1)  # read and written
    return Call(
        run=run,
        outputs=outputs,
        expected=expected,
        bytes_moved=moved,
        x=x,
        scale_ub=ub,
        static_scale=getattr(args, "static_scale", None),
    )


Made = tuple[ctypes.Structure, dict[str, torch.Tensor], Callable[[], dict[str, torch.Tensor]]]


def _static(
    config: QuantConfig, case: Case, x: torch.Tensor, out: torch.Tensor, ub: torch.Tensor | None, sizes: dict
) -> Made:
    scales = torch.tensor([0.0123], device=x.device)
    azp = None if config.symmetric else torch.tensor([-7], dtype=torch.int32, device=x.device)
    args = StaticArgs(
        **sizes, scales=address(scales), azp=address(azp), group_m=1, group_n=1, scale_stride_m=0, scale_stride_n=0
    )

    def expected() -> dict[str, torch.Tensor]:
        return {"codes": reference.static_quant(x, scales, config.out_dtype, azp=azp, activation=config.activation)}

    args.keep = (x, scales, azp)
    args.static_scale = scales
    return args, {"codes": out}, expected


def _tensor(
    config: QuantConfig, case: Case, x: torch.Tensor, out: torch.Tensor, ub: torch.Tensor | None, sizes: dict
) -> Made:
    scale = torch.full((1,), float("nan"), device=x.device)
    workspace = torch.empty(4096, dtype=torch.uint8, device=x.device)
    args = TensorArgs(**sizes, scale=address(scale), workspace=address(workspace))

    def expected() -> dict[str, torch.Tensor]:
        codes, wanted = reference.tensor_quant(x, config.out_dtype)
        return {"codes": codes, "scales": wanted}

    args.keep = (x, workspace)
    return args, {"codes": out, "scales": scale}, expected


def _token(
    config: QuantConfig, case: Case, x: torch.Tensor, out: torch.Tensor, ub: torch.Tensor | None, sizes: dict
) -> Made:
    scales = torch.full((case.rows, 1), float("nan"), device=x.device)
    azps = None if config.symmetric else torch.full((case.rows, 1), 12345, dtype=torch.int32, device=x.device)
    args = TokenArgs(**sizes, scales=address(scales), azps=address(azps), scale_ub=address(ub))
    outputs = {"codes": out, "scales": scales} | ({} if azps is None else {"azps": azps})

    def expected() -> dict[str, torch.Tensor]:
        if azps is not None:
            return dict(zip(("codes", "scales", "azps"), reference.token_quant_with_azp(x), strict=True))
        codes, wanted = reference.token_quant(x, config.out_dtype, scale_ub=ub, activation=config.activation)
        return {"codes": codes, "scales": wanted}

    args.keep = (x, ub)
    return args, outputs, expected


def _group(
    config: QuantConfig, case: Case, x: torch.Tensor, out: torch.Tensor, ub: torch.Tensor | None, sizes: dict
) -> Made:
    groups = case.hidden // config.group_size
    packed = config.scale_format is ScaleFormat.PACKED_UE8M0
    padded = -(-case.rows // 4) * 4
    if packed:
        scales = torch.full((-(-groups // 4), padded), -1, dtype=torch.int32, device=x.device).t()[: case.rows]
    elif case.transposed:
        scales = torch.full((groups, padded), float("nan"), device=x.device).t()[: case.rows]
    else:
        scales = torch.full((case.rows, groups), float("nan"), device=x.device)
    azps = (
        None
        if config.symmetric
        else torch.full((groups, padded), 12345, dtype=torch.int32, device=x.device).t()[: case.rows]
    )
    if azps is not None and not case.transposed:
        azps = azps.contiguous()
    gated = config.activation is not Activation.NONE
    smallest = {
        "smallest_amax": 0.0 if gated else GROUP_EPS,
        "smallest_scale": reference.SMALLEST_SCALE[config.out_dtype] if gated else 0.0,
    }
    args = GroupArgs(
        **sizes,
        scales=address(scales),
        azps=address(azps),
        scale_ub=address(ub),
        scale_stride_m=scales.stride(0),
        scale_stride_g=scales.stride(1),
        scale_rows=padded,
        **smallest,
    )

    def expected() -> dict[str, torch.Tensor]:
        if azps is not None:
            return dict(
                zip(("codes", "scales", "azps"), reference.group_quant_with_azp(x, config.group_size), strict=True)
            )
        codes, wanted = reference.group_quant(
            x,
            config.group_size,
            config.out_dtype,
            scale_ub=ub,
            scale_format=config.scale_format,
            activation=config.activation,
            **smallest,
        )
        return {"codes": codes, "scales": reference.pack_ue8m0(wanted) if packed else wanted}

    args.keep = (x, ub)
    return args, {"codes": out, "scales": scales} | ({} if azps is None else {"azps": azps}), expected


def _rms_norm(
    config: QuantConfig, case: Case, x: torch.Tensor, out: torch.Tensor, ub: torch.Tensor | None, sizes: dict
) -> Made:
    groups = case.hidden // config.group_size if config.group_size else 1
    scales = torch.full((groups, case.rows), float("nan"), device=x.device).t()
    if not case.transposed:
        scales = scales.contiguous()
    generator = torch.Generator(x.device).manual_seed(1)
    weight = torch.randn(case.hidden, device=x.device, generator=generator).to(x.dtype)
    residual = (
        torch.randn((case.rows, case.hidden), device=x.device, generator=generator).to(x.dtype)
        if case.residual
        else None
    )
    before = None if residual is None else residual.clone()
    args = RmsNormArgs(
        **sizes,
        weight=address(weight),
        residual=address(residual),
        scales=address(scales),
        scale_ub=address(ub),
        residual_stride=case.hidden,
        scale_stride_m=scales.stride(0),
        scale_stride_g=scales.stride(1),
        epsilon=1e-6,
    )

    def expected() -> dict[str, torch.Tensor]:
        codes, wanted, added = reference.rms_norm_quant(
            x, weight, 1e-6, config.out_dtype, group_size=config.group_size, scale_ub=ub, residual=before
        )
        return {"codes": codes, "scales": wanted} | ({} if added is None else {"residual": added})

    args.keep = (x, weight, ub)
    return args, {"codes": out, "scales": scales} | ({} if residual is None else {"residual": residual}), expected
