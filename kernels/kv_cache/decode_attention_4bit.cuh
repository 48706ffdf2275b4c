// Attention over pages of 4-bit keys and values (eden or turboquant_mse, head dim 128, layout heads): compiled, never run.
//
// A block takes one KV head of one sequence and a slice of its tokens. A producer warp brings pages by bulk copies, one
// for each page, since a head's page is one piece of memory. Two groups of four consumer warps take stages in turn, each
// warp 16 tokens of 64:
//
//   scores    S[16 x 16] = Q K^T    Q stays in registers as f16, rotated; keys are centroids
//   softmax   online, in f32; each key's norm is a factor of its column
//   output    O[16 x 128] += P V    each value's norm is a factor of P's column, so values are centroids as well
//
// The 16 rows are query rows times the query heads of the KV head. Elements are decoded once for all of them, two by one
// load: a byte of codes indexes a table of pairs of centroids in shared memory. The table has a copy for each lane's bank
// and begins at a multiple of 64 KiB, entries of keys and values in turn, so that one byte permutation of codes and the
// lane's base makes the whole address. The order of summed elements is free where both operands agree, so codes are read
// as they lie and never moved to where an instruction wants them.
//
// Slices write sums in the rotated basis; combine_slices adds them in their order, rotates back and rounds. So the
// result does not depend on which block ran first.
//
// Nothing beyond a length is used: a masked token's score and weight are replaced, not multiplied, so whatever lies in
// its page, NaN included, does not show. A NaN norm of a visible token does.
#pragma once

#include <cuda_runtime.h>

#include "kv_cache/bulk_copy.cuh"
#include "kv_cache/mma.cuh"

namespace gemmill::kv_cache {

constexpr int kHeadDim = 128;
constexpr int kRows = 16;
constexpr int kCodeBytes = kHeadDim / 2;
constexpr int kTokenBytes = 2 * (kCodeBytes + 2);
constexpr int kGroups = 2;
constexpr int kGroupWarps = 4;
constexpr int kConsumerWarps = kGroups * kGroupWarps;
constexpr int kDecodeThreads = 32 * (kConsumerWarps + 1);
constexpr int kWarpTokens = 16;
constexpr int kTableBytes = 64 * 1024;  // [codes of a byte][keys, values][lanes] of f16 pairs
constexpr float kNothing = -1e30f;  // a running maximum before any token: finite, so that differences are

struct DecodeArgs {
  float* partial_out;         // [batch, kv_heads, slices, 16, 128]: not divided by the sum
  float2* partial_max_sum;    // [batch, kv_heads, slices, 16]: the maximum in units of log 2, and the sum
  __half const* q;            // [batch, kv_heads, 16, 128], rotated, as f16; rows beyond `rows` are not read
  uint8_t const* cache;       // [pages, kv_heads, page tokens * 132]
  int const* block_table;     // [batch, table_stride]
  int const* seq_lens;        // [batch]
  __half centroids[2][16];    // of keys and of values, ascending
  int64_t table_stride;
  int kv_heads;
  int rows;                   // query rows times group, at most 16
  int group;                  // query heads of a KV head; row r * group + h is query row r of head h
  int window;                 // keys up to itself that a row sees; 0 for all
  bool causal;
  float scale;                // of scores, times log2(e)
};

template <int kPageTokens>
struct DecodeShape {
  static_assert(kPageTokens == 16 || kPageTokens == 32 || kPageTokens == 64 || kPageTokens == 128,
                "Pages have 16, 32, 64 or 128 tokens.");
  static constexpr int kStageTokens = kPageTokens < 64 ? 64 : kPageTokens;
  static constexpr int kPagesOfStage = kStageTokens / kPageTokens;
  static constexpr int kPageBytes = kPageTokens * kTokenBytes;
  static constexpr int kStageBytes = kStageTokens * kTokenBytes;
  static constexpr int kKeyNorms = kPageTokens * kCodeBytes;
  static constexpr int kValueCodes = kKeyNorms + kPageTokens * 2;
  static constexpr int kValueNorms = kValueCodes + kPageTokens * kCodeBytes;
  // Shared memory: stages, barriers, then the table where 64 KiB begin, then more stages.
  static constexpr int kStages = kStageTokens == 64 ? 12 : 6;
  static constexpr int kStagesBelow = kStageTokens == 64 ? 7 : 3;
  static constexpr int kBarriers = kStagesBelow * kStageBytes;
  static constexpr int kReserved = 1024;  // what the system keeps below a block's shared memory
  static_assert(kReserved + kBarriers + kStages * 16 <= kTableBytes);
  static constexpr int kSharedBytes = 2 * kTableBytes + (kStages - kStagesBelow) * kStageBytes;
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
  uint32_t pair;
  asm("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(address));
  return pair;
}

// Scores of 16 tokens by 16 rows, raw: s[0] tokens 2t and 2t + 1, s[1] the same and 8.
__device__ __forceinline__ void score_tile(float (&s)[2][4], uint8_t const* codes, uint32_t const (&q)[8][4],
                                           uint32_t table, int g, int t) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    uint4 const packed = *reinterpret_cast<uint4 const*>(codes + (8 * tile + g) * kCodeBytes + 16 * t);
    uint32_t const words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      int const byte = 2 * (step % 2);
      mma_16x8x16<__half>(s[tile], q[step], pair_of(table, words[step / 2], byte),
                          pair_of(table, words[step / 2], byte + 1));
    }
  }
}

