// Keys or values to packed vectors, in any format as a run-time argument (vector_coding.cuh): a warp takes a vector at a time.
//
// Element 32 k + l of a vector is lane l's. Codes pass through shared memory, a byte each, and become packed there. A vector whose slot
// the packed tensor has not is not stored.
#pragma once

#include <algorithm>

#include "kv_cache/abi.h"
#include "kv_cache/shared/bulk_copy.cuh"
#include "kv_cache/shared/combine_slices.cuh"
#include "kv_cache/shared/projection.cuh"
#include "kv_cache/shared/vector_coding.cuh"

namespace gemmill::kv_cache {

constexpr int kPackThreads = 256;
template <int kHeadDim>
constexpr int kPackBlocks = kHeadDim > 256 ? 2 : 4;  // of an SM, as registers allow

template <int kHeadDim>
struct VectorsParams {
  gemmill_kv_vectors_args args;
  VectorCoding coding;
  Signs<kHeadDim> signs;
  Projection projection;
};

__device__ __forceinline__ float least_of_warp(float x) { return -largest_of_warp(-x); }

// Where packed vectors of a call lie.
__device__ __forceinline__ uint8_t* packed_at(gemmill_kv_vectors_args const& args, int64_t token, int64_t head) {
  int64_t const slot = args.slots == nullptr ? token : args.slots[token];
  if (slot < 0 || slot >= args.slot_count) return nullptr;
  return args.packed + slot * args.packed_slot_stride + head * args.packed_head_stride;
}

// Bytes of a stream of codes from one byte for each.
template <int kHeadDim>
__device__ __forceinline__ void put_codes(uint8_t* to, uint8_t const* codes, int bits) {
  for (int byte = threadIdx.x % 32; byte < kHeadDim * bits / 8; byte += 32) {
    uint32_t packed = 0;
    for (int j = 8 * byte / bits; j * bits < 8 * byte + 8; ++j) {
      int const shift = j * bits - 8 * byte;
      packed |= shift >= 0 ? codes[j] << shift : codes[j] >> -shift;
    }
    to[byte] = static_cast<uint8_t>(packed);
  }
}

// Centroids to where lanes may look up different ones.
__device__ __forceinline__ void share_centroids(Book const& book, float* centroids) {
  if (threadIdx.x < 16) centroids[threadIdx.x] = book.centroids[threadIdx.x];
  __syncthreads();
}

// Codes by centroids and the scalars behind them.
template <int kHeadDim>
__device__ __forceinline__ void pack_centroids(VectorsParams<kHeadDim> const& params, float const* centroids, uint8_t* to,
                                               uint8_t* codes, float const (&x)[kHeadDim / 32]) {
  constexpr int kOwn = kHeadDim / 32;
  VectorCoding const& coding = params.coding;
  int const lane = threadIdx.x % 32, levels = 1 << coding.bits;
  float y[kOwn], square = 0.0f, product = 0.0f;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) y[k] = x[k], square += x[k] * x[k];
  turn<kHeadDim>(y, coding.rotation, params.signs);
  float norm = sqrtf(sum_of_warp(square));
  bool const is_finite = norm < INFINITY, is_usable = is_finite && norm > 0.0f;
  float const divisor = coding.method == kUnitCentroids ? norm + kUnitNormFloor : norm;
  float const inverse = is_usable ? kInverseRoot<kHeadDim> / divisor : 0.0f;
  float decoded[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    float const unit = is_usable ? y[k] * inverse : 0.0f;
    int code = 0;
    for (int i = 0; i < levels - 1; ++i) code += unit >= coding.book.boundaries[i];
    code = is_finite ? code : 0;
    codes[32 * k + lane] = static_cast<uint8_t>(code);
    decoded[k] = centroids[code];
    product += unit * decoded[k];
  }
  product = sum_of_warp(product);
  if (coding.method == kEden && is_usable) norm /= product;
  __syncwarp();
  put_codes<kHeadDim>(to, codes, coding.bits);
  put_scalar(to + coding.scalars, norm);
  if (coding.has_signs()) {
    float const stored = to_float(__float2half_rn(norm));
    float residual[kOwn], projected[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) decoded[k] *= stored;
    turn_back<kHeadDim>(decoded, coding.rotation, params.signs);
    square = 0.0f;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) residual[k] = x[k] - decoded[k], square += residual[k] * residual[k];
    projected_of_warp<kHeadDim>(projected, params.projection.columns, residual);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      uint32_t const word = __ballot_sync(0xFFFFFFFFu, projected[k] >= 0.0f);
      if (lane < 4) to[coding.code_bytes + 4 * k + lane] = static_cast<uint8_t>(word >> 8 * lane);
    }
    float const size = sqrtf(sum_of_warp(square));
    put_scalar(to + coding.scalars + 2, size);
  }
  __syncwarp();  // codes are free
}

