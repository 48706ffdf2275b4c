"""The storage of keys and values in a compressed cache: methods, fields, bytes, presets.

A vector of a token and head is one row of `head_dim` elements. A method turns it into fields: packed codes and a few
scalars. Codes are one stream of bits, least significant first, as in vLLM. Code j of b bits is bits j b to (j + 1) b of
the field read as a little-endian number. Scalars are little-endian float16.

| method | fields | a vector x decodes to |
| --- | --- | --- |
| turboquant_mse | codes, norm | norm R^T c[codes] |
| turboquant_prod | codes of b - 1 bits, signs, norm, residual_norm | that + residual_norm sqrt(pi / 2) / d S^T signs |
| eden | codes, norm | norm R^T c[codes], norm being abs(x)^2 / <c[codes], R x> |
| unit_centroids | codes, norm | norm R^T c[codes] / abs(c[codes]): vLLM's keys |
| folded_centroids | codes, norm | norm R^T c[codes], norm = abs(x) / abs(c[codes]): the same, in vLLM's split layout |
| uniform | codes, scale, zero | codes * scale + zero: vLLM's values |
| e4m3 | codes | codes |
| e2m1 | codes, scales | codes * scale of each 32: UltraQuant; scales are ue8m0 bytes |

R is the rotation, c the codebook, S a Gaussian projection. Sources: Zandieh et al., TurboQuant, arXiv 2504.19874 (mse,
prod); Vargaftik et al., EDEN, ICML 2022 (the unbiased scale); vLLM 0.33.0 for the rest.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

HEAD_DIMS = (64, 96, 128, 192, 256, 512)
VALUE_DIMS = {192: (128,)}
"""Elements of values that are fewer than those of their keys, by head dim."""
PAGE_SIZES = (16, 32, 64, 128)
SCALAR_BYTES = 2
MOST_SEED = 2**63 - 1
"""The largest seed of a cache: ops take a signed integer of 64 bits."""
E2M1_GROUP = 32


class Method(StrEnum):
    """How a vector becomes codes and scalars: see the table of this module."""

    TURBOQUANT_MSE = "turboquant_mse"
    TURBOQUANT_PROD = "turboquant_prod"
    EDEN = "eden"
    UNIT_CENTROIDS = "unit_centroids"
    FOLDED_CENTROIDS = "folded_centroids"
    UNIFORM = "uniform"
    E4M3 = "e4m3"
    E2M1 = "e2m1"


class RotationKind(StrEnum):
    """The rotation of a vector before its quantisation."""

    NONE = "none"
    HADAMARD = "hadamard"
    """H / sqrt(d), without signs: vLLM's."""
    RANDOM_HADAMARD = "random_hadamard"
    """H D / sqrt(d), D the signs of a seed."""
    DENSE = "dense"
    """The orthogonal factor of a Gaussian matrix of a seed."""


class PageLayout(StrEnum):
    """Where the fields of a page lie: see pages.py."""

    HEADS = "heads"
    SLOTS = "slots"
    SPLIT = "split"


OWN_METHODS = (Method.TURBOQUANT_MSE, Method.TURBOQUANT_PROD, Method.EDEN)
OFFERED_BITS = {
    Method.TURBOQUANT_MSE: (2, 3, 4),
    Method.TURBOQUANT_PROD: (2, 3, 4),
    Method.EDEN: (2, 3, 4),
    Method.UNIT_CENTROIDS: (3, 4),
    Method.FOLDED_CENTROIDS: (3, 4),
    Method.UNIFORM: (3, 4),
    Method.E4M3: (8,),
    Method.E2M1: (4,),
}


@dataclass(frozen=True, kw_only=True)
class VectorPart:
    """One part of a stored vector."""

    name: str
    """codes, signs, norm, residual_norm, scale, zero or scales."""
    size: int
    """Bytes for one token and head."""
    is_metadata: bool
    """Whether it is a scalar for the codes, which vLLM's split layout keeps apart."""