// O += P V of 16 tokens. The lane's tokens are those of its columns of P, its elements 16 g to 16 g + 15.
__device__ __forceinline__ void weigh_tile(Running& running, uint8_t const* codes, uint32_t const (&p)[4],
                                           uint32_t table, int g, int t) {
  uint2 packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed[i] = *reinterpret_cast<uint2 const*>(codes + (2 * t + i % 2 + 8 * (i / 2)) * kCodeBytes + 8 * g);
  }
#pragma unroll
  for (int byte = 0; byte < 8; ++byte) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = pair_of(table, byte < 4 ? packed[i].x : packed[i].y, byte % 4);
    mma_16x8x16<__half>(running.out[2 * byte], p, __byte_perm(pair[0], pair[1], 0x5410),
                        __byte_perm(pair[2], pair[3], 0x5410));
    mma_16x8x16<__half>(running.out[2 * byte + 1], p, __byte_perm(pair[0], pair[1], 0x7632),
                        __byte_perm(pair[2], pair[3], 0x7632));
  }
}

// Which tokens the lane's two rows see: first <= token < end.
struct Seen {
  int first[2];
  int end[2];

  __device__ Seen(DecodeArgs const& args, int length, int g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const row = (g + 8 * i) / args.group;
      int const position = length - args.rows / args.group + row;
      first[i] = args.window > 0 ? position - args.window + 1 : 0;
      end[i] = args.causal ? min(position + 1, length) : length;
    }
  }
  __device__ bool operator()(int row, int token) const { return token >= first[row] && token < end[row]; }

  // Whether every row of the warp sees every token of a tile: the same in all lanes.
  static __device__ bool all(DecodeArgs const& args, int length, int token) {
    int const last_first = args.window > 0 ? length - args.window : 0;
    int const first_end = args.causal ? length - args.rows / args.group + 1 : length;
    return token >= last_first && token + kWarpTokens <= first_end;
  }
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

// Brings the slice's pages, a stage after the other, by one lane.
template <int kPageTokens>
__device__ __forceinline__ void produce(DecodeArgs const& args, uint8_t* shared, uint8_t* table, uint64_t* full,
                                        uint64_t* empty, int first_page, int end_page) {
  using Shape = DecodeShape<kPageTokens>;
  int const* const pages = args.block_table + blockIdx.z * args.table_stride;
  int stage = 0, phase = 1;
  for (int page = first_page; page < end_page; page += Shape::kPagesOfStage) {
    int const count = min(Shape::kPagesOfStage, end_page - page);
    wait(&empty[stage], phase);
    expect_bytes(&full[stage], count * Shape::kPageBytes);
    for (int i = 0; i < count; ++i) {
      int64_t const piece = static_cast<int64_t>(pages[page + i]) * args.kv_heads + blockIdx.y;
      bulk_copy(Shape::stage(shared, table, stage) + i * Shape::kPageBytes, args.cache + piece * Shape::kPageBytes,
                Shape::kPageBytes, &full[stage]);
    }
    if (++stage == Shape::kStages) stage = 0, phase ^= 1;
  }
}