// vLLM's values: steps from the least to the largest element, truncated after the addition of a half.
template <int kHeadDim>
__device__ __forceinline__ void pack_uniform(VectorCoding const& coding, uint8_t* to, uint8_t* codes,
                                             float const (&x)[kHeadDim / 32]) {
  constexpr int kOwn = kHeadDim / 32;
  int const lane = threadIdx.x % 32;
  float const largest_code = static_cast<float>((1 << coding.bits) - 1);
  float largest = -INFINITY, least = INFINITY;
  bool has_nan = false;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    largest = fmaxf(largest, x[k]), least = fminf(least, x[k]), has_nan = has_nan || std::isnan(x[k]);
  }
  largest = largest_of_warp(largest), least = least_of_warp(least);
  if (__any_sync(0xFFFFFFFFu, has_nan)) largest = least = NAN;
  float const step = (largest - least) / largest_code, scale = step > kUniformLeastScale ? step : kUniformLeastScale;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    float const steps = (x[k] - least) / scale + 0.5f;
    codes[32 * k + lane] = static_cast<uint8_t>(steps > 0.0f ? fminf(steps, largest_code) : 0.0f);
  }
  __syncwarp();
  put_codes<kHeadDim>(to, codes, coding.bits);
  put_scalar(to + coding.scalars, scale), put_scalar(to + coding.scalars + 2, least);
  __syncwarp();
}

// UltraQuant's: scale 2^floor(log2(0.156 largest) + 1/2) for each 32, and a value halfway between two takes the lower one.
template <int kHeadDim>
__device__ __forceinline__ void pack_e2m1(VectorsParams<kHeadDim> const& params, uint8_t* to, uint8_t* codes,
                                          float const (&x)[kHeadDim / 32]) {
  constexpr int kOwn = kHeadDim / 32;
  constexpr float kMiddles[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  VectorCoding const& coding = params.coding;
  int const lane = threadIdx.x % 32;
  float y[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) y[k] = x[k];
  turn<kHeadDim>(y, coding.rotation, params.signs);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    float const own = coding.rotation == kNone ? y[k] : y[k] * kInverseRoot<kHeadDim>;
    bool const has_nan = __any_sync(0xFFFFFFFFu, std::isnan(own));
    float const largest = has_nan ? NAN : largest_of_warp(fabsf(own));
    float const exponent = floorf(log2f(largest == 0.0f ? 1.0f : largest * kE2m1ShareOfLargest) + 0.5f);
    float const quotient = has_nan ? NAN : own / exp2f(exponent);
    int rank = 0;
    for (float const middle : kMiddles) rank += (quotient > middle) + (quotient > -middle);
    if (largest == 0.0f) rank = 7;
    codes[32 * k + lane] = static_cast<uint8_t>(rank < 7 ? 15 - rank : rank - 7);
    float const scale = largest == 0.0f || exponent < -kUe8m0Bias ? 0.0f : exponent + kUe8m0Bias;
    if (lane == 0) to[coding.scalars + k] = static_cast<uint8_t>(largest < INFINITY ? scale : kUe8m0Nan);
  }
  __syncwarp();
  put_codes<kHeadDim>(to, codes, coding.bits);
  __syncwarp();
}

