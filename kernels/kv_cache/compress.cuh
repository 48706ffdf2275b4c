// New tokens' keys and values to pages of the layout heads, both in one launch: rotated, quantised, packed (eden and
// turboquant_mse, 2 to 4 bits).
//
// A warp takes eight vectors at a time. They are rotated on the tensor core (hadamard_tile.cuh), their norms are those of the
// rotated vectors, and each coordinate finds its centroid by one look-up (nearest_centroid.cuh). A lane then has pieces of two
// vectors and packs their codes. Blocks stay for many vectors, since they fill the tables. A slot outside of the cache stores
// nothing.
#pragma once

#include <cmath>

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/hadamard_tile.cuh"
#include "kv_cache/nearest_centroid.cuh"
#include "kv_cache/rotation.cuh"
#include "kv_cache/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kCompressThreads = 256;
template <int kHeadDim>
constexpr int kBlocksOfSm = kHeadDim > 128 ? 1 : 2;  // as registers allow
constexpr int kBinsBegin = kBinsBytes - kReserved;  // behind the signs
constexpr int kCompressShared = kBinsBegin + 2 * kBinsBytes;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// How one side of the cache is stored.
template <int kBitsOfCode>
struct Coded {
  static constexpr int kBits = kBitsOfCode;
  Bins bins;
};

template <int kHeadDim, class Keys, class Values>
struct CompressParams {
  gemmill_kv_compress_args args;
  Signs<kHeadDim> signs;
  Keys keys;
  Values values;
  bool is_aligned;  // vectors begin at multiples of 16 bytes
};

// One side of a call.
template <class Element>
struct Side {
  Element const* vectors;
  int64_t token_stride, head_stride;
  int64_t begin;       // of its fields in a head's page
  uint32_t lane_bins;  // shared address of the lane's copies
  float scale;
};

// A lane's codes of one piece, and their inner product with it. `unit` is of a vector of norm 1.
template <int kBits, int kPiece>
struct CodedPiece {
  static constexpr int kStreamBits = kBits * kPiece;
  uint32_t words[(kStreamBits + 31) / 32] = {};
  float product = 0.0f;

  __device__ __forceinline__ CodedPiece(float const (&x)[kPiece], float inverse, float scale, uint32_t lane_bins) {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) {
      float const unit = x[j] * inverse;
      Bin const bin = bin_of(unit, scale, lane_bins);
      bool const is_above = unit >= bin.boundary;
      product += unit * (is_above ? bin.higher : bin.lower);
      uint32_t const code = bin.code + (is_above ? 1 : 0);
      int const bit = j * kBits, word = bit / 32, shift = bit % 32;
      words[word] += code << shift;
      if (shift + kBits > 32) words[word + 1] += code >> (32 - shift);
    }
  }

  // To piece `first` + g of a row of codes, by all lanes of the warp: `count` of the eight pieces exist, and `row` may be null.
  __device__ __forceinline__ void store(uint8_t* row, int first, int count, int g, int t) const {
    if constexpr (kStreamBits % 16 == 0) {
      if (row == nullptr || g >= count) return;
      uint8_t* const to = row + (first + g) * (kStreamBits / 8);
      if constexpr (kStreamBits % 32 == 0) {
#pragma unroll
        for (int i = 0; i < kStreamBits / 32; ++i) reinterpret_cast<uint32_t*>(to)[i] = words[i];
      } else {  // pieces begin at any two bytes
#pragma unroll
        for (int i = 0; i < kStreamBits / 16; ++i) {
          reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
        }
      }
    } else {  // lane g has word g of the pieces' stream
      constexpr int kTouched = kStreamBits == 24 ? 2 : 4;
      int const begin = 32 * g / kStreamBits;
      uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < kTouched; ++i) {
        uint32_t const piece = __shfl_sync(kAllLanes, words[0], 4 * ((begin + i) % 8) + t);
        int const shift = (begin + i) * kStreamBits - 32 * g;
        word |= shift >= 32 ? 0 : shift >= 0 ? piece << shift : piece >> -shift;
      }
      if (row != nullptr && 32 * g < count * kStreamBits) reinterpret_cast<uint32_t*>(row + first * kStreamBits / 8)[g] = word;
    }
  }
};

