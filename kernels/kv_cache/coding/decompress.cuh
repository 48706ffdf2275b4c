// Stored keys and values to plain vectors, both in one launch: unpacked, scaled, rotated back (eden and turboquant_mse).
//
// A warp takes eight vectors at a time. A byte that begins with two codes indexes a table of pairs of centroids, of which each lane has a
// copy; the pairs go to the tensor core as they are (hadamard_tile.cuh), norm and scale are factors of its sums, and the rotation's signs
// flip in the rounded words. Codes of the next eight vectors, and slots of those behind them, are on their way meanwhile. A slot outside
// of the cache gives zeros. Memory sets the time.
#pragma once

#include <algorithm>

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/shared/hadamard_tile.cuh"
#include "kv_cache/shared/packed_codes.cuh"
#include "kv_cache/shared/rotation.cuh"
#include "kv_cache/shared/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kDecompressThreads = 256;
template <int kHeadDim>
constexpr int kDecompressBlocks = kHeadDim > 256 ? 1 : kHeadDim > 128 ? 2 : 3;  // of an SM, as registers allow
constexpr int kPairsBytes = 256 * 32 * 4;

template <int kHeadDim>
struct DecompressParams {
  gemmill_kv_decompress_args args;
  Signs<kHeadDim> signs;
  Centroids centroids;
  bool is_aligned;  // vectors begin at multiples of 16 bytes
};

// One side of a call.
template <class Element>
struct Plain {
  Element* vectors;
  int64_t stride;
  int64_t begin;          // of its fields in a head's page
  uint32_t const* pairs;  // the lane's copy
};

// Codes and norm of a vector, as its four lanes have them; zeros where there is none.
template <int kBits, int kHeadDim>
struct StoredPieces {
  using Tile = HadamardTile<__half, kHeadDim>;
  static constexpr int kBytes = kHeadDim * kBits / 8;
  PackedCodes<kBits, Tile::kPiece> codes[Tile::kLoaded];
  float norm;

  __device__ __forceinline__ void load(gemmill_kv_decompress_args const& args, int64_t slot, uint32_t head, int64_t begin,
                                       int token_bytes, int t) {
    norm = 0.0f;
    if (slot < 0 || slot >= args.pages * args.page_size) {
#pragma unroll
      for (auto& each : codes) each = {};
      return;
    }
    int const page_shift = __ffs(static_cast<int>(args.page_size)) - 1, place = static_cast<int>(slot & (args.page_size - 1));
    uint8_t const* const of_side =
        args.cache + (slot >> page_shift) * args.page_stride + head * args.page_size * token_bytes + begin;
    norm = to_float(reinterpret_cast<__half const*>(of_side + args.page_size * kBytes)[place]);
#pragma unroll
    for (int c = 0; c < Tile::kLoaded; ++c) codes[c].load(of_side + place * kBytes, t + 4 * c);
  }
};

// Signs of the rotation in the lane's two pieces of a rotated vector, as they lie in words of two elements.
template <int kHeadDim>
struct Flips {
  static constexpr int kPiece = HadamardTile<__half, kHeadDim>::kPiece, kPieces = HadamardTile<__half, kHeadDim>::kPieces;
  uint32_t words[2][kPiece / 2];

  // Of as many elements or more, of which the first count.
  template <int kSigns>
  __device__ __forceinline__ Flips(Signs<kSigns> const& signs, int g) {
    static_assert(kHeadDim <= kSigns, "Every element has a sign.");
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const first = (g + 8 * i) % kPieces * kPiece;
      uint32_t const bits = signs.words[first / 32] >> (first % 32);
#pragma unroll
      for (int j = 0; j < kPiece / 2; ++j) words[i][j] = (bits >> (2 * j) & 1) << 15 | (bits >> (2 * j + 1) & 1) << 31;
    }
  }
};

