// RMS norm and quantisation of a row by one CTA, or by a cluster when there are few rows:
//
//     x    = in, or in + residual in f32, which rounded replaces the residual
//     y    = round(round(x * 1/rms) * weight), rounded to the input's type as the unfused ops would
//     code = y by the scale of its row or group
//
// The sum of squares is made in f32 over runs of 16 bytes, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), and across runs as mean_square.cuh
// says: no order of them shows. As vLLM's kernels, it is made in f32 in the order of their threads.
#pragma once

#include "coding/code.cuh"
#include "quant/extent.cuh"
#include "quant/launch.cuh"
#include "quant/mean_square.cuh"
#include "coding/memory.cuh"
#include "coding/reduce.cuh"

namespace gemmill::quant {

inline constexpr int kMostRmsNormThreads = 1024;
inline constexpr int kGivenScale = -1;  // in the place of the size of groups

struct RmsNormParams {
  void const* in;
  void const* weight;
  void* residual;
  uint8_t* out;
  float* scales;
  float const* scale_ub;
  int64_t hidden, in_stride, out_stride, residual_stride, scale_stride_m, scale_stride_g;
  uint32_t chunks;       // of a row
  uint32_t rows, ahead;  // row + ahead is the row to prefetch into L2
  bool few;              // CTAs: they prefetch their rows
  double inverse_hidden, epsilon;
};

inline constexpr int kMostVllmThreads = 1024;

struct VllmSums {
  float of_threads[kMostVllmThreads];
  float of_warps[kMostVllmThreads / 32];
};

// `kCount` neighbouring elements as f32. Nothing is read past L1: residuals are written later.
template <bool kAligned, int kCount, class In>
__device__ __forceinline__ void load_some(In const* from, float (&x)[kCount]) {
  if constexpr (kAligned && kCount * sizeof(In) == 16) {
    unpack<In>(*reinterpret_cast<uint4 const*>(from), x);
  } else if constexpr (kAligned && kCount * sizeof(In) == 32) {
    auto& halves = reinterpret_cast<float(&)[2][kCount / 2]>(x);
    load_some<kAligned>(from, halves[0]);
    load_some<kAligned>(from + kCount / 2, halves[1]);
  } else if constexpr (kAligned && kCount == 4) {
    uint2 const bits = *reinterpret_cast<uint2 const*>(from);
    unpack_pair(bits.x, x[0], x[1], In{});
    unpack_pair(bits.y, x[2], x[3], In{});
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = static_cast<float>(from[i]);
  }
}

// Thread `thread` of vLLM's sums.
template <bool kAligned, bool kResidual, int kCount, bool kGiven = false, class In>
__device__ __forceinline__ float vllm_sum_of_thread(RmsNormParams const& p, uint32_t thread, uint32_t threads, In const* in, In const* residual) {
  float sum = 0.0f;
  for (int64_t i = int64_t{thread} * kCount; i < p.hidden; i += int64_t{threads} * kCount) {
    float x[kCount];
    load_some<kAligned>(in + i, x);
    if constexpr (kResidual) {
      float other[kCount];
      load_some<kAligned>(residual + i, other);
#pragma unroll
      for (int j = 0; j < kCount; ++j) x[j] = __fadd_rn(x[j], other[j]);
      if constexpr (kGiven) round_to<In>(x);
      if constexpr (kGiven && kCount == 8) {  // summed alone first, in pairs
        float of_turn = 0.0f;
#pragma unroll
        for (int j = 0; j < kCount; j += 2) of_turn = __fadd_rn(of_turn, __fmaf_rn(x[j], x[j], __fmul_rn(x[j + 1], x[j + 1])));
        sum = __fadd_rn(sum, of_turn);
        continue;
      }
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum = __fmaf_rn(x[j], x[j], sum);
  }
  return sum;
}

// 1 / rms of a row, by all threads of a CTA: sums of vLLM's threads, of neighbours within its warps, of warps one after another. In
// vLLM's batch-invariant mode, its CTAs of rows with groups have 512 threads. (The parameters of the kernel are not more than ours: two
// more, and the compiler spills registers of ours.)
template <bool kAligned, bool kResidual, int kGroup, class In>
__device__ __forceinline__ float inverse_rms_as_vllm(RmsNormParams const& p, In const* in, In const* residual, VllmSums& sums) {
  constexpr bool kGiven = kGroup == kGivenScale;
  // By a given scale, 16 bytes at a time, or a divisor of the row; with a residual 8 elements, or one.
  bool const in_eights = (kAligned && sizeof(In) == 2) || (p.hidden % 8 == 0 && p.in_stride % 8 == 0);
  int64_t const low_bit = p.hidden & -p.hidden;
  uint32_t const width = low_bit < kChunkElements<In> ? static_cast<uint32_t>(low_bit) : kChunkElements<In>;
  int64_t const shares = kGiven && !kResidual ? p.hidden / width : p.hidden;
  uint32_t const most = kGiven ? (p.rows < 256 ? kMostVllmThreads : 256) : kGroup == 0 ? kMostVllmThreads : p.rows <= 256 ? 512 : 256;
  uint32_t const threads = shares < most ? static_cast<uint32_t>(shares) : most;
  bool const vectors = kGroup != 0 || (p.hidden % 4 == 0 && p.in_stride % 4 == 0);
  for (uint32_t thread = threadIdx.x; thread < kMostVllmThreads; thread += blockDim.x) {
    if constexpr (kGiven && kResidual) {
      sums.of_threads[thread] = thread >= threads ? 0.0f
                                : in_eights       ? vllm_sum_of_thread<kAligned, true, 8, true>(p, thread, threads, in, residual)
                                                  : vllm_sum_of_thread<false, true, 1, true>(p, thread, threads, in, residual);
      continue;
    }
    if constexpr (kGiven) {
      constexpr int kWidest = kChunkElements<In>;
      sums.of_threads[thread] = thread >= threads                ? 0.0f
                                : kAligned || width == kWidest ? vllm_sum_of_thread<kAligned, false, kWidest, true>(p, thread, threads, in, residual)
                                : width == 4                   ? vllm_sum_of_thread<kAligned, false, 4, true>(p, thread, threads, in, residual)
                                : width == 2                   ? vllm_sum_of_thread<kAligned, false, 2, true>(p, thread, threads, in, residual)
                                                               : vllm_sum_of_thread<kAligned, false, 1, true>(p, thread, threads, in, residual);
      continue;
    }
    sums.of_threads[thread] = thread >= threads ? 0.0f
                              : vectors         ? vllm_sum_of_thread<kAligned, kResidual, 4>(p, thread, threads, in, residual)
                                                : vllm_sum_of_thread<kAligned, kResidual, 1>(p, thread, threads, in, residual);
  }
  __syncthreads();
  for (uint32_t warp = threadIdx.x / 32; warp < kMostVllmThreads / 32; warp += blockDim.x / 32) {
    float const sum = reduce_lanes_upwards<32>(sums.of_threads[warp * 32 + threadIdx.x % 32], Sum{});
    if (threadIdx.x % 32 == 0) sums.of_warps[warp] = sum;
  }
  __syncthreads();
  float total = sums.of_warps[0];
  for (int warp = 1; warp < kMostVllmThreads / 32; ++warp) total = __fadd_rn(total, sums.of_warps[warp]);
  return rsqrtf(__fadd_rn(__fdiv_rn(total, static_cast<float>(p.hidden)), static_cast<float>(p.epsilon)));
}

template <int kElements>
__device__ __forceinline__ float sum_of_squares(float const (&x)[kElements]) {
  float sums[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) sums[i] = __fmul_rn(x[i], x[i]);
#pragma unroll
  for (int step = 1; step < kElements; step *= 2) {
#pragma unroll
    for (int i = 0; i < kElements; i += 2 * step) sums[i] = __fadd_rn(sums[i], sums[i + step]);
  }
  return sums[0];
}

// Codes of values of type In. The scale's reciprocal multiplies those of s8 (vLLM's of groups too), the scale divides those of e4m3.
template <class In, class Out, int kGroup>
struct NormedCoding {
  static constexpr bool kByReciprocal = std::is_base_of_v<S8, Out> || kGroup == kGivenScale || (Out::kAsVllm && kGroup != 0);
  using Division = std::conditional_t<sizeof(In) == 2, ShortQuotient, float>;
  std::conditional_t<kByReciprocal, float, Division> by;  // the reciprocal, the divided reciprocal, or the scale
  float amax;

  __device__ __forceinline__ NormedCoding(float scale, float extent) : by(kByReciprocal ? reciprocal_of_scale(scale) : scale), amax(extent) {}
  // A scale is 2^-23 or more, and perhaps infinite; one that is given is any.
  static __device__ __forceinline__ float reciprocal_of_scale(float scale) {
    if constexpr (kGroup == kGivenScale) return reciprocal_of(scale);
    return scale > FLT_MAX ? 0.0f : reciprocal_of_normal(scale);
  }
  template <int kElements>
  __device__ __forceinline__ void encode(float (&y)[kElements], uint32_t (&words)[kElements / 4]) const {
    if constexpr (!kByReciprocal && sizeof(In) == 4) {
      encode_scaled<Out>(y, by, amax, words);
    } else {
      if constexpr (kByReciprocal) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) y[i] = __fmul_rn(y[i], by);
      } else {
        by.divide(y);
      }
#pragma unroll
      for (int i = 0; i < kElements; i += 4) words[i / 4] = encode4(y[i], y[i + 1], y[i + 2], y[i + 3], Out{});
    }
  }
};

