// CUTLASS's own layout of block scales and CUDA's own conversions, for the host: what the layout and the codes of
// gemmill.formats are held against.
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "cutlass/detail/sm100_blockscaled_layout.hpp"

namespace {

// Writes the offset of each (row, group), then the size of the whole. `other` is the extent that the layout must not read.
template <int Group>
void offsets(bool of_b, int rows, int other, int k, int64_t* out) {
  using Config = cutlass::detail::Sm1xxBlockScaledConfig<Group>;
  auto write = [&](auto const& layout) {
    for (int row = 0; row < rows; ++row) {
      for (int group = 0; group < k / Group; ++group) *out++ = layout(row, group * Group, 0);
    }
    *out = cute::cosize(layout);
  };
  if (of_b) {
    write(Config::tile_atom_to_shape_SFB(cute::make_shape(other, rows, k, 1)));
  } else {
    write(Config::tile_atom_to_shape_SFA(cute::make_shape(rows, other, k, 1)));
  }
}

uint8_t encode(char kind, float x) {
  switch (kind) {
    case '4': return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
    case '3': return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest);
    case '6': return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest);
    case '8': return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    case '5': return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    case 'u': return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf);
    default: return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero);
  }
}

}  // namespace

extern "C" void scale_offsets(int group, int of_b, int rows, int other, int k, int64_t* out) {
  group == 16 ? offsets<16>(of_b, rows, other, k, out) : offsets<32>(of_b, rows, other, k, out);
}

extern "C" void encode_all(char kind, float const* x, int64_t count, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = encode(kind, x[i]);
}
