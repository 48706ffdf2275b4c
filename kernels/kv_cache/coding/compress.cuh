// New tokens' keys and values to pages of the layout heads, both in one launch: rotated, quantised, packed (eden and
// turboquant_mse, 2 to 4 bits).
//
// A warp takes eight vectors at a time. The tensor core rotates them (hadamard_tile.cuh), their norms are those of the rotated vectors,
// and each coordinate finds its centroid by one look-up (nearest_centroid.cuh). A lane then has pieces of two vectors and packs their
// codes. Blocks stay for many vectors, since they fill the tables; meanwhile the next eight vectors come to the lane's part of shared
// memory. A slot outside of the cache stores nothing.
#pragma once

#include <cmath>

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/coding/nearest_centroid.cuh"
#include "kv_cache/shared/hadamard_tile.cuh"
#include "kv_cache/shared/rotation.cuh"
#include "kv_cache/shared/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kCompressThreads = 256;
template <int kHeadDim>
constexpr int kBlocksOfSm = kHeadDim > 128 ? 1 : 2;  // as registers allow
constexpr int kBinsBegin = kBinsBytes - kReserved;  // behind the signs
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// The storage of one side of the cache.
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
  bool is_rotated;     // by the caller
};

// Where a lane's pieces of the next vectors land: [stages][parts of 16 bytes or one of 8][lanes].
template <class Element, int kHeadDim>
struct Staging {
  using Tile = HadamardTile<Element, kHeadDim>;
  static constexpr int kPieceBytes = Tile::kPiece * static_cast<int>(sizeof(Element));
  static constexpr int kPart = kPieceBytes < 16 ? kPieceBytes : 16, kParts = kPieceBytes / kPart;
  static constexpr int kStageBytes = Tile::kLoaded * kPieceBytes * 32, kWarpBytes = 2 * kStageBytes;
  uint8_t* own;  // the lane's first part

  __device__ __forceinline__ uint8_t* place(int stage, int part) const { return own + stage * kStageBytes + part * 32 * kPart; }

  __device__ __forceinline__ void fetch(int stage, Element const* row, bool exists, int t) const {
#pragma unroll
    for (int i = 0; i < Tile::kLoaded * kParts; ++i) {
      Element const* const from = row + Tile::kPiece * (t + 4 * (i / kParts)) + i % kParts * (kPart / sizeof(Element));
      copy_ahead<kPart>(shared_address(place(stage, i)), from, exists);
    }
  }

  __device__ __forceinline__ void take(Piece<Element, Tile::kPiece> (&piece)[4], int stage) const {
#pragma unroll
    for (int i = 0; i < Tile::kLoaded * kParts; ++i) {
      uint32_t* const words = piece[i / kParts].words + i % kParts * (kPart / 4);
      if constexpr (kPart == 16) {
        uint4 const four = *reinterpret_cast<uint4 const*>(place(stage, i));
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
      } else {
        uint2 const two = *reinterpret_cast<uint2 const*>(place(stage, i));
        words[0] = two.x, words[1] = two.y;
      }
    }
  }
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
      FoundBin const bin = bin_of(unit, scale, lane_bins);
      bool const is_above = unit >= bin.boundary;
      product += unit * bin.centroid(is_above);
      uint32_t const code = bin.code() + (is_above ? 1 : 0);
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

// Where the vectors of a side begin, and the codes of a slot.
template <class Element>
__device__ __forceinline__ Element const* row_of(Side<Element> const& side, VectorCursor const& at) {
  return side.vectors + at.token * side.token_stride + at.head * side.head_stride;
}

struct StoredRow {
  uint8_t* codes;  // null where the side is not stored
  uint8_t* norm;
};

template <int kBytes>
__device__ __forceinline__ StoredRow stored_row(gemmill_kv_compress_args const& args, int64_t slot, uint32_t head, int64_t begin,
                                                int token_bytes) {
  if (slot < 0 || slot >= args.pages * args.page_size) return {nullptr, nullptr};
  int const page_size = static_cast<int>(args.page_size), page_shift = __ffs(page_size) - 1;
  int const place = static_cast<int>(slot & (page_size - 1));
  uint8_t* const of_side = args.cache + (slot >> page_shift) * args.page_stride + head * args.page_size * token_bytes + begin;
  return {of_side + place * kBytes, of_side + page_size * kBytes + place * kNormBytes};
}

// Eight vectors of a side, of which the lane has pieces of row g.
template <class Coding, class Element, int kHeadDim>
__device__ __forceinline__ void store_vectors(Piece<Element, HadamardTile<Element, kHeadDim>::kPiece> (&piece)[4],
                                              StoredRow const& stored, Side<Element> const& side,
                                              HadamardTile<Element, kHeadDim> const& tile, uint32_t const* flips, bool unbiased) {
  using Tile = HadamardTile<Element, kHeadDim>;
  constexpr int kBits = Coding::kBits, kPiece = Tile::kPiece;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < Tile::kLoaded; ++c) {
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) piece[c].words[i] ^= side.is_rotated ? 0 : flips[(t + 4 * c) * (kPiece / 2) + i];
  }
  float sum[4][kPiece];
  tile.meet_pieces(sum, piece);
  if (!side.is_rotated) {
#pragma unroll
    for (int i = 0; i < 4; ++i) butterflies(sum[i]);
  }

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
    uint64_t const row = __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(stored.codes), source);
    coded.store(reinterpret_cast<uint8_t*>(row), first, i < 2 ? 8 : Tile::kPieces - 8, g, t);
    if (i < 2 || g < Tile::kPieces - 8) product[i % 2] += coded.product;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    norm[row] *= side.is_rotated ? 1.0f : kInverseRoot<kHeadDim>;
    float const of_unit = sum_of_pieces(product[row]);
    if (unbiased && inverse[row] > 0.0f) norm[row] /= of_unit;
  }
  float const even = __shfl_sync(kAllLanes, norm[0], g / 2), odd = __shfl_sync(kAllLanes, norm[1], g / 2);
  if (t == 0 && stored.codes != nullptr) *reinterpret_cast<__half*>(stored.norm) = __float2half_rn(g % 2 ? odd : even);
}

