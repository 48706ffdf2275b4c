// The router of a mixture of experts in one launch: each token's logits, and the topk largest of their softmax.
//
// A cluster of eight CTAs takes 16 tokens, and each of its CTAs an eighth of the experts. Warps divide K among them: tokens are the rows of
// mma.sync, experts its columns. A lane reads 16 bytes of a row, eight values along K, which are four of either of two instructions: both
// operands have them at the same places. Sums of warps meet in shared memory, in the order of warps, and round to logits. These go to
// the CTA that has the token, where a warp takes the largest one after another.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/util.hpp"
#include "cutlass/arch/barrier.h"
#include "coding/reduce.cuh"
#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "gemm/warp_products.cuh"
#include "routing/abi.h"

namespace gemmill::routing {

inline constexpr int kTokens = 16, kCtas = 8, kWarps = 8, kThreads = kWarps * 32, kOwned = kTokens / kCtas;
inline constexpr int kMostExperts = 512, kMostOfCta = kMostExperts / kCtas, kMostTopk = 32;
inline constexpr int kPitch = kMostOfCta + 4;
inline constexpr int kStep = kWarps * 32;  // elements of K from a warp's block to its next
inline constexpr int kFewClusters = 12;     // that have room at once where a multiprocessor has one CTA

struct SharedStorage {
  float sums[kWarps][kTokens][kPitch];
  float logits[kOwned][kMostExperts];  // of this CTA's tokens
  cutlass::arch::ClusterTransactionBarrier have_logits;
};

// A lane's eight values along K of a row, and zeros beyond its end.
template <class Half>
__device__ __forceinline__ uint4 eight_of(Half const* row, int k, int hidden) {
  uint4 const found = *reinterpret_cast<uint4 const*>(row + min(k, hidden - 8));
  return k < hidden ? found : uint4{0, 0, 0, 0};
}

// A warp's sums over its blocks of 32 along K, of 16 tokens and 16 experts; it loads kAhead of them at once. Rows beyond the last stand
// for it: their sums are not stored.
template <class Half, int kAhead>
__device__ void sum_products(gemmill_router_topk_args const& p, int token, int expert, float (&sums)[2][4]) {
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp * 32 + lane % 4 * 8;
  Half const *tokens[2], *experts[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    tokens[i] = static_cast<Half const*>(p.x) + min(token + lane / 4 + 8 * i, p.tokens - 1) * p.ldx;
    experts[i] = static_cast<Half const*>(p.weight) + min(expert + lane / 4 + 8 * i, p.experts - 1) * p.ldw;
  }
  for (int from = first; from < p.hidden + lane % 4 * 8; from += kAhead * kStep) {  // as often for all lanes
    uint4 a[kAhead][2], b[kAhead][2];
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        b[ahead][i] = eight_of(experts[i], from + ahead * kStep, p.hidden);
        a[ahead][i] = eight_of(tokens[i], from + ahead * kStep, p.hidden);
      }
    }
    __syncwarp();  // all are requested before the first is multiplied: no load moves behind it
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      uint4 const(&rows)[2] = a[ahead];
      uint32_t const low[4] = {rows[0].x, rows[1].x, rows[0].y, rows[1].y}, high[4] = {rows[0].z, rows[1].z, rows[0].w, rows[1].w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        blockscaled::multiply_warp<Half>(sums[i], low, b[ahead][i].x, b[ahead][i].y);
        blockscaled::multiply_warp<Half>(sums[i], high, b[ahead][i].z, b[ahead][i].w);
      }
    }
  }
}

// Order of floats as integers, 0 for none. NaN is larger than any number.
__device__ __forceinline__ uint32_t key_of(float value) {
  uint32_t const bits = __float_as_uint(isnan(value) ? __uint_as_float(0x7FFFFFFF) : value + 0.0f);  // -0 is 0
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}
__device__ __forceinline__ float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000 ? key & 0x7FFFFFFF : ~key); }