__device__ __forceinline__ float sum_of_pieces(float x) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

// Eight vectors of a side, from `group` times eight on.
template <class Coding, class Element, int kHeadDim>
__device__ __forceinline__ void store_vectors(gemmill_kv_compress_args const& args, Side<Element> const& side,
                                              HadamardTile<Element, kHeadDim> const& tile, uint32_t const* flips,
                                              uint32_t group, int token_bytes, bool is_aligned) {
  using Tile = HadamardTile<Element, kHeadDim>;
  constexpr int kBits = Coding::kBits, kBytes = kHeadDim * kBits / 8, kPiece = Tile::kPiece;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  // Row g is the lane's to load.
  uint32_t const vector = kVectorsOfWarp * group + g, heads = static_cast<uint32_t>(args.kv_heads);
  bool const exists = vector < args.tokens * args.kv_heads;
  uint32_t const token = vector / heads, head = vector % heads;
  Piece<Element, kPiece> piece[4] = {};
  uint8_t* codes = nullptr;
  int place = 0;
  if (exists) {
    int64_t const slot = args.slots[token];
    Element const* const row = side.vectors + token * side.token_stride + head * side.head_stride;
#pragma unroll
    for (int c = 0; c < Tile::kLoaded; ++c) {
      Element const* const from = row + kPiece * (t + 4 * c);
      if (is_aligned) piece[c].template load<true>(from);
      else piece[c].template load<false>(from);
    }
    if (slot >= 0 && slot < args.pages * args.page_size) {
      int const page_shift = __ffs(static_cast<int>(args.page_size)) - 1;
      place = static_cast<int>(slot & (args.page_size - 1));
      uint8_t* const of_side = args.cache + (slot >> page_shift) * args.page_stride + head * args.page_size * token_bytes + side.begin;
      codes = of_side + place * kBytes;
    }
  }
#pragma unroll
  for (int c = 0; c < Tile::kLoaded; ++c) {
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) piece[c].words[i] ^= flips[(t + 4 * c) * (kPiece / 2) + i];
  }
  float sum[4][kPiece];
  tile(sum, piece);

  // Rows 2 t and 2 t + 1 are the lane's to store.
  float norm[2], inverse[2], product[2] = {};
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float square = 0.0f;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) square += sum[row][j] * sum[row][j] + sum[2 + row][j] * sum[2 + row][j];
    norm[row] = sqrtf(sum_of_pieces(square));
    inverse[row] = norm[row] < INFINITY && norm[row] > 0.0f ? 1.0f / norm[row] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    CodedPiece<kBits, kPiece> const coded(sum[i], inverse[i % 2], side.scale, side.lane_bins);
    int const source = 4 * (2 * t + i % 2), first = 8 * (i / 2);
    uint64_t const row = __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(codes), source);
    coded.store(reinterpret_cast<uint8_t*>(row), first, i < 2 ? 8 : Tile::kPieces - 8, g, t);
    if (i < 2 || g < Tile::kPieces - 8) product[i % 2] += coded.product;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    norm[row] *= kInverseRoot<kHeadDim>;
    float const of_unit = sum_of_pieces(product[row]);
    if (args.unbiased && inverse[row] > 0.0f) norm[row] /= of_unit;
  }
  float const even = __shfl_sync(kAllLanes, norm[0], g / 2), odd = __shfl_sync(kAllLanes, norm[1], g / 2);
  if (t == 0 && codes != nullptr) {
    uint8_t* const norms = codes + (static_cast<int>(args.page_size) - place) * kBytes + place * kNormBytes;
    *reinterpret_cast<__half*>(norms) = __float2half_rn(g % 2 ? odd : even);
  }
}

__device__ __forceinline__ void fill_bins(Bins const& bins, uint8_t* shared) {
  for (int i = threadIdx.x; i < kBins * 32; i += kCompressThreads) {
    reinterpret_cast<uint4*>(shared)[i] = reinterpret_cast<uint4 const&>(bins.bins[i / 32]);
  }
}

