// Attention over latents (latent_attention.cuh has their layout) by WGMMA with tokens as its 64 rows, and 16 or 32 query rows as columns.
//
// A block takes a sequence, a tile of rows (query rows times heads) and a slice of the tokens. Its warpgroups share the slice's stages of 64
// tokens in turn, and wait for each other at its end alone. A lane reads a quarter of two tokens and decodes it once, by byte permutations,
// to the registers of a product and to shared memory:
//
//   scores    S^T[64 x rows] = n (C Q_latent^T) + K_rotary Q_rotary^T    C and K_rotary in registers, n being the tokens' norms
//   output    O^T[512 x rows] += C^T (P n)^T                             C^T in shared memory, sums of all elements in registers
//
// Elements lie in another order within a vector than in memory: queries take the same, and sums give it back. So do tokens within a warp's
// 16: row g of S^T and row g + 8 are neighbours in shared memory, and lanes that store at a time meet all banks.
//
// Rotary parts in e4m3, 64 bytes a token, become f16 before their product, and so do their queries; one scale is a factor of the product.
#pragma once

#include "kv_cache/latent/latent_attention.cuh"
#include "kv_cache/latent/latent_products.cuh"
#include "kv_cache/shared/decode_tiles.cuh"
#include "kv_cache/shared/tile_codes.cuh"

namespace gemmill::kv_cache {

// Eight rotary elements as operands of a product: those of 16 bits, and e4m3 as f16.
__device__ __forceinline__ uint4 rotary_operands(uint4 words) { return words; }
__device__ __forceinline__ uint4 rotary_operands(uint2 codes) {
  return make_uint4(two_of_e4m3(codes.x & 0xFFFF), two_of_e4m3(codes.x >> 16), two_of_e4m3(codes.y & 0xFFFF), two_of_e4m3(codes.y >> 16));
}

template <int kElements, int kTileRows, bool kRotaryIsE4m3>
struct LatentTileShape {
  static constexpr bool kHasE4m3 = kRotaryIsE4m3;
  using RotaryWords = std::conditional_t<kHasE4m3, uint2, uint4>;  // eight elements
  template <class Element>
  using RotaryElement = std::conditional_t<kHasE4m3, __half, Element>;  // of their product
  static constexpr int kHeadDim = kElements, kRows = kTileRows, kOwnRows = kRows / 4;  // of a lane's scores and sums
  static constexpr int kGroups = kRows == 16 ? 3 : 2, kThreads = 128 * kGroups, kWarps = kThreads / 32;
  static constexpr int kCodeBytes = kHeadDim / 2, kRotaryAt = kCodeBytes + 16;
  static constexpr int kRotaryLine = 4 * sizeof(RotaryWords), kTokenBytes = kRotaryAt + kRotaryDim / 8 * sizeof(RotaryWords);
  static constexpr int kCodePieces = kCodeBytes / 64, kRotaryPieces = kRotaryDim / 32;  // of a lane: 16 bytes; eight elements
  static constexpr int kChunks = kHeadDim / 64, kChunkBytes = kLatentTokens * 128, kTileBytes = kChunks * kChunkBytes;
  static constexpr int kQueryChunk = kRows * 128, kQueries = kGroups * kTileBytes;
  static constexpr int kWeights = kQueries + (kHeadDim + kRotaryDim) / 64 * kQueryChunk;
  static constexpr int kMaxima = kWeights + kGroups * kRows * 128;      // [groups][warps of one][rows]
  static constexpr int kStates = kMaxima + kWarps * kRows * 4;          // the same, of maxima and sums
  static constexpr int kSharedBytes = kStates + kWarps * kRows * 8;
  static constexpr int kSumStride = kHeadDim + 4;
  static_assert(kRows == 16 || kRows == 32, "Products have so many columns, and a lane's sums lie in registers.");
  static_assert(kGroups * kRows * kSumStride * 4 <= kMaxima && kSharedBytes <= 227 * 1024, "Sums reuse tiles and queries.");

