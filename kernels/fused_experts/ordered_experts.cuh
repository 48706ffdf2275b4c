// Fused experts of packed 4-bit weights for tiles of a large M: as packed_experts.cuh, but the first launch leaves rows of x in the order
// of their experts, as codes where weights fold. So both products load rows by TMA, and the epilogue's data of a row lie in that order.
//
// No launch waits within itself, and no flag tells of the sort. Each CTA of the first has some tokens, and counts pairs of all experts
// before its own and behind them. So it knows where its own come, and where an expert's rows begin.
//
// Rows in order lie where the second product stores parts, which it does when the first has ended. So the workspace is no larger.
#pragma once

#include "fused_experts/packed_experts.cuh"

namespace gemmill::fused_moe {

struct OrderedParams : PackedParams {
  void* rows;      // of sorted rows: x's, or their codes
  float* scales;   // of these codes
  float* weights;  // of sorted rows: the router's
  int32_t* places;  // of pairs: the sorted row, -1 for none

  // Scales and places lie behind the rows: four bytes each, where a part has four for each element of a row.
  OrderedParams(PackedParams const& p, bool coded) : PackedParams(p) {
    int64_t const pairs = int64_t(p.layer.x.tokens) * p.layer.x.topk;
    char* const base = reinterpret_cast<char*>(p.layer.ws.parts);
    rows = base;
    scales = reinterpret_cast<float*>(base + pairs * p.layer.x.hidden * (coded ? 1 : 2));
    places = reinterpret_cast<int32_t*>(scales + pairs);
    weights = reinterpret_cast<float*>(p.tokens);
  }
};

// Which weights an id means; -1 for none.
template <int count>
__device__ __forceinline__ void find_weights(gemmill_fused_experts_args const& x, int (&ids)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) ids[i] = ids[i] < x.experts ? ids[i] : -1;
  if (x.expert_map != nullptr) {
    int weights[count];
#pragma unroll
    for (int i = 0; i < count; ++i) weights[i] = __ldcg(x.expert_map + max(ids[i], 0));
#pragma unroll
    for (int i = 0; i < count; ++i) ids[i] = ids[i] >= 0 ? weights[i] : -1;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) ids[i] = ids[i] >= 0 && ids[i] < x.weights ? ids[i] : -1;
}

// Calls put(pair, weights) for every pair with weights, by `threads` threads, each of which loads `ahead` ids at once.
template <int threads, int ahead, class Put>
__device__ __forceinline__ void visit_weights(gemmill_fused_experts_args const& x, int thread, Put const& put) {
  int const pairs = x.tokens * x.topk, tokens = threads / x.topk, slots = threads % x.topk;  // tokens and slots: a step
  int token = thread / x.topk, slot = thread % x.topk;
  for (int pair = thread; pair < pairs; pair += ahead * threads) {
    int ids[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      // behind the last pair the first is read: of loads with conditions each would wait for the one before
      bool const inside = pair + i * threads < pairs;
      ids[i] = __ldcg(x.topk_ids + (inside ? (token * x.ld_ids + slot) * x.id_words : int64_t{0}));
      token += tokens, slot += slots;
      if (slot >= x.topk) slot -= x.topk, ++token;
    }
    find_weights(x, ids);
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (int const at = pair + i * threads; at < pairs && ids[i] >= 0) put(at, ids[i]);
    }
  }
}

// The tile of a number, among those of all experts, and the next number, which CTAs take as they come.
template <int tile_n, class Params>
__device__ __forceinline__ WorkTile listed_work_tile(Params const& params, int index) {
  return moe::work_tile_of(listed_tile(params.x, index / params.tiles_n), index, params.tiles_n, tile_n);
}
__device__ __forceinline__ int take_number(PackedArgs const& x, int counter) { return atomicAdd(x.layer.ws.tile_count + counter, 1); }

template <int kTokens, bool kCoded, int kUnit = kTokens>
struct PrepareOrdered {
  using Half = __nv_bfloat16;
  static constexpr int kThreads = 512, kWarps = kThreads / 32;
  static constexpr int kAhead = 8, kPieces = 4;  // ids that a thread asks for at once, and pieces of 16 bytes of a row
  static_assert(kMostWeights == kThreads, "a thread counts the rows of one expert");

