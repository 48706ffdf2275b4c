// The common parameters and functions of all three kernels: the experts of pairs, elements, and codes of rows and groups.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/patience.cuh"
#include "fused_experts/workspace.h"
#include "coding/coding.cuh"

namespace gemmill::fused_moe {

inline constexpr int kMostWeights = 512;

// How one of the two GEMMs is dealt: `slices` warps of a CTA share a unit of 16 rows of weights.
struct Dealing {
  int32_t slices, blocks;  // blocks of rows of an expert, each of kWarps / slices units
};

struct Params {
  gemmill_fused_experts_args x;
  Workspace ws;
  Dealing up, down;
  int32_t groups_of_hidden, groups_of_inner;  // of 128 elements
  int64_t finished_count, summed_count;
};

// Which weights are a pair's; -1 for none. Read past L1: who asks may have begun before ids were there.
__device__ __forceinline__ int weights_of(gemmill_fused_experts_args const& x, int64_t pair) {
  int64_t const token = pair / x.topk, slot = pair - token * x.topk;
  int const expert = __ldcg(x.topk_ids + (token * x.ld_ids + slot) * x.id_words);
  if (expert < 0 || expert >= x.experts) return -1;
  int const weights = x.expert_map == nullptr ? expert : __ldcg(x.expert_map + expert);
  return weights >= 0 && weights < x.weights ? weights : -1;
}

__device__ __forceinline__ float router_weight(gemmill_fused_experts_args const& x, int pair) {
  int const token = pair / x.topk;
  return __ldcg(x.topk_weights + token * x.ld_weights + (pair - token * x.topk));
}

__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
template <class Half>
__device__ __forceinline__ Half of_float(float value) {
  if constexpr (std::is_same_v<Half, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

// Four elements that begin at a multiple of 8 bytes.
template <class Half>
__device__ __forceinline__ float4 four_of(Half const* from) {
  uint2 const words = *reinterpret_cast<uint2 const*>(from);
  Half elements[4];
  memcpy(elements, &words, 8);
  return {to_float(elements[0]), to_float(elements[1]), to_float(elements[2]), to_float(elements[3])};
}

__device__ __forceinline__ float largest_of(float4 v, float largest) {
  return fmaxf(fmaxf(fmaxf(largest, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));  // NaN does not count
}

using Coding = quant::SymmetricCoding<quant::E4M3, quant::Identity>;

__device__ __forceinline__ uint32_t word_of(Coding const& coding, float4 v) {
  float values[4] = {v.x, v.y, v.z, v.w};
  uint32_t word[1];
  coding.encode(values, word);
  return word[0];
}

// Codes and scale of 128 elements of a row of `length`, by one warp. `values(i)` gives the i-th four of the row.
template <class Values>
__device__ __forceinline__ void code_group(Values const& values, uint32_t* codes, int length, int group, float* scale) {
  int const piece = group * 32 + threadIdx.x % 32;
  bool const inside = piece * 4 < length;
  float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
  if (inside) v = values(piece);
  Coding const coding(quant::reduce_lanes<32>(largest_of(v, 0.0f), quant::Max{}), INFINITY);
  uint32_t const word = word_of(coding, v);
  if (inside) codes[piece] = word;
  if (threadIdx.x % 32 == 0) *scale = coding.scale;
}

// Codes and scale of a whole row, by a CTA or a warp.
template <int kThreads, class Values>
__device__ __forceinline__ void code_row(Values const& values, uint32_t* codes, int length, float* scale) {
  int const thread = threadIdx.x % kThreads;
  float largest = 0.0f;
  for (int piece = thread; piece * 4 < length; piece += kThreads) largest = largest_of(values(piece), largest);
  largest = quant::reduce_lanes<32>(largest, quant::Max{});
  if constexpr (kThreads > 32) {
    __shared__ float maxima[kThreads / 32];
    __syncthreads();
    if (thread % 32 == 0) maxima[thread / 32] = largest;
    __syncthreads();
    largest = maxima[0];
    for (int i = 1; i < kThreads / 32; ++i) largest = fmaxf(largest, maxima[i]);
  }
  Coding const coding(largest, INFINITY);
  for (int piece = thread; piece * 4 < length; piece += kThreads) codes[piece] = word_of(coding, values(piece));
  if (thread == 0) *scale = coding.scale;
}

}  // namespace gemmill::fused_moe