  // The place of an element among those of a product's sums: of the latent a lane has units of 32, of the rotary part of 8.
  static __device__ __forceinline__ int place_of(int element) {
    bool const is_latent = element < kHeadDim;
    int const lane = (is_latent ? element / 32 : element / 8) % 4;
    int const unit = is_latent ? element / 128 * 4 + element / 8 % 4 : kHeadDim / 32 + (element - kHeadDim) / 32;
    return 32 * unit + element % 8 / 4 * 16 + element / 2 % 2 * 8 + 2 * lane + element % 2;
  }
  // The byte of a query's place.
  static __device__ __forceinline__ int query_byte(int row, int place) {
    return place / 64 * kQueryChunk + row * 128 + (place % 64 / 8 ^ row % 8) * 16 + place % 8 * 2;
  }
};

// The tile's queries, a warp a row: the latent part in the rotated basis as f16, the rotary part as its product takes it.
template <class Element, class Shape>
__device__ __forceinline__ void lay_latent_queries(LatentParams<Shape::kHeadDim> const& params, LatentPlace const& at, uint8_t* queries) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32;
  using RotaryElement = typename Shape::template RotaryElement<Element>;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < Shape::kRows; row += Shape::kWarps) {
    int64_t const flat = at.first_row + row;
    float y[kOwn] = {};
    RotaryElement rotary[2] = {};
    if (flat < args.rows * args.heads) {
      Element const* const from = static_cast<Element const*>(args.q) + at.batch * args.q_batch_stride +
                                  flat / args.heads * args.q_row_stride + flat % args.heads * args.q_head_stride;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] = to_float(from[32 * i + lane]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Element const x = from[kHeadDim + 32 * i + lane];
        if constexpr (Shape::kHasE4m3) rotary[i] = to_element<__half>(to_float(x));
        else rotary[i] = x;
      }
    }
    if (args.seed >= 0) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] *= params.signs(32 * i + lane) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
      hadamard_of_warp<kHeadDim>(y);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      *reinterpret_cast<__half*>(queries + Shape::query_byte(row, Shape::place_of(32 * i + lane))) = to_element<__half>(y[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<RotaryElement*>(queries + Shape::query_byte(row, Shape::place_of(kHeadDim + 32 * i + lane))) = rotary[i];
    }
  }
}

// A lane's part of a stage on its way: a quarter of tokens g and g + 8 of its warp's 16, zeros behind the length.
template <class Shape>
struct LatentQuarters {
  gemmill_kv_latent_attention_args const& args;
  int32_t const* pages;
  int page_shift, last_page, length, end_stage, own;  // `own`: the first token's place in a stage
  int known;                                          // the page of the stage after the next
  uint8_t const* from;                                // of the next stage's first token
  bool exists[2];
  uint4 codes[Shape::kCodePieces][2];
  typename Shape::RotaryWords rotary[Shape::kRotaryPieces][2];
  __half norms[2];

  __device__ __forceinline__ LatentQuarters(gemmill_kv_latent_attention_args const& args, LatentPlace const& at)
      : args(args), pages(args.block_table + at.batch * args.table_stride), length(at.length), end_stage(at.end_stage) {
    page_shift = __ffs(static_cast<int>(args.page_size)) - 1, last_page = static_cast<int>(min(args.pages - 1, int64_t{INT32_MAX}));
    own = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ void look_up(int stage) {
    int const index = stage * kLatentTokens + own;
    known = stage < end_stage && index < length ? pages[index >> page_shift] : 0;
  }
  // Both tokens lie in one page: it has a multiple of 16.
  __device__ __forceinline__ void move_to(int stage) {
    int const index = stage * kLatentTokens + own;
    int64_t const page = min(max(known, 0), last_page);
    from = args.cache + page * args.page_stride + (index & ((1 << page_shift) - 1)) * Shape::kTokenBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) exists[i] = stage < end_stage && index + 8 * i < length;
  }
  // Asks for 16 tokens of a warp, in the stage whose page is known, to L2: later their loads wait for L2, not for memory.
  __device__ __forceinline__ void ask_for(int stage) const {
    int const index = stage * kLatentTokens + own;
    if (threadIdx.x % 32 != 0 || stage >= end_stage || index >= length) return;
    int64_t const page = min(max(known, 0), last_page);
    ask_for_bytes(args.cache + page * args.page_stride + (index & ((1 << page_shift) - 1)) * Shape::kTokenBytes, 16 * Shape::kTokenBytes);
  }
  template <class Words>
  __device__ __forceinline__ Words piece(int i, int byte) const {
    Words const* const at = reinterpret_cast<Words const*>(from + 8 * i * Shape::kTokenBytes + byte) + threadIdx.x % 4;
    return exists[i] ? *at : Words{};
  }
  __device__ __forceinline__ void fetch_codes(int which) {
#pragma unroll
    for (int i = 0; i < 2; ++i) codes[which][i] = piece<uint4>(i, 64 * which);
  }
  __device__ __forceinline__ void fetch_rotary(int which) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rotary[which][i] = piece<typename Shape::RotaryWords>(i, Shape::kRotaryAt + Shape::kRotaryLine * which);
    }
  }
  // From a stage to the warpgroup's next.
  __device__ __forceinline__ void move_on(int stage) {
    move_to(stage + Shape::kGroups);
    look_up(stage + 2 * Shape::kGroups);
    fetch_norms();
  }
  __device__ __forceinline__ void fetch_norms() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      norms[i] = exists[i] ? *reinterpret_cast<__half const*>(from + 8 * i * Shape::kTokenBytes + Shape::kCodeBytes) : __half{};
    }
  }
};