// Threads of a CTA and CTAs of an SM, through which the registers of a thread. With up to two chunks a thread one CTA may
// fill the SM; with more, rows are many and CTAs share it. 448 threads hold rows of 14336 and 28672 elements of 16 bits.
constexpr int rms_norm_threads(int chunks) { return chunks <= 2 ? kMostRmsNormThreads : 448; }
constexpr int rms_norm_ctas(int chunks, bool residual) { return chunks <= 2 || (chunks == 8 && residual) ? 1 : 2; }

struct RmsNormShape {
  int chunks, threads, cluster;
  bool resident;
};

// Many rows: few threads a row, so that several CTAs share an SM and one loads while another reduces. Few rows: one CTA where a
// chunk a thread suffices, as two reductions through a cluster take longer; else clusters of CTAs of about 512 chunks. Measured
// on an H200.
inline RmsNormShape rms_norm_shape(gemmill_launch const& how, int64_t rows, int64_t chunks, bool residual, int most_ctas) {
  RmsNormShape shape{1, 0, 1, true};
  shape.cluster = cluster_for(rows, chunks, kMostRmsNormThreads, 512, most_ctas, how.sm_count);
  int64_t const of_cta = ceil_divide(chunks, shape.cluster);
  int const most_chunks = shape.cluster > 1 ? 2 : 8;
  int64_t const most_threads = rows * shape.cluster > how.sm_count ? 256 : kMostRmsNormThreads;
  if (is_large(rows * chunks, how.sm_count) && chunks >= 256) {
    // Whole warps, and with a residual, which takes registers, four chunks where they suffice.
    bool const four = chunks <= 4 * rms_norm_threads(4) && (residual || (chunks % 256 != 0 && chunks % 128 == 0));
    shape.chunks = four && shape.cluster == 1 ? 4 : most_chunks;
  }
  while (shape.chunks < most_chunks && of_cta > shape.chunks * (shape.chunks == 4 ? rms_norm_threads(4) : most_threads)) shape.chunks *= 2;
  int64_t const threads = ceil_divide(ceil_divide(of_cta, shape.chunks), 32) * 32;
  shape.resident = threads <= rms_norm_threads(shape.chunks);
  shape.threads = static_cast<int>(threads < kMostRmsNormThreads ? threads : kMostRmsNormThreads);
  return shape;
}