  static __device__ void run(OrderedParams const& p) {
    // In this order: kernels that follow may read the caller's inputs.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    auto const& of = p.layer;
    int64_t const thread = int64_t(blockIdx.x) * kThreads + threadIdx.x, step = int64_t(gridDim.x) * kThreads;
    for (int64_t i = thread; i < of.finished_count; i += step) {
      of.ws.finished[i] = 0;
      if constexpr (kCoded) of.ws.inner_scales[i] = 0.0f;  // rows of results have no largest element yet
    }
    for (int64_t i = thread; i < of.summed_count; i += step) of.ws.summed[i] = 0;
    int const each = (of.x.tokens + gridDim.x - 1) / gridDim.x;
    int const first = min(static_cast<int>(blockIdx.x) * each, of.x.tokens), count = min(each, of.x.tokens - first);
    if constexpr (kCoded) {
      if (int const threads = threads_of_row(of.x, count); threads > 0) return put_held(p, first, count, threads);
    }
    place(p, first, count);
    int const warp = threadIdx.x / 32, slices = max(kWarps / max(count, 1), 1);  // of a row, a warp each
    if constexpr (kCoded) {
      if (slices > 1) return put_slices(p, first, count, slices);
    }
    for (int i = warp; i < count * slices; i += kWarps) {
      int const token = first + i / slices;
      put_rows(p, token, i % slices, slices, kCoded ? largest_of_row(p.layer.x, token, 0, 1) : 0.0f);
    }
  }

  static constexpr int kHeld = 2, kMostAtOnce = 8;  // pieces of eight elements that a thread holds, and tokens of a CTA that holds its rows

 private:
  // Threads that share a token, of `count` ones; 0 where they could not hold its row.
  static __device__ int threads_of_row(gemmill_fused_experts_args const& x, int count) {
    int threads = kThreads;
    while (threads * count > kThreads) threads /= 2;
    return count > 0 && count <= kMostAtOnce && count * x.topk <= kThreads && x.hidden <= threads * kHeld * 8 ? threads : 0;
  }

