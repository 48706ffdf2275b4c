// The deal of a batch's tokens to blocks by the lengths of its sequences, which lie on the device: the host knows the longest alone. Every
// block derives the same deal, and its own part.
//
// Each sequence has as many parts as its stages have shares of a size that is one for all; a part has a block for each KV head and tile of
// rows. Of shares between that of all sequences together and the longest sequence, each warp tries some, and the block takes the one of the
// least time. Parts are numbered by length, long ones first. Quotients are of floats: equal on every block, they need not be exact.
#pragma once

#include <cstdint>

#include "kv_cache/shared/combine_slices.cuh"

namespace gemmill::kv_cache {

struct LengthDeal {
  int2* of_sequence;   // [batch]: the number of its first part and how many there are, for the second launch; null: it does not ask
  int parts;           // of all sequences, at most; each has one at least
  int even_parts;      // of each sequence, whatever its length; 0 where lengths say
  int blocks_of_part;  // KV heads, or groups of them, times tiles of rows
  int capacity;        // blocks that the device holds at a time
};

// A block's part of a sequence. No block has one from the number of all parts on.
struct DealtPart {
  int batch, part, parts;
  bool exists;
};

constexpr int kPartSizes = 4;
constexpr float kTail = 0.1f;  // of the longest part, by which the last blocks end apart
// By the time of a part over a share: more than half, a quarter, an eighth, or less.
__device__ __forceinline__ int part_size(float of_share) { return (of_share <= 0.5f) + (of_share <= 0.25f) + (of_share <= 0.125f); }

constexpr int tried_shares(int warps) { return warps < 16 ? 2 * warps : warps; }
constexpr int deal_bytes(int warps) { return tried_shares(warps) * 8; }

// How many shares of so many stages a stage is: a little less, so that whole shares stay whole.
__device__ __forceinline__ float inverse_of(float share) { return __fdividef(0.99999f, share); }
__device__ __forceinline__ float whole_quotient(float x, float y) { return ceilf(x * inverse_of(y)); }

// A part is a slice: as many stages as any of the sequence's.
struct FreeParts {
  float start;  // stages in whose time a block starts and ends

  // A sequence; `work` adds the time of its sums to its stages.
  struct Own {
    float stages;
    __device__ __forceinline__ float work(FreeParts const&) const { return stages; }
  };
  __device__ __forceinline__ Own own(float stages) const { return {stages}; }
  __device__ __forceinline__ float of(Own const& x, float of_share) const { return fmaxf(ceilf(x.stages * of_share), 1.0f); }
  __device__ __forceinline__ float time(Own const& x, float parts) const { return whole_quotient(x.stages, parts); }
};

// A part is a run of slices of each of `groups` groups of warps; a sequence has `slices`, of `least` stages at least (slices.h).
struct FixedParts {
  float start, slices, least, groups, sum;  // `sum`: stages in whose time a group sums up a slice
  bool are_apart = false;                   // each slice is a part

  struct Own {
    float stages, of_slice, filled;
    __device__ __forceinline__ float work(FixedParts const& kind) const { return stages + filled * kind.sum; }
  };
  __device__ __forceinline__ Own own(float stages) const {
    float const of_slice = fmaxf(whole_quotient(stages, slices), least);
    return {stages, of_slice, fmaxf(whole_quotient(stages, of_slice), 1.0f)};
  }
  __device__ __forceinline__ float of(Own const& x, float of_share) const {
    return are_apart ? x.filled : fminf(fmaxf(ceilf(x.stages * of_share), 1.0f), x.filled);
  }
  __device__ __forceinline__ float time(Own const& x, float parts) const {
    float const of_part = whole_quotient(x.filled, parts), run = ceilf(of_part * __fdividef(1.0f, groups));
    return run * (x.of_slice + sum) * fmaxf(fminf(of_part, groups), 0.5f * groups);
  }
};

__device__ __forceinline__ unsigned sum_of_lanes(float whole) { return __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(whole)); }
__device__ __forceinline__ float most_of_lanes(float x) { return __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(x))); }

// The part of this block where each sequence has as many.
__device__ __forceinline__ DealtPart even_part(LengthDeal const& deal) {
  uint32_t const wanted = blockIdx.x / static_cast<uint32_t>(deal.blocks_of_part), parts = deal.even_parts;
  return {static_cast<int>(wanted / parts), static_cast<int>(wanted % parts), static_cast<int>(parts), true};
}