// Eight codes of 4 bits to centroids in f16, in their order, as tile_codes.cuh says: code 7 - m is code 8 + m's negative. Of a permutation's
// selectors only the lowest half counts, and indices below 8 need no mask. With its highest bit set one spreads its byte's highest bit.
struct LatentTable : CentroidBytes {
  __device__ __forceinline__ explicit LatentTable(uint16_t const* positive) : CentroidBytes(positive) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // a lane's own: uniform registers would be moved to others for each use
      low[i] = __shfl_sync(0xFFFFFFFFu, low[i], static_cast<int>(threadIdx.x) % 32);
      high[i] = __shfl_sync(0xFFFFFFFFu, high[i], static_cast<int>(threadIdx.x) % 32);
    }
  }
  __device__ __forceinline__ uint4 operator()(uint32_t codes) const {
    uint32_t const negative = ~codes & 0x88888888u, complement = __umulhi(negative, 0xE0000000u);  // 7 for each 8
    uint32_t const indices = (codes ^ complement) & 0x77777777u, raised = codes << 4;
    uint32_t const signs[2] = {permuted(raised, codes, 0xD9C8), permuted(raised, codes, 0xFBEA)};  // a byte each, of ones for a positive code
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t const own = i == 0 ? indices : indices >> 16, lows = permuted(low[0], low[1], own);
      uint32_t const highs = permuted(high[0], high[1], own) | ~signs[i] & 0x80808080u;
      words[2 * i] = permuted(lows, highs, 0x5140), words[2 * i + 1] = permuted(lows, highs, 0x7362);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

__device__ __forceinline__ uint32_t word_of(uint4 const& words, int i) { return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w; }

// A warpgroup's running softmax and sums. `own`: of query rows 8 j + 2 t + b, at 2 j + b.
template <class Shape>
struct LatentRunning {
  float max[Shape::kOwnRows], sum[Shape::kOwnRows] = {};  // sums are of the lane's tokens
  float out[Shape::kChunks][Shape::kRows / 2] = {};
  int end[Shape::kOwnRows];  // of the tokens that a row sees

  __device__ __forceinline__ LatentRunning(gemmill_kv_latent_attention_args const& args, LatentPlace const& at) {
#pragma unroll
    for (int i = 0; i < Shape::kOwnRows; ++i) {
      int64_t const flat = at.first_row + 8 * (i / 2) + 2 * (threadIdx.x % 4) + i % 2;
      int const position = static_cast<int>(at.length - args.rows + flat / args.heads);
      max[i] = kNothing, end[i] = args.causal != 0 ? min(position + 1, at.length) : at.length;
    }
  }
};

// Decodes a stage to `tile` and multiplies it by the queries. Of the two first pieces of codes the rotary part takes the registers, and gives
// them back to the next stage's; other pieces follow their own.
template <class Element, class Shape>
__device__ __forceinline__ void score_latent_tile(LatentQuarters<Shape>& quarters, int stage, LatentTable const& table, uint8_t* tile, uint64_t queries,
                                                  float (&latent)[Shape::kRows / 2], float (&rotary)[Shape::kRows / 2]) {
  int const g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int const line = threadIdx.x % 128 / 32 * 16 + 2 * (g & 4 | (g & 1) << 1 | (g & 2) >> 1);  // of token g; token g + 8 has the next
#pragma unroll
  for (int i = 0; i < Shape::kCodePieces; ++i) {
#pragma unroll
    for (int unit = 0; unit < 4; ++unit) {
      uint4 const first = table(word_of(quarters.codes[i][0], unit));
      uint4 const second = table(word_of(quarters.codes[i][1], unit));
      int const place = t + 4 * (unit % 2);
      uint8_t* const to = tile + (2 * i + unit / 2) * Shape::kChunkBytes + line * 128;
      *reinterpret_cast<uint4*>(to + (place ^ line % 8) * 16) = first;
      *reinterpret_cast<uint4*>(to + 128 + (place ^ (line % 8 + 1)) * 16) = second;
      uint32_t const a[2][4] = {{first.x, second.x, first.y, second.y}, {first.z, second.z, first.w, second.w}};
      begin_products();
      int const chunk = 2 * i + unit / 2, step = unit % 2 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint64_t const b = queries + (chunk * Shape::kQueryChunk + (step + half) * 32) / 16;
        ColumnProducts<__half>::begin(latent, a[half], b, chunk + step + half > 0);
      }
      end_group_of_products();
      wait_for_products<1>();
    }
    if (i < Shape::kRotaryPieces) quarters.fetch_rotary(i);
    else quarters.fetch_codes(i);
    if (i + 1 == Shape::kRotaryPieces) quarters.move_on(stage);
  }
  uint4 operands[Shape::kRotaryPieces][2];
#pragma unroll
  for (int i = 0; i < 2 * Shape::kRotaryPieces; ++i) operands[i / 2][i % 2] = rotary_operands(quarters.rotary[i / 2][i % 2]);
  begin_products();
#pragma unroll
  for (int step = 0; step < 2 * Shape::kRotaryPieces; ++step) {
    uint4 const(&pieces)[2] = operands[step / 2];
    uint32_t const a[4] = {word_of(pieces[0], step % 2 * 2), word_of(pieces[1], step % 2 * 2), word_of(pieces[0], step % 2 * 2 + 1),
                           word_of(pieces[1], step % 2 * 2 + 1)};
    using RotaryElement = typename Shape::template RotaryElement<Element>;
    ColumnProducts<RotaryElement>::begin(rotary, a, queries + (Shape::kChunks * Shape::kQueryChunk + step * 32) / 16, step > 0);
  }
  end_group_of_products();
  wait_for_products<0>();
  settle(latent), settle(rotary);
#pragma unroll
  for (int i = 0; i < Shape::kRotaryPieces; ++i) quarters.fetch_codes(i);
}

