// Host code: the launch of kernels of generator/gemmill/gemm, as C++ that needs nothing of the CuTe DSL. Names are those of
// generator/gemmill/gemm: X is the operand whose rows fill WGMMA's 64 rows, Y the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/driver_kernel.h"

namespace gemmill {

// The compile-time facts of a kernel (generator/gemmill/gemm/host.py).
struct GemmFacts {
  int32_t tile_x, tile_y, tile_k;
  int32_t slice_step;  // elements along K of which slices are multiples
  int32_t cluster_x, cluster_y;
  int32_t swap_ab;  // whether X holds the weights
  int32_t box_rows;  // of A, where it may be loaded box by box; 0 if never
  int32_t store_columns;  // rows of Y in a box of D
  int32_t ctas_of_sm;
  int32_t split_k, split_k_parallel, restarts;
  MapType operand, result;
};

constexpr int32_t kSlab = 64;  // rows of X in a box of D
constexpr int32_t kLineBytes = 128;  // of an operand's box

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Division by a number that is known before: with n's product by `multiplier`, high, it is
// (high + ((n - high) >> shift1)) >> shift2 (Granlund and Montgomery, 1994). A parameter of 12 bytes, then the divisor again.
struct Divisor {
  uint32_t divisor, multiplier;
  uint8_t shift1, shift2;
  uint16_t unused;
  int32_t again;

  explicit Divisor(int64_t value) : divisor(static_cast<uint32_t>(value)), unused(0), again(static_cast<int32_t>(value)) {
    uint32_t bits = 0;
    while ((uint64_t{1} << bits) < divisor) ++bits;
    multiplier = static_cast<uint32_t>(((((uint64_t{1} << bits) - divisor) << 32) / divisor) + 1);
    shift1 = static_cast<uint8_t>(bits > 0 ? 1 : 0);
    shift2 = static_cast<uint8_t>(bits > 1 ? bits - 1 : 0);
  }
};
static_assert(sizeof(Divisor) == 16);

// The order of tiles (generator/gemmill/gemm/walk.py).
struct Walk {
  int32_t tiles_x, tiles_y, along_x, swizzle;
  Divisor band, width, last_width;

  Walk(int64_t tiles_x, int64_t tiles_y, int32_t raster_order, int32_t swizzle)
      : tiles_x(static_cast<int32_t>(tiles_x)),
        tiles_y(static_cast<int32_t>(tiles_y)),
        along_x(raster_order == 0 ? tiles_y > tiles_x : raster_order == 1),
        swizzle(swizzle),
        band(swizzle * (along_x ? tiles_x : tiles_y)),
        width(swizzle),
        last_width(rest((along_x ? tiles_y : tiles_x), swizzle)) {}

 private:
  static int64_t rest(int64_t across, int32_t swizzle) { return across % swizzle ? across % swizzle : swizzle; }
};

// Addresses of a kernel's parameters, in its order.
class Parameters {
 public:
  template <class... T>
  void add(T const&... values) {
    ((at_[count_++] = const_cast<T*>(&values)), ...);
  }
  void add(Divisor const& value) { add(value.divisor, value.again); }
  void** data() { return reinterpret_cast<void**>(at_.data()); }
  int count() const { return count_; }

 private:
  std::array<void*, 64> at_{};
  int count_ = 0;
};

// Scales that change along K.
template <class Args>
void add_group_scales(Parameters& all, Args const& args) {
  all.add(args.a_scales, args.b_scales, args.a_scale_stride_m, args.a_scale_stride_k, args.b_scale_stride_n, args.b_scale_stride_k);
}

inline void add_walk(Parameters& all, Walk const& walk) {
  all.add(walk.tiles_x, walk.tiles_y, walk.along_x, walk.swizzle);
  all.add(walk.band);
  all.add(walk.width);
  all.add(walk.last_width);
}

// Sizes of a tensor as its kernel counts coordinates.
struct Extent {
  int32_t rows, columns;
};

// An operand and its tensor map, of rows that several CTAs of a cluster load in equal parts.
struct Operand {
  TensorMap map;
  Extent extent;

  int32_t make(GemmFacts const& facts, void const* address, int64_t rows, int64_t k, int64_t stride, int32_t box_rows) {
    extent = {static_cast<int32_t>(rows), static_cast<int32_t>(k)};
    int32_t const bytes = facts.operand == MapType::kBytes ? 1 : 2;
    return make_map(map, {address, rows, k, stride, box_rows, kLineBytes / bytes, facts.operand});
  }
};

}  // namespace gemmill
