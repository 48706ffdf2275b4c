// A consumer warp's work at 16 tokens: scores, softmax, output.
//
// Tokens are the rows of the tensor core's tiles and query rows its eight columns, so that the few rows of decoding fill
// them. Row r of a tile is token token_of(r), an order in which neither codes of keys nor of values meet in a bank.
#pragma once

#include "kv_cache/shared/bulk_copy.cuh"
#include "kv_cache/shared/decode_shape.cuh"
#include "kv_cache/shared/mma.cuh"

namespace gemmill::kv_cache {

// Of rows 0 to 7, and 8 behind it of rows 8 to 15.
__device__ __forceinline__ int token_of(int row) { return row % 2 == 0 ? row / 2 : 4 + (row / 2 ^ 1); }

// Where an element of a row of queries lies in shared memory. Rows begin in one bank, and 16 lanes of four rows load four elements each at a
// time: a swizzle keeps them apart. `kUnit` are a lane's elements that follow one another: four, or a quarter of the row.
template <int kUnit>
struct QueryPlaces {
  __device__ __forceinline__ int operator()(int element, int row) const {
    int const own = row % 4;
    return kUnit == 4 ? element ^ own << 4 : element ^ own << 2 ^ (element / 64 % 2) << 4;
  }
};

// One consumer warp's running softmax and sums, of rows 8 r + 2 t and 8 r + 2 t + 1.
template <class Shape>
struct Running {
  float max[Shape::kRowTiles][2];
  float sum[Shape::kRowTiles][2];                  // of the lane's tokens
  float out[Shape::kRowTiles][Shape::kSteps][4];  // step j: both rows of the share's element n / 8 g + 2 j of n, then of the next
  float zeros[Shape::kRowTiles][2];                // of weights times the addend of all elements, where a shape has it

  __device__ __forceinline__ Running() {
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
      for (int row = 0; row < 2; ++row) max[r][row] = kNothing, sum[r][row] = zeros[r][row] = 0.0f;
#pragma unroll
      for (int j = 0; j < Shape::kSteps; ++j) out[r][j][0] = out[r][j][1] = out[r][j][2] = out[r][j][3] = 0.0f;
    }
  }
};

// A thread writes four lanes' copies at a time.
template <class Shape>
__device__ __forceinline__ void make_table(Centroids const& centroids, uint8_t* table) {
  for (int i = threadIdx.x; i < kTableBytes / 16; i += 32 * Shape::kConsumerWarps) {
    int const side = i / 8 % 2, byte = i / 16, bits = side == 0 ? Shape::kKeyBits : Shape::kValueBits;
    int const codes = Shape::kIsStepped ? byte >> 2 * side : byte;
    uint32_t const mask = (1u << bits) - 1;
    uint32_t const pair =
        centroids.bits[side][codes & mask] | static_cast<uint32_t>(centroids.bits[side][codes >> bits & mask]) << 16;
    reinterpret_cast<uint4*>(table)[i] = make_uint4(pair, pair, pair, pair);
  }
}

// Both centroids of a byte of codes. `base` is the shared address of the lane's word of entry 0: its byte 1 is zero.
__device__ __forceinline__ uint32_t pair_of(uint32_t base, uint32_t codes, int byte) {
  uint32_t const address = __byte_perm(codes, base, 0x7604 | byte << 4);
  return load_shared(address);
}

template <class Codes>
__device__ __forceinline__ uint32_t pair_of(uint32_t base, Codes const& codes, int pair) {
  return pair_of(base, codes.word_of(pair), Codes::byte_of(pair));
}

// The same for stepped tables.
template <bool kIsStepped, class Codes>
__device__ __forceinline__ uint32_t pair_of(uint32_t base, Codes const& codes, int pair) {
  if constexpr (kIsStepped) return pair_of(base + 128 * (pair % 2), codes.stepped_word_of(pair), Codes::stepped_byte_of(pair));
  else return pair_of(base, codes, pair);
}

