// Group quantisation, plain or of activation(gate) * up: each group of a row gets its own scale. Neighbouring lanes of one warp have a
// group, one to four 16-byte chunks each, so its maximum needs shuffles only.
#pragma once

#include "coding/activation.cuh"
#include "coding/coding.cuh"
#include "quant/extent.cuh"
#include "quant/gelu_table.cuh"
#include "quant/launch.cuh"
#include "coding/memory.cuh"
#include "coding/reduce.cuh"

namespace gemmill::quant {

enum class ScaleFormat { kF32, kPowerOfTwo, kPackedUe8m0 };

inline constexpr int kGroupQuantThreads = 256;

struct GroupQuantParams {
  void const* in;
  uint8_t* out;
  void* scales;
  int32_t* azps;
  float const* scale_ub;
  int64_t hidden, in_stride, out_stride, scale_stride_m, scale_stride_g;
  uint32_t rows, padded_rows, groups, all_groups;  // groups of a row, and of all rows
  FastDivision groups_per_row;
  float smallest_amax, smallest_scale;
};

__device__ __forceinline__ int64_t scale_index(GroupQuantParams const& p, uint32_t row, uint32_t group) {
  return row * p.scale_stride_m + group * p.scale_stride_g;
}

// The byte of group `group` of row `row` in words of four groups, the first in the low byte.
__device__ __forceinline__ uint8_t* packed_scale(GroupQuantParams const& p, uint32_t row, uint32_t group) {
  return static_cast<uint8_t*>(p.scales) + (row * p.scale_stride_m + (group / 4) * p.scale_stride_g) * 4 + group % 4;
}

// The zeros that pad the row's last word, and the rows beyond the last. Called for the last group of a row and for
// every group of the last row.
__device__ __forceinline__ void pad_packed_scales(GroupQuantParams const& p, uint32_t row, uint32_t group) {
  uint32_t const words = (p.groups + 3) / 4;
  if (group + 1 == p.groups) {
    for (uint32_t g = p.groups; g < words * 4; ++g) *packed_scale(p, row, g) = 0;
  }
  if (row + 1 == p.rows && group / 4 + 1 < words) {
    for (uint32_t r = p.rows; r < p.padded_rows; ++r) *packed_scale(p, r, group) = 0;
  }
}

template <class In, class Out, ScaleFormat kFormat>
__device__ __forceinline__ float group_scale(GroupQuantParams const& p, float amax, float scale_ub) {
  float const scale = fmaxf(fminf(scale_of<Out>(fmaxf(amax, p.smallest_amax)), scale_ub), p.smallest_scale);
  if constexpr (Out::kAsVllm && kFormat == ScaleFormat::kPowerOfTwo && std::is_same_v<In, float>) return power_of_two_by_logarithm(scale);
  return kFormat == ScaleFormat::kF32 ? scale : __uint_as_float(ue8m0_above(scale) << 23);
}

// vLLM's of gated groups: one that is all NaN has the bound as its scale, if there is one.
template <class Out>
__device__ __forceinline__ float gated_group_scale_as_vllm(GroupQuantParams const& p, float amax) {
  float const scale = scale_of<Out>(amax);
  return fmaxf(p.scale_ub == nullptr ? scale : fminf(scale, *p.scale_ub), p.smallest_scale);
}

// A thread's work on kUnroll chunks. Groups `first`, `first + step`, ... are its own; a thread holds chunks `lane`, `lane + kLanes`, ...
// of each.
template <class In, class Out, class Activation, ScaleFormat kFormat, int kGroup, bool kSymmetric, int kUnroll, bool kAligned>
struct GroupQuant {
  static constexpr int kElements = kChunkElements<In>;
  static constexpr int kParts = parts_of_group(kUnroll, kGroup / kElements);
  static constexpr int kPieces = kUnroll / kParts;
  static constexpr int kLanes = kGroup / kElements / kParts;
  static_assert(kLanes >= 2 && kLanes <= 32, "a group is held by 2 to 32 lanes");
  static constexpr bool kSmall = kUnroll == 1;

  GroupQuantParams const& p;
  uint32_t lane, first, step;
  uint32_t rows[kPieces], groups[kPieces];

  __device__ __forceinline__ GroupQuant(GroupQuantParams const& params, uint32_t tile)
      : p(params), lane(threadIdx.x % kLanes), first((tile * (blockDim.x * kPieces) + threadIdx.x) / kLanes), step(blockDim.x / kLanes) {
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
      uint32_t const index = min(first + u * step, p.all_groups - 1);
      rows[u] = p.groups_per_row(index);
      groups[u] = index - rows[u] * p.groups;
    }
  }
  __device__ __forceinline__ uint32_t column(int u, int part) const { return groups[u] * kGroup + (lane + part * kLanes) * kElements; }
  __device__ __forceinline__ In const* row(int u) const { return static_cast<In const*>(p.in) + rows[u] * p.in_stride; }