// Grid: as many blocks as the device holds.
template <class Variant, class Element, int kHeadDim>
__global__ void __launch_bounds__(kPackThreads, kPackBlocks<kHeadDim>)
    pack_vectors(__grid_constant__ VectorsParams<kHeadDim> const params) {
  constexpr int kOwn = kHeadDim / 32;
  extern __shared__ __align__(128) uint8_t shared[];
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const centroids = reinterpret_cast<float*>(shared);
  uint8_t* const codes = shared + kCentroidsBytes + warp * kHeadDim;
  share_centroids(params.coding.book, centroids);
  wait_for_predecessor();
  int64_t const count = args.tokens * args.heads;
  for (int64_t vector = blockIdx.x * (kPackThreads / 32) + warp; vector < count; vector += gridDim.x * (kPackThreads / 32)) {
    int64_t const token = vector / args.heads, head = vector % args.heads;
    uint8_t* const to = packed_at(args, token, head);
    if (to == nullptr) continue;
    Element const* const from = static_cast<Element const*>(args.vectors) + token * args.token_stride + head * args.head_stride;
    float x[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) x[k] = to_float(from[32 * k + lane]);
    if (params.coding.has_centroids()) {
      pack_centroids<kHeadDim>(params, centroids, to, codes, x);
    } else if (params.coding.method == kUniform) {
      pack_uniform<kHeadDim>(params.coding, to, codes, x);
    } else if (params.coding.method == kE2m1) {
      pack_e2m1<kHeadDim>(params, to, codes, x);
    } else {
      float const scale = scale_of_head(args.scales, head);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) to[32 * k + lane] = static_cast<uint8_t>(to_e4m3(x[k] / scale));
    }
  }
}

// Host code: launches; the projection is made first where a format has signs.
template <int kHeadDim>
int64_t vectors_workspace(gemmill_kv_vectors_args const& args) {
  return coding_of<kHeadDim>(args.format, args.of_values != 0, Books{}).has_signs() ? kProjectionBytes<kHeadDim> : 0;
}

// Vectors that come rotated keep their basis. The kernel's factor of d^-1/2 makes their units too small: boundaries become as small, and
// centroids as much larger, so that products of both stay.
template <int kHeadDim>
void keep_rotated(VectorCoding& coding) {
  coding.rotation = kNone;
  for (float& boundary : coding.book.boundaries) boundary *= kInverseRoot<kHeadDim>;
  for (float& centroid : coding.book.centroids) centroid /= kInverseRoot<kHeadDim>;
}

template <class Variant, int kHeadDim, auto entry>
int32_t launch_vectors(gemmill_kv_vectors_args const& args, gemmill_launch const& how, Books const& books, int shared_bytes) {
  if (args.tokens == 0 || args.heads == 0) return 0;
  VectorCoding coding = coding_of<kHeadDim>(args.format, args.of_values != 0, books);
  if (args.seed < 0) keep_rotated<kHeadDim>(coding);
  VectorsParams<kHeadDim> params{args, coding, signs_of<kHeadDim>(coding, args.seed), {}};
  if (coding.has_signs()) {
    int32_t const error = launch_projection<Variant, kHeadDim>(args.seed, how.workspace, how, params.projection);
    if (error != 0) return error;
  }
  int64_t const needed = (args.tokens * args.heads + kPackThreads / 32 - 1) / (kPackThreads / 32);
  int64_t const held = static_cast<int64_t>(how.sm_count) * kPackBlocks<kHeadDim>;
  LaunchShape const shape{dim3(static_cast<unsigned>(std::min(needed, held))), dim3(kPackThreads), dim3(1), shared_bytes};
  void* parameters[] = {&params};
  return launch_kernel<entry>(shape, how, parameters);
}

template <class Variant, class Element, int kHeadDim>
int32_t pack(gemmill_kv_vectors_args const& args, gemmill_launch const& how, Books const& books) {
  return launch_vectors<Variant, kHeadDim, pack_vectors<Variant, Element, kHeadDim>>(args, how, books,
                                                                                 kCentroidsBytes + kPackThreads / 32 * kHeadDim);
}

}  // namespace gemmill::kv_cache