template <int kPageTokens>
__device__ __forceinline__ void consume(DecodeArgs const& args, Running& running, uint8_t* shared, uint8_t* table, uint64_t* full,
                                        uint64_t* empty, int length, int first_page, int end_page) {
  using Shape = DecodeShape<kPageTokens>;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  // Summed places 2t, 2t + 1, 2t + 8, 2t + 9 of step k are elements 32 t + 4 k to 32 t + 4 k + 3: the lane's 16 bytes.
  uint32_t q[8][4] = {};
  int64_t const head = (static_cast<int64_t>(blockIdx.z) * args.kv_heads + blockIdx.y) * kRows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (g + 8 * i >= args.rows) continue;
    uint2 const* const row = reinterpret_cast<uint2 const*>(args.q + (head + g + 8 * i) * kHeadDim + 32 * t);
#pragma unroll
    for (int step = 0; step < 8; ++step) q[step][i] = row[step].x, q[step][2 + i] = row[step].y;
  }
  Seen const seen(args, length, g);
  uint32_t const key_pairs = shared_address(table) + 4 * lane, value_pairs = key_pairs + 128;
  static_assert(Shape::kStages % kGroups == 0, "A group's stages keep their parity.");
  int stage = warp / kGroupWarps, phase = 0;
  for (int page = first_page + stage * Shape::kPagesOfStage; page < end_page; page += kGroups * Shape::kPagesOfStage) {
    uint8_t const* const bytes = Shape::stage(shared, table, stage);
    wait(&full[stage], phase);
#pragma unroll
    for (int part = 0; part < Shape::kStageTokens / 64; ++part) {
      int const place = 64 * part + kWarpTokens * (warp % kGroupWarps), token = page * kPageTokens + place;
      if (token >= length || page + place / kPageTokens >= end_page) continue;
      uint8_t const* const piece = bytes + place / kPageTokens * Shape::kPageBytes;
      int const within = place % kPageTokens;
      float s[2][4] = {};
      uint32_t p[4];
      score_tile(s, piece + within * kCodeBytes, q, key_pairs, g, t);
      __half2 const* const key_norms = reinterpret_cast<__half2 const*>(piece + Shape::kKeyNorms) + within / 2;
      __half2 const* const value_norms = reinterpret_cast<__half2 const*>(piece + Shape::kValueNorms) + within / 2;
      if (Seen::all(args, length, token)) {
        softmax_tile<false>(p, s, running, seen, key_norms, value_norms, token, args.scale, t);
      } else {
        softmax_tile<true>(p, s, running, seen, key_norms, value_norms, token, args.scale, t);
      }
      weigh_tile(running, piece + Shape::kValueCodes + within * kCodeBytes, p, value_pairs, g, t);
    }
    __syncwarp();
    if (lane == 0) arrive(&empty[stage]);
    if ((stage += kGroups) >= Shape::kStages) stage -= Shape::kStages, phase ^= 1;
  }
}

// The warps' sums to one, in the warps' order, and to memory. `sums` is [warps][16][128], `states` [warps][16].
__device__ __forceinline__ void store_slice(DecodeArgs const& args, Running const& running, float* sums, float2* states) {
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
  int64_t const slice =
      (static_cast<int64_t>(blockIdx.z) * args.kv_heads + blockIdx.y) * gridDim.x + blockIdx.x;
  for (int i = threadIdx.x; i < args.rows * kHeadDim; i += kDecodeThreads) {
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
    args.partial_out[slice * kRows * kHeadDim + i] = out;
    if (i % kHeadDim == 0) args.partial_max_sum[slice * kRows + row] = make_float2(largest, sum);
  }
}

