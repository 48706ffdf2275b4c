// CuTe's header of this name, in emulated builds with the narrow `ldmatrix` of emulation/ldmatrix.cuh.
#pragma once

#define SM100_SU4_DU8x16_x4_LDSM_N NotEmulated_SU4_DU8x16_x4_LDSM_N
#define SM100_SU6_DU8x16_x4_LDSM_N NotEmulated_SU6_DU8x16_x4_LDSM_N
#include_next <cute/arch/copy_sm100.hpp>
#undef SM100_SU4_DU8x16_x4_LDSM_N
#undef SM100_SU6_DU8x16_x4_LDSM_N

#include "emulation/ldmatrix.cuh"

namespace gemmill::emulation {

template <int kBits>
struct LoadFour {
  using SRegisters = cute::uint128_t[1];
  using DRegisters = uint32_t[4];
  CUTE_HOST_DEVICE static void copy(cute::uint128_t const& row, uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3) {
#ifdef __CUDA_ARCH__
    uint32_t words[4];
    ldmatrix_m8n16<kBits>(words, cute::cast_smem_ptr_to_uint(&row));
    d0 = words[0], d1 = words[1], d2 = words[2], d3 = words[3];
#endif
  }
};

}  // namespace gemmill::emulation

namespace cute {

struct SM100_SU4_DU8x16_x4_LDSM_N : gemmill::emulation::LoadFour<4> {};
struct SM100_SU6_DU8x16_x4_LDSM_N : gemmill::emulation::LoadFour<6> {};

}  // namespace cute