// Grid: as many blocks as the device holds.
template <class Variant, class Element, int kHeadDim, class Keys, class Values>
__global__ void __launch_bounds__(kCompressThreads, kBlocksOfSm<kHeadDim>)
    compress_tokens(__grid_constant__ CompressParams<kHeadDim, Keys, Values> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kKeyBytes = kHeadDim * Keys::kBits / 8, kValueBytes = kHeadDim * Values::kBits / 8;
  constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * kNormBytes;
  auto const& args = params.args;
  uint32_t* const flips = reinterpret_cast<uint32_t*>(shared);
  if (shared_address(shared) != kReserved) __trap();  // bins would not begin where their addresses say
  for (int i = threadIdx.x; i < kHeadDim / 2; i += kCompressThreads) {
    flips[i] = (params.signs(2 * i) ? 1u << 15 : 0) | (params.signs(2 * i + 1) ? 1u << 31 : 0);
  }
  fill_bins(params.keys.bins, shared + kBinsBegin);
  fill_bins(params.values.bins, shared + kBinsBegin + kBinsBytes);
  wait_for_predecessor();
  __syncthreads();

  int const lane = threadIdx.x % 32;
  HadamardTile<Element, kHeadDim> const tile(lane / 4, lane % 4);
  uint32_t const lane_bins = shared_address(shared + kBinsBegin) + 16 * lane;
  auto const side_of = [&](bool is_value) {
    return Side<Element>{static_cast<Element const*>(is_value ? args.values : args.keys),
                         is_value ? args.value_token_stride : args.key_token_stride,
                         is_value ? args.value_head_stride : args.key_head_stride,
                         is_value ? args.page_size * (kKeyBytes + kNormBytes) : 0, lane_bins + (is_value ? kBinsBytes : 0),
                         is_value ? params.values.bins.scale : params.keys.bins.scale};
  };
  uint32_t const groups = static_cast<uint32_t>((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  for (uint32_t group = threadIdx.x / 32 * gridDim.x + blockIdx.x; group < 2 * groups; group += kCompressThreads / 32 * gridDim.x) {
    bool const is_value = group >= groups;
    if constexpr (std::is_same_v<Keys, Values>) {
      store_vectors<Keys>(args, side_of(is_value), tile, flips, is_value ? group - groups : group, kTokenBytes, params.is_aligned);
    } else if (is_value) {
      store_vectors<Values>(args, side_of(true), tile, flips, group - groups, kTokenBytes, params.is_aligned);
    } else {
      store_vectors<Keys>(args, side_of(false), tile, flips, group, kTokenBytes, params.is_aligned);
    }
  }
}

// Host code: a launch. Vectors that would need 2^32 numbers do not fit into any memory.
template <class Variant, class Element, int kHeadDim, class Keys, class Values>
int32_t compress(gemmill_kv_compress_args const& args, gemmill_launch const& how, Keys const& keys, Values const& values) {
  if (args.tokens == 0 || args.kv_heads == 0) return 0;
  uint64_t const strides = args.key_token_stride | args.key_head_stride | args.value_token_stride | args.value_head_stride;
  uint64_t const places =
      reinterpret_cast<uintptr_t>(args.keys) | reinterpret_cast<uintptr_t>(args.values) | strides * sizeof(Element);
  CompressParams<kHeadDim, Keys, Values> params{args, signs_of<kHeadDim>(static_cast<uint64_t>(args.seed)), keys, values, places % 16 == 0};
  int64_t const groups = 2 * ((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  int64_t const held = static_cast<int64_t>(how.sm_count) * kBlocksOfSm<kHeadDim>;
  LaunchShape const shape{dim3(static_cast<unsigned>(std::min(groups, held))), dim3(kCompressThreads), dim3(1), kCompressShared};
  void* parameters[] = {&params};
  return launch_kernel<compress_tokens<Variant, Element, kHeadDim, Keys, Values>>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