// kGroup 0: one scale a row; kGivenScale: one that is given. kResident: the row stays in registers, as loaded and later as normalised; else it is read
// again (from L2) for each step. kCluster: the CTAs of a cluster share a row. kWhole: every thread has all of its chunks.
template <class Variant, class In, class Out, int kGroup, int kChunks, bool kAligned, bool kResident, bool kResidual, bool kCluster, bool kWhole>
__global__ void __launch_bounds__(rms_norm_threads(kChunks), rms_norm_ctas(kChunks, kResidual)) rms_norm_quant_kernel(RmsNormParams const p) {
  constexpr int kElements = kChunkElements<In>;
  constexpr int kParts = kGroup <= 0 ? 1 : parts_of_group(kChunks, kGroup / kElements);
  constexpr int kLanes = kGroup <= 0 ? 32 : kGroup / kElements / kParts;
  static_assert(kResident || !kCluster, "a row that does not stay in registers belongs to one CTA");
  __shared__ RowReduction<double, kCluster> sum_reduction;
  __shared__ RowReduction<float, kCluster> max_reduction;
  if constexpr (kCluster) cluster_arrive();

  int64_t const row = kCluster ? cluster_index() : blockIdx.x;
  In const* const in = static_cast<In const*>(p.in) + row * p.in_stride;
  In const* const weight = static_cast<In const*>(p.weight);
  In* const residual = kResidual ? static_cast<In*>(p.residual) + row * p.residual_stride : nullptr;
  uint32_t const step = blockDim.x * (kCluster ? cluster_size() : 1);
  uint32_t const first = (kCluster ? cluster_rank() * blockDim.x : 0) + threadIdx.x;
  uint32_t const rounds = kResident ? 1 : (p.chunks + step * kChunks - 1) / (step * kChunks);
  // Scales of groups: kParts chunks in a row, of a thread, belong to one group, which kLanes threads hold.
  uint32_t const start = kParts == 1 ? first : first / kLanes * (kLanes * kParts) + first % kLanes;
  auto const index_of = [&](uint32_t round, int c) {
    return start + (round * (kChunks / kParts) + c / kParts) * (step * kParts) + c % kParts * kLanes;
  };
  auto const inside = [&](uint32_t index) { return kWhole || index < p.chunks; };

  auto const load_at = [&](In const* of, uint32_t index) {
    return load_chunk<kAligned, (kChunks < 4), Beyond::kZero>(of, int64_t{index} * kElements, p.hidden);
  };
  uint4 chunks[kChunks], others[kResidual ? kChunks : 1];
  auto const load = [&](uint32_t round) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = index_of(round, c);
      if constexpr (!kWhole) chunks[c] = make_uint4(0, 0, 0, 0);
      if constexpr (!kWhole && kResidual) others[c] = make_uint4(0, 0, 0, 0);
      if (inside(index)) {
        chunks[c] = load_at(in, index);
        if constexpr (kResidual) others[c] = load_at(residual, index);
      }
    }
  };
  auto const x_of_bits = [](uint4 chunk, [[maybe_unused]] uint4 residual_chunk, float(&x)[kElements]) {
    unpack<In>(chunk, x);
    if constexpr (kResidual) {
      float other[kElements];
      unpack<In>(residual_chunk, other);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = __fadd_rn(x[i], other[i]);
      if constexpr (kGroup == kGivenScale && Out::kAsVllm) round_to<In>(x);
    }
  };
  auto const x_of = [&](int c, float(&x)[kElements]) { x_of_bits(chunks[c], others[kResidual ? c : 0], x); };
  auto const store_residual = [&](uint32_t index, float const(&x)[kElements]) {
    if (inside(index)) store_chunk<kAligned>(residual, int64_t{index} * kElements, p.hidden, pack<In>(x));
  };

  // Where the row is read several times, in the last of them.
  auto const replace_residual = [&](uint32_t round, int c) {
    float x[kElements];
    x_of(c, x);
    store_residual(index_of(round, c), x);
  };

  // With four chunks or more the weights would not fit next to the row: threads load them at their use, from L1.
  constexpr bool kKeepWeights = kResident && kChunks < 4;
  uint4 weights[kKeepWeights ? kChunks : 1];
  auto const load_weight = [&](uint32_t index) {
    // Beyond the row any will do: its normalised values are zero, or NaN, which does not count either.
    if constexpr (kAligned) return load_reused(weight + int64_t{kWhole ? index : min(index, p.chunks - 1)} * kElements);
    if (!inside(index)) return make_uint4(0, 0, 0, 0);
    return load_elements<Beyond::kZero>(weight, int64_t{index} * kElements, p.hidden);
  };

  if (kKeepWeights && p.few) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = index_of(0, c);
      if (!inside(index)) continue;
      fetch_to_l2(in + int64_t{index} * kElements);
      fetch_to_l2(weight + int64_t{index} * kElements);
      if constexpr (kResidual) fetch_to_l2(residual + int64_t{index} * kElements);
    }
  }
  if constexpr (kAligned && kResident && !kCluster && kChunks >= 4) {
    if (threadIdx.x == 0 && static_cast<uint32_t>(row) + p.ahead < p.rows) {
      fetch_row_to_l2(in + p.ahead * p.in_stride, p.chunks * 16);
      if constexpr (kResidual) fetch_row_to_l2(residual + p.ahead * p.residual_stride, p.chunks * 16);
    }
  }
  wait_for_predecessor();
  [[maybe_unused]] float vllm_inverse_rms = 0.0f;
  if constexpr (Out::kAsVllm) {
    __shared__ VllmSums vllm_sums;
    vllm_inverse_rms = inverse_rms_as_vllm<kAligned, kResidual, kGroup>(p, in, static_cast<In const*>(residual), vllm_sums);
  }
  double sum = 0.0;
  for (uint32_t round = 0; round < rounds; ++round) {
    load(round);
    if constexpr (kKeepWeights) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) weights[c] = load_weight(index_of(0, c));
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float x[kElements];
      x_of(c, x);
      if constexpr (!Out::kAsVllm) sum += sum_of_squares(x);
      if constexpr (kResident && kResidual) store_residual(index_of(round, c), x);
    }
  }
  auto const mean_of = [&](double squares) { return __dadd_rn(__dmul_rn(squares, p.inverse_hidden), p.epsilon); };
  float inverse_rms = vllm_inverse_rms;
  if constexpr (!Out::kAsVllm) {
    double const threads_mean = mean_of(sum_reduction(sum, Sum{}));
    float mean = static_cast<float>(threads_mean);
    if (__builtin_expect(!is_settled(static_cast<uint64_t>(__double_as_longlong(threads_mean)), p.chunks), 0)) {
      __shared__ SumInAnyOrder<kCluster> squares;
      squares.clear();
      if constexpr (kResident && kResidual) {  // the residual holds the sum already
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          float x[kElements];
          x_of(c, x);
          squares.add(sum_of_squares(x));
        }
      } else {  // read again: keeping the registers would make the compiler spill
        for (uint32_t index = first; index < p.chunks; index += step) {
          float x[kElements];
          x_of_bits(load_at(in, index), kResidual ? load_at(residual, index) : uint4{}, x);
          squares.add(sum_of_squares(x));
        }
      }
      mean = static_cast<float>(mean_of(squares.sum()));
    }
    inverse_rms = __frsqrt_rn(mean);
    if constexpr (kCluster && kGroup == 0) cluster_arrive();
  }
  float const scale_ub = p.scale_ub == nullptr ? __int_as_float(0x7f800000) : *p.scale_ub;

  // Normalises a chunk in place, in the input's type.
  auto const normalise = [&](uint32_t round, int c) {
    float x[kElements];
    x_of(c, x);
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = __fmul_rn(x[i], inverse_rms);
    if constexpr (kGroup == kGivenScale && Out::kAsVllm) {  // which rounds once
      float w[kElements];
      if constexpr (kKeepWeights) {
        unpack<In>(weights[c], w);
      } else {
        unpack<In>(load_weight(index_of(round, c)), w);
      }
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = __fmul_rn(x[i], w[i]);
      chunks[c] = pack<In>(x);
    } else if constexpr (kKeepWeights) {
      chunks[c] = multiply<In>(pack<In>(x), weights[c]);
    } else {
      chunks[c] = multiply<In>(pack<In>(x), load_weight(index_of(round, c)));
    }
  };
  auto const scale_from = [&](float amax) { return fmaxf(scale_of<Out>(fminf(amax, scale_ub)), Out::kSmallestScale); };
  auto const store = [&](uint32_t index, int c, NormedCoding<In, Out, kGroup> const& coding) {
    float y[kElements];
    unpack<In>(chunks[c], y);
    uint32_t words[kElements / 4];
    coding.encode(y, words);
    if (inside(index)) store_codes<kAligned, kElements>(p.out + row * p.out_stride, int64_t{index} * kElements, p.hidden, words);
  };

  if constexpr (kGroup == kGivenScale) {
    NormedCoding<In, Out, kGroup> const coding(*p.scales, 0.0f);
    for (uint32_t round = 0; round < rounds; ++round) {
      if constexpr (!kResident) load(round);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if constexpr (!kResident && kResidual) replace_residual(round, c);
        normalise(round, c);
        store(index_of(round, c), c, coding);
      }
    }
  } else if constexpr (kGroup == 0) {
    RawExtent<In, float> of_row;
    for (uint32_t round = 0; round < rounds; ++round) {
      if constexpr (!kResident) load(round);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        normalise(round, c);
        of_row.extend(chunks[c]);
      }
    }
    float const amax = max_reduction(of_row.value(), Max{});
    float const scale = scale_from(amax);
    NormedCoding<In, Out, kGroup> const coding(scale, amax);
    if (first == 0) p.scales[row * p.scale_stride_m] = scale;
    for (uint32_t round = 0; round < rounds; ++round) {
      if constexpr (!kResident) load(round);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if constexpr (!kResident) {
          if constexpr (kResidual) replace_residual(round, c);
          normalise(round, c);
        }
        store(index_of(round, c), c, coding);
      }
    }
  } else {
    for (uint32_t round = 0; round < rounds; ++round) {
      if constexpr (!kResident) load(round);
#pragma unroll
      for (int piece = 0; piece < kChunks; piece += kParts) {
        RawExtent<In, float> of_group;
#pragma unroll
        for (int c = piece; c < piece + kParts; ++c) {
          if constexpr (!kResident && kResidual) replace_residual(round, c);
          normalise(round, c);
          of_group.extend(chunks[c]);
        }
        float const amax = reduce_lanes<kLanes>(of_group.value(), Max{});
        float const scale = scale_from(amax);
        NormedCoding<In, Out, kGroup> const coding(scale, amax);
        uint32_t const head = index_of(round, piece);
        if (threadIdx.x % kLanes == 0 && inside(head)) {
          p.scales[row * p.scale_stride_m + head / (kLanes * kParts) * p.scale_stride_g] = scale;
        }
#pragma unroll
        for (int c = piece; c < piece + kParts; ++c) store(index_of(round, c), c, coding);
      }
    }
  }
}

