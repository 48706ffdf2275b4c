// Block-scaled quantisation, plain or of activation(gate) * up: codes of 4, 6 or 8 bits and a scale of one byte for each group of
// 16 or 32. A thread holds runs of 16 consecutive elements, so a group is one lane's or two neighbours'. Scales are swizzled, in
// tiles of 128 rows x 4 whose padding is zeroed, or plain.
#pragma once

#include "quant/activation.cuh"
#include "quant/block_code.cuh"
#include "quant/launch.cuh"
#include "quant/memory.cuh"
#include "quant/reduce.cuh"

namespace gemmill::quant {

inline constexpr int kBlockQuantThreads = 256;
inline constexpr int kTileRows = 128, kTileScales = 4;

struct BlockQuantParams {
  void const* in;
  uint8_t* out;
  uint8_t* scales;
  float const* global_scale;
  int64_t hidden, in_stride, out_stride, scale_stride;  // the last of plain scales
  uint32_t rows, groups, tiles;                         // groups of a row; tiles along a row, 0: scales are plain
  uint32_t all_runs, ctas_of_runs;                      // CTAs beyond these pad the rows of the last tiles
  FastDivision runs_of_row;
  bool rounds_up;
};

// The zeros of a row's last tile beyond its groups.
__device__ __forceinline__ void pad_groups(BlockQuantParams const& p, uint32_t row) {
  for (uint32_t group = p.groups; group < p.tiles * kTileScales; ++group) p.scales[swizzled_offset(row, group, p.tiles)] = 0;
}

// The zeros of rows beyond the last, four scales at once where they may be: a thread has those of a tile that lie in 16 bytes.
__device__ __forceinline__ void pad_rows(BlockQuantParams const& p, uint32_t index) {
  uint32_t const tile = index / 32, first = p.rows / kTileRows * kTileRows + index % 32;
  if (tile >= p.tiles) return;
#pragma unroll
  for (uint32_t row = first; row < first + kTileRows; row += 32) {
    if (row < p.rows) continue;
    uint8_t* const scales = p.scales + swizzled_offset(row, tile * kTileScales, p.tiles);
    if (reinterpret_cast<uintptr_t>(p.scales) % kTileScales == 0) {
      *reinterpret_cast<uint32_t*>(scales) = 0;
    } else {
      for (int i = 0; i < kTileScales; ++i) scales[i] = 0;
    }
  }
}

template <bool kAligned, class In>
__device__ __forceinline__ void load_run(In const* row, int64_t column, int64_t hidden, uint32_t (&words)[kRun / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 const chunk = load_chunk<kAligned, false>(row, column + half * (kRun / 2), hidden);
    words[4 * half] = chunk.x, words[4 * half + 1] = chunk.y, words[4 * half + 2] = chunk.z, words[4 * half + 3] = chunk.w;
  }
}

// The codes of a run. Those of 6 bits take 12 bytes: two neighbouring lanes, who both come here, write 24 in words of 8.
template <bool kAligned, int kWords>
__device__ __forceinline__ void store_run(uint8_t* codes, uint32_t const (&words)[kWords], bool inside) {
  uint32_t const next = kWords == 3 ? __shfl_down_sync(0xffffffffu, words[0], 1) : 0;
  if (!inside) return;
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) codes[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(codes) = make_uint2(words[0], words[1]);
  } else if constexpr (kWords == 4) {
    *reinterpret_cast<uint4*>(codes) = make_uint4(words[0], words[1], words[2], words[3]);
  } else if (threadIdx.x % 2 == 0) {
    *reinterpret_cast<uint2*>(codes) = make_uint2(words[0], words[1]);
    *reinterpret_cast<uint2*>(codes + 8) = make_uint2(words[2], next);
  } else {
    *reinterpret_cast<uint2*>(codes + 4) = make_uint2(words[1], words[2]);
  }
}

template <class Format, class Activation, class In>
__device__ __forceinline__ Run run_of(uint32_t (&words)[kRun / 2], uint32_t const (&ups)[kRun / 2], In kind) {
  if constexpr (Activation::kGated) {
    float values[kRun], factors[kRun];
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      unpack_pair(words[i], values[2 * i], values[2 * i + 1], kind);
      unpack_pair(ups[i], factors[2 * i], factors[2 * i + 1], kind);
    }
    gate_and_multiply<Activation>(values, factors);
    return Run::of_values<Format>(values);
  } else {
    return Run::of_raw<Format>(words, kind);
  }
}