// A side's vectors, eight at a time, from `group` times eight on; returns the group behind the last.
template <class Coding, class Element, int kHeadDim>
__device__ __forceinline__ uint32_t store_side(gemmill_kv_compress_args const& args, Side<Element> const& side,
                                               uint32_t const* flips, Staging<Element, kHeadDim> const& staging,
                                               uint32_t group, uint32_t step, int token_bytes, bool is_aligned) {
  using Tile = HadamardTile<Element, kHeadDim>;
  constexpr int kBytes = kHeadDim * Coding::kBits / 8;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Tile tile(g, t);
  if (side.is_rotated) tile.keep_pieces(g, t);
  uint32_t const heads = static_cast<uint32_t>(args.kv_heads);
  uint32_t const groups = static_cast<uint32_t>((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  VectorCursor at(kVectorsOfWarp * group + g, heads), ahead = at;
  VectorStep const by(kVectorsOfWarp * step, heads);
  int stage = 0;
  auto const fetch = [&] {  // of the vector ahead: its slot, and its pieces to the other stage
    bool const exists = ahead.token < args.tokens;
    int64_t const slot = exists ? args.slots[ahead.token] : -1;
    if (is_aligned) staging.fetch(stage ^ 1, exists ? row_of(side, ahead) : side.vectors, exists, t);
    end_group_of_copies();
    return slot;
  };
  int64_t next_slot = fetch();
  for (; group < groups; group += step) {
    int64_t const slot = next_slot;
    at = ahead, stage ^= 1;
    ahead.advance(by);
    next_slot = fetch();
    wait_for_copies<1>();
    Piece<Element, Tile::kPiece> piece[4] = {};
    if (is_aligned) {
      staging.take(piece, stage);
    } else if (at.token < args.tokens) {
#pragma unroll
      for (int c = 0; c < Tile::kLoaded; ++c) piece[c].template load<false>(row_of(side, at) + Tile::kPiece * (t + 4 * c));
    }
    StoredRow const stored = stored_row<kBytes>(args, slot, at.head, side.begin, token_bytes);
    store_vectors<Coding>(piece, stored, side, tile, flips, args.unbiased != 0);
  }
  wait_for_copies<0>();  // of other vectors: the stage is free
  return group;
}

__device__ __forceinline__ void fill_bins(Bins const& bins, uint8_t* shared) {
  for (int i = threadIdx.x; i < kBins * 32; i += kCompressThreads) {
    reinterpret_cast<uint2*>(shared)[i] = packed_bin(bins.bins[i / 32]);
  }
}

// Bytes of a token and head, and shared memory: signs, bins of one or both sides, then copies in flight.
template <class Element, int kHeadDim, int kValueDim, class Keys, class Values>
struct CompressPlan {
  static_assert(kValueDim <= kHeadDim, "The first signs of keys are those of values.");
  static constexpr bool kAlike = std::is_same_v<Keys, Values> && kValueDim == kHeadDim;
  static constexpr int kKeyBytes = kHeadDim * Keys::kBits / 8, kValueBytes = kValueDim * Values::kBits / 8;
  static constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * kNormBytes;
  static constexpr int kStaging = kBinsBegin + (kAlike ? 1 : 2) * kBinsBytes;
  static constexpr int kShared = kStaging + kCompressThreads / 32 * Staging<Element, kHeadDim>::kWarpBytes;
};

// Grid: as many blocks as the device holds. Keys and values of as many bits and elements share a table and the code.
template <class Variant, class Element, int kHeadDim, int kValueDim, class Keys, class Values>
__global__ void __launch_bounds__(kCompressThreads, kBlocksOfSm<kHeadDim>)
    compress_tokens(__grid_constant__ CompressParams<kHeadDim, Keys, Values> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Plan = CompressPlan<Element, kHeadDim, kValueDim, Keys, Values>;
  auto const& args = params.args;
  uint32_t* const flips = reinterpret_cast<uint32_t*>(shared);
  if (shared_address(shared) != kReserved) __trap();  // bins would not begin where their addresses say
  for (int i = threadIdx.x; i < kHeadDim / 2; i += kCompressThreads) {
    flips[i] = (params.signs(2 * i) ? 1u << 15 : 0) | (params.signs(2 * i + 1) ? 1u << 31 : 0);
  }
  fill_bins(params.keys.bins, shared + kBinsBegin);
  if constexpr (!Plan::kAlike) fill_bins(params.values.bins, shared + kBinsBegin + kBinsBytes);
  wait_for_predecessor();
  __syncthreads();

  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  using Stages = Staging<Element, kHeadDim>;
  Stages const staging{shared + Plan::kStaging + warp * Stages::kWarpBytes + lane * Stages::kPart};
  uint32_t const lane_bins = shared_address(shared + kBinsBegin) + kBinBytes * lane;
  Side<Element> side{static_cast<Element const*>(args.keys), args.key_token_stride, args.key_head_stride, 0, lane_bins,
                     params.keys.bins.scale, args.rotated_keys != 0};
  Side<Element> const values{static_cast<Element const*>(args.values), args.value_token_stride, args.value_head_stride,
                             args.page_size * (Plan::kKeyBytes + kNormBytes), lane_bins + (Plan::kAlike ? 0 : kBinsBytes),
                             params.values.bins.scale, args.rotated_values != 0};
  uint32_t const groups = static_cast<uint32_t>((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  uint32_t const step = kCompressThreads / 32 * gridDim.x;
  uint32_t group = warp * gridDim.x + blockIdx.x;
  if constexpr (Plan::kAlike) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      group = store_side<Keys>(args, side, flips, staging, group, step, Plan::kTokenBytes, params.is_aligned) - groups;
      side = values;
    }
  } else {
    group = store_side<Keys>(args, side, flips, staging, group, step, Plan::kTokenBytes, params.is_aligned) - groups;
    Staging<Element, kValueDim> const of_values{staging.own};
    store_side<Values>(args, values, flips, of_values, group, step, Plan::kTokenBytes, params.is_aligned);
  }
}

// Host code: a launch. Vectors that would need 2^32 numbers do not fit into any memory.
template <class Variant, class Element, int kHeadDim, int kValueDim = kHeadDim, class Keys, class Values>
int32_t compress(gemmill_kv_compress_args const& args, gemmill_launch const& how, Keys const& keys, Values const& values) {
  if (args.tokens == 0 || args.kv_heads == 0) return 0;
  uint64_t const strides = args.key_token_stride | args.key_head_stride | args.value_token_stride | args.value_head_stride;
  uint64_t const places =
      reinterpret_cast<uintptr_t>(args.keys) | reinterpret_cast<uintptr_t>(args.values) | strides * sizeof(Element);
  CompressParams<kHeadDim, Keys, Values> params{args, signs_of<kHeadDim>(static_cast<uint64_t>(args.seed)), keys, values, places % 16 == 0};
  constexpr auto compress = compress_tokens<Variant, Element, kHeadDim, kValueDim, Keys, Values>;
  constexpr int kShared = CompressPlan<Element, kHeadDim, kValueDim, Keys, Values>::kShared;
  if (cudaError_t error = allow_shared_memory<compress>(how.device, kShared); error != cudaSuccess) return error;
  int64_t const groups = 2 * ((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  int64_t const held = static_cast<int64_t>(how.sm_count) * kBlocksOfSm<kHeadDim>;
  LaunchShape const shape{dim3(static_cast<unsigned>(std::min(groups, held))), dim3(kCompressThreads), dim3(1), kShared};
  void* parameters[] = {&params};
  return launch_kernel<compress>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