// Raw scores: s[0] and s[1] are both rows of token token_of(g), s[2] and s[3] of that and 8.
template <class Shape>
__device__ __forceinline__ void score_tile(float (&s)[Shape::kRowTiles][4], uint8_t const* codes,
                                           uint2 const (&q)[Shape::kRowTiles][Shape::kKeySteps], uint32_t table, int g, int t) {
  PackedCodes<Shape::kKeyBits, Shape::kKeyShareDim / 4> low, high;
  low.load(codes + token_of(g) * Shape::kKeyBytes, t);
  high.load(codes + (8 + token_of(g)) * Shape::kKeyBytes, t);
  float odd[Shape::kRowTiles][4] = {};  // the second of two chains of products: one would wait for each before the next
#pragma unroll
  for (int step = 0; step < Shape::kKeySteps; ++step) {
    constexpr bool kIsStepped = Shape::kIsStepped;
    uint32_t const a[4] = {pair_of<kIsStepped>(table, low, 2 * step), pair_of<kIsStepped>(table, high, 2 * step),
                           pair_of<kIsStepped>(table, low, 2 * step + 1), pair_of<kIsStepped>(table, high, 2 * step + 1)};
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) mma_16x8x16<__half>(Shape::kHasChains && step % 2 != 0 ? odd[r] : s[r], a, q[r][step].x, q[r][step].y);
  }
  if constexpr (!Shape::kHasChains) return;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[r][i] += odd[r][i];
  }
}

template <class Shape>
using ValueCodes = PackedCodes<Shape::kValueBits, Shape::kShareDim / 8>;

// Codes of the lane's four tokens.
template <class Shape>
__device__ __forceinline__ void load_values(ValueCodes<Shape> (&of_token)[4], uint8_t const* codes, int g, int t) {
#pragma unroll
  for (int i = 0; i < 4; ++i) of_token[i].load(codes + (token_of(2 * t + i % 2) + 8 * (i / 2)) * Shape::kValueBytes, g);
}

// O += V^T P of 16 tokens. The lane's tokens are those of its rows of P, its elements an eighth of the warp's.
template <class Shape>
__device__ __forceinline__ void weigh_tile(Running<Shape>& running, ValueCodes<Shape> const (&of_token)[4],
                                           uint32_t const (&p)[Shape::kRowTiles][2], uint32_t table) {
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = pair_of<Shape::kIsStepped>(table, of_token[i], step);
    uint32_t const a[4] = {__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[0], pair[1], 0x7632),
                           __byte_perm(pair[2], pair[3], 0x5410), __byte_perm(pair[2], pair[3], 0x7632)};
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) mma_16x8x16<__half>(running.out[r][step], a, p[r][0], p[r][1]);
  }
}

// Which tokens the lane's rows see: first <= token < end.
template <class Shape>
struct Seen {
  int position[Shape::kRowTiles][2];  // of the rows in the sequence
  int window;                         // 0 for all
  bool causal;
  int length;
  int last_first, first_end;  // of all rows of the call

  template <class Params>
  __device__ Seen(Params const& params, int64_t first_row, int length, int t) : length(length) {
    auto const& args = params.args;
    window = static_cast<int>(min(args.window, int64_t{INT32_MAX}));
    causal = args.causal != 0;
    last_first = window > 0 ? length - window : 0;
    first_end = causal ? static_cast<int>(length - args.rows + 1) : length;
#pragma unroll
    for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
      // A division of 64 bits is a call, which no loop hoists: of 32 bits slots spilled registers.
      int const row = args.rows == 1 ? 0 : static_cast<int>((first_row + 8 * (i / 2) + 2 * t + i % 2) / params.group);
      position[i / 2][i % 2] = static_cast<int>(length - args.rows) + row;
    }
  }
  __device__ __forceinline__ bool operator()(int tile, int row, int token) const {
    int64_t const own = position[tile][row];
    return token < length && (!causal || token <= own) && (window == 0 || token > own - window);
  }
  // Whether every row sees every token of a tile: the same in all lanes.
  __device__ __forceinline__ bool all(int token) const { return token >= last_first && token + kWarpTokens <= first_end; }
};