// A warp takes a token's largest logits, of equal ones the expert of the lower number, and stores their weights.
template <int kEach>
__device__ void take_largest(gemmill_router_topk_args const& p, float const* logits, int token) {
  int const lane = threadIdx.x % 32;
  uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = lane + 32 * i < p.experts ? key_of(logits[lane + 32 * i]) : 0;
  float own = 0.0f, largest = 0.0f;
  int id = 0;
  for (int taken = 0; taken < p.topk; ++taken) {
    uint32_t best = keys[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) best = max(best, keys[i]);
    best = __reduce_max_sync(~0u, best);
    int expert = kMostExperts;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) expert = keys[i] == best ? lane + 32 * i : expert;
    expert = static_cast<int>(__reduce_min_sync(~0u, static_cast<unsigned>(expert)));
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = lane + 32 * i == expert ? 0 : keys[i];
    if (taken == 0) largest = value_of(best);
    if (lane == taken) own = expf(value_of(best) - largest), id = expert;
  }
  float all = 0.0f;
  if (p.renormalize) {
    all = own;
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) all += lane + 32 * i < p.experts ? expf(logits[lane + 32 * i] - largest) : 0.0f;
  }
  all = quant::reduce_lanes<32>(all, quant::Sum{});
  if (lane >= p.topk) return;
  p.topk_weights[token * p.ld_weights + lane] = own / all;
  p.topk_ids[token * p.ld_ids + lane] = p.is_padding != nullptr && p.is_padding[token] ? -1 : id;
}

template <class Half, int kAhead>
__device__ void route(gemmill_router_topk_args const& p, SharedStorage& storage) {
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % kCtas;
  int const share = (p.experts + kCtas * 8 - 1) / (kCtas * 8) * 8, first = rank * share, token = blockIdx.x / kCtas * kTokens;
  int const own = token + rank * kOwned;  // the first of this CTA's
  if (threadIdx.x == 0) {
    storage.have_logits.init(1);
    storage.have_logits.arrive_and_expect_tx(max(0, min(kOwned, p.tokens - own)) * p.experts * sizeof(float));
    cutlass::arch::fence_barrier_init();
  }
  __syncwarp();
  cute::cluster_arrive_relaxed();
  wait_for_predecessor();
  for (int expert = 0; expert < share && first + expert < p.experts; expert += 16) {
    float sums[2][4] = {};
    sum_products<Half, kAhead>(p, token, first + expert, sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        int const column = expert + i * 8 + lane % 4 * 2 + j % 2;
        if (column < kMostOfCta) storage.sums[warp][lane / 4 + j / 2 * 8][column] = sums[i][j];
      }
    }
  }
  cute::cluster_wait();  // all CTAs have begun, so one may store to another
  __syncthreads();
  for (int i = threadIdx.x; i < kTokens * share; i += kThreads) {
    int const row = i / share, column = i % share, expert = first + column;
    if (token + row >= p.tokens || expert >= p.experts) continue;
    float sum = storage.sums[0][row][column];
#pragma unroll
    for (int j = 1; j < kWarps; ++j) sum += storage.sums[j][row][column];
    Half const logit(sum);
    static_cast<Half*>(p.logits)[(token + row) * p.ldl + expert] = logit;
    cute::store_shared_remote(__float_as_uint(float(logit)), cute::cast_smem_ptr_to_uint(&storage.logits[row % kOwned][expert]),
                              cute::cast_smem_ptr_to_uint(&storage.have_logits), row / kOwned);
  }
  if (warp >= kOwned || own + warp >= p.tokens) return;
  storage.have_logits.wait(0);
  float const* const logits = storage.logits[warp];
  p.experts <= 128   ? take_largest<4>(p, logits, own + warp)
  : p.experts <= 256 ? take_largest<8>(p, logits, own + warp)
                     : take_largest<16>(p, logits, own + warp);
}

// Host code: the launch.
template <auto few, auto many>
int32_t launch_router(gemmill_router_topk_args args, gemmill_launch const& how) {
  if (args.experts > kMostExperts || args.topk > kMostTopk || args.topk > args.experts) return GEMMILL_CANNOT_IMPLEMENT;
  unsigned const clusters = (static_cast<unsigned>(args.tokens) + kTokens - 1) / kTokens;
  LaunchShape const shape{dim3(clusters * kCtas), dim3(kThreads), dim3(kCtas), 0};
  void* parameters[] = {&args};
  return clusters <= kFewClusters ? launch_kernel<few>(shape, how, parameters) : launch_kernel<many>(shape, how, parameters);
}

}  // namespace gemmill::routing