// Scores to weights times norms, f16 [rows][64 tokens] in shared memory. Maxima move with headroom, and sums shrink where one does.
template <class Shape>
__device__ __forceinline__ void weigh_latent_tile(LatentRunning<Shape>& running, float const (&latent)[Shape::kRows / 2],
                                                  float const (&rotary)[Shape::kRows / 2], float const (&norms)[2], float rotary_scale, float scale,
                                                  int token, float* maxima, uint8_t* weights, int barrier) {
  constexpr int kOwnRows = Shape::kOwnRows;
  int const lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4, t = lane % 4;
  float s[2][kOwnRows], largest[kOwnRows];
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const at = i / 2 * 4 + 2 * half + i % 2;
      float const of_rotary = Shape::kHasE4m3 ? rotary_scale * rotary[at] : rotary[at];
      float const score = scale * (norms[half] * latent[at] + of_rotary);
      s[half][i] = token + 8 * half < running.end[i] ? score : -INFINITY;
    }
    largest[i] = fmaxf(s[0][i], s[1][i]);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xFFFFFFFFu, largest[i], distance));
  }
  if (g == 0) {
#pragma unroll
    for (int i = 0; i < kOwnRows; i += 2) {
      *reinterpret_cast<float2*>(maxima + warp * Shape::kRows + 4 * i + 2 * t) = make_float2(largest[i], largest[i + 1]);
    }
  }
  sync_threads(barrier, 128);
  bool grows = false;
