// Attention over pages of keys and values in 2 to 4 bits (eden or turboquant_mse, head dim 128, layout heads).
//
// A block takes one KV head of one sequence, 16 rows and a slice of the tokens. A producer warp brings pages by bulk copies,
// one for each page, since a head's page is one piece of memory. Meanwhile consumers rotate queries and make a table. Two
// groups of four consumer warps take stages in turn, each warp 16 tokens of 64:
//
//   scores    S[16 x 16] = Q K^T    Q stays in registers as f16, rotated; keys are centroids
//   softmax   online, in f32; each key's norm is a factor of its column
//   output    O[16 x 128] += P V    each value's norm is a factor of P's column, so values are centroids as well
//
// The rows are query rows times the query heads of the KV head. Elements are decoded once for all 16, two by one
// load: a byte of two codes indexes a table of pairs of centroids in shared memory. Codes of 2 and 3 bits are first spread
// to half a byte each (packed_codes.cuh). The table has a copy for each lane's bank
// and begins at a multiple of 64 KiB, entries of keys and values in turn, so that one byte permutation of codes and the
// lane's base makes the whole address. The order of summed elements is free where both operands agree, so codes are read
// as they lie and never moved to where an instruction wants them.
//
// Slices write sums in the rotated basis; combine_slices adds them in their order, rotates back and rounds.
//
// Nothing beyond a length is used: a masked token's score and weight are replaced, not multiplied, so whatever lies in
// its page, NaN included, does not show. A NaN norm of a visible token does. Pages that the cache has not are not read.
#pragma once

#include <algorithm>

#include "core/launch.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/bulk_copy.cuh"
#include "kv_cache/combine_slices.cuh"
#include "kv_cache/mma.cuh"
#include "kv_cache/packed_codes.cuh"
#include "kv_cache/rotation.cuh"

namespace gemmill::kv_cache {

constexpr int kHeadDim = 128;
constexpr int kGroups = 2;
constexpr int kGroupWarps = 4;
constexpr int kConsumerWarps = kGroups * kGroupWarps;
constexpr int kDecodeThreads = 32 * (kConsumerWarps + 1);
constexpr int kWarpTokens = 16;
constexpr int kTableBytes = 64 * 1024;  // [codes of a byte][keys, values][lanes] of f16 pairs
constexpr int kQueryBytes = kRows * kHeadDim * 2;
constexpr int kConsumerBarrier = 1;

// Centroids of keys and of values, ascending, as bits of f16; of fewer than 16 the rest is 0.
struct Centroids {
  uint16_t bits[2][16];
};

struct DecodeParams {
  gemmill_kv_attention_args args;
  Partial<kHeadDim> partial;
  Signs<kHeadDim> signs;
  Centroids centroids;
  int64_t tiles;              // of 16 rows
  int slices;
  int group;                  // query heads of a KV head; flat row r * group + h is query row r of head h
  float scale;                // of scores, times log2(e)
};

// What a block works at.
struct Place {
  int64_t batch, kv_head, first_row;  // the first of the tile's flat rows
  int slice;