template <class Variant, class In, class Out, int kGroup, int kChunks, bool kAligned, bool kResident, bool kCluster = false, bool kWhole = false>
int32_t launch_rms_norm_quant(RmsNormParams const& p, int64_t rows, RmsNormShape shape, gemmill_launch const& how) {
  if constexpr (Out::kAsVllm && kCluster) return GEMMILL_CANNOT_IMPLEMENT;  // each CTA sums its row alone
  // With nvcc 13.0, 8 chunks a thread in these kernels are more than their registers hold.
  constexpr bool kSpills = kChunks == 8 && (std::is_base_of_v<S8, Out> || std::is_same_v<In, __half> || kGroup == kGivenScale);
  if constexpr (kAligned && kResident && !kCluster && !kWhole && kChunks >= 4 && !kSpills) {
    if (p.chunks == static_cast<uint32_t>(kChunks * shape.threads)) {
      return launch_rms_norm_quant<Variant, In, Out, kGroup, kChunks, kAligned, kResident, kCluster, true>(p, rows, shape, how);
    }
  }
  if (p.residual != nullptr) {
    return launch<&rms_norm_quant_kernel<Variant, In, Out, kGroup, kChunks, kAligned, kResident, true, kCluster, kWhole>>(
        p, rows * shape.cluster, shape.threads, how, shape.cluster);
  }
  return launch<&rms_norm_quant_kernel<Variant, In, Out, kGroup, kChunks, kAligned, kResident, false, kCluster, kWhole>>(
      p, rows * shape.cluster, shape.threads, how, shape.cluster);
}

