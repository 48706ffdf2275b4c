// In place of CuTe's header of this name, in emulated builds: the same atoms, whose instructions are those of emulation/mma.cuh.
#pragma once

#include <cute/arch/config.hpp>
#include <cute/arch/mma.hpp>
#include <cute/numeric/numeric_types.hpp>
#include <cutlass/detail/dependent_false.hpp>

#include "emulation/mma.cuh"

namespace gemmill::emulation {

template <class T>
struct element_of {
  static_assert(cutlass::detail::dependent_false<T>, "no mma of sm_120 takes this type");
};
template <> struct element_of<cute::float_e4m3_t> { using type = E4M3; };
template <> struct element_of<cute::float_e5m2_t> { using type = E5M2; };
template <> struct element_of<cute::float_e3m2_t> { using type = E3M2; };
template <> struct element_of<cute::float_e2m3_t> { using type = E2M3; };
template <> struct element_of<cute::float_e2m1_t> { using type = E2M1; };

struct Atom {
  using DRegisters = float[4];
  using ARegisters = uint32_t[4];
  using BRegisters = uint32_t[2];
  using CRegisters = float[4];
};

}  // namespace gemmill::emulation

// The arguments that all atoms begin with.
#define GEMMILL_ATOM_ARGUMENTS                                                                                               \
  float &d0, float &d1, float &d2, float &d3, uint32_t const &a0, uint32_t const &a1, uint32_t const &a2, uint32_t const &a3, \
      uint32_t const &b0, uint32_t const &b1, float const &c0, float const &c1, float const &c2, float const &c3

// On the host there is nothing to call: CuTe's own atoms end there too.
#ifdef __CUDA_ARCH__
#define GEMMILL_ATOM(instruction, ...)                                                                                \
  gemmill::emulation::Sums const sums = instruction({{a0, a1, a2, a3}, {b0, b1}}, {{c0, c1, c2, c3}} __VA_ARGS__);    \
  d0 = sums.d[0], d1 = sums.d[1], d2 = sums.d[2], d3 = sums.d[3]
#else
#define GEMMILL_ATOM(instruction, ...) CUTE_INVALID_CONTROL_PATH("an emulated instruction runs on a GPU")
#endif

namespace cute {

template <class A, class B, class C>
struct SM120_16x8x32_TN : gemmill::emulation::Atom {
  static_assert(is_same_v<C, float>, "sums of f32 are emulated");
  CUTE_HOST_DEVICE static void fma(GEMMILL_ATOM_ARGUMENTS) {
    using X [[maybe_unused]] = typename gemmill::emulation::element_of<A>::type;
    using Y [[maybe_unused]] = typename gemmill::emulation::element_of<B>::type;
    GEMMILL_ATOM((gemmill::emulation::mma_f8f6f4<X, Y>));
  }
};

namespace SM120::BLOCKSCALED {

template <class A, class B, class C, class Scale, int kVectorSize>
struct SM120_16x8x32_TN_VS : gemmill::emulation::Atom {
  static_assert(is_same_v<C, float> && is_same_v<Scale, float_ue8m0_t> && kVectorSize == 32);
  using SFARegisters = uint8_t[1];
  using SFBRegisters = uint8_t[1];
  CUTE_HOST_DEVICE static void fma(GEMMILL_ATOM_ARGUMENTS, uint8_t const& sfa, uint8_t const& sfb) {
    using X [[maybe_unused]] = typename gemmill::emulation::element_of<A>::type;
    using Y [[maybe_unused]] = typename gemmill::emulation::element_of<B>::type;
    GEMMILL_ATOM((gemmill::emulation::mma_mxf8f6f4<X, Y>), , sfa, sfb);
  }
};

template <class A, class B, class C, class Scale, int kVectorSize>
struct SM120_16x8x64_TN_VS : gemmill::emulation::Atom {
  static_assert(is_same_v<A, float_e2m1_t> && is_same_v<B, float_e2m1_t> && is_same_v<C, float>);
  static constexpr bool kUe4m3 = is_same_v<Scale, float_ue4m3_t>;
  static_assert(kUe4m3 ? kVectorSize == 16 : is_same_v<Scale, float_ue8m0_t> && kVectorSize == 32);
  using ScaleRegister = uint_bit_t<8 * 64 / kVectorSize>;
  using SFARegisters = ScaleRegister[1];
  using SFBRegisters = ScaleRegister[1];
  CUTE_HOST_DEVICE static void fma(GEMMILL_ATOM_ARGUMENTS, ScaleRegister const& sfa, ScaleRegister const& sfb) {
    GEMMILL_ATOM((gemmill::emulation::mma_mxf4nvf4<64 / kVectorSize, kUe4m3>), , sfa, sfb);
  }
};

}  // namespace SM120::BLOCKSCALED

#undef GEMMILL_ATOM
#undef GEMMILL_ATOM_ARGUMENTS

template <class A, class B, class C>
CUTE_HOST_DEVICE constexpr auto rr_op_selector_sm120() {
  return SM120_16x8x32_TN<A, B, C>{};
}

template <class A, class B, class C, class Scale, int kVectorSize, bool kContainers>
CUTE_HOST_DEVICE constexpr auto rr_blockscaled_op_selector_sm120() {
  if constexpr (kContainers) {
    return SM120::BLOCKSCALED::SM120_16x8x32_TN_VS<A, B, C, Scale, kVectorSize>{};
  } else {
    return SM120::BLOCKSCALED::SM120_16x8x64_TN_VS<A, B, C, Scale, kVectorSize>{};
  }
}

}  // namespace cute