  __device__ explicit Place(DecodeParams const& params) {
    int64_t const tile = blockIdx.x / params.slices;
    slice = static_cast<int>(blockIdx.x % params.slices);
    batch = tile / params.tiles / params.args.kv_heads;
    kv_head = tile / params.tiles % params.args.kv_heads;
    first_row = tile % params.tiles * kRows;
  }
};

template <int kTokens, int kKeyBits, int kValueBits>
struct DecodeShape {
  static constexpr int kPageTokens = kTokens;
  static_assert(kPageTokens == 16 || kPageTokens == 32 || kPageTokens == 64 || kPageTokens == 128,
                "Pages have 16, 32, 64 or 128 tokens.");
  using Keys = PackedCodes<kKeyBits>;
  using Values = PackedCodes<kValueBits>;
  static constexpr int kKeyBytes = kHeadDim * kKeyBits / 8, kValueBytes = kHeadDim * kValueBits / 8;
  static constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * 2;
  static constexpr int kStageTokens = kPageTokens < 64 ? 64 : kPageTokens;
  static constexpr int kPagesOfStage = kStageTokens / kPageTokens;
  static constexpr int kPageBytes = kPageTokens * kTokenBytes;
  static constexpr int kStageBytes = kStageTokens * kTokenBytes;
  static constexpr int kKeyNorms = kPageTokens * kKeyBytes;
  static constexpr int kValueCodes = kKeyNorms + kPageTokens * 2;
  static constexpr int kValueNorms = kValueCodes + kPageTokens * kValueBytes;
  // Shared memory: stages, barriers, then the table where 64 KiB begin, then more stages.
  static constexpr int kStages = kStageTokens == 64 ? 12 : 6;
  static constexpr int kStagesBelow = kStageTokens == 64 ? 7 : 3;
  static constexpr int kBarriers = kStagesBelow * kStageBytes;
  static constexpr int kReserved = 1024;  // what the system keeps below a block's shared memory
  static_assert(kReserved + kBarriers + kStages * 16 <= kTableBytes);
  static constexpr int kQueries = (kStages - kStagesBelow) * kStageBytes;  // beyond the table
  static constexpr int kSharedBytes = 2 * kTableBytes + kQueries + kQueryBytes;
  static_assert(kSharedBytes - kReserved >= kConsumerWarps * kRows * (kHeadDim + 2) * 4, "Sums reuse all of it.");

  static __device__ __forceinline__ uint8_t* stage(uint8_t* shared, uint8_t* table, int index) {
    return index < kStagesBelow ? shared + index * kStageBytes : table + kTableBytes + (index - kStagesBelow) * kStageBytes;
  }
};

// One consumer warp's running softmax and sums. Row 0 is g, row 1 is g + 8.
struct Running {
  float max[2] = {kNothing, kNothing};
  float sum[2] = {0.0f, 0.0f};
  float out[16][4] = {};  // instruction nn: element 16 n + nn of columns n = 2t and 2t + 1
};

// Both centroids of a byte of codes. `base` is the shared address of the lane's word of entry 0: its byte 1 is zero.
__device__ __forceinline__ uint32_t pair_of(uint32_t base, uint32_t codes, int byte) {
  uint32_t const address = __byte_perm(codes, base, 0x7604 | byte << 4);
  return load_shared(address);
}

// Scores of 16 tokens by 16 rows, raw: s[0] tokens 2t and 2t + 1, s[1] the same and 8.
template <class Codes>
__device__ __forceinline__ void score_tile(float (&s)[2][4], uint8_t const* codes, uint32_t const (&q)[8][4],
                                           uint32_t table, int g, int t) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    uint32_t words[4];
    Codes::template load<32>(words, codes + Codes::bytes(kHeadDim) * (8 * tile + g) + Codes::bytes(32) * t);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      int const byte = 2 * (step % 2);
      mma_16x8x16<__half>(s[tile], q[step], pair_of(table, words[step / 2], byte),
                          pair_of(table, words[step / 2], byte + 1));
    }
  }
}

// O += P V of 16 tokens. The lane's tokens are those of its columns of P, its elements 16 g to 16 g + 15.
template <class Codes>
__device__ __forceinline__ void weigh_tile(Running& running, uint8_t const* codes, uint32_t const (&p)[4],
                                           uint32_t table, int g, int t) {
  uint32_t words[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int const token = 2 * t + i % 2 + 8 * (i / 2);
    Codes::template load<16>(words[i], codes + Codes::bytes(kHeadDim) * token + Codes::bytes(16) * g);
  }
#pragma unroll
  for (int byte = 0; byte < 8; ++byte) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = pair_of(table, words[i][byte / 4], byte % 4);
    mma_16x8x16<__half>(running.out[2 * byte], p, __byte_perm(pair[0], pair[1], 0x5410),
                        __byte_perm(pair[2], pair[3], 0x5410));
    mma_16x8x16<__half>(running.out[2 * byte + 1], p, __byte_perm(pair[0], pair[1], 0x7632),
                        __byte_perm(pair[2], pair[3], 0x7632));
  }
}

