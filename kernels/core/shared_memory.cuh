// Shared memory of the architecture that kernels compile for. An emulated build keeps to that of the emulated one.
#pragma once

namespace gemmill {

#if defined(GEMMILL_EMULATION) || __CUDA_ARCH_LIST__ >= 1200
inline constexpr int kSharedOfSm = 100 * 1024;
#else
inline constexpr int kSharedOfSm = 228 * 1024;
#endif
inline constexpr int kReservedOfCta = 1024;  // by the system

// Most that one CTA can have where `ctas` share a multiprocessor.
constexpr int most_shared(int ctas) { return kSharedOfSm / ctas - kReservedOfCta; }

}  // namespace gemmill
