"""Key names and layouts of quantised layers in checkpoints of several projects, read and written.

    compressed-tensors    vllm-project/compressed-tensors, `compressors/`; as vLLM 0.33.0's `compressed_tensors/schemes/` reads it
    lightx2v              ModelTC/LightX2V f8aee98, `tools/convert`, `common/ops/mm/mm_weight.py`; scales swizzled
    modelopt              NVIDIA/Model-Optimizer, `modelopt/torch/export`; as vLLM 0.33.0's `modelopt.py` reads it
    deepseek              deepseek-ai/DeepSeek-V3, `inference/fp8_cast_bf16.py`: weight_scale_inv multiplies; V4.1: blocks of 32
    deepseek-v4           as vLLM 0.33.0's `models/deepseek_v4/` reads it: experts mxfp4, other layers e4m3 with ue8m0 blocks
    gpt-oss               Transformers' `integrations/mxfp4.py`: experts of a layer in one tensor [E, N, K / 32, 16]; in bf16 [E, K, N]
    gpt-oss-torch         openai/gpt-oss, `gpt_oss/torch/weights.py` and `model.py`: the same; in bf16 [E, N, K]

The names, dtypes and shapes of a layer's tensors identify its project.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.checkpoints.file import WORD_OF, CheckpointError, Stored
from gemmill.formats.codes import decode
from gemmill.formats.layout import swizzled_shape
from gemmill.formats.quantise import LARGEST_PRODUCT, swizzle, unswizzle
from gemmill.quantize.weights import ASYMMETRIC, BLOCK_SCALED, BLOCKS, ROWWISE, QuantizedWeight
from gemmill.vocab.float_type import UE8M0

E4M3, E8M0, U8, F32 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8, torch.float32


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a project stores a layer of one format. Names are suffixes of the layer's name, with their dot."""

    project: str
    format: str
    codes: str = ".weight"
    codes_dtype: torch.dtype
    scales: str = ".weight_scale"
    scales_dtype: torch.dtype = F32
    swizzled: bool = False
    global_scale: str | None = None
    zero_points: str | None = None
    """The suffix of the tensor of zero points, int8 [N, 1]."""
    multiplies: bool = False
    """Whether decoding multiplies by the global scale; ours divides."""
    global_shape: tuple[int, ...] = (1,)
    input: str | None = None
    """The suffix of the tensor of the calibrated range of the layer's input."""
    input_holds: str = "absmax"
    """The meaning of its input's number: absmax, 2688 / absmax ("divides") or absmax / 2688 ("multiplies")."""
    expert_layers: tuple[str, ...] = ()
    """The suffix of names of layers whose tensors have all experts, [E, N, ...]; else empty."""
    transposed: bool = False
    """Whether unquantised experts are [E, K, N]; else [E, N, K]."""
    read_only: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The names that must be there."""
        return tuple(name for name in (self.codes, self.scales, self.global_scale, self.zero_points) if name)

    @property
    def experts(self) -> bool:
        """Whether a tensor has the experts of a layer."""
        return bool(self.expert_layers)

    def bias_of(self, layer: str) -> str:
        """The key of a layer's bias; of experts [E, N]."""
        return f"{layer.removesuffix('_weight')}_bias" if self.experts else f"{layer}.bias"

    def as_rows(self, weight: Tensor) -> Tensor:
        """Floats of a layer as [N, K]; experts one after another."""
        if not self.experts:
            return weight
        return (weight.transpose(1, 2) if self.transposed else weight).flatten(0, 1)

    def from_rows(self, rows: Tensor, experts: int | None) -> Tensor:
        """Floats [N, K], N of so many experts, as the project stores them: the inverse."""
        if experts is None:
            return rows
        values = rows.view(experts, -1, rows.shape[1])
        return values.transpose(1, 2) if self.transposed else values

    def fits(self, stored: Mapping[str, Stored]) -> bool:
        """Whether tensors of these dtypes and shapes, by suffix, are a layer of this kind."""
        if any(name not in stored for name in self.parts):
            return False
        codes, scales = stored[self.codes], stored[self.scales]
        if self.zero_points is None and self.format in ROWWISE and _ZERO_POINTS in stored:
            return False
        if codes.dtype not in self._codes_words or scales.dtype not in _SCALE_WORDS[self.scales_dtype]:
            return False
        if self.experts:
            return len(codes.shape) == 4 and codes.shape[3] == 16 and scales.shape == codes.shape[:3]
        if len(codes.shape) != 2:
            return False
        shape = self._scales_shape(*codes.shape)
        return shape is not None and scales.shape in (shape, shape[:1] if self.format in ROWWISE else shape)

    @property
    def _codes_words(self) -> tuple[str, ...]:
        """The dtypes in which codes may be stored. Packed ones are bytes with a sign or without."""
        return (
            ("U8", "I8")
            if self.format in BLOCK_SCALED and self.codes_dtype is not E4M3
            else (WORD_OF[self.codes_dtype],)
        )

    def _scales_shape(self, n: int, code_bytes: int) -> tuple[int, int] | None:
        """The shape of the scales, by the shape of the codes. None where a row is no whole number of groups, or one group, which is a channel."""
        if self.format in ROWWISE:
            return n, 1
        if (block := BLOCKS.get(self.format)) is not None:
            high, wide = block
            return (-(-n // high), -(-code_bytes // wide)) if high > 1 or code_bytes > wide else None
        format = BLOCK_SCALED[self.format]
        if code_bytes % (format.group * format.code.bits // 8):
            return None
        groups = format.scale_count(format.k_of(code_bytes))
        return swizzled_shape(n, groups) if self.swizzled else (n, groups)

    def read(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """The layer of these tensors. Experts are rows, one after another."""
        codes, scales = tensors[self.codes], tensors[self.scales]
        if self.experts:
            codes, scales = codes.reshape(-1, codes.shape[2] * codes.shape[3]), scales.reshape(-1, scales.shape[2])
        format, global_scale = BLOCK_SCALED.get(self.format), None
        if format is not None:
            k = format.k_of(codes.shape[1])
            scales = scales.view(U8)
            scales = unswizzle(scales, codes.shape[0], format.scale_count(k)).contiguous() if self.swizzled else scales
            codes = codes.view(E4M3 if format.code.bits == 8 else U8)
        else:
            scales = decode(scales.view(U8), UE8M0) if self.scales_dtype is E8M0 else scales.float()
            scales = scales.reshape(-1, 1) if self.format in ROWWISE else scales
        if self.global_scale is not None:
            stored = tensors[self.global_scale].float().reshape(-1)[:1]
            global_scale = 1 / stored if self.multiplies else stored
        points = None if self.zero_points is None else tensors[self.zero_points].int().reshape(-1, 1)
        return QuantizedWeight(
            format=self.format, codes=codes, scales=scales, global_scale=global_scale, zero_points=points
        )

    def write(self, weight: QuantizedWeight, experts: int | None = None) -> dict[str, Tensor]:
        """The tensors of a layer by suffix; `experts` says how many share the rows. Raises ValueError for scales that the project
        cannot store.
        """
        codes, scales = weight.codes, weight.scales
        if experts is not None:
            codes = codes.view(experts, -1, scales.shape[1], codes.shape[1] // scales.shape[1])
            scales = scales.view(experts, -1, scales.shape[1])
        scales = swizzle(scales) if self.swizzled else scales
        written = {self.codes: codes.view(self.codes_dtype), self.scales: self._as_stored(scales)}
        if self.global_scale is not None:
            assert weight.global_scale is not None
            factor = 1 / weight.global_scale if self.multiplies else weight.global_scale
            written[self.global_scale] = factor.reshape(self.global_shape)
        if self.zero_points is not None:
            assert weight.zero_points is not None
            written[self.zero_points] = weight.zero_points.to(torch.int8)
        return written

    def _as_stored(self, scales: Tensor) -> Tensor:
        """Scales in the dtype of the project: float32 as ue8m0, or bytes as they are."""
        if scales.dtype is not F32 or self.scales_dtype is not E8M0:
            return scales.view(self.scales_dtype)
        stored = scales.to(E8M0)
        if not scales.is_meta and len(lost := (stored.float() != scales).nonzero()):
            at = tuple(lost[0].tolist())
            raise ValueError(
                f"{self.project} stores scales as ue8m0, which are powers of two, and the one at {list(at)} is {scales[at].item()}: names of "
                "deepseek store it"
            )
        return stored

    def absmax(self, stored: Tensor) -> Tensor:
        """The largest magnitude of the input, f32 [1], from the stored `input`."""
        return _INPUT[self.input_holds](stored.float().reshape(-1)[:1])

    def stored_input(self, absmax: Tensor) -> Tensor:
        """The number to be stored, of the shape that a global scale has here: the inverse."""
        inverse = {"multiplies": lambda x: x / LARGEST_PRODUCT}.get(self.input_holds, _INPUT[self.input_holds])
        return inverse(absmax).reshape(self.global_shape)


_INPUT = {
    "absmax": lambda x: x,
    "divides": lambda x: LARGEST_PRODUCT / x,
    "multiplies": lambda x: x * LARGEST_PRODUCT,
}
_SCALE_WORDS = {F32: ("F32", "BF16", "F16"), E4M3: ("F8_E4M3", "U8"), U8: ("U8", "F8_E8M0"), E8M0: ("F8_E8M0", "U8")}
"""The dtypes in which scales may be stored, by the one that we write."""


def _ct(format: str, **more: Any) -> Spelling:
    return Spelling(project="compressed-tensors", format=format, **more)


def _lightx2v(format: str, **more: Any) -> Spelling:
    return Spelling(project="lightx2v", format=format, **more)


_ZERO_POINTS = ".weight_zero_point"
_PACKED = {"codes": ".weight_packed", "codes_dtype": U8}
_SWIZZLED = {"codes_dtype": U8, "swizzled": True}
_DEEPSEEK = {"project": "deepseek", "codes_dtype": E4M3, "scales": ".weight_scale_inv"}
_V4 = {"project": "deepseek-v4", "scales": ".scale", "scales_dtype": E8M0}
_MODELOPT = {
    "global_scale": ".weight_scale_2",
    "multiplies": True,
    "input": ".input_scale",
    "input_holds": "multiplies",
}
_GPT_OSS = {"format": "mxfp4", "codes_dtype": U8, "scales_dtype": U8}
_CT_INPUT = {"input": ".input_global_scale", "input_holds": "divides"}
_X_GLOBAL = {"global_scale": ".weight_global_scale", "global_shape": (), "input": ".input_absmax"}
SPELLINGS = (
    _ct("nvfp4", **_PACKED, scales_dtype=E4M3, global_scale=".weight_global_scale", **_CT_INPUT),
    _ct("mxfp4", **_PACKED, scales_dtype=U8),
    Spelling(project="modelopt", format="nvfp4", codes_dtype=U8, scales_dtype=E4M3, global_shape=(), **_MODELOPT),
    _lightx2v("nvfp4", **_SWIZZLED, scales_dtype=E4M3, **_X_GLOBAL),
    Spelling(format="block128", **_DEEPSEEK),
    Spelling(format="block32", **_DEEPSEEK),
    Spelling(format="block128", **_DEEPSEEK | {"scales_dtype": E8M0}, read_only=True),
    Spelling(format="block32", **_DEEPSEEK | {"scales_dtype": E8M0}, read_only=True),
    Spelling(**_V4, format="mxfp4", codes_dtype=torch.int8),
    Spelling(**_V4, format="block128", codes_dtype=E4M3, read_only=True),
    Spelling(**_V4, format="block32", codes_dtype=E4M3),
    Spelling(
        project="gpt-oss",
        codes="_blocks",
        scales="_scales",
        expert_layers=("gate_up_proj", "down_proj"),
        transposed=True,
        **_GPT_OSS,
    ),
    Spelling(
        project="gpt-oss-torch",
        codes=".blocks",
        scales=".scales",
        expert_layers=("mlp1_weight", "mlp2_weight"),
        **_GPT_OSS,
    ),
    _ct("channel", codes_dtype=E4M3),
    _ct("int8", codes_dtype=torch.int8),
    _ct(ASYMMETRIC, codes_dtype=torch.int8, zero_points=_ZERO_POINTS),
    _ct("block128", codes_dtype=E4M3),
    _ct("block32", codes_dtype=E4M3, read_only=True),
    _ct("group128", codes_dtype=E4M3),
    _ct("mxfp8", codes_dtype=E4M3, scales_dtype=U8),
    _lightx2v("channel", codes_dtype=E4M3),
    _lightx2v("int8", codes_dtype=torch.int8),
    _lightx2v("block128", codes_dtype=E4M3),
    _lightx2v("mxfp4", **_SWIZZLED, scales_dtype=E8M0),
    _lightx2v("mxfp6", **_SWIZZLED, scales_dtype=E8M0),
    _lightx2v("mxfp8", **_SWIZZLED, scales_dtype=E8M0),
)
"""All spellings, in the order of trial."""
PROJECTS = tuple(dict.fromkeys(spelling.project for spelling in SPELLINGS))
ENDINGS = tuple(sorted({spelling.codes for spelling in SPELLINGS}))
"""The suffixes of names of tensors of codes."""
PARTS = frozenset(part for s in SPELLINGS for part in (*s.parts, s.input) if part is not None)
"""All suffixes of a layer's name."""


def spelling_of(format: str, project: str | None = None) -> Spelling:
    """The spelling of a format under a project's names, or under those of the first project that has it. Raises
    CheckpointError.
    """
    if project is not None and project not in PROJECTS:
        raise CheckpointError(f"there are no names of {project!r}: names are those of {', '.join(PROJECTS)}")
    of_format = [s for s in SPELLINGS if s.format == format and not s.read_only and (project or not s.experts)]
    for spelling in of_format:
        if project in (None, spelling.project):
            return spelling
    projects = ", ".join(s.project for s in of_format)
    raise CheckpointError(f"{project} has no names for {format}: those who have are {projects}")


def recognised(
    name: str, stored: Mapping[str, Stored], format: str | None = None, stated: str | None = None
) -> Spelling | None:
    """The spelling of a layer, by its tensors' names, dtypes and shapes; None where no project stores one so.

    stated: the format to prefer where several fit. Raises CheckpointError where several fit and none is stated.
    """
    fitting = [s for s in SPELLINGS if s.fits(stored) and format in (None, s.format)]
    if any(spelling.format == stated for spelling in fitting):
        fitting = [spelling for spelling in fitting if spelling.format == stated]
    if len({spelling.format for spelling in fitting}) > 1:
        formats = ", ".join(dict.fromkeys(spelling.format for spelling in fitting))
        raise CheckpointError(
            f"{name} may be {formats} by its shapes: say which by --from of `gemmill convert`, or by format= where a layer is loaded"
        )
    return fitting[0] if fitting else None