// Which tokens the lane's two rows see: first <= token < end.
struct Seen {
  int64_t first[2];
  int64_t end[2];
  int64_t last_first, first_end;  // of all rows of the call

  __device__ Seen(DecodeParams const& params, int64_t first_row, int64_t length, int g) {
    auto const& args = params.args;
    last_first = args.window > 0 ? length - args.window : 0;
    first_end = args.causal ? length - args.rows + 1 : length;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int64_t const position = length - args.rows + (first_row + g + 8 * i) / params.group;
      first[i] = args.window > 0 ? position - args.window + 1 : 0;
      end[i] = args.causal && position + 1 < length ? position + 1 : length;
    }
  }
  __device__ bool operator()(int row, int token) const { return token >= first[row] && token < end[row]; }
  // Whether every row sees every token of a tile: the same in all lanes.
  __device__ bool all(int token) const { return token >= last_first && token + kWarpTokens <= first_end; }
};

// Scores to weights with the values' norms, as operand A; the running maximum and sums move on.
template <bool kMasked>
__device__ __forceinline__ void softmax_tile(uint32_t (&p)[4], float (&s)[2][4], Running& running, Seen const& seen,
                                             __half2 const* key_norms, __half2 const* value_norms, int token, float scale,
                                             int t) {
  float largest[2] = {running.max[0], running.max[1]};
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float2 const norm = __half22float2(key_norms[t + 4 * tile]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = i / 2, at = token + 8 * tile + 2 * t + i % 2;
      float const scaled = s[tile][i] * (scale * (i % 2 ? norm.y : norm.x));
      s[tile][i] = !kMasked || seen(row, at) ? scaled : -INFINITY;
      largest[row] = fmaxf(largest[row], s[tile][i]);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xFFFFFFFFu, largest[row], 1));
    largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xFFFFFFFFu, largest[row], 2));
  }
  if (largest[0] > running.max[0] || largest[1] > running.max[1]) {
    float const shrink[2] = {exp2f(running.max[0] - largest[0]), exp2f(running.max[1] - largest[1])};
#pragma unroll
    for (int row = 0; row < 2; ++row) running.max[row] = largest[row], running.sum[row] *= shrink[row];
#pragma unroll
    for (int nn = 0; nn < 16; ++nn) {
#pragma unroll
      for (int i = 0; i < 4; ++i) running.out[nn][i] *= shrink[i / 2];
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float2 const norm = __half22float2(value_norms[t + 4 * tile]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weight[i] = exp2f(s[tile][2 * row + i] - running.max[row]);
        running.sum[row] += weight[i];
        bool const used = !kMasked || seen(row, token + 8 * tile + 2 * t + i);
        weight[i] = used ? weight[i] * (i ? norm.y : norm.x) : 0.0f;
      }
      __half2 const packed = __floats2half2_rn(weight[0], weight[1]);
      p[2 * tile + row] = reinterpret_cast<uint32_t const&>(packed);
    }
  }
}

// The tile's queries in the rotated basis as f16, [16][128]: a warp takes every eighth row, a lane four elements.
template <class Element>
__device__ __forceinline__ void rotate_queries(DecodeParams const& params, Place const& at, __half* queries) {
  constexpr int kOwn = kHeadDim / 32;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < kRows; row += kConsumerWarps) {
    int64_t const flat = at.first_row + row;
    float y[kOwn] = {};
    if (flat < args.rows * params.group) {
      int64_t const head = at.kv_head * params.group + flat % params.group;
      Element const* const from = static_cast<Element const*>(args.q) + at.batch * args.q_batch_stride +
                                  flat / params.group * args.q_row_stride + head * args.q_head_stride + kOwn * lane;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] = to_float(from[i]);
    }
    if (args.seed >= 0) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] *= params.signs(kOwn * lane + i) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
      hadamard_across<32>(y);
    }
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      reinterpret_cast<uint32_t*>(queries + row * kHeadDim + kOwn * lane)[i / 2] = two_elements<__half>(y[i], y[i + 1]);
    }
  }
}

