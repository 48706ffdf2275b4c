// What the last of three launches ends with, whatever its main loop is: parts of a token's experts are summed by whoever stored the
// last of them. FusedExperts has the same for a whole CTA: its machine code stays what was measured.
#pragma once

#include "fused_moe/params.cuh"

namespace gemmill::fused_moe {

// Says of the rows of a tile that a block of their columns is stored; sums those of tokens that now have all, in the order of their
// experts. Called by `kThreads` threads, of which each knows its number; `meet` waits for them all.
template <class Half, int kTokens, int kThreads, class Meet>
__device__ __forceinline__ void sum_stored(Params const& p, int first, int count, int block, int columns, int thread, Meet const& meet) {
  __shared__ int whole[kTokens];  // the token, or -1
  auto const& x = p.x;
  __threadfence();
  meet();
  if (thread < count) {
    int const token = p.ws.order[first + thread] / x.topk;
    int const before = atomicAdd(p.ws.summed + int64_t(token) * p.down.blocks + block, 1);
    whole[thread] = before + 1 == p.ws.needed[token] ? token : -1;
  }
  meet();
  __threadfence();
  for (int i = thread; i < count * columns; i += kThreads) {
    int const token = whole[i / columns], n = block * columns + i % columns;
    if (token < 0 || n >= x.hidden) continue;
    float sum = 0.0f;
    for (int slot = 0; slot < x.topk; ++slot) {
      int64_t const pair = int64_t(token) * x.topk + slot;
      if (p.ws.local[pair] >= 0) sum += __ldcg(p.ws.parts + pair * x.hidden + n);
    }
    Half* const out = static_cast<Half*>(x.out) + token * x.ldout + n;
    *out = of_float<Half>(x.adds ? __fadd_rn(to_float(*out), sum) : sum);
  }
}

}  // namespace gemmill::fused_moe
