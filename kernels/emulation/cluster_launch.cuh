// `clusterlaunchcontrol` of sm_100 and later in device code, for clusters of one CTA. A GPU with it lets a running CTA cancel one that
// has not begun, and take over its work. Here the whole grid begins: of every three CTAs, or of as many as a multiprocessor has, one
// stays. It "cancels" those that follow it at fixed distances, and these end at their first question.
#pragma once

#include "emulation/warp.cuh"

namespace gemmill::emulation {

constexpr uint32_t kTilesOfCta = 3;

GEMMILL_EMULATED_INLINE uint32_t ctas_that_stay() {
  uint32_t multiprocessors;
  asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
  uint32_t const share = (gridDim.x * gridDim.y * gridDim.z + kTilesOfCta - 1) / kTilesOfCta;
  return share < multiprocessors ? share : multiprocessors;
}

GEMMILL_EMULATED_INLINE uint32_t own_cta() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

// Ends a CTA that another one cancels. All its threads call it before any of them waits for another.
GEMMILL_EMULATED_INLINE void end_if_cancelled() {
  if (own_cta() >= ctas_that_stay()) asm volatile("exit;");
}

// clusterlaunchcontrol.try_cancel.async: request `asked`, counted from 0, of this CTA. The response has whether there was a CTA to
// cancel, and its place in the grid.
GEMMILL_EMULATED_INLINE void try_cancel(uint32_t response, uint32_t barrier, uint32_t asked) {
  uint64_t const cta = own_cta() + (uint64_t{asked} + 1) * ctas_that_stay();
  uint64_t const count = uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  auto const found = static_cast<uint32_t>(cta);
  store_shared(response, cta < count, found % gridDim.x, found / gridDim.x % gridDim.y, found / gridDim.x / gridDim.y);
  complete_bytes(barrier, 16);
}

}  // namespace gemmill::emulation