#pragma unroll
  for (int i = 0; i < kOwnRows; i += 2) {
    float2 most = make_float2(-INFINITY, -INFINITY);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float2 const of_warp = *reinterpret_cast<float2 const*>(maxima + w * Shape::kRows + 4 * i + 2 * t);
      most = make_float2(fmaxf(most.x, of_warp.x), fmaxf(most.y, of_warp.y));
    }
    grows = grows || most.x > running.max[i] || most.y > running.max[i + 1];
    largest[i] = most.x, largest[i + 1] = most.y;
  }
  if (__any_sync(0xFFFFFFFFu, grows)) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      float const max = largest[i] > running.max[i] ? largest[i] + kHeadroom : running.max[i], shrink = power_of_two(running.max[i] - max);
      running.max[i] = max, running.sum[i] *= shrink;
#pragma unroll
      for (int m = 0; m < Shape::kChunks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) running.out[m][i / 2 * 4 + 2 * half + i % 2] *= shrink;
      }
    }
  }
  int const word = 4 * (warp * 2 + g / 4) + (g & 2) / 2 + (g & 1) * 2;  // of the pair of tokens, in a row
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
    float factored[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const weight = power_of_two(s[half][i] - running.max[i]);
      running.sum[i] += weight;
      factored[half] = token + 8 * half < running.end[i] ? weight * norms[half] : 0.0f;
    }
    int const row = i / 2 * 8 + 2 * t + i % 2;
    *reinterpret_cast<uint32_t*>(weights + row * 128 + (word / 4 ^ row % 8) * 16 + word % 4 * 4) = two_elements<__half>(factored[0], factored[1]);
  }
}

// O^T += C^T (P n)^T of a stage.
template <class Shape>
__device__ __forceinline__ void add_latent_tile(LatentRunning<Shape>& running, uint64_t tile, uint64_t weights) {
  begin_products();
#pragma unroll
  for (int step = 0; step < kLatentTokens / 16; ++step) {
#pragma unroll
    for (int m = 0; m < Shape::kChunks; ++m) {
      begin_product_along_rows(running.out[m], tile + (m * Shape::kChunkBytes + step * 16 * 128) / 16, weights + step * 32 / 16);
    }
  }
  end_group_of_products();
  wait_for_products<0>();
#pragma unroll
  for (int m = 0; m < Shape::kChunks; ++m) settle(running.out[m]);
}

// A warpgroup's sums to shared memory, f32 [rows][kSumStride], and its warps' states, [warps][rows].
template <class Shape>
__device__ __forceinline__ void leave_latent_sums(LatentRunning<Shape> const& running, float* sums, float2* states) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < Shape::kOwnRows; ++i) {
    float sum = running.sum[i];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    if (g == 0) states[warp * Shape::kRows + i / 2 * 8 + 2 * t + i % 2] = make_float2(running.max[i], sum);
  }
#pragma unroll
  for (int m = 0; m < Shape::kChunks; ++m) {
#pragma unroll
    for (int j = 0; j < Shape::kRows / 2; ++j) {
      int const place = 2 * warp + j / 2 % 2, row = j / 4 * 8 + 2 * t + j % 2;
      int const element = 128 * (m / 2) + 32 * (place % 4) + 8 * (m % 2 * 2 + place / 4) + g;
      sums[row * Shape::kSumStride + element] = running.out[m][j];
    }
  }
}

// The warpgroups' sums, in their order, to the slice's. A warp takes a row at a time.
template <class Shape>
__device__ __forceinline__ void join_latent_sums(LatentParams<Shape::kHeadDim> const& params, LatentPlace const& at, float const* sums,
                                                 float2 const* states) {
  constexpr int kRows = Shape::kRows, kGroups = Shape::kGroups;
  int const lane = threadIdx.x % 32;
  int64_t const first = static_cast<int64_t>(blockIdx.x) * kRows;
  for (int row = threadIdx.x / 32; row < kRows; row += Shape::kWarps) {
    if (at.first_row + row >= params.args.rows * params.args.heads) break;
    float largest = kNothing, sum = 0.0f, share[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) largest = fmaxf(largest, states[group * 4 * kRows + row].x);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      share[group] = power_of_two(states[group * 4 * kRows + row].x - largest);
#pragma unroll
      for (int w = 0; w < 4; ++w) sum += share[group] * states[(group * 4 + w) * kRows + row].y;
    }
    float* const to = params.partial.out + (first + row) * Shape::kHeadDim;
#pragma unroll
    for (int k = 0; k < Shape::kHeadDim / 32; ++k) {
      float y = 0.0f;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) y += share[group] * sums[(group * kRows + row) * Shape::kSumStride + 32 * k + lane];
      to[32 * k + lane] = y;
    }
    if (lane == 0) params.partial.max_sum[first + row] = make_float2(largest, sum);
  }
}