__device__ __forceinline__ void make_table(Centroids const& centroids, uint8_t* table) {
  for (int i = threadIdx.x; i < kTableBytes / 4; i += 32 * kConsumerWarps) {
    uint16_t const* const of_side = centroids.bits[i / 32 % 2];
    reinterpret_cast<uint32_t*>(table)[i] = of_side[i / 64 % 16] | static_cast<uint32_t>(of_side[i / 64 / 16]) << 16;
  }
}

// Brings the slice's pages, a stage after the other, by one lane.
template <class Shape>
__device__ __forceinline__ void produce(gemmill_kv_attention_args const& args, Place const& at, uint8_t* shared, uint8_t* table,
                                        uint64_t* full, uint64_t* empty, int first_page, int end_page) {
  int32_t const* const pages = args.block_table + at.batch * args.table_stride;
  int stage = 0, phase = 1;
  for (int page = first_page; page < end_page; page += Shape::kPagesOfStage) {
    int const count = min(Shape::kPagesOfStage, end_page - page);
    wait(&empty[stage], phase);
    expect_bytes(&full[stage], count * Shape::kPageBytes);
    for (int i = 0; i < count; ++i) {
      int64_t const known = min(max(static_cast<int64_t>(pages[page + i]), int64_t{0}), args.pages - 1);
      int64_t const piece = known * args.page_stride + at.kv_head * Shape::kPageBytes;
      bulk_copy(Shape::stage(shared, table, stage) + i * Shape::kPageBytes, args.cache + piece,
                Shape::kPageBytes, &full[stage]);
    }
    if (++stage == Shape::kStages) stage = 0, phase ^= 1;
  }
}

template <class Shape>
__device__ __forceinline__ void consume(DecodeParams const& params, Running& running, Seen const& seen, __half const* queries,
                                        uint8_t* shared, uint8_t* table, uint64_t* full, uint64_t* empty, int length,
                                        int first_page, int end_page) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  // Summed places 2t, 2t + 1, 2t + 8, 2t + 9 of step k are elements 32 t + 4 k to 32 t + 4 k + 3: the lane's 16 bytes.
  uint32_t q[8][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint2 const* const row = reinterpret_cast<uint2 const*>(queries + (g + 8 * i) * kHeadDim + 32 * t);
#pragma unroll
    for (int step = 0; step < 8; ++step) q[step][i] = row[step].x, q[step][2 + i] = row[step].y;
  }
  uint32_t const key_pairs = shared_address(table) + 4 * lane, value_pairs = key_pairs + 128;
  static_assert(Shape::kStages % kGroups == 0, "A group's stages keep their parity.");
  int stage = warp / kGroupWarps, phase = 0;
  for (int page = first_page + stage * Shape::kPagesOfStage; page < end_page; page += kGroups * Shape::kPagesOfStage) {
    uint8_t const* const bytes = Shape::stage(shared, table, stage);
    wait(&full[stage], phase);
#pragma unroll
    for (int part = 0; part < Shape::kStageTokens / 64; ++part) {
      int const place = 64 * part + kWarpTokens * (warp % kGroupWarps), token = page * Shape::kPageTokens + place;
      if (token >= length || page + place / Shape::kPageTokens >= end_page) continue;
      uint8_t const* const piece = bytes + place / Shape::kPageTokens * Shape::kPageBytes;
      int const within = place % Shape::kPageTokens;
      float s[2][4] = {};
      uint32_t p[4];
      score_tile<typename Shape::Keys>(s, piece + within * Shape::kKeyBytes, q, key_pairs, g, t);
      __half2 const* const key_norms = reinterpret_cast<__half2 const*>(piece + Shape::kKeyNorms) + within / 2;
      __half2 const* const value_norms = reinterpret_cast<__half2 const*>(piece + Shape::kValueNorms) + within / 2;
      if (seen.all(token)) {
        softmax_tile<false>(p, s, running, seen, key_norms, value_norms, token, params.scale, t);
      } else {
        softmax_tile<true>(p, s, running, seen, key_norms, value_norms, token, params.scale, t);
      }
      weigh_tile<typename Shape::Values>(running, piece + Shape::kValueCodes + within * Shape::kValueBytes, p, value_pairs, g, t);
    }
    __syncwarp();
    if (lane == 0) arrive(&empty[stage]);
    if ((stage += kGroups) >= Shape::kStages) stage -= Shape::kStages, phase ^= 1;
  }
}

