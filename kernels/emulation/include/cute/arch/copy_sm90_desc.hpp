// CuTe's header of this name, in emulated builds without the prefetch of a tensor map that the hardware cannot read.
#pragma once

#define prefetch_tma_descriptor prefetch_hardware_tma_descriptor
#include_next <cute/arch/copy_sm90_desc.hpp>
#undef prefetch_tma_descriptor

#include "emulation/tma.cuh"

namespace cute {

CUTE_HOST_DEVICE void prefetch_tma_descriptor(TmaDescriptor const* map) {
#ifdef __CUDA_ARCH__
  if (!gemmill::emulation::is_packed_map(map)) prefetch_hardware_tma_descriptor(map);
#endif
}

}  // namespace cute
