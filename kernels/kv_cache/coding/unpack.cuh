// Packed vectors of any format to plain ones, rotated back: a warp takes a vector at a time. A slot that the packed tensor has not
// gives zeros.
#pragma once

#include "kv_cache/coding/pack.cuh"

namespace gemmill::kv_cache {

// Element 32 k + l of a packed vector in its stored basis, without its rotation or its signs.
template <int kHeadDim>
__device__ __forceinline__ void stored_of_warp(float (&y)[kHeadDim / 32], VectorCoding const& coding, float const* centroids,
                                               uint8_t const* from, float of_head) {
  constexpr int kOwn = kHeadDim / 32;
  int const lane = threadIdx.x % 32;
  float factor = 1.0f, zero = 0.0f, square = 0.0f;
  if (coding.has_centroids() || coding.method == kUniform) factor = scalar_at(from + coding.scalars);
  if (coding.method == kUniform) zero = scalar_at(from + coding.scalars + 2);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    uint32_t const code = code_at(from, coding.bits, 32 * k + lane);
    switch (coding.method) {
      case kUniform: y[k] = static_cast<float>(code) * factor + zero; break;
      case kE2m1: y[k] = of_e2m1(code) * of_ue8m0(from[coding.scalars + k]); break;
      case kE4m3: y[k] = of_e4m3(code) * of_head; break;
      default: y[k] = centroids[code], square += y[k] * y[k];
    }
  }
  if (!coding.has_centroids()) return;
  if (coding.method == kUnitCentroids) factor /= sqrtf(sum_of_warp(square) + kUnitSquareFloor);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) y[k] *= factor;
}

// Grid: as many blocks as the device holds.
template <class Variant, class Element, int kHeadDim>
__global__ void __launch_bounds__(kPackThreads, kPackBlocks<kHeadDim>)
    unpack_vectors(__grid_constant__ VectorsParams<kHeadDim> const params) {
  constexpr int kOwn = kHeadDim / 32;
  extern __shared__ __align__(128) uint8_t shared[];
  float* const centroids = reinterpret_cast<float*>(shared);
  auto const& args = params.args;
  VectorCoding const& coding = params.coding;
  int const lane = threadIdx.x % 32;
  share_centroids(coding.book, centroids);
  wait_for_predecessor();
  int64_t const count = args.tokens * args.heads;
  int64_t const first = blockIdx.x * (kPackThreads / 32) + threadIdx.x / 32;
  for (int64_t vector = first; vector < count; vector += gridDim.x * (kPackThreads / 32)) {
    int64_t const token = vector / args.heads, head = vector % args.heads;
    uint8_t const* const from = packed_at(args, token, head);
    float y[kOwn] = {};
    if (from != nullptr) {
      stored_of_warp<kHeadDim>(y, coding, centroids, from, scale_of_head(args.scales, head));
      turn_back<kHeadDim>(y, coding.rotation, params.signs);
      if (coding.has_signs()) {
        float const share = kSignShare<kHeadDim> * scalar_at(from + coding.scalars + 2);
        float signs[kOwn], sum[kOwn];
#pragma unroll
        for (int k = 0; k < kOwn; ++k) signs[k] = code_at(from + coding.code_bytes, 1, 32 * k + lane) != 0 ? 1.0f : -1.0f;
        projected_of_warp<kHeadDim>(sum, params.projection.rows, signs);
#pragma unroll
        for (int k = 0; k < kOwn; ++k) y[k] += share * sum[k];
      }
    }
    Element* const to = static_cast<Element*>(args.vectors) + token * args.token_stride + head * args.head_stride;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) to[32 * k + lane] = to_element<Element>(y[k]);
  }
}

template <class Variant, class Element, int kHeadDim>
int32_t unpack(gemmill_kv_vectors_args const& args, gemmill_launch const& how, Books const& books) {
  return launch_vectors<Variant, kHeadDim, unpack_vectors<Variant, Element, kHeadDim>>(args, how, books, kCentroidsBytes);
}

}  // namespace gemmill::kv_cache
