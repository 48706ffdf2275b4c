// Dynamic quantisation with one scale a row, plain or of activation(gate) * up. The threads of a CTA share a row, or those of a cluster
// when there are few rows. It stays in registers between maximum and codes; a row too long for them is read twice, the second time from
// L2.
#pragma once

#include "coding/activation.cuh"
#include "coding/coding.cuh"
#include "quant/extent.cuh"
#include "quant/launch.cuh"
#include "coding/memory.cuh"
#include "coding/reduce.cuh"

namespace gemmill::quant {

inline constexpr int kMostTokenQuantThreads = 1024;

struct TokenQuantParams {
  void const* in;
  uint8_t* out;
  float* scales;
  int32_t* azps;
  int32_t* row_sums;
  float const* scale_ub;
  int64_t hidden, in_stride, out_stride;
  uint32_t chunks;       // of a row
  uint32_t rows, ahead;  // row + ahead is the row to prefetch into L2; 0: none is
  float least_step;      // of asymmetric codes
};

// Threads of a CTA and CTAs of an SM, through which the registers of a thread: 64 at most.
constexpr int token_quant_threads(int chunks) { return chunks == 8 ? 512 : kMostTokenQuantThreads; }
constexpr int token_quant_ctas(int chunks) { return chunks == 8 ? 2 : 1; }

// kWhole: no index lies beyond the row.
template <class In, class Activation, bool kAligned, bool kStream, bool kWhole>
struct RowOfChunks {
  static constexpr int kElements = kChunkElements<In>;
  In const* row;
  int64_t hidden;
  uint32_t chunks;
  __device__ __forceinline__ bool inside(uint32_t index) const { return kWhole || index < chunks; }
  __device__ __forceinline__ void fetch(uint32_t index) const {
    if (!inside(index)) return;
    fetch_to_l2(row + int64_t{index} * kElements);
    if constexpr (Activation::kGated) fetch_to_l2(row + hidden + int64_t{index} * kElements);
  }

  struct Raw {
    uint4 chunk;
    uint4 up;
  };