  __device__ __forceinline__ void fetch() const {
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        fetch_to_l2(row(u) + column(u, part));
        if constexpr (Activation::kGated) fetch_to_l2(row(u) + p.hidden + column(u, part));
      }
    }
  }

  // Table: of the activation, or none.
  template <class Table>
  __device__ __forceinline__ void run(Table const* table) const {
    uint4 chunks[kPieces][kParts], ups[Activation::kGated ? kPieces : 1][kParts];
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        chunks[u][part] = load_chunk<kAligned, kSmall>(row(u), column(u, part), p.hidden);
        if constexpr (Activation::kGated) ups[u][part] = load_chunk<kAligned, kSmall>(row(u) + p.hidden, column(u, part), p.hidden);
      }
    }
    float const scale_ub = p.scale_ub == nullptr ? __int_as_float(0x7f800000) : *p.scale_ub;

#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
      float values[kParts * kElements];
      RawExtent<In, std::conditional_t<kSymmetric, float, Range>> of_raw;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float of_part[kElements];
        unpack<In>(chunks[u][part], of_part);
        if constexpr (Activation::kGated) {
          float factors[kElements];
          unpack<In>(ups[u][part], factors);
          if constexpr (std::is_same_v<Table, NoTable>) {
            gate_and_multiply<Activation>(of_part, factors);
          } else {
            uint4 const chunk = chunks[u][part];
            uint32_t const pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              table->gate_and_multiply(pairs[i], of_part[2 * i], of_part[2 * i + 1], factors[2 * i], factors[2 * i + 1]);
            }
          }
        } else {
          of_raw.extend(chunks[u][part]);
        }
#pragma unroll
        for (int i = 0; i < kElements; ++i) values[part * kElements + i] = of_part[i];
      }
      bool const inside = first + u * step < p.all_groups;
      bool const writes_scale = inside && lane == 0;
      uint32_t words[kParts][kElements / 4];
      auto& all_words = reinterpret_cast<uint32_t(&)[kParts * kElements / 4]>(words);
      if constexpr (kSymmetric) {
        constexpr bool kGatedAsVllm = Activation::kGated && Out::kAsVllm;
        float amax, scale;
        if constexpr (kGatedAsVllm) {
          amax = absolute_maximum_or_nan(values);
        } else if constexpr (Activation::kGated) {
          amax = absolute_maximum(values);
        } else {
          amax = of_raw.value();
        }
        amax = reduce_lanes<kLanes>(amax, Max{});
        if constexpr (kGatedAsVllm) {
          scale = gated_group_scale_as_vllm<Out>(p, amax);
        } else {
          scale = group_scale<In, Out, kFormat>(p, amax, scale_ub);
        }
        if constexpr (Out::kAsVllm && !Activation::kGated) {
          encode_group_as_vllm<Out>(values, scale, all_words);
        } else {
          encode_scaled<Out>(values, scale, amax, all_words);
        }
        if (writes_scale) {
          if constexpr (kFormat == ScaleFormat::kPackedUe8m0) {
            *packed_scale(p, rows[u], groups[u]) = static_cast<uint8_t>(__float_as_uint(scale) >> 23);
            if (groups[u] + 1 == p.groups || rows[u] + 1 == p.rows) [[unlikely]] pad_packed_scales(p, rows[u], groups[u]);
          } else {
            static_cast<float*>(p.scales)[scale_index(p, rows[u], groups[u])] = scale;
          }
        }
      } else {
        AsymmetricCoding const coding(reduce_lanes<kLanes>(of_raw.value(), WidenRange{}), scale_ub);
        coding.encode(values, all_words);
        if (writes_scale) coding.store(static_cast<float*>(p.scales), p.azps, scale_index(p, rows[u], groups[u]));
      }
      if (!inside) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        store_codes<kAligned, kElements>(p.out + rows[u] * p.out_stride, column(u, part), p.hidden, words[part]);
      }
    }
  }
};

template <class Variant, class In, class Out, class Activation, ScaleFormat kFormat, int kGroup, bool kSymmetric, int kUnroll, bool kAligned>
__global__ void __launch_bounds__(kGroupQuantThreads) group_quant_kernel(__grid_constant__ GroupQuantParams const p) {
  GroupQuant<In, Out, Activation, kFormat, kGroup, kSymmetric, kUnroll, kAligned> const work(p, blockIdx.x);
  if constexpr (work.kSmall) work.fetch();
  wait_for_predecessor();
  work.template run<NoTable>(nullptr);
}

// Persistent CTAs, so that each fills its table once. They request their first chunks before. Shape measured on an H200.
inline constexpr int kTabulatedThreads = 768;
inline constexpr int kTabulatedCtasOfSm = 2;
inline constexpr int kTabulatedUnroll = 2;

struct TabulatedGroupQuantParams {
  GroupQuantParams groups;
  uint32_t tiles;
};