// The warps' sums to one, in the warps' order, and to memory. `sums` is [warps][16][128], `states` [warps][16].
__device__ __forceinline__ void store_slice(DecodeParams const& params, int64_t valid_rows, Running const& running, float* sums,
                                            float2* states) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  if (warp < kConsumerWarps) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = running.sum[row];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      int const at = warp * kRows + g + 8 * row;
      if (t == 0) states[at] = make_float2(running.max[row], sum);
#pragma unroll
      for (int nn = 0; nn < 16; ++nn) {
        sums[at * kHeadDim + 32 * t + nn] = running.out[nn][2 * row];
        sums[at * kHeadDim + 32 * t + 16 + nn] = running.out[nn][2 * row + 1];
      }
    }
  }
  __syncthreads();
  int64_t const slice = blockIdx.x;
  for (int i = threadIdx.x; i < min(valid_rows, int64_t{kRows}) * kHeadDim; i += kDecodeThreads) {
    int const row = i / kHeadDim;
    float largest = kNothing, sum = 0.0f, out = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) largest = fmaxf(largest, states[w * kRows + row].x);
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) {
      float const share = exp2f(states[w * kRows + row].x - largest);
      sum += share * states[w * kRows + row].y;
      out += share * sums[w * kRows * kHeadDim + i];
    }
    params.partial.out[slice * kRows * kHeadDim + i] = out;
    if (i % kHeadDim == 0) params.partial.max_sum[slice * kRows + row] = make_float2(largest, sum);
  }
}

// Grid: batch, KV heads, tiles of rows and slices in one number, slices first.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(kDecodeThreads, 1) attend_slice(__grid_constant__ DecodeParams const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  uint32_t const begin = shared_address(shared);
  uint8_t* const table = shared + (((begin + Shape::kBarriers + Shape::kStages * 16 + kTableBytes - 1) & ~(kTableBytes - 1u)) - begin);
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const empty = full + Shape::kStages;
  __half* const queries = reinterpret_cast<__half*>(table + kTableBytes + Shape::kQueries);

  Place const at(params);
  auto const& args = params.args;
  int const reach = args.pages > 0 ? static_cast<int>(args.table_pages) * Shape::kPageTokens : 0;
  int const length = min(max(args.seq_lens[at.batch], 0), reach);
  int const pages = (length + Shape::kPageTokens - 1) / Shape::kPageTokens;
  int const stage_count = (pages + Shape::kPagesOfStage - 1) / Shape::kPagesOfStage;
  int const slice_pages = (stage_count + params.slices - 1) / params.slices * Shape::kPagesOfStage;
  int const first_page = min(at.slice * slice_pages, pages);
  int const end_page = min(first_page + slice_pages, pages);

  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) initialise(&full[i], 1), initialise(&empty[i], kGroupWarps);
    publish_barriers();
  }
  __syncthreads();

  Running running;
  if (threadIdx.x / 32 == kConsumerWarps) {
    if (threadIdx.x % 32 == 0) produce<Shape>(args, at, shared, table, full, empty, first_page, end_page);
  } else {
    rotate_queries<Element>(params, at, queries);
    make_table(params.centroids, table);
    sync_threads(kConsumerBarrier, 32 * kConsumerWarps);
    Seen const seen(params, at.first_row, length, threadIdx.x % 32 / 4);
    consume<Shape>(params, running, seen, queries, shared, table, full, empty, length, first_page, end_page);
  }
  __syncthreads();  // every copy has landed and been read: the memory is free
  float* const sums = reinterpret_cast<float*>(shared);
  store_slice(params, args.rows * params.group - at.first_row, running, sums,
              reinterpret_cast<float2*>(sums + kConsumerWarps * kRows * kHeadDim));
}