  // Beyond the row: zeros. With aligned rows a load takes a whole chunk or nothing.
  __device__ __forceinline__ Raw load(uint32_t index) const {
    Raw raw{};
    if (inside(index)) {
      int64_t const column = int64_t{index} * kElements;
      raw.chunk = load_chunk<kAligned, kStream>(row, column, hidden);
      if constexpr (Activation::kGated) raw.up = load_chunk<kAligned, kStream>(row + hidden, column, hidden);
    }
    return raw;
  }
  static __device__ __forceinline__ void values_of(Raw const& raw, float (&values)[kElements]) {
    unpack<In>(raw.chunk, values);
    if constexpr (Activation::kGated) {
      float factors[kElements];
      unpack<In>(raw.up, factors);
      gate_and_multiply<Activation>(values, factors);
    }
  }
};

template <class Variant, class In, class Activation, class Coding, int kChunks, bool kAligned, bool kResident, bool kCluster, bool kWhole>
__global__ void __launch_bounds__(token_quant_threads(kChunks), token_quant_ctas(kChunks)) token_quant_kernel(TokenQuantParams const p) {
  constexpr int kElements = kChunkElements<In>;
  using Chunks = RowOfChunks<In, Activation, kAligned, (kChunks < 4), kWhole>;
  constexpr bool kFetchesAhead = kAligned && kResident && !kCluster && kChunks >= 4;
  constexpr bool kSums = kHasRowSums<Coding>;
  __shared__ RowReduction<typename Coding::Extent, kCluster> reduction;
  if constexpr (kCluster) cluster_arrive();

  uint32_t const ctas = kCluster ? cluster_size() : 1;
  uint32_t const row = kCluster ? cluster_index() : blockIdx.x;
  uint32_t const step = blockDim.x * ctas;
  uint32_t const first = (kCluster ? cluster_rank() * blockDim.x : 0) + threadIdx.x;
  Chunks const chunks{static_cast<In const*>(p.in) + row * p.in_stride, p.hidden, p.chunks};
  uint8_t* const out = p.out + row * p.out_stride;
  RawExtent<In, typename Coding::Extent> of_raw;
  float of_products = 0.0f;
  if constexpr (kChunks < 4) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) chunks.fetch(first + c * step);
  }
  if constexpr (kFetchesAhead) {
    if (p.ahead != 0 && threadIdx.x == 0 && row + p.ahead < p.rows) {
      fetch_row_to_l2(chunks.row + p.ahead * p.in_stride, p.chunks * (Activation::kGated ? 32 : 16));
    }
  }
  wait_for_predecessor();

  // Gated rows keep their products, others their loads.
  typename Chunks::Raw raw[kChunks];
  float products[Activation::kGated ? kChunks : 1][kElements];
  for (uint32_t base = first; base < p.chunks; base += step * kChunks) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) raw[c] = chunks.load(base + c * step);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if constexpr (Activation::kGated) {
        Chunks::values_of(raw[c], products[c]);
        of_products = fmaxf(of_products, absolute_maximum(products[c]));
      } else if (Coding::kSymmetric || chunks.inside(base + c * step)) {
        of_raw.extend(raw[c].chunk);
      }
    }
    if constexpr (kResident) break;
  }
  typename Coding::Extent extent;
  if constexpr (Activation::kGated) {
    extent = of_products;
  } else {
    extent = of_raw.value();
  }
  float const scale_ub = p.scale_ub == nullptr ? __int_as_float(0x7f800000) : *p.scale_ub;
  Coding const coding(reduction(extent, typename Coding::Reduction{}), scale_ub, p.least_step);
  if (first == 0) coding.store(p.scales, p.azps, row);
  constexpr bool kPlainE4M3 = std::is_same_v<Coding, SymmetricCoding<E4M3, Identity>> || std::is_same_v<Coding, SymmetricCoding<VllmE4M3, Identity>>;
  constexpr bool kShort = kPlainE4M3 && sizeof(In) == 2;
  std::conditional_t<kShort, ShortQuotient, float> const by_scale(coding.scale);

  [[maybe_unused]] int32_t sum = 0;
  for (uint32_t base = first; base < p.chunks; base += step * kChunks) {
    if constexpr (!kResident) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) raw[c] = chunks.load(base + c * step);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float loaded[kElements];
      auto& values = Activation::kGated ? products[Activation::kGated ? c : 0] : loaded;
      if constexpr (!Activation::kGated || !kResident) Chunks::values_of(raw[c], values);
      uint32_t words[kElements / 4];
      if constexpr (kShort) {
        by_scale.divide(values);
#pragma unroll
        for (int i = 0; i < kElements; i += 4) words[i / 4] = encode4(values[i], values[i + 1], values[i + 2], values[i + 3], typename Coding::Codes{});
      } else {
        coding.encode(values, words);
      }
      uint32_t const index = base + c * step;
      if (chunks.inside(index)) {
        store_codes<kAligned, kElements>(out, int64_t{index} * kElements, p.hidden, words);
        if constexpr (kSums) sum = sum_of_codes<kAligned>(words, p.hidden - int64_t{index} * kElements, sum);
      }
    }
    if constexpr (kResident) break;
  }
  if constexpr (kSums) {
    __shared__ RowReduction<int32_t, kCluster> reduction_of_sums;
    if constexpr (kCluster) cluster_arrive();
    sum = reduction_of_sums(sum, WholeSum{});
    if (first == 0) p.row_sums[row] = sum;
  }
}

struct TokenQuantShape {
  int chunks, threads, cluster;
  bool resident;
};

// Chunks a thread, threads a CTA and CTAs a row. Many rows: few threads with many chunks each, so that several CTAs share an
// SM and one loads while another reduces, and a reduction serves much. Few rows: as many threads as there are chunks, and
// where one CTA would issue more than 2048 loads, clusters. Measured on an H200.
inline TokenQuantShape token_quant_shape(gemmill_launch const& how, int64_t rows, int64_t chunks, int loads_per_chunk, bool symmetric,
                                         int most_ctas = kPortableCluster) {
  int const most_chunks = loads_per_chunk > 1 ? 4 : 8;
  constexpr int64_t kMostLoadsOfOneCta = 2048;
  TokenQuantShape shape{1, 0, 1, true};
  shape.cluster = cluster_for(rows, chunks * loads_per_chunk, kMostLoadsOfOneCta, 0, most_ctas, how.sm_count);
  int64_t const of_cta = ceil_divide(chunks, shape.cluster);
  bool const many = rows * shape.cluster > how.sm_count;
  int64_t const most_threads = many ? 256 * loads_per_chunk : kMostTokenQuantThreads;
  // Many large rows: a CTA should take long to load compared with its launch and its reductions.
  int64_t const loads = rows * chunks * loads_per_chunk;
  bool const wide = many && (symmetric ? is_large(loads, how.sm_count) : is_very_large(loads, how.sm_count));
  if (wide && chunks >= 256) shape.chunks = most_chunks;
  while (shape.chunks < 4 && of_cta > shape.chunks * most_threads) shape.chunks *= 2;
  int64_t const threads = ceil_divide(ceil_divide(of_cta, shape.chunks), 32) * 32;
  shape.resident = threads <= token_quant_threads(shape.chunks);
  shape.threads = static_cast<int>(shape.resident ? threads : kMostTokenQuantThreads);
  return shape;
}

