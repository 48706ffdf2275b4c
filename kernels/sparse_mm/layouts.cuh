// Host code: the arguments of a CUTLASS 3.x sparse kernel for a call.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/gemm/gemm.h"
#include "sparse_mm/abi.h"

namespace gemmill::sparse_mm {

// Kept values: fill_layoutA's, but for rows that may lie apart. A row has two elements for each kept one.
template <class Mainloop>
typename Mainloop::LayoutA layout_of_values(gemmill_sparse_mm_args const& x) {
  using namespace cute;
  return make_layout(make_shape(x.n, make_shape(_2{}, x.kept), 1), make_stride(2 * x.ldv, make_stride(_1{}, _2{}), int64_t(0)));
}

template <class Kernel>
typename Kernel::Arguments arguments(gemmill_sparse_mm_args const& x) {
  using namespace cute;
  using Mainloop = typename Kernel::CollectiveMainloop;
  using Element = typename Mainloop::ElementA;
  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {x.n, x.m, x.k, 1};
  arguments.mainloop.ptr_A = static_cast<Element const*>(x.values);
  arguments.mainloop.layout_a = layout_of_values<Mainloop>(x);
  arguments.mainloop.ptr_B = static_cast<Element const*>(x.a);
  arguments.mainloop.dB = {x.lda, _1{}, 0};
  arguments.mainloop.ptr_E = static_cast<typename Mainloop::ElementE const*>(x.meta);
  arguments.mainloop.layout_e = Mainloop::SparseConfig::fill_layoutE(arguments.problem_shape);
  arguments.epilogue.ptr_D = static_cast<typename Kernel::ElementD*>(x.d);
  arguments.epilogue.dD = {_1{}, x.ldd, 0};
  return arguments;
}

}  // namespace gemmill::sparse_mm