template <class Variant, class In, class Out, int kGroup>
int32_t rms_norm_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || (x.hidden == 0 && kGroup != 0)) return cudaSuccess;
  if constexpr (kGroup > 0) {
    if (x.hidden % kGroup != 0) return GEMMILL_CANNOT_IMPLEMENT;
  }
  constexpr int64_t kElements = kChunkElements<In>;
  int64_t const chunks = ceil_divide(x.hidden, kElements);
  if (chunks > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const chunks_of_shape = chunks > 0 ? chunks : 1;  // rows without elements have scales too
  bool aligned = chunks > 0 && rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden) && is_aligned(x.weight, 16);
  if (x.residual != nullptr) aligned = aligned && is_aligned(x.residual, 16) && x.residual_stride % kElements == 0;
  int64_t const scale_stride_m = kGroup == 0 ? 1 : x.scale_stride_m;
  constexpr int64_t kSlice = kMostChunks / kPortableCluster;
  for (int64_t row = 0; row < x.rows; row += kSlice) {
    int64_t const rows = x.rows - row < kSlice ? x.rows - row : kSlice;
    RmsNormShape const shape = rms_norm_shape(how, rows, chunks_of_shape, x.residual != nullptr, kPortableCluster);
    RmsNormShape const single = rms_norm_shape(how, rows, chunks_of_shape, x.residual != nullptr, 1);
    RmsNormParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        x.weight,
        x.residual == nullptr ? nullptr : static_cast<In*>(x.residual) + row * x.residual_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<float*>(x.scales) + row * scale_stride_m,
        x.scale_ub,
        x.hidden, x.in_stride, x.out_stride, x.residual_stride, scale_stride_m, x.scale_stride_n,
        static_cast<uint32_t>(chunks),
        static_cast<uint32_t>(rows), rows_ahead(how.sm_count, chunks_of_shape * (x.residual == nullptr ? 16 : 32)),
        rows * shape.cluster <= 2 * int64_t{how.sm_count},  // beyond, to fetch early costs large tensors 5 % (H200, 2026-11-20)
        1.0 / static_cast<double>(x.hidden), static_cast<double>(x.eps),
    };
    RmsNormShape const rereading{0, single.threads, 1, false};
    bool const cluster = !Out::kAsVllm && aligned && shape.cluster > 1 && shape.resident;
    int32_t const error =
        cluster && shape.chunks == 1 ? launch_rms_norm_quant<Variant, In, Out, kGroup, 1, true, true, true>(p, rows, shape, how)
        : cluster                    ? launch_rms_norm_quant<Variant, In, Out, kGroup, 2, true, true, true>(p, rows, shape, how)
        : !aligned                   ? launch_rms_norm_quant<Variant, In, Out, kGroup, 1, false, false>(p, rows, rereading, how)
        : !single.resident           ? launch_rms_norm_quant<Variant, In, Out, kGroup, 2, true, false>(p, rows, rereading, how)
        : single.chunks == 1         ? launch_rms_norm_quant<Variant, In, Out, kGroup, 1, true, true>(p, rows, single, how)
        : single.chunks == 2         ? launch_rms_norm_quant<Variant, In, Out, kGroup, 2, true, true>(p, rows, single, how)
        : single.chunks == 4         ? launch_rms_norm_quant<Variant, In, Out, kGroup, 4, true, true>(p, rows, single, how)
                                     : launch_rms_norm_quant<Variant, In, Out, kGroup, 8, true, true>(p, rows, single, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