template <class Variant, class In, class Activation, class Coding, int kChunks, bool kAligned, bool kResident>
int32_t launch_token_quant(TokenQuantParams const& p, TokenQuantShape shape, int64_t rows, gemmill_launch const& how) {
  if constexpr (kAligned && kChunks < 8) {
    if (shape.cluster > 1) {
      return launch<&token_quant_kernel<Variant, In, Activation, Coding, kChunks, kAligned, kResident, true, false>>(
          p, rows * shape.cluster, shape.threads, how, shape.cluster);
    }
  }
  if constexpr (kAligned && kResident && kChunks >= 4) {
    if (p.chunks == static_cast<uint32_t>(kChunks * shape.threads)) {
      return launch<&token_quant_kernel<Variant, In, Activation, Coding, kChunks, true, true, false, true>>(p, rows, shape.threads, how);
    }
  }
  return launch<&token_quant_kernel<Variant, In, Activation, Coding, kChunks, kAligned, kResident, false, false>>(p, rows, shape.threads, how);
}

// Rows of one CTA whose threads have eight chunks each. Products would not fit.
template <class Variant, class In, class Activation, class Coding>
int32_t launch_token_quant_wide(TokenQuantParams const& p, TokenQuantShape shape, int64_t rows, gemmill_launch const& how) {
  if constexpr (Activation::kGated) {
    return GEMMILL_CANNOT_IMPLEMENT;
  } else {
    return launch_token_quant<Variant, In, Activation, Coding, 8, true, true>(p, shape, rows, how);
  }
}

template <class Variant, class In, class Activation, class Coding>
int32_t token_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0) return cudaSuccess;
  if ((x.azp == nullptr) != Coding::kSymmetric || (x.row_sums != nullptr) != kHasRowSums<Coding>) return GEMMILL_CANNOT_IMPLEMENT;
  if (x.hidden == 0 && !Coding::kSymmetric) {  // the extent of nothing is no range
    cudaError_t error = cudaMemsetAsync(x.scales, 0, x.rows * sizeof(float), static_cast<cudaStream_t>(how.stream));
    if (error == cudaSuccess && kHasRowSums<Coding>) {
      error = cudaMemsetAsync(x.row_sums, 0, x.rows * sizeof(*x.row_sums), static_cast<cudaStream_t>(how.stream));
    }
    if (error != cudaSuccess) return error;
    return cudaMemsetAsync(x.azp, 0, x.rows * sizeof(*x.azp), static_cast<cudaStream_t>(how.stream));
  }
  int64_t const chunks = ceil_divide(x.hidden, kChunkElements<In>);
  int64_t const chunks_of_shape = chunks > 0 ? chunks : 1;  // rows without elements have scales too
  if (chunks > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  bool const aligned = rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden);
  constexpr int64_t kSlice = kMostChunks / kPortableCluster;
  for (int64_t row = 0; row < x.rows; row += kSlice) {
    int64_t const rows = x.rows - row < kSlice ? x.rows - row : kSlice;
    TokenQuantShape const shape = token_quant_shape(how, rows, chunks_of_shape, Activation::kGated ? 2 : 1, Coding::kSymmetric);
    // Where a row takes half an SM, the SM loads little during its reduction. Plain symmetric rows reduce quickly (H200, 2026-11-21).
    bool const fetches_ahead = (Activation::kGated || !Coding::kSymmetric) && shape.threads >= 448;
    TokenQuantParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<float*>(x.scales) + row, x.azp == nullptr ? nullptr : x.azp + row, x.row_sums == nullptr ? nullptr : x.row_sums + row, x.scale_ub,
        x.hidden, x.in_stride, x.out_stride, static_cast<uint32_t>(chunks), static_cast<uint32_t>(rows),
        fetches_ahead ? rows_ahead(how.sm_count, chunks * (Activation::kGated ? 32 : 16)) : 0,
        least_step_of(x.hidden),
    };
    int32_t const error =
        !aligned            ? launch_token_quant<Variant, In, Activation, Coding, 1, false, false>(p, shape, rows, how)
        : !shape.resident   ? launch_token_quant<Variant, In, Activation, Coding, 4, true, false>(p, shape, rows, how)
        : shape.chunks == 1 ? launch_token_quant<Variant, In, Activation, Coding, 1, true, true>(p, shape, rows, how)
        : shape.chunks == 2 ? launch_token_quant<Variant, In, Activation, Coding, 2, true, true>(p, shape, rows, how)
        : shape.chunks > 4  ? launch_token_quant_wide<Variant, In, Activation, Coding>(p, shape, rows, how)
                            : launch_token_quant<Variant, In, Activation, Coding, 4, true, true>(p, shape, rows, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