// The part of this block where lengths say. `stages_of` tells those of a sequence; `tried` has `deal_bytes` of shared memory, free again at the end. All
// threads of the block call it. A sequence's first block tells the second launch where its parts are.
template <int kWarps, class Kind, class StagesOf>
__device__ __forceinline__ DealtPart deal_by_length(LengthDeal const& deal, Kind const& kind, int batch, StagesOf const& stages_of, uint2* tried) {
  constexpr int kTried = tried_shares(kWarps), kOfWarp = kTried / kWarps;
  static_assert(kTried <= 32, "A lane reads one, and five bits of a time tell which.");
  int const wanted = static_cast<int>(blockIdx.x / static_cast<uint32_t>(deal.blocks_of_part));
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto const kept = kind.own(lane < batch ? stages_of(lane) : 0.0f);  // of the first 32 sequences: a load each
  auto const own_of = [&](int first) { return first == 0 ? kept : kind.own(first + lane < batch ? stages_of(first + lane) : 0.0f); };
  unsigned total = 0;
  float work = 0.0f, longest = 1.0f;
  for (int first = 0; first < batch; first += 32) {
    auto const own = own_of(first);
    bool const exists = first + lane < batch;
    total += sum_of_lanes(own.stages), work += static_cast<float>(sum_of_lanes(exists ? own.work(kind) : 0.0f));
    longest = fmaxf(longest, most_of_lanes(own.stages));
  }
  float const least = fmaxf(__fdividef(static_cast<float>(total), static_cast<float>(deal.parts)), 1.0f);
  float const blocks_of_part = static_cast<float>(deal.blocks_of_part), capacity = static_cast<float>(deal.capacity);
  float const step = log2f(fmaxf(__fdividef(longest, least), 1.0f)) * (1.0f / static_cast<float>(kTried - 1));
#pragma unroll
  for (int which = warp * kOfWarp; which < (warp + 1) * kOfWarp; ++which) {
    float const inverse = inverse_of(which == kTried - 1 ? longest : least * exp2f(step * static_cast<float>(which)));
    unsigned parts = 0, long_parts = 0;
    float most = 0.0f, long_work = 0.0f;
    for (int first = 0; first < batch; first += 32) {
      auto const own = own_of(first);
      float const of_own = kind.of(own, inverse), of_part = kind.time(own, of_own);
      bool const exists = first + lane < batch, is_long = exists && part_size(of_part * inverse) == 0;
      parts += sum_of_lanes(exists ? of_own : 0.0f), most = fmaxf(most, most_of_lanes(exists ? of_part : 0.0f));
      long_parts += sum_of_lanes(is_long ? of_own : 0.0f), long_work += static_cast<float>(sum_of_lanes(is_long ? own.work(kind) : 0.0f));
    }
    // A round takes as long as its longest block. Of several, all blocks share the device and the last ones end apart; long ones, which come
    // first, take whole rounds; and so do the shortest.
    float const blocks = static_cast<float>(parts) * blocks_of_part, of_long = fmaxf(static_cast<float>(long_parts), 1.0f);
    float const shared_time = __fdividef(blocks * kind.start + work * blocks_of_part, capacity) + kTail * most;
    float const long_time = whole_quotient(of_long * blocks_of_part, capacity) * (kind.start + __fdividef(long_work, of_long));
    float const short_time = whole_quotient(blocks, capacity) * (kind.start + 1.0f);
    float const time = blocks <= capacity ? kind.start + most : fmaxf(fmaxf(shared_time, long_time), fmaxf(short_time, kind.start + most));
    bool const fits = parts <= static_cast<unsigned>(deal.parts);
    if (lane == 0) tried[which] = make_uint2(fits ? __float_as_uint(time) & ~31u | which : 0xFFFFFFFFu, __float_as_uint(inverse));
  }
  __syncthreads();
  unsigned const best = __reduce_min_sync(0xFFFFFFFFu, lane < kTried ? tried[lane].x : 0xFFFFFFFFu);
  float const of_share = __uint_as_float(tried[best % 32].y);
  __syncthreads();
  // Long parts first, so that short ones fill the last round. Of a lane's sequence, how many and of which size: four of one number.
  auto const sized_of = [&](int first) {
    auto const own = own_of(first);
    float const of_own = kind.of(own, of_share);
    return first + lane < batch ? static_cast<int>(of_own) * kPartSizes + part_size(kind.time(own, of_own) * of_share) : 0;
  };
  int const kept_sized = sized_of(0);
  int before = 0;
  for (int size = 0; size < kPartSizes; ++size) {
    for (int first = 0; first < batch; first += 32) {
      int const sized = first == 0 ? kept_sized : sized_of(first), own = sized % kPartSizes == size ? sized / kPartSizes : 0;
      int const all = static_cast<int>(__reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(own)));
      if (before + all <= wanted) {
        before += all;
        continue;
      }
      int end = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        int const other = __shfl_up_sync(0xFFFFFFFFu, end, distance);
        if (lane >= distance) end += other;
      }
      int const from = __ffs(__ballot_sync(0xFFFFFFFFu, before + end > wanted)) - 1, parts = __shfl_sync(0xFFFFFFFFu, own, from);
      int const begin = before + __shfl_sync(0xFFFFFFFFu, end, from) - parts;
      DealtPart const found{first + from, wanted - begin, parts, true};
      bool const is_first = found.part == 0 && threadIdx.x == 0 && blockIdx.x % static_cast<uint32_t>(deal.blocks_of_part) == 0;
      if (is_first && deal.of_sequence != nullptr) deal.of_sequence[found.batch] = make_int2(begin, parts);
      return found;
    }
  }
  return {0, 0, 1, false};
}

}  // namespace gemmill::kv_cache