  // Of few tokens, whose rows threads hold while they count: nothing that is read waits for anything else.
  static __device__ void put_held(OrderedParams const& p, int first, int count, int threads) {
    __shared__ int next[kMostWeights], counts[kMostWeights], places[kThreads], largest[kMostAtOnce], needed[kMostAtOnce];
    auto const& x = p.layer.x;
    int const thread = threadIdx.x, share = thread / threads, token = first + min(share, count - 1);
    int const pieces = x.hidden / 8, piece0 = thread % threads, own = first * x.topk;
    uint2 held[kHeld][2];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      uint2 const* const from = reinterpret_cast<uint2 const*>(static_cast<Half const*>(x.x) + token * x.ldx) + min(piece0 + i * threads, pieces - 1) * 2;
      held[i][0] = from[0], held[i][1] = from[1];
    }
    bool const has_pair = thread < count * x.topk;
    int const weights = has_pair ? weights_of(x, own + thread) : -1;
    float const router = has_pair ? router_weight(x, own + thread) : 0.0f;
    next[thread] = 0, counts[thread] = 0;
    if (thread < kMostAtOnce) largest[thread] = 0, needed[thread] = 0;
    __syncthreads();
    auto const four = [&](uint2 const& words) { return four_of(reinterpret_cast<Half const*>(&words)); };
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) most = largest_of(four(held[i][1]), largest_of(four(held[i][0]), most));
    most = quant::reduce_lanes<32>(most, quant::Max{});
    if (thread % 32 == 0 && share < count) atomicMax(largest + share, __float_as_int(most));  // not negative: bits have the numbers' order
    count_pairs(p, own, next, counts);
    int const at = weights >= 0 ? atomicAdd(next + weights, 1) : -1;
    places[thread] = at;
    if (at >= 0) atomicAdd(needed + thread / x.topk, 1);
    __syncthreads();
    if (has_pair) p.layer.ws.local[own + thread] = weights;
    if (at >= 0) {
      p.layer.ws.order[at] = own + thread, p.weights[at] = router;
      p.scales[at] = Coding(__int_as_float(largest[thread / x.topk]), INFINITY).scale;
    }
    if (thread < count) p.layer.ws.needed[first + thread] = needed[thread];
    if (share >= count) return;
    Coding const coding(__int_as_float(largest[share]), INFINITY);
    bool const clears = needed[share] == 0 && !x.adds;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      int const piece = piece0 + i * threads;
      if (piece >= pieces) break;
      uint2 const codes = make_uint2(word_of(coding, four(held[i][0])), word_of(coding, four(held[i][1])));
      for (int slot = share * x.topk; slot < (share + 1) * x.topk; ++slot) {
        if (places[slot] >= 0) static_cast<uint2*>(p.rows)[int64_t{places[slot]} * pieces + piece] = codes;
      }
    }
    for (int i = piece0; clears && i < x.hidden; i += threads) static_cast<Half*>(x.out)[token * x.ldout + i] = of_float<Half>(0.0f);
  }

  // Codes of few tokens: warps that share a row tell each other its largest element.
  static __device__ void put_slices(OrderedParams const& p, int first, int count, int slices) {
    __shared__ int largest[kWarps];
    int const warp = threadIdx.x / 32, own = warp / slices, token = first + own, slice = warp % slices;
    if (threadIdx.x < kWarps) largest[threadIdx.x] = 0;
    __syncthreads();
    if (own < count) {
      float const of_slice = largest_of_row(p.layer.x, token, slice, slices);
      if (threadIdx.x % 32 == 0) atomicMax(largest + own, __float_as_int(of_slice));  // not negative: bits have the numbers' order
    }
    __syncthreads();
    if (own < count) put_rows(p, token, slice, slices, __int_as_float(largest[own]));
  }

  // Gives the pairs of `count` tokens from `first` on their places.
  static __device__ void place(OrderedParams const& p, int first, int count) {
    __shared__ int next[kMostWeights], counts[kMostWeights];
    auto const& x = p.layer.x;
    int const thread = threadIdx.x, own = first * x.topk, end = own + count * x.topk;
    next[thread] = 0, counts[thread] = 0;
    __syncthreads();
    count_pairs(p, own, next, counts);
    for (int pair = own + thread; pair < end; pair += kThreads) {
      int const weights = weights_of(x, pair), at = weights >= 0 ? atomicAdd(next + weights, 1) : -1;
      p.layer.ws.local[pair] = weights, p.places[pair] = at;
      if (at >= 0) p.layer.ws.order[at] = pair, p.weights[at] = router_weight(x, pair);
    }
    __syncthreads();
  }

  // Counts pairs of all tokens, and lists tiles. Of each expert `next` becomes the place of the first pair from `own` on. Both begin as zeros.
  static __device__ void count_pairs(OrderedParams const& p, int own, int (&next)[kMostWeights], int (&counts)[kMostWeights]) {
    int const thread = threadIdx.x;
    visit_weights<kThreads, kAhead>(p.layer.x, thread, [&](int pair, int weights) { atomicAdd((pair < own ? next : counts) + weights, 1); });
    __syncthreads();
    counts[thread] += next[thread];
    int const tiles = deal_tiles<kTokens, kUnit>(counts, [&](int index, Tile const& tile) {
      if (blockIdx.x == 0) p.layer.ws.tiles[index] = tile;
    });
    if (blockIdx.x == 0 && thread == kThreads - 1) *p.layer.ws.tile_count = tiles;
    if (blockIdx.x == 0 && thread < 4) p.layer.ws.tile_count[1 + thread] = 0;  // taken tiles of both products; stored ones; shares of rows
    next[thread] += counts[thread];
    __syncthreads();
  }

  // A warp's share of a token: its row to all its places. Which experts of it have weights; a token without any is 0.
  static __device__ void put_rows(OrderedParams const& p, int token, int slice, int slices, float largest) {
    auto const& x = p.layer.x;
    int const lane = threadIdx.x % 32;
    Half const* const row = static_cast<Half const*>(x.x) + token * x.ldx;
    int needed = 0;
    for (int slots = 0; slots < x.topk; slots += 32) {
      int const at = slots + lane < x.topk ? p.places[token * x.topk + slots + lane] : -1;
      unsigned const some = __ballot_sync(~0u, at >= 0);
      needed += __popc(some);
      if (some == 0) continue;
      if constexpr (kCoded) {
        Coding const coding(largest, INFINITY);
        if (at >= 0 && slice == 0) p.scales[at] = coding.scale;
        auto const codes = [&](int piece) {
          Half const* const from = row + piece * 16;
          return make_uint4(word_of(coding, four_of(from)), word_of(coding, four_of(from + 4)), word_of(coding, four_of(from + 8)), word_of(coding, four_of(from + 12)));
        };
        store(codes, static_cast<uint4*>(p.rows), x.hidden / 16, slice * 32 + lane, slices * 32, at, some);
      } else {
        auto const pieces = [&](int piece) { return reinterpret_cast<uint4 const*>(row)[piece]; };
        store(pieces, static_cast<uint4*>(p.rows), x.hidden / 8, slice * 32 + lane, slices * 32, at, some);
      }
    }
    if (slice != 0) return;
    if (lane == 0) p.layer.ws.needed[token] = needed;
    if (needed != 0 || x.adds) return;
    Half* const out = static_cast<Half*>(x.out) + token * x.ldout;
    for (int i = lane; i < x.hidden; i += 32) out[i] = of_float<Half>(0.0f);
  }

  // By a warp, of its slice.
  static __device__ float largest_of_row(gemmill_fused_experts_args const& x, int token, int slice, int slices) {
    Half const* const row = static_cast<Half const*>(x.x) + token * x.ldx;
    float largest = 0.0f;
#pragma unroll 8
    for (int piece = slice * 32 + threadIdx.x % 32; piece * 4 < x.hidden; piece += slices * 32) largest = largest_of(four_of(row + piece * 4), largest);
    return quant::reduce_lanes<32>(largest, quant::Max{});
  }

  // Pieces of a row of `length` to the places that lanes have, where `some` has bits.
  template <class Pieces>
  static __device__ void store(Pieces const& pieces, uint4* rows, int length, int first, int step, int at, unsigned some) {
    for (int piece = first; piece - threadIdx.x % 32 < length; piece += kPieces * step) {  // all lanes together
      uint4 own[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) own[i] = pieces(min(piece + i * step, length - 1));
      for (unsigned left = some; left != 0; left &= left - 1) {
        uint4* const to = rows + int64_t{__shfl_sync(~0u, at, __ffs(left) - 1)} * length;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (piece + i * step < length) to[piece + i * step] = own[i];
        }
      }
    }
  }
};

