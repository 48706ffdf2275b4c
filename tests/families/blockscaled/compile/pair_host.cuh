// What the host side of Blackwell's kernels makes of a call, without a driver: CUTLASS's own verdict, strides, layouts of scales, the
// epilogue's arguments, and the workspace.
#pragma once

#include <cstdint>

#include "blockscaled/pair_arguments.h"

struct Found {
  int32_t verdict;  // of Kernel::can_implement: 0 where it takes the call
  int32_t group;    // codes that share a scale
  int64_t workspace;
  int64_t lda, ldb, ldd;  // in elements
  int64_t scales_a, scales_b;
  void const *a, *b, *a_sf, *b_sf, *alpha, *bias, *d;
  float alpha_of_none;
};

template <class Layout>
void write_offsets(Layout const& layout, int rows, int groups, int group, int64_t* out) {
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < groups; ++i) *out++ = layout(row, i * group, 0);
  }
}

// `offsets`, where it is asked for, takes M, then N times the groups of K.
template <class Kernel, class Alpha, class Bias>
void look(gemmill_blockscaled_args const& x, gemmill_launch const& how, Found* found, int64_t* offsets) {
  auto arguments = gemmill::blockscaled::pair_arguments<Kernel, Alpha, Bias>(x);
  arguments.hw_info = cutlass::KernelHardwareInfo{how.device, how.sm_count};
  auto const& mainloop = arguments.mainloop;
  constexpr int group = Kernel::CollectiveMainloop::Sm1xxBlkScaledConfig::SFVecSize;
  found->verdict = Kernel::can_implement(arguments) ? 0 : 1;
  found->group = group;
  found->workspace = static_cast<int64_t>(Kernel::get_workspace_size(arguments));
  found->lda = cute::get<0>(mainloop.dA), found->ldb = cute::get<0>(mainloop.dB), found->ldd = cute::get<0>(arguments.epilogue.dD);
  found->scales_a = cute::cosize(mainloop.layout_SFA), found->scales_b = cute::cosize(mainloop.layout_SFB);
  found->a = mainloop.ptr_A, found->b = mainloop.ptr_B, found->a_sf = mainloop.ptr_SFA, found->b_sf = mainloop.ptr_SFB;
  auto const& [alpha, sum, bias, add] = arguments.epilogue.thread;
  found->alpha = alpha.scalar_ptrs[0], found->alpha_of_none = alpha.scalars[0];
  found->bias = bias.ptr_row, found->d = arguments.epilogue.ptr_D;
  if (offsets == nullptr) return;
  write_offsets(mainloop.layout_SFA, x.m, x.k / group, group, offsets);
  write_offsets(mainloop.layout_SFB, x.n, x.k / group, group, offsets + int64_t{x.m} * (x.k / group));
}
