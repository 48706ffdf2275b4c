// The first of three launches: it sorts pairs of token and expert by expert, and makes codes of rows of x.
//
// One CTA sorts: it counts pairs of each expert in shared memory, lists tiles of rows, and deals pairs to places. Others take one token
// after another: which of its experts have weights, its codes and scales. They also clear the counters of the two launches after this
// one, so that a workspace may hold anything before. Which place a pair has among its expert's rows may differ from call to call: no
// result depends on it.
#pragma once

#include "fused_experts/params.cuh"
#include "coding/coding.cuh"

namespace gemmill::fused_moe {

// Calls put(index, tile) for every tile of rows, in the order of weights, by a thread for each expert. Where rows of an expert begin comes
// to stand in the place of how many there are. Returns the number of tiles up to this thread's expert. Tiles of an expert are as large as
// one another to multiples of `kUnit`, where that is less than a tile.
template <int kTokens, int kUnit = kTokens, class Put>
__device__ __forceinline__ int deal_tiles(int (&counts)[kMostWeights], Put const& put) {
  constexpr int kWarps = kMostWeights / 32;
  __shared__ int warps[2][kWarps];
  int const thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  __syncthreads();
  int const count = counts[thread], tiles = (count + kTokens - 1) / kTokens;
  int rows_before = count, tiles_before = tiles;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    int const rows = __shfl_up_sync(~0u, rows_before, offset), others = __shfl_up_sync(~0u, tiles_before, offset);
    if (lane >= offset) rows_before += rows, tiles_before += others;
  }
  if (lane == 31) warps[0][warp] = rows_before, warps[1][warp] = tiles_before;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) rows_before += warps[0][i], tiles_before += warps[1][i];
  }
  rows_before -= count, tiles_before -= tiles;
  if constexpr (kUnit == kTokens) {
    for (int i = 0; i < tiles; ++i) put(tiles_before + i, Tile{thread, rows_before + i * kTokens, min(kTokens, count - i * kTokens), 0});
  } else {
    auto const begin = [&](int i) { return min(static_cast<int>(int64_t{(count + kUnit - 1) / kUnit} * i / tiles) * kUnit, count); };
    for (int i = 0; i < tiles; ++i) put(tiles_before + i, Tile{thread, rows_before + begin(i), begin(i + 1) - begin(i), 0});
  }
  counts[thread] = rows_before;
  __syncthreads();
  return tiles_before + tiles;
}

// Of few pairs a warp finds all tiles of rows, a lane for each pair: experts in the order of their first pairs, of each its pairs in their order.
template <int kTokens>
struct FewTiles {
  static constexpr int kMost = 32;
  int weights, place;                 // of this lane's pair: -1 for none
  int first, count, before, tiles;    // rows and tiles of its expert, where it is its first pair
  int all;                            // tiles

  __device__ static bool serves(gemmill_fused_experts_args const& x) { return int64_t(x.tokens) * x.topk <= kMost; }

  __device__ void find(gemmill_fused_experts_args const& x) {
    int const lane = threadIdx.x % 32;
    weights = lane < x.tokens * x.topk ? weights_of(x, lane) : -1;
    unsigned const same = __match_any_sync(~0u, weights);
    int const leader = __ffs(same) - 1;
    count = leader == lane && weights >= 0 ? __popc(same) : 0, tiles = (count + kTokens - 1) / kTokens;
    int up_to = count | tiles << 16;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      int const others = __shfl_up_sync(~0u, up_to, offset);
      if (lane >= offset) up_to += others;
    }
    all = __shfl_sync(~0u, up_to, 31) >> 16;
    first = (up_to & 0xFFFF) - count, before = (up_to >> 16) - tiles;
    int const begin = __shfl_sync(~0u, first, leader);
    place = weights < 0 ? -1 : begin + __popc(same & ((1u << lane) - 1));
  }

  // Asked by all lanes. Behind the last tile weights are -1.
  __device__ Tile tile_of(int index) const {
    unsigned const owner = __ballot_sync(~0u, index >= before && index < before + tiles);
    int const lane = owner == 0 ? 0 : __ffs(owner) - 1, skipped = (index - __shfl_sync(~0u, before, lane)) * kTokens;
    Tile const tile{__shfl_sync(~0u, weights, lane), __shfl_sync(~0u, first, lane) + skipped,
                    min(kTokens, __shfl_sync(~0u, count, lane) - skipped), 0};
    return owner == 0 ? Tile{-1, 0, 0, 0} : tile;
  }
};

template <class Half, bool kCoded, bool kGrouped, int kTokens>
struct Prepare {
  static constexpr int kThreads = 512, kWarps = kThreads / 32, kPiece = 4;
  static constexpr int kKept = 2;  // pairs that a thread keeps: it reads each of so few once

