// The deal of a batch's tokens to blocks by the lengths of its sequences, which lie on the device: the host knows the longest alone. Every
// block derives the same deal, and its own part.
//
// Each sequence has as many parts as its stages have shares of a size that is one for all; a part has a block for each KV head and tile of
// rows. Of shares between that of all sequences together and the longest sequence, each warp tries some, and the block takes the one of the
// least time. Quotients are of floats: equal on every block, they need not be exact.
#pragma once

#include <cstdint>

#include "kv_cache/combine_slices.cuh"

namespace gemmill::kv_cache {

struct LengthDeal {
  int2* of_sequence;   // [batch]: the number of its first part and how many there are, for the second launch; null: it does not ask
  int parts;           // of all sequences, at most; each has one at least
  int blocks_of_part;  // KV heads, or groups of them, times tiles of rows
  int capacity;        // blocks that the device holds at a time
};

// A block's part of a sequence. No block has one from the number of all parts on.
struct DealtPart {
  int batch, part, parts;
  bool exists;
};

constexpr int tried_shares(int warps) { return warps < 16 ? 2 * warps : warps; }
constexpr int deal_bytes(int warps) { return tried_shares(warps) * 8; }

// A part is a slice: as many stages as any of the sequence's.
struct FreeParts {
  float start;  // stages in whose time a block starts and ends

  __device__ __forceinline__ float of(float stages, float of_share) const { return fmaxf(ceilf(stages * of_share), 1.0f); }
  __device__ __forceinline__ float work(float stages) const { return stages; }
  __device__ __forceinline__ float time(float stages, float parts) const { return ceilf(stages / parts); }
};

// A part is a run of slices of each of `groups` groups of warps; a sequence has `slices`, of `least` stages at least (slices.h).
struct FixedParts {
  float start, slices, least, groups, sum;  // `sum`: stages in whose time a group sums up a slice
  bool are_apart = false;                   // each slice is a part

  __device__ __forceinline__ float of_slice(float stages) const { return fmaxf(ceilf(stages / slices), least); }
  __device__ __forceinline__ float filled(float stages) const { return fmaxf(ceilf(stages / of_slice(stages)), 1.0f); }
  __device__ __forceinline__ float of(float stages, float of_share) const {
    return are_apart ? filled(stages) : fminf(fmaxf(ceilf(stages * of_share), 1.0f), filled(stages));
  }
  __device__ __forceinline__ float work(float stages) const { return stages + filled(stages) * sum; }
  __device__ __forceinline__ float time(float stages, float parts) const {
    float const own = ceilf(filled(stages) / parts), run = ceilf(own / groups);
    return run * (of_slice(stages) + sum) * fmaxf(fminf(own, groups), 0.5f * groups);
  }
};

// How many shares of so many stages a stage is: a little less, so that whole shares stay whole.
__device__ __forceinline__ float inverse_of(float share) { return 0.999999f / share; }

// The inverse of the share of the least time. `stages_of` tells those of a sequence; `tried` has `deal_bytes` of shared memory, free again
// at the end. All threads of the block call it.
template <int kWarps, class Kind, class StagesOf>
__device__ __forceinline__ float share_of(LengthDeal const& deal, Kind const& kind, int batch, StagesOf const& stages_of, uint2* tried) {
  constexpr int kTried = tried_shares(kWarps), kOfWarp = kTried / kWarps;
  static_assert(kTried <= 32, "A lane reads one, and five bits of a time tell which.");
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float total = 0.0f, work = 0.0f, longest = 1.0f;
  for (int i = lane; i < batch; i += 32) {
    float const stages = stages_of(i);
    total += stages, work += kind.work(stages), longest = fmaxf(longest, stages);
  }
  total = sum_of_warp(total), work = sum_of_warp(work), longest = largest_of_warp(longest);
  float const least = fmaxf(total / static_cast<float>(deal.parts), 1.0f), blocks_of_part = static_cast<float>(deal.blocks_of_part);
  float const step = log2f(fmaxf(longest / least, 1.0f)) / static_cast<float>(kTried - 1), capacity = static_cast<float>(deal.capacity);
#pragma unroll
  for (int which = warp * kOfWarp; which < (warp + 1) * kOfWarp; ++which) {
    float const inverse = inverse_of(which == kTried - 1 ? longest : least * exp2f(step * static_cast<float>(which)));
    float parts = 0.0f, most = 0.0f;
    for (int i = lane; i < batch; i += 32) {
      float const stages = stages_of(i), own = kind.of(stages, inverse);
      parts += own, most = fmaxf(most, kind.time(stages, own));
    }
    parts = sum_of_warp(parts), most = largest_of_warp(most);
    // A round takes as long as its longest block; of several all blocks share the device, and the last ones end apart.
    float const blocks = parts * blocks_of_part, rounds = (blocks * kind.start + work * blocks_of_part) / capacity;
    float const time = blocks <= capacity ? kind.start + most : rounds + 0.5f * most;
    bool const fits = parts <= static_cast<float>(deal.parts);
    if (lane == 0) tried[which] = make_uint2(fits ? __float_as_uint(time) & ~31u | which : 0xFFFFFFFFu, __float_as_uint(inverse));
  }
  __syncthreads();
  unsigned const best = __reduce_min_sync(0xFFFFFFFFu, lane < kTried ? tried[lane].x : 0xFFFFFFFFu);
  float const found = __uint_as_float(tried[best % 32].y);
  __syncthreads();
  return found;
}

// The part of this block. A sequence's first block tells the second launch where its parts are.
template <int kWarps, class Kind, class StagesOf>
__device__ __forceinline__ DealtPart deal_by_length(LengthDeal const& deal, Kind const& kind, int batch, StagesOf const& stages_of, uint2* tried) {
  int const lane = threadIdx.x % 32, wanted = static_cast<int>(blockIdx.x / static_cast<uint32_t>(deal.blocks_of_part));
  float const of_share = share_of<kWarps>(deal, kind, batch, stages_of, tried);
  int before = 0;
  for (int first = 0; first < batch; first += 32) {
    int const own = first + lane < batch ? static_cast<int>(kind.of(stages_of(first + lane), of_share)) : 0;
    int end = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      int const other = __shfl_up_sync(0xFFFFFFFFu, end, distance);
      if (lane >= distance) end += other;
    }
    unsigned const reached = __ballot_sync(0xFFFFFFFFu, before + end > wanted);
    if (reached != 0) {
      int const from = __ffs(reached) - 1, parts = __shfl_sync(0xFFFFFFFFu, own, from);
      int const begin = before + __shfl_sync(0xFFFFFFFFu, end, from) - parts;
      DealtPart const found{first + from, wanted - begin, parts, true};
      bool const is_first = found.part == 0 && threadIdx.x == 0 && blockIdx.x % static_cast<uint32_t>(deal.blocks_of_part) == 0;
      if (is_first && deal.of_sequence != nullptr) deal.of_sequence[found.batch] = make_int2(begin, parts);
      return found;
    }
    before += __shfl_sync(0xFFFFFFFFu, end, 31);
  }
  return {0, 0, 1, false};
}

}  // namespace gemmill::kv_cache