// Host code: launches. A block costs so many stages beside its own, by the prediction of docs/notes/kv_cache.md.
constexpr int kStagesOfStart = 12;
constexpr int kMostWaves = 4;  // of blocks, that slices are chosen to fill

// Of how many slices a sequence is to be: those with the least time of all waves.
inline int slices_of(int64_t tiles, int64_t stages, int64_t sm_count) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t waves = 0; waves <= kMostWaves; ++waves) {
    int64_t const slices = std::clamp<int64_t>(waves * sm_count / tiles, 1, std::max<int64_t>(stages, 1));
    int64_t const rounds = (tiles * slices + sm_count - 1) / sm_count;
    int64_t const cost = rounds * ((stages + slices - 1) / slices + kStagesOfStart);
    if (cost < least) least = cost, best = slices;
  }
  return static_cast<int>(best);
}

// What a launch is made of.
template <class Shape>
struct DecodePlan {
  int64_t tiles;  // of 16 rows, of one KV head and sequence
  int64_t all_tiles;
  int slices;

  DecodePlan(gemmill_kv_attention_args const& args, gemmill_launch const& how) {
      int64_t const group = args.kv_heads == 0 ? 0 : args.heads / args.kv_heads;
    tiles = (args.rows * group + kRows - 1) / kRows;
    all_tiles = args.batch * args.kv_heads * tiles;
    slices = all_tiles == 0 ? 1 : slices_of(all_tiles, (args.table_pages + Shape::kPagesOfStage - 1) / Shape::kPagesOfStage, how.sm_count);
  }
  int64_t workspace() const { return Partial<kHeadDim>::bytes(all_tiles * slices); }
};

template <class Variant, class Element, class Shape>
int32_t decode_attention(gemmill_kv_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  DecodePlan<Shape> const plan(args, how);
  if (plan.all_tiles == 0) return 0;
  int64_t const blocks = plan.all_tiles * plan.slices;
  auto const partial = Partial<kHeadDim>::at(how.workspace, blocks);
  auto const signs = signs_of<kHeadDim>(static_cast<uint64_t>(args.seed));
  int const group = static_cast<int>(args.heads / args.kv_heads);
  DecodeParams params{args, partial, signs, centroids, plan.tiles, plan.slices, group, args.scale * kLog2E};
  constexpr auto attend = attend_slice<Variant, Element, Shape>;
  constexpr int kSharedBytes = Shape::kSharedBytes;
  if (cudaError_t error = allow_shared_memory<attend>(how.device, kSharedBytes); error != cudaSuccess) return error;
  void* to_attend[] = {&params};
  LaunchShape const attends{dim3(static_cast<unsigned>(blocks)), dim3(kDecodeThreads), dim3(1), kSharedBytes};
  if (int32_t const error = launch_kernel<attend>(attends, how, to_attend); error != 0) return error;
  CombineParams<kHeadDim> combining{args, partial, signs, plan.tiles, plan.slices};
  void* to_combine[] = {&combining};
  int64_t const rows = plan.all_tiles * kRows;
  LaunchShape const combines{dim3(static_cast<unsigned>(rows / (kCombineThreads / 32))), dim3(kCombineThreads), dim3(1), 0};
  return launch_kernel<combine_slices<Variant, Element, kHeadDim>>(combines, how, to_combine);
}

}  // namespace gemmill::kv_cache