// Grid: slices, KV heads, batch.
template <int kPageTokens>
__global__ void __launch_bounds__(kDecodeThreads, 1) decode_attention_4bit(__grid_constant__ DecodeArgs const args) {
  using Shape = DecodeShape<kPageTokens>;
  extern __shared__ __align__(128) uint8_t shared[];
  uint32_t const begin = shared_address(shared);
  uint8_t* const table = shared + (((begin + Shape::kBarriers + Shape::kStages * 16 + kTableBytes - 1) & ~(kTableBytes - 1u)) - begin);
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const empty = full + Shape::kStages;

  int const length = args.seq_lens[blockIdx.z];
  int const pages = (length + kPageTokens - 1) / kPageTokens;
  int const stage_count = (pages + Shape::kPagesOfStage - 1) / Shape::kPagesOfStage;
  int const slice_pages = (stage_count + gridDim.x - 1) / gridDim.x * Shape::kPagesOfStage;
  int const first_page = min(static_cast<int>(blockIdx.x) * slice_pages, pages);
  int const end_page = min(first_page + slice_pages, pages);

  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) initialise(&full[i], 1), initialise(&empty[i], kGroupWarps);
    publish_barriers();
  }
  for (int i = threadIdx.x; i < kTableBytes / 4; i += kDecodeThreads) {
    __half const* const centroids = args.centroids[i / 32 % 2];
    __half2 const pair = __halves2half2(centroids[i / 64 % 16], centroids[i / 64 / 16]);
    reinterpret_cast<uint32_t*>(table)[i] = reinterpret_cast<uint32_t const&>(pair);
  }
  __syncthreads();

  Running running;
  if (threadIdx.x / 32 == kConsumerWarps) {
    if (threadIdx.x % 32 == 0) produce<kPageTokens>(args, shared, table, full, empty, first_page, end_page);
  } else {
    consume<kPageTokens>(args, running, shared, table, full, empty, length, first_page, end_page);
  }
  __syncthreads();  // every copy has landed and been read: the memory is free
  float* const sums = reinterpret_cast<float*>(shared);
  store_slice(args, running, sums, reinterpret_cast<float2*>(sums + kConsumerWarps * kRows * kHeadDim));
}

struct CombineArgs {
  __nv_bfloat16* out;            // [batch, query rows, heads, 128]
  float* lse;                    // [batch, heads, query rows], natural; null where nobody asks
  float const* partial_out;      // as DecodeArgs wrote them
  float2 const* partial_max_sum;
  float const* sinks;            // [heads], logits; null for none
  uint32_t signs[4];             // bit j of word w: element 32 w + j of the rotation is negated
  int slices;
  int kv_heads;
  int rows;
  int group;
};

// Grid: rows, KV heads, batch; 128 threads, one an element. x = D H y / sqrt(128).
static __global__ void __launch_bounds__(kHeadDim) combine_slices(__grid_constant__ CombineArgs const args) {
  __shared__ float shared[kHeadDim];
  int const element = threadIdx.x, row = blockIdx.x;
  int const head = blockIdx.y * args.group + row % args.group, query_row = row / args.group;
  int64_t const first = (static_cast<int64_t>(blockIdx.z) * args.kv_heads + blockIdx.y) * args.slices;

  constexpr float kLog2E = 1.4426950408889634f;
  float const sink = args.sinks == nullptr ? -INFINITY : args.sinks[head] * kLog2E;
  float largest = fmaxf(kNothing, sink);
  for (int i = 0; i < args.slices; ++i) largest = fmaxf(largest, args.partial_max_sum[(first + i) * kRows + row].x);
  float sum = exp2f(sink - largest), y = 0.0f;
  for (int i = 0; i < args.slices; ++i) {
    float2 const state = args.partial_max_sum[(first + i) * kRows + row];
    float const share = exp2f(state.x - largest);
    sum += share * state.y;
    y += share * args.partial_out[((first + i) * kRows + row) * kHeadDim + element];
  }
  bool const sees_nothing = sum == 0.0f;
  y = sees_nothing ? 0.0f : y / sum;

#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    float const other = __shfl_xor_sync(0xFFFFFFFFu, y, distance);
    y = element & distance ? other - y : y + other;
  }
#pragma unroll
  for (int distance = 32; distance < kHeadDim; distance *= 2) {
    shared[element] = y;
    __syncthreads();
    float const other = shared[element ^ distance];
    __syncthreads();
    y = element & distance ? other - y : y + other;
  }
  y *= 0.08838834764831845f;
  if (args.signs[element / 32] >> (element % 32) & 1) y = -y;

  int const heads = args.kv_heads * args.group, query_rows = args.rows / args.group;
  int64_t const at = (static_cast<int64_t>(blockIdx.z) * query_rows + query_row) * heads + head;
  args.out[at * kHeadDim + element] = __float2bfloat16_rn(y);
  if (element == 0 && args.lse != nullptr) {
    float const lse = sees_nothing ? -INFINITY : (largest + log2f(sum)) / kLog2E;
    args.lse[(static_cast<int64_t>(blockIdx.z) * heads + head) * query_rows + query_row] = lse;
  }
}

}  // namespace gemmill::kv_cache