// Eight vectors of a side from `first` on.
template <int kBits, int kHeadDim, class Element>
__device__ __forceinline__ void restore_vectors(StoredPieces<kBits, kHeadDim> const& stored, Plain<Element> const& side,
                                                HadamardTile<__half, kHeadDim> const& tile, Flips<kHeadDim> const& flips,
                                                uint32_t first, int64_t vectors, bool is_aligned) {
  using Tile = HadamardTile<__half, kHeadDim>;
  constexpr int kPiece = Tile::kPiece;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Piece<__half, kPiece> piece[4] = {};
#pragma unroll
  for (int c = 0; c < Tile::kLoaded; ++c) {
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) {
      auto const& codes = stored.codes[c];
      piece[c].words[i] = side.pairs[32 * (codes.word_of(i) >> (8 * codes.byte_of(i)) & 0xFF)];
    }
  }
  float sum[4][kPiece];
  tile(sum, piece);

  // Rows 2 t and 2 t + 1 are the lane's to write.
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    uint32_t const vector = first + 2 * t + row;
    float const scale = __shfl_sync(0xFFFFFFFFu, stored.norm, 4 * (2 * t + row)) * kInverseRoot<kHeadDim>;
    if (vector >= vectors) continue;
    Element* const to = side.vectors + vector * side.stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const place = g + 8 * i;
      if (place >= Tile::kPieces) continue;
      Piece<Element, kPiece> result;
#pragma unroll
      for (int j = 0; j < kPiece; j += 2) {
        float const(&of_row)[kPiece] = sum[row + 2 * i];
        result.words[j / 2] = two_elements<Element>(of_row[j] * scale, of_row[j + 1] * scale) ^ flips.words[i][j / 2];
      }
      if (is_aligned) result.template store<true>(to + place * kPiece);
      else result.template store<false>(to + place * kPiece);
    }
  }
}

// A side's vectors, eight at a time, from `group` times eight on; returns the group behind the last.
template <int kBits, int kHeadDim, class Element>
__device__ __forceinline__ uint32_t restore_side(gemmill_kv_decompress_args const& args, bool is_aligned, Plain<Element> const& side,
                                                 HadamardTile<__half, kHeadDim> const& tile, Flips<kHeadDim> const& flips,
                                                 uint32_t group, uint32_t step, int token_bytes) {
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t const heads = static_cast<uint32_t>(args.kv_heads);
  int64_t const vectors = args.tokens * args.kv_heads;
  uint32_t const groups = static_cast<uint32_t>((vectors + kVectorsOfWarp - 1) / kVectorsOfWarp);
  VectorCursor at(kVectorsOfWarp * group + g, heads), ahead = at;
  VectorStep const by(kVectorsOfWarp * step, heads);
  auto const slot_of = [&](VectorCursor const& cursor) { return cursor.token < args.tokens ? args.slots[cursor.token] : -1; };
  StoredPieces<kBits, kHeadDim> stored, next;
  stored.load(args, slot_of(at), at.head, side.begin, token_bytes, t);
  ahead.advance(by);
  int64_t slot = slot_of(ahead);
  for (; group < groups; group += step) {
    at = ahead, ahead.advance(by);
    next.load(args, slot, at.head, side.begin, token_bytes, t);
    slot = slot_of(ahead);
    restore_vectors(stored, side, tile, flips, kVectorsOfWarp * group, vectors, is_aligned);
    stored = next;
  }
  return group;
}

// A thread writes four lanes' copies at a time.
template <int kBits>
__device__ __forceinline__ void fill_pairs(uint16_t const (&centroids)[16], uint32_t* pairs) {
  constexpr int kMask = (1 << kBits) - 1;
  for (int i = threadIdx.x; i < 256 * 8; i += kDecompressThreads) {
    int const byte = i / 8;
    uint32_t const pair = centroids[byte & kMask] | static_cast<uint32_t>(centroids[byte >> kBits & kMask]) << 16;
    reinterpret_cast<uint4*>(pairs)[i] = make_uint4(pair, pair, pair, pair);
  }
}