// Codes of a piece of a row of results, by a warp: of `together` times 128 columns. Its largest element is in
// inner_scales. In one place: it is long.
template <int together>
__device__ __noinline__ void code_piece(Params const& of, int64_t row, int piece) {
  int const pieces = of.x.inner / 4, first = piece * together * 32 + threadIdx.x % 32;
  float4 const* const values = reinterpret_cast<float4 const*>(of.ws.results + row * of.x.inner);
  auto* const codes = reinterpret_cast<uint32_t*>(of.ws.inner_codes + row * of.x.inner);
  Coding const coding(__ldcg(of.ws.inner_scales + row), INFINITY);
  float4 held[together];
  float numbers[4 * together];
  uint32_t words[together];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < together; ++i) held[i] = __ldcg(values + min(first + i * 32, pieces - 1));
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < together; ++i) {
    numbers[i * 4] = held[i].x, numbers[i * 4 + 1] = held[i].y, numbers[i * 4 + 2] = held[i].z, numbers[i * 4 + 3] = held[i].w;
  }
  coding.encode(numbers, words);
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < together; ++i) {
    if (first + i * 32 < pieces) codes[first + i * 32] = words[i];
  }
}

// Host code: three launches.
template <class First, class Up, class Down, auto prepare, auto up, auto down>
int32_t launch_ordered_experts(gemmill_fused_experts_args const& x, gemmill_launch const& how) {
  if (int64_t(x.tokens) * x.topk > INT_MAX / 2) return GEMMILL_CANNOT_IMPLEMENT;
  constexpr bool kCoded = Up::Mm::kScaled;
  PackedWorkspace const ws(x, kCoded, static_cast<char*>(x.workspace != nullptr ? x.workspace : how.workspace));
  OrderedParams p(packed_params<Down>(x, ws, kCoded), kCoded);
  auto const ctas = static_cast<unsigned>(std::clamp<int>(x.tokens, 1, how.sm_count));
  LaunchShape const of_first{dim3(ctas), dim3(First::kThreads), dim3(1), 0};

  PackedArgs first = first_of(p, kCoded), second = second_of(p, kCoded);
  first.a = p.rows, first.token_ids = nullptr, first.tokens = first.m, first.lda = x.hidden;
  first.a_scales = kCoded ? p.scales : p.weights, second.a_scales = p.weights;  // the factor of a row's results
  return launch_three<prepare>(of_first, p, Product<Up, up>(first, how), Product<Down, down>(second, how), how);
}

}  // namespace gemmill::fused_moe