  // `tokens`: the wanted places of the sorted rows' tokens, or null.
  static __device__ void run(Params const& p, int32_t* tokens = nullptr) {
    // In this order: kernels that follow may read the caller's inputs.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (blockIdx.x == 0) return sort(p, tokens);
    int64_t const first = int64_t(blockIdx.x - 1) * kThreads + threadIdx.x, step = int64_t(gridDim.x - 1) * kThreads;
    for (int64_t i = first; i < p.finished_count; i += step) p.ws.finished[i] = 0;
    for (int64_t i = first; i < p.summed_count; i += step) p.ws.summed[i] = 0;
    for (int token = blockIdx.x - 1; token < p.x.tokens; token += gridDim.x - 1) {
      judge(p, token);
      if constexpr (kCoded) code(p, token);
    }
  }

 private:
  static __device__ void sort(Params const& p, int32_t* tokens) {
    if (FewTiles<kTokens>::serves(p.x)) return sort_few(p, tokens);
    __shared__ int counts[kMostWeights];
    int const thread = threadIdx.x;
    static_assert(kMostWeights == kThreads, "a thread counts the rows of one expert");
    counts[thread] = 0;
    __syncthreads();
    int64_t const pairs = int64_t(p.x.tokens) * p.x.topk;
    auto const put = [&](int place, int64_t pair) {
      p.ws.order[place] = static_cast<int>(pair);
      if (tokens != nullptr) tokens[place] = static_cast<int>(pair / p.x.topk);
    };
    if (pairs <= kKept * kThreads) {
      int weights[kKept], places[kKept];
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        int64_t const pair = thread + i * kThreads;
        weights[i] = pair < pairs ? weights_of(p.x, pair) : -1;
      }
#pragma unroll
      for (int i = 0; i < kKept; ++i) places[i] = weights[i] >= 0 ? atomicAdd(&counts[weights[i]], 1) : 0;
      list_tiles(p, counts);
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        if (weights[i] >= 0) put(counts[weights[i]] + places[i], thread + i * kThreads);
      }
      return;
    }
    for (int64_t pair = thread; pair < pairs; pair += kThreads) {
      int const weights = weights_of(p.x, pair);
      if (weights >= 0) atomicAdd(&counts[weights], 1);
    }
    list_tiles(p, counts);
    for (int64_t pair = thread; pair < pairs; pair += kThreads) {
      int const weights = weights_of(p.x, pair);
      if (weights >= 0) put(atomicAdd(&counts[weights], 1), pair);
    }
  }

  // By one warp.
  static __device__ void sort_few(Params const& p, int32_t* tokens) {
    if (threadIdx.x >= 32) return;
    int const lane = threadIdx.x;
    FewTiles<kTokens> few;
    few.find(p.x);
    for (int i = 0; i < few.tiles; ++i) {
      p.ws.tiles[few.before + i] = Tile{few.weights, few.first + i * kTokens, min(kTokens, few.count - i * kTokens), 0};
    }
    if (few.place >= 0) {
      p.ws.order[few.place] = lane;
      if (tokens != nullptr) tokens[few.place] = lane / p.x.topk;
    }
    if (lane == 0) *p.ws.tile_count = few.all;
  }

  static __device__ void list_tiles(Params const& p, int (&counts)[kMostWeights]) {
    int const tiles = deal_tiles<kTokens>(counts, [&](int index, Tile const& tile) { p.ws.tiles[index] = tile; });
    if (threadIdx.x == kThreads - 1) *p.ws.tile_count = tiles;
  }

  // Which experts of a token have weights; a token without any is 0.
  static __device__ void judge(Params const& p, int token) {
    __shared__ int none;
    if (threadIdx.x < 32) {
      int needed = 0;
      for (int first = 0; first < p.x.topk; first += 32) {
        int const slot = first + threadIdx.x;
        int64_t const pair = int64_t(token) * p.x.topk + slot;
        int const weights = slot < p.x.topk ? weights_of(p.x, pair) : -1;
        if (slot < p.x.topk) p.ws.local[pair] = weights;
        needed += __popc(__ballot_sync(~0u, weights >= 0));
      }
      if (threadIdx.x == 0) p.ws.needed[token] = needed, none = needed == 0;
    }
    __syncthreads();
    if (none && !p.x.adds) {
      Half* const out = static_cast<Half*>(p.x.out) + token * p.x.ldout;
      for (int i = threadIdx.x; i < p.x.hidden; i += kThreads) out[i] = of_float<Half>(0.0f);
    }
    __syncthreads();
  }

  static __device__ void code(Params const& p, int token) {
    Half const* const row = static_cast<Half const*>(p.x.x) + token * p.x.ldx;
    uint32_t* const codes = reinterpret_cast<uint32_t*>(p.ws.codes + int64_t(token) * p.x.hidden);
    auto const values = [&](int piece) { return four_of<Half>(row + piece * kPiece); };
    if constexpr (kGrouped) {
      for (int group = threadIdx.x / 32; group < p.groups_of_hidden; group += kWarps) {
        code_group(values, codes, p.x.hidden, group, p.ws.scales + int64_t(token) * p.groups_of_hidden + group);
      }
    } else {
      code_row<kThreads>(values, codes, p.x.hidden, p.ws.scales + token);
    }
  }
};

}  // namespace gemmill::fused_moe