// One run a thread: 64 warps of an SM ask for 64 KB, more than the way to memory holds.
template <class Variant, class In, class Format, class Activation, bool kAligned>
__global__ void __launch_bounds__(kBlockQuantThreads) block_quant_kernel(__grid_constant__ BlockQuantParams const p) {
  constexpr int kLanes = Format::kGroup / kRun, kWords = Format::kBits * kRun / 32;
  wait_for_predecessor();
  if (blockIdx.x >= p.ctas_of_runs) return pad_rows(p, (blockIdx.x - p.ctas_of_runs) * blockDim.x + threadIdx.x);

  uint32_t const mine = blockIdx.x * blockDim.x + threadIdx.x, index = min(mine, p.all_runs - 1);
  uint32_t const row = p.runs_of_row(index), column = (index - row * p.runs_of_row.divisor) * kRun;
  In const* in = static_cast<In const*>(p.in) + row * p.in_stride;
  uint32_t words[kRun / 2], ups[kRun / 2];
  load_run<kAligned>(in, column, p.hidden, words);
  if constexpr (Activation::kGated) load_run<kAligned>(in + p.hidden, column, p.hidden, ups);
  float const global_scale = Format::kHasGlobalScale ? *p.global_scale : 1.0f;

  Run const run = run_of<Format, Activation>(words, ups, In{});
  auto const scale = Format::Scale::of(reduce_lanes<kLanes>(run.amax, Max{}), global_scale, p.rounds_up);
  uint32_t codes[kWords];
  Format::encode(run, scale, global_scale, codes);
  bool const inside = mine < p.all_runs;
  store_run<kAligned>(p.out + row * p.out_stride + column / 8 * Format::kBits, codes, inside);
  if (!inside || threadIdx.x % kLanes != 0) return;
  uint32_t const group = column / Format::kGroup;
  if (p.tiles == 0) {
    p.scales[row * p.scale_stride + group] = scale.byte;
  } else {
    p.scales[swizzled_offset(row, group, p.tiles)] = scale.byte;
    if (group + 1 == p.groups) pad_groups(p, row);
  }
}

template <class Variant, class In, class Format, class Activation, bool kAligned>
int32_t launch_block_quant(BlockQuantParams p, gemmill_launch const& how) {
  int64_t const ctas = ceil_divide(p.all_runs, kBlockQuantThreads);
  int64_t const padding = p.rows % kTileRows == 0 ? 0 : ceil_divide(int64_t{p.tiles} * 32, kBlockQuantThreads);
  p.ctas_of_runs = static_cast<uint32_t>(ctas);
  return launch<&block_quant_kernel<Variant, In, Format, Activation, kAligned>>(p, ctas + padding, kBlockQuantThreads, how);
}

template <class Variant, class In, class Format, class Activation>
int32_t block_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  if (x.hidden % Format::kGroup != 0) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const runs_of_row = x.hidden / kRun, groups = x.hidden / Format::kGroup;
  constexpr int64_t kBytesOfStore = Format::kBits == 8 ? 16 : 8;
  bool const aligned = x.hidden % 8 == 0 && x.in_stride % 8 == 0 && is_aligned(x.in, 16) && x.out_stride % kBytesOfStore == 0 &&
                       is_aligned(x.out, kBytesOfStore);
  int64_t const tiles = x.is_swizzled ? ceil_divide(groups, kTileScales) : 0;
  int64_t const slice = kMostChunks / runs_of_row / kTileRows * kTileRows;  // of whole tiles
  if (slice == 0) return GEMMILL_CANNOT_IMPLEMENT;
  for (int64_t row = 0; row < x.rows; row += slice) {
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    BlockQuantParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<uint8_t*>(x.scales) + row * (x.is_swizzled ? tiles * kTileScales : x.scales_stride),
        x.global_scale,
        x.hidden, x.in_stride, x.out_stride, x.scales_stride,
        static_cast<uint32_t>(rows), static_cast<uint32_t>(groups), static_cast<uint32_t>(tiles),
        static_cast<uint32_t>(rows * runs_of_row), 0,
        FastDivision(static_cast<uint32_t>(runs_of_row)),
        x.rounds_up != 0,
    };
    int32_t const error = aligned ? launch_block_quant<Variant, In, Format, Activation, true>(p, how)
                                  : launch_block_quant<Variant, In, Format, Activation, false>(p, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