// Grid: batch, tiles of rows and slices in one number, slices first.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) attend_latent_tiles(__grid_constant__ LatentParams<Shape::kHeadDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  if (threadIdx.x == 0 && shared_address(shared) % 1024 != 0) __trap();  // tiles would not begin where their swizzle does
  int const group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // known to be a warp's
  wait_for_predecessor();
  LatentPlace const at(params, Shape::kRows);
  float const rotary_scale = Shape::kHasE4m3 && params.args.key_scales != nullptr ? *params.args.key_scales : 1.0f;
  LatentTable const table(params.centroids.bits[0] + TileCodes<4>::kFirst);
  LatentQuarters<Shape> quarters(params.args, at);
  quarters.look_up(at.first_stage + group);
  quarters.move_on(at.first_stage + group - Shape::kGroups);
#pragma unroll
  for (int i = 0; i < Shape::kCodePieces; ++i) quarters.fetch_codes(i);
  lay_latent_queries<Element, Shape>(params, at, shared + Shape::kQueries);
  publish_stores();
  __syncthreads();

  LatentRunning<Shape> running(params.args, at);
  uint8_t *const tile = shared + group * Shape::kTileBytes, *const weights = shared + Shape::kWeights + group * Shape::kRows * 128;
  float* const maxima = reinterpret_cast<float*>(shared + Shape::kMaxima) + group * 4 * Shape::kRows;
  // Descriptors: bytes behind their beginning count in sixteens.
  uint64_t const queries = columns_in_rows(shared_address(shared + Shape::kQueries)), of_weights = columns_in_rows(shared_address(weights));
  uint64_t const of_tile = columns_along_rows<Shape::kChunkBytes>(shared_address(tile));
#pragma unroll 1
  for (int stage = at.first_stage + group; stage < at.end_stage; stage += Shape::kGroups) {
    quarters.ask_for(stage + Shape::kGroups);
    float const norms[2] = {to_float(quarters.norms[0]), to_float(quarters.norms[1])};
    float latent[Shape::kRows / 2] = {}, rotary[Shape::kRows / 2] = {};
    score_latent_tile<Element, Shape>(quarters, stage, table, tile, queries, latent, rotary);
    weigh_latent_tile<Shape>(running, latent, rotary, norms, rotary_scale, params.scale, stage * kLatentTokens + quarters.own, maxima, weights,
                             1 + group);
    publish_stores();
    sync_threads(1 + group, 128);  // the tile is whole
    add_latent_tile<Shape>(running, of_tile, of_weights);
    sync_threads(1 + group, 128);  // the tile is free
  }

  __syncthreads();  // tiles and queries have been read: the memory is free
  float* const sums = reinterpret_cast<float*>(shared);
  float2* const states = reinterpret_cast<float2*>(shared + Shape::kStates);
  leave_latent_sums<Shape>(running, sums + group * Shape::kRows * Shape::kSumStride, states + group * 4 * Shape::kRows);
  __syncthreads();
  join_latent_sums<Shape>(params, at, sums, states);
}

// Host code: launches.

template <int kHeadDim, int kTileRows>
int64_t latent_tiles_workspace(gemmill_kv_latent_attention_args const& args, gemmill_launch const& how) {
  LatentPlan const plan(args, how, kTileRows);
  return Partial<kHeadDim>::bytes(plan.all_tiles * plan.slices * kTileRows);
}

template <class Variant, class Element, int kHeadDim, int kTileRows, bool kRotaryIsE4m3>
int32_t latent_tiles(gemmill_kv_latent_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  using Shape = LatentTileShape<kHeadDim, kTileRows, kRotaryIsE4m3>;
  LatentPlan const plan(args, how, kTileRows);
  if (plan.all_tiles == 0) return 0;
  return attend_and_combine<Variant, Element, Shape, attend_latent_tiles<Variant, Element, Shape>>(args, how, centroids, plan);
}

}  // namespace gemmill::kv_cache
