"""The field's words as types. Standard library only; everything else imports from here."""

from gemmill.vocab.arch import Arch, Backend, Compiler, arch_of, cannot_emulate, named_gpu, without_kernels
from gemmill.vocab.dtype import DType
from gemmill.vocab.format import Format
from gemmill.vocab.scale import (
    GROUP_SIZES,
    SCALE_GROUPS,
    ScaleGranularity,
    ScaleGroups,
    ScaleLayout,
    scale_groups_of,
)
from gemmill.vocab.schedule import Accumulation, EpilogueKind, KernelSchedule, MainLoop, RasterOrder, TileScheduler
from gemmill.vocab.status import OK, Status