constexpr float kHeadroom = 3.0f;  // in units of log 2

// Moves the running maxima of rows with a score beyond, and the sums with them. Maxima have headroom: next scores are likely to stay below,
// and weights are 2^-3 at most where a maximum is new.
template <class Shape>
__device__ __forceinline__ void rescale(Running<Shape>& running, float const (&s)[Shape::kRowTiles][4]) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    float shrink[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = fmaxf(s[r][row], s[r][2 + row]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, distance));
      largest = largest > running.max[r][row] ? largest + kHeadroom : running.max[r][row];
      shrink[row] = power_of_two(running.max[r][row] - largest);
      running.max[r][row] = largest, running.sum[r][row] *= shrink[row];
      if constexpr (Shape::kHasZeros) running.zeros[r][row] *= shrink[row];
    }
#pragma unroll
    for (int j = 0; j < Shape::kSteps; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) running.out[r][j][i] *= shrink[i % 2];
    }
  }
}

// Which rows see a token of the lane's, and its score: masked, capped, in units of log 2; the running maxima move on. Plain: every
// row sees every token, and scores have no cap. `of_key` are factors of the keys of tokens token_of(g) and that and 8.
template <bool kPlain, class Shape>
__device__ __forceinline__ void settle_scores(float (&s)[Shape::kRowTiles][4], Running<Shape>& running, Seen<Shape> const& seen,
                                              float const (&of_key)[2], int token, float cap, int g) {
  int const own = token_of(g);
  bool grows = false;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float scaled = s[r][i] * of_key[i / 2];
      if (!kPlain && cap > 0.0f) scaled = cap - 2.0f * cap / (power_of_two(scaled) + 1.0f);  // cap tanh(x), by 2 x
      s[r][i] = kPlain || seen(r, i % 2, token + own + 8 * (i / 2)) ? scaled : -INFINITY;
      grows = grows || s[r][i] > running.max[r][i % 2];
    }
  }
  if (__any_sync(0xFFFFFFFFu, grows)) rescale(running, s);
}

// Scores to weights in place; the running sums move on.
template <class Shape>
__device__ __forceinline__ void weigh_scores(float (&s)[Shape::kRowTiles][4], Running<Shape>& running) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[r][i] = power_of_two(s[r][i] - running.max[r][i % 2]);
      running.sum[r][i % 2] += s[r][i];
    }
  }
}

// Weights times a factor of their token as operand B. Zero replaces the weight of an invisible token, whatever the factor is.
template <bool kPlain, class Shape>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[Shape::kRowTiles][2], float const (&weight)[Shape::kRowTiles][4],
                                             float const (&of_value)[2], Seen<Shape> const& seen, int token, int g) {
  int const own = token_of(g);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float factored[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        bool const used = kPlain || seen(r, row, token + own + 8 * half);
        factored[row] = used ? weight[r][2 * half + row] * of_value[half] : 0.0f;
      }
      p[r][half] = transpose_8x8(two_elements<__half>(factored[0], factored[1]));
    }
  }
}

// Scores to weights with the values' norms, as operand B.
template <bool kPlain, class Shape>
__device__ __forceinline__ void softmax_tile(uint32_t (&p)[Shape::kRowTiles][2], float (&s)[Shape::kRowTiles][4],
                                             Running<Shape>& running, Seen<Shape> const& seen, __half const* key_norms,
                                             __half const* value_norms, int token, float scale, float cap, int g) {
  int const own = token_of(g);
  float const of_key[2] = {scale * to_float(key_norms[own]), scale * to_float(key_norms[own + 8])};
  settle_scores<kPlain>(s, running, seen, of_key, token, cap, g);
  float const of_value[2] = {to_float(value_norms[own]), to_float(value_norms[own + 8])};
  weigh_scores(s, running);
  pack_weights<kPlain>(p, s, of_value, seen, token, g);
}

}  // namespace gemmill::kv_cache