// Grid: as many blocks as the device holds. Keys and values of as many bits and elements share a table.
template <class Variant, class Element, int kHeadDim, int kKeyBits, int kValueBits, int kValueDim>
__global__ void __launch_bounds__(kDecompressThreads, kDecompressBlocks<kHeadDim>)
    decompress_tokens(__grid_constant__ DecompressParams<kHeadDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr bool kAlike = kKeyBits == kValueBits && kHeadDim == kValueDim;
  constexpr int kKeyBytes = kHeadDim * kKeyBits / 8, kValueBytes = kValueDim * kValueBits / 8;
  constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * kNormBytes;
  auto const& args = params.args;
  uint32_t* const key_pairs = reinterpret_cast<uint32_t*>(shared);
  uint32_t* const value_pairs = key_pairs + (kAlike ? 0 : kPairsBytes / 4);
  fill_pairs<kKeyBits>(params.centroids.bits[0], key_pairs);
  if constexpr (!kAlike) fill_pairs<kValueBits>(params.centroids.bits[1], value_pairs);
  wait_for_predecessor();
  __syncthreads();

  int const lane = threadIdx.x % 32;
  HadamardTile<__half, kHeadDim> const tile(lane / 4, lane % 4);
  Flips<kHeadDim> const flips(params.signs, lane / 4);
  Plain<Element> const keys{static_cast<Element*>(args.keys), args.key_stride, 0, key_pairs + lane};
  Plain<Element> const values{static_cast<Element*>(args.values), args.value_stride, args.page_size * (kKeyBytes + kNormBytes),
                              value_pairs + lane};
  uint32_t const groups = static_cast<uint32_t>((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  uint32_t const step = kDecompressThreads / 32 * gridDim.x;
  uint32_t const behind =
      restore_side<kKeyBits>(args, params.is_aligned, keys, tile, flips, threadIdx.x / 32 * gridDim.x + blockIdx.x, step, kTokenBytes);
  if constexpr (kHeadDim == kValueDim) {
    restore_side<kValueBits>(args, params.is_aligned, values, tile, flips, behind - groups, step, kTokenBytes);
  } else {
    HadamardTile<__half, kValueDim> const of_values(lane / 4, lane % 4);
    Flips<kValueDim> const value_flips(params.signs, lane / 4);
    restore_side<kValueBits>(args, params.is_aligned, values, of_values, value_flips, behind - groups, step, kTokenBytes);
  }
}

// Host code: a launch. Vectors that would need 2^32 numbers do not fit into any memory.
template <class Variant, class Element, int kHeadDim, int kKeyBits, int kValueBits, int kValueDim = kHeadDim>
int32_t decompress(gemmill_kv_decompress_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  if (args.tokens == 0 || args.kv_heads == 0) return 0;
  uint64_t const strides = args.key_stride | args.value_stride;
  uint64_t const places =
      reinterpret_cast<uintptr_t>(args.keys) | reinterpret_cast<uintptr_t>(args.values) | strides * sizeof(Element);
  DecompressParams<kHeadDim> params{args, signs_of<kHeadDim>(static_cast<uint64_t>(args.seed)), centroids, places % 16 == 0};
  constexpr auto restore = decompress_tokens<Variant, Element, kHeadDim, kKeyBits, kValueBits, kValueDim>;
  constexpr int kShared = kPairsBytes * (kKeyBits == kValueBits && kHeadDim == kValueDim ? 1 : 2);
  if (cudaError_t error = allow_shared_memory<restore>(how.device, kShared); error != cudaSuccess) return error;
  int64_t const groups = 2 * ((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  int64_t const held = static_cast<int64_t>(how.sm_count) * kDecompressBlocks<kHeadDim>;
  LaunchShape const shape{dim3(static_cast<unsigned>(std::min(groups, held))), dim3(kDecompressThreads), dim3(1), kShared};
  void* parameters[] = {&params};
  return launch_kernel<restore>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
