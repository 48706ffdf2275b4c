// The deal of tokens to blocks where slices are free: by the lengths of sequences, which lie on the device, so that the host knows the
// longest alone. Every block derives the same deal, and its own slice.
//
// Each sequence has slices of about the same length, at most a share of stages; a slice has a block for each KV head and tile of rows. Of
// shares between that of all sequences together and the longest sequence, each warp tries some: the block takes the one of the least time.
#pragma once

#include <cstdint>

#include "kv_cache/bulk_copy.cuh"

namespace gemmill::kv_cache {

struct LengthDeal {
  int2* of_sequence;    // [batch]: the number of the first slice, and how many there are; for the second launch
  int slices;           // of all sequences, at most; each has one at least
  int blocks_of_slice;  // KV heads, or groups of them, times tiles of rows
  int capacity;         // blocks that the device holds at a time
};

// A block's slice of a sequence. No block has one from the number of all slices on.
struct DealtSlice {
  int batch, slice, slices;
  bool exists;
};

constexpr int kSharesOfWarp = 2;  // that a warp tries
constexpr int deal_bytes(int warps) { return warps * kSharesOfWarp * 8; }

__device__ __forceinline__ unsigned slices_of_share(unsigned stages, unsigned share) { return max((stages + share - 1) / share, 1u); }

// The share of the least time. `stages_of` tells those of a sequence, `start` is how many a block could take while it starts and ends;
// `tried` has `deal_bytes` of shared memory. All threads of the block call it.
template <int kWarps, class StagesOf>
__device__ __forceinline__ unsigned share_of(LengthDeal const& deal, int batch, int start, StagesOf const& stages_of, uint2* tried) {
  constexpr int kTried = kWarps * kSharesOfWarp;
  static_assert(kTried <= 64, "A number of six bits tells which.");
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned total = 0, longest = 1;
  for (int i = lane; i < batch; i += 32) {
    unsigned const stages = stages_of(i);
    total += stages, longest = max(longest, stages);
  }
  total = __reduce_add_sync(0xFFFFFFFFu, total), longest = __reduce_max_sync(0xFFFFFFFFu, longest);
  float const least = fmaxf(static_cast<float>(total) / static_cast<float>(deal.slices), 1.0f);
  float const step = log2f(fmaxf(static_cast<float>(longest) / least, 1.0f)) / static_cast<float>(kTried - 1);
#pragma unroll
  for (int which = warp * kSharesOfWarp; which < (warp + 1) * kSharesOfWarp; ++which) {
    unsigned const wanted = static_cast<unsigned>(ceilf(least * exp2f(step * static_cast<float>(which))));
    unsigned const share = which == kTried - 1 ? longest : min(max(wanted, 1u), longest);
    unsigned slices = 0, most = 0;
    for (int i = lane; i < batch; i += 32) {
      unsigned const stages = stages_of(i), own = slices_of_share(stages, share);
      slices += own, most = max(most, (stages + own - 1) / own);
    }
    slices = __reduce_add_sync(0xFFFFFFFFu, slices), most = __reduce_max_sync(0xFFFFFFFFu, most);
    // One round takes as long as its longest block; of several all blocks share the device, and the last ones end apart.
    float const blocks = static_cast<float>(slices) * static_cast<float>(deal.blocks_of_slice), capacity = static_cast<float>(deal.capacity);
    float const all = (blocks * static_cast<float>(start) + static_cast<float>(total) * static_cast<float>(deal.blocks_of_slice)) / capacity;
    float const time = blocks <= capacity ? static_cast<float>(start + static_cast<int>(most)) : all + 0.5f * static_cast<float>(most);
    bool const fits = slices <= static_cast<unsigned>(deal.slices);
    if (lane == 0) tried[which] = make_uint2(fits ? __float_as_uint(time) & ~63u | which : 0xFFFFFFFFu, share);
  }
  __syncthreads();
  unsigned best = 0xFFFFFFFFu;
  for (int i = lane; i < kTried; i += 32) best = min(best, tried[i].x);
  best = __reduce_min_sync(0xFFFFFFFFu, best);
  return tried[best % 64].y;
}

// The slice of this block. A sequence's first block tells the second launch where its slices are.
template <int kWarps, class StagesOf>
__device__ __forceinline__ DealtSlice deal_by_length(LengthDeal const& deal, int batch, int start, StagesOf const& stages_of, uint2* tried) {
  int const lane = threadIdx.x % 32, wanted = static_cast<int>(blockIdx.x / static_cast<uint32_t>(deal.blocks_of_slice));
  unsigned const share = share_of<kWarps>(deal, batch, start, stages_of, tried);
  int before = 0;
  for (int first = 0; first < batch; first += 32) {
    int const own = first + lane < batch ? static_cast<int>(slices_of_share(stages_of(first + lane), share)) : 0;
    int end = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      int const other = __shfl_up_sync(0xFFFFFFFFu, end, distance);
      if (lane >= distance) end += other;
    }
    unsigned const reached = __ballot_sync(0xFFFFFFFFu, before + end > wanted);
    if (reached != 0) {
      int const from = __ffs(reached) - 1, slices = __shfl_sync(0xFFFFFFFFu, own, from);
      int const begin = before + __shfl_sync(0xFFFFFFFFu, end, from) - slices;
      DealtSlice const found{first + from, wanted - begin, slices, true};
      if (found.slice == 0 && threadIdx.x == 0 && blockIdx.x % static_cast<uint32_t>(deal.blocks_of_slice) == 0) {
        deal.of_sequence[found.batch] = make_int2(begin, slices);
      }
      return found;
    }
    before += __shfl_sync(0xFFFFFFFFu, end, 31);
  }
  return {0, 0, 1, false};
}

}  // namespace gemmill::kv_cache