template <class Variant, class In, class Out, class Activation, ScaleFormat kFormat, int kGroup, bool kSymmetric>
__global__ void __launch_bounds__(kTabulatedThreads, kTabulatedCtasOfSm)
    tabulated_group_quant_kernel(__grid_constant__ TabulatedGroupQuantParams const p) {
  using Tile = GroupQuant<In, Out, Activation, kFormat, kGroup, kSymmetric, kTabulatedUnroll, true>;
  __shared__ GeluTable<Activation> table;
  Tile(p.groups, blockIdx.x).fetch();
  table.fill();
  __syncthreads();
  wait_for_predecessor();
  for (uint32_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) Tile(p.groups, tile).run(&table);
}

template <class Variant, class In, class Out, class Activation, ScaleFormat kFormat, int kGroup, bool kSymmetric>
int32_t launch_tabulated(GroupQuantParams const& p, int64_t chunks, gemmill_launch const& how) {
  int64_t const tiles = ceil_divide(chunks, kTabulatedThreads * kTabulatedUnroll);
  int64_t const ctas = int64_t{how.sm_count} * kTabulatedCtasOfSm;
  return launch<&tabulated_group_quant_kernel<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric>>(
      TabulatedGroupQuantParams{p, static_cast<uint32_t>(tiles)}, tiles < ctas ? tiles : ctas, kTabulatedThreads, how);
}

template <class Variant, class In, class Out, class Activation, ScaleFormat kFormat, int kGroup, bool kSymmetric, int kUnroll, bool kAligned>
int32_t launch_group_quant_slice(GroupQuantParams const& p, int64_t chunks, gemmill_launch const& how) {
  int const threads = Activation::kGated && is_large(chunks, how.sm_count) ? kThreadsOfLarge : kGroupQuantThreads;
  return launch<&group_quant_kernel<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric, kUnroll, kAligned>>(
      p, ceil_divide(chunks, threads * kUnroll), threads, how);
}

template <class Variant, class In, class Out, class Activation, ScaleFormat kFormat, int kGroup, bool kSymmetric>
int32_t group_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  constexpr int64_t kElements = kChunkElements<In>;
  if (x.hidden % kGroup != 0 || (x.azp == nullptr) != kSymmetric) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const per_row = x.hidden / kElements;
  if (per_row > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  bool const aligned = rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden);
  int64_t const slice = kMostChunks / per_row;
  for (int64_t row = 0; row < x.rows; row += slice) {
    bool const last = x.rows - row <= slice;
    int64_t const rows = last ? x.rows - row : slice;
    int64_t const scale_bytes = 4 * row * x.scale_stride_m;
    GroupQuantParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<uint8_t*>(x.scales) + scale_bytes,
        x.azp == nullptr ? nullptr : x.azp + row * x.scale_stride_m,
        x.scale_ub,
        x.hidden, x.in_stride, x.out_stride, x.scale_stride_m, x.scale_stride_n,
        static_cast<uint32_t>(rows),
        static_cast<uint32_t>(last && x.scale_rows > x.rows ? x.scale_rows - row : rows),
        static_cast<uint32_t>(x.hidden / kGroup),
        static_cast<uint32_t>(rows * (x.hidden / kGroup)),
        FastDivision(static_cast<uint32_t>(x.hidden / kGroup)),
        x.eps,
        Activation::kGated ? Out::kSmallestScale : 0.0f,
    };
    int64_t const chunks = rows * per_row;
    int const unroll = chunks <= int64_t{how.sm_count} * kGroupQuantThreads * 4 ? 1 : is_large(chunks, how.sm_count) ? 4 : 2;
    // A table pays from half of a large tensor on.
    if constexpr (kHasTable<In, Activation>) {
      if (aligned && is_large(2 * chunks, how.sm_count)) {
        int32_t const error = launch_tabulated<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric>(p, chunks, how);
        if (error != cudaSuccess) return error;
        continue;
      }
    }
    constexpr int kMostUnroll = kHasTable<In, Activation> ? 2 : 4;
    int32_t const error =
        !aligned      ? launch_group_quant_slice<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric, 1, false>(p, chunks, how)
        : unroll == 1 ? launch_group_quant_slice<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric, 1, true>(p, chunks, how)
        : unroll == 2 ? launch_group_quant_slice<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric, 2, true>(p, chunks, how)
                      : launch_group_quant_slice<Variant, In, Out, Activation, kFormat, kGroup, kSymmetric, kMostUnroll, true>(p, chunks, how);
    if (error != cudaSuccess) return error;
  }
  int64_t const padding = (x.out_rows < x.scale_rows ? x.out_rows : x.scale_rows) - x.rows;
  if (kFormat != ScaleFormat::kPackedUe8m0 || padding <= 0) return cudaSuccess;
  return cudaMemset2DAsync(static_cast<uint8_t*>(x.out) + x.rows * x.out_stride, x.out_stride, 0, x.hidden, padding,
                           static_cast<cudaStream_t>(how.stream));
}

}  // namespace gemmill::quant
