// CuTe's header of this name, in emulated builds with the load of packed elements of emulation/tma.cuh. Other loads, and all
// stores, are the hardware's.
#pragma once

#define SM90_TMA_LOAD SM90_HARDWARE_TMA_LOAD
#include_next <cute/arch/copy_sm90_tma.hpp>
#undef SM90_TMA_LOAD

#include "emulation/tma.cuh"

namespace cute {

struct SM90_TMA_LOAD {
  using PREFETCH = SM90_HARDWARE_TMA_LOAD::PREFETCH;

  template <class... More>
  CUTE_HOST_DEVICE static void copy(void const* map, uint64_t* barrier, uint64_t cache_hint, void* shared, int32_t const& c0, More const&... more) {
#ifdef __CUDA_ARCH__
    if (gemmill::emulation::is_packed_map(map)) {
      int32_t const c[5] = {c0, more...};
      gemmill::emulation::load_box(map, cast_smem_ptr_to_uint(barrier), cast_smem_ptr_to_uint(shared), c[0], c[1], c[2], c[3], c[4]);
      return;
    }
#endif
    SM90_HARDWARE_TMA_LOAD::copy(map, barrier, cache_hint, shared, c0, more...);
  }
};

}  // namespace cute
