// Host code: the arguments of CUTLASS's block-scaled GEMMs.
#pragma once

#include "blockscaled/abi.h"
#include "core/epilogue.cuh"
#include "cute/tensor.hpp"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/gemm/gemm.h"

namespace gemmill::blockscaled {

// Elements of 4 and 6 bits in so many bytes.
template <class Element>
int64_t elements_in(int64_t bytes) {
  return bytes * 8 / cute::sizeof_bits_v<Element>;
}

// The epilogue is alpha * sum + bias.
template <class Kernel, class Alpha, class Bias>
typename Kernel::Arguments pair_arguments(gemmill_blockscaled_args const& x) {
  using Mainloop = typename Kernel::CollectiveMainloop;
  using Layouts = typename Mainloop::Sm1xxBlkScaledConfig;
  using ElementD = typename Kernel::ElementD;
  typename Kernel::Arguments arguments{};
  auto const shape = cute::make_shape(x.m, x.n, x.k, 1);
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = shape;
  arguments.mainloop.ptr_A = static_cast<decltype(arguments.mainloop.ptr_A)>(x.a);
  arguments.mainloop.dA = {elements_in<typename Kernel::ElementA>(x.lda), cute::_1{}, 0};
  arguments.mainloop.ptr_B = static_cast<decltype(arguments.mainloop.ptr_B)>(x.b);
  arguments.mainloop.dB = {elements_in<typename Kernel::ElementB>(x.ldb), cute::_1{}, 0};
  arguments.mainloop.ptr_SFA = static_cast<decltype(arguments.mainloop.ptr_SFA)>(x.a_sf);
  arguments.mainloop.layout_SFA = Layouts::tile_atom_to_shape_SFA(shape);
  arguments.mainloop.ptr_SFB = static_cast<decltype(arguments.mainloop.ptr_SFB)>(x.b_sf);
  arguments.mainloop.layout_SFB = Layouts::tile_atom_to_shape_SFB(shape);
  typename Alpha::Arguments const alpha{{1.0f}, {x.alpha}, {}};
  auto const bias = epilogue::vector<Bias>(static_cast<ElementD const*>(x.bias), true);
  arguments.epilogue.thread = {alpha, {}, bias, {}};
  arguments.epilogue.ptr_D = static_cast<ElementD*>(x.d);
  arguments.epilogue.dD = {x.ldd, cute::_1{}, 0};
  return arguments;
}

}  // namespace gemmill::blockscaled