@dataclass(frozen=True, kw_only=True)
class VectorFormat:
    """The storage of one vector, a key or a value."""

    method: Method
    bits: int
    """Bits of an element, signs of turboquant_prod included."""

    def __post_init__(self) -> None:
        offered = OFFERED_BITS[self.method]
        if self.bits not in offered:
            raise ValueError(
                f"{self.method.value} in {self.bits} bits was asked for; it is offered in {_either(offered)}: choose "
                "one of these."
            )

    @property
    def code_bits(self) -> int:
        """Bits of an index into the codebook, or of a code."""
        return self.bits - 1 if self.method is Method.TURBOQUANT_PROD else self.bits

    def fields(self, head_dim: int) -> tuple[VectorPart, ...]:
        """The parts of a vector of `head_dim` elements, in the order in which slots hold them."""
        codes = VectorPart(name="codes", size=packed_size(head_dim, self.code_bits), is_metadata=False)
        match self.method:
            case Method.TURBOQUANT_PROD:
                signs = VectorPart(name="signs", size=packed_size(head_dim, 1), is_metadata=False)
                return codes, signs, _scalar("norm"), _scalar("residual_norm")
            case Method.UNIFORM:
                return codes, _scalar("scale"), _scalar("zero")
            case Method.E4M3:
                return (codes,)
            case Method.E2M1:
                return codes, VectorPart(name="scales", size=head_dim // E2M1_GROUP, is_metadata=False)
            case _:
                return codes, _scalar("norm")

    def size(self, head_dim: int) -> int:
        """Bytes of one vector."""
        return sum(field.size for field in self.fields(head_dim))


@dataclass(frozen=True, kw_only=True)
class CacheFormat:
    """The storage of keys and values together."""

    name: str
    """A preset's name, or methods and bits of keys and values."""
    keys: VectorFormat
    values: VectorFormat
    key_rotation: RotationKind
    """The rotation of keys before their quantisation. `value_rotation` is that of values."""
    value_rotation: RotationKind
    layout: PageLayout
    """Where the fields of a page lie."""

    def __post_init__(self) -> None:
        for side, vectors, rotation in (
            ("keys", self.keys, self.key_rotation),
            ("values", self.values, self.value_rotation),
        ):
            if vectors.method in OWN_METHODS and rotation is RotationKind.NONE:
                raise ValueError(
                    f"{vectors.method.value} {side} without a rotation were asked for; their codebook is that of a "
                    "rotated vector: take random_hadamard or dense."
                )

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Possible head dims. vLLM's Hadamard matrices are Sylvester's alone: powers of two."""
        powers_only = RotationKind.HADAMARD in (self.key_rotation, self.value_rotation)
        return tuple(d for d in HEAD_DIMS if not powers_only or d & (d - 1) == 0)


@dataclass(frozen=True, kw_only=True)
class VectorSpec:
    """Everything that the bytes of one vector depend on."""

    format: VectorFormat
    head_dim: int
    """Elements of a vector."""
    rotation: RotationKind
    seed: int
    """The seed of rotation and projection."""

    @property
    def of_rotated(self) -> "VectorSpec":
        """The spec for vectors that come rotated."""
        return replace(self, rotation=RotationKind.NONE)


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """Everything that the bytes of a cache depend on."""

    format: CacheFormat
    head_dim: int
    """Elements of a key."""
    kv_heads: int
    page_size: int
    """Tokens of a page."""
    seed: int = 0
    """The seed of rotations and projections. Presets of vLLM have none and ignore it."""
    value_dim: int = 0
    """Elements of a value; 0: as many as a key has."""

    def __post_init__(self) -> None:
        if self.head_dim not in self.format.head_dims:
            raise ValueError(
                f"A {self.format.name} cache of head dim {self.head_dim} was asked for; "
                f"{_either(self.format.head_dims)} are offered: choose one of these."
            )
        fewer = VALUE_DIMS.get(self.head_dim, ()) if self.format.layout is PageLayout.HEADS else ()
        if self.value_dim and self.value_dim not in (self.head_dim, *fewer):
            raise ValueError(
                f"A {self.format.name} cache of keys of {self.head_dim} elements and values of {self.value_dim} was asked for; such "
                f"values have {_either((self.head_dim, *fewer))}: choose one of these."
            )
        if self.page_size not in PAGE_SIZES:
            raise ValueError(
                f"Pages of {self.page_size} tokens were asked for; {_either(PAGE_SIZES)} are offered: choose one of these."
            )
        if self.kv_heads < 1:
            raise ValueError(
                f"A cache of {self.kv_heads} KV heads was asked for; it has at least one: give their number."
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed <= MOST_SEED:
            raise ValueError(
                f"A cache by seed {self.seed} was asked for; seeds are whole numbers from 0 to 2^63 - 1: take one of these."
            )

    @property
    def keys(self) -> VectorSpec:
        """The spec of the cache's keys."""
        return self._vectors(self.format.keys, self.format.key_rotation, self.head_dim)

    @property
    def values(self) -> VectorSpec:
        """The spec of the cache's values."""
        return self._vectors(self.format.values, self.format.value_rotation, self.value_dim or self.head_dim)

    def _vectors(self, format: VectorFormat, rotation: RotationKind, elements: int) -> VectorSpec:
        return VectorSpec(format=format, head_dim=elements, rotation=rotation, seed=self.seed)

    @property
    def tag(self) -> str:
        """The text that a cache object carries, so that it is not read as another format or by another seed."""
        rotations = f"{self.format.key_rotation.value},{self.format.value_rotation.value}"
        elements = (
            f"d{self.head_dim}" if self.values.head_dim == self.head_dim else f"d{self.head_dim}v{self.value_dim}"
        )
        return (
            f"{self.format.name}:{elements}:h{self.kv_heads}:p{self.page_size}:{self.format.layout.value}:"
            f"{rotations}:s{self.seed}"
        )


def check_tag(found: str, spec: CacheSpec) -> None:
    """Raises ValueError unless a cache with the tag `found` may be read as `spec`."""
    if found != spec.tag:
        raise ValueError(
            f"A cache written as {found} was to be read as {spec.tag}; format, sizes, rotations and seed are those that it "
            "was written with: read it in its own format, or compress it again."
        )


def cache_format(
    keys: VectorFormat, values: VectorFormat, rotation: RotationKind = RotationKind.RANDOM_HADAMARD
) -> CacheFormat:
    """A format of our own: keys and values by turboquant_mse, turboquant_prod or eden, in our page layout.

    Raises ValueError for another method.
    """
    for vectors in (keys, values):
        if vectors.method not in OWN_METHODS:
            raise ValueError(
                f"{vectors.method.value} was asked for as a format of our own; "
                f"{_either([m.value for m in OWN_METHODS])} are: choose one of these, or a preset by preset()."
            )
    return CacheFormat(
        name=f"k_{keys.method.value}{keys.bits}_v_{values.method.value}{values.bits}",
        keys=keys,
        values=values,
        key_rotation=rotation,
        value_rotation=rotation,
        layout=PageLayout.HEADS,
    )


def preset(name: str) -> CacheFormat:
    """A format of vLLM 0.33.0 by the name of its `--kv-cache-dtype`; `_split` after it means its layout on AMD.

    Raises ValueError for another name.
    """
    if name not in PRESETS:
        raise ValueError(f"Preset {name} was asked for; there are {', '.join(PRESETS)}: choose one of these.")
    return PRESETS[name]


def packed_size(elements: int, bits: int) -> int:
    """Bytes of a stream of `elements` codes of `bits` each."""
    return (elements * bits + 7) // 8


def _scalar(name: str) -> VectorPart:
    return VectorPart(name=name, size=SCALAR_BYTES, is_metadata=True)


def _either(choices: tuple[int, ...] | list[str]) -> str:
    texts = [str(choice) for choice in choices]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _vllm(name: str, key_bits: int, value_bits: int, layout: PageLayout) -> CacheFormat:
    centroids = Method.FOLDED_CENTROIDS if layout is PageLayout.SPLIT else Method.UNIT_CENTROIDS
    in_fp8 = key_bits == 8
    return CacheFormat(
        name=f"{name}_split" if layout is PageLayout.SPLIT else name,
        keys=VectorFormat(method=Method.E4M3 if in_fp8 else centroids, bits=key_bits),
        values=VectorFormat(method=Method.UNIFORM, bits=value_bits),
        key_rotation=RotationKind.NONE if in_fp8 else RotationKind.HADAMARD,
        value_rotation=RotationKind.NONE,
        layout=layout,
    )


_ULTRAQUANT = CacheFormat(
    name="ultraquant_4bit",
    keys=VectorFormat(method=Method.E2M1, bits=4),
    values=VectorFormat(method=Method.E2M1, bits=4),
    key_rotation=RotationKind.HADAMARD,
    value_rotation=RotationKind.NONE,
    layout=PageLayout.SLOTS,
)
_TURBOQUANT_BITS = (
    ("turboquant_k8v4", 8, 4),
    ("turboquant_4bit_nc", 4, 4),
    ("turboquant_k3v4_nc", 3, 4),
    ("turboquant_3bit_nc", 3, 3),
)
PRESETS = {
    format.name: format
    for format in (
        *(_vllm(*row, PageLayout.SLOTS) for row in _TURBOQUANT_BITS),
        _ULTRAQUANT,
        *(_vllm(*row, PageLayout.SPLIT) for row in _TURBOQUANT_BITS),
    )
}
