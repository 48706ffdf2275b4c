// Stored keys and values to plain vectors, both in one launch: unpacked, scaled, rotated back (eden and turboquant_mse).
//
// A warp takes eight vectors at a time. A byte that begins with two codes indexes a table of pairs of centroids, of which each
// lane has a copy; the pairs go to the tensor core as they are (hadamard_tile.cuh), and norm, signs and scale are factors of its
// sums. A slot outside of the cache gives zeros. Memory sets the time.
#pragma once

#include <algorithm>

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/hadamard_tile.cuh"
#include "kv_cache/packed_codes.cuh"
#include "kv_cache/rotation.cuh"
#include "kv_cache/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kDecompressThreads = 256;
constexpr int kDecompressBlocks = 2;  // of an SM
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
  int64_t token_stride, head_stride;
  int64_t begin;          // of its fields in a head's page
  uint32_t const* pairs;  // the lane's copy
};

// Eight vectors of a side, from `group` times eight on.
template <int kBits, int kHeadDim, class Element>
__device__ __forceinline__ void restore_vectors(DecompressParams<kHeadDim> const& params, Plain<Element> const& side,
                                                HadamardTile<__half, kHeadDim> const& tile, uint32_t group, int token_bytes) {
  using Tile = HadamardTile<__half, kHeadDim>;
  constexpr int kBytes = kHeadDim * kBits / 8, kPiece = Tile::kPiece;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  // Row g is the lane's to read.
  uint32_t const vector = kVectorsOfWarp * group + g, heads = static_cast<uint32_t>(args.kv_heads);
  uint32_t const token = vector / heads, head = vector % heads;
  Piece<__half, kPiece> piece[4] = {};
  Element* to = nullptr;
  float norm = 0.0f;
  if (vector < args.tokens * args.kv_heads) {
    int64_t const slot = args.slots[token];
    to = side.vectors + token * side.token_stride + head * side.head_stride;
    if (slot >= 0 && slot < args.pages * args.page_size) {
      int const page_shift = __ffs(static_cast<int>(args.page_size)) - 1, place = static_cast<int>(slot & (args.page_size - 1));
      uint8_t const* const of_side =
          args.cache + (slot >> page_shift) * args.page_stride + head * args.page_size * token_bytes + side.begin;
      norm = to_float(reinterpret_cast<__half const*>(of_side + args.page_size * kBytes)[place]);
#pragma unroll
      for (int c = 0; c < Tile::kLoaded; ++c) {
        PackedCodes<kBits, kPiece> codes;
        codes.load(of_side + place * kBytes, t + 4 * c);
#pragma unroll
        for (int i = 0; i < kPiece / 2; ++i) {
          piece[c].words[i] = side.pairs[32 * (codes.word_of(i) >> (8 * codes.byte_of(i)) & 0xFF)];
        }
      }
    }
  }
  float sum[4][kPiece];
  tile(sum, piece);

  // Rows 2 t and 2 t + 1 are the lane's to write.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int const source = 4 * (2 * t + i % 2), place = g + 8 * (i / 2);
    float const scale = __shfl_sync(0xFFFFFFFFu, norm, source) * kInverseRoot<kHeadDim>;
    auto* const row = reinterpret_cast<Element*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(to), source));
    if (row == nullptr || place >= Tile::kPieces) continue;
    Piece<Element, kPiece> result;
#pragma unroll
    for (int j = 0; j < kPiece; j += 2) {
      int const element = place * kPiece + j;
      float const low = sum[i][j] * (params.signs(element) ? -scale : scale);
      float const high = sum[i][j + 1] * (params.signs(element + 1) ? -scale : scale);
      result.words[j / 2] = two_elements<Element>(low, high);
    }
    if (params.is_aligned) result.template store<true>(row + place * kPiece);
    else result.template store<false>(row + place * kPiece);
  }
}

template <int kBits>
__device__ __forceinline__ void fill_pairs(uint16_t const (&centroids)[16], uint32_t* pairs) {
  constexpr int kMask = (1 << kBits) - 1;
  for (int i = threadIdx.x; i < 256 * 32; i += kDecompressThreads) {
    int const byte = i / 32;
    pairs[i] = centroids[byte & kMask] | static_cast<uint32_t>(centroids[byte >> kBits & kMask]) << 16;
  }
}

// Grid: as many blocks as the device holds.
template <class Variant, class Element, int kHeadDim, int kKeyBits, int kValueBits>
__global__ void __launch_bounds__(kDecompressThreads, kDecompressBlocks)
    decompress_tokens(__grid_constant__ DecompressParams<kHeadDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kKeyBytes = kHeadDim * kKeyBits / 8, kValueBytes = kHeadDim * kValueBits / 8;
  constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * kNormBytes;
  auto const& args = params.args;
  uint32_t* const key_pairs = reinterpret_cast<uint32_t*>(shared);
  uint32_t* const value_pairs = key_pairs + kPairsBytes / 4;
  fill_pairs<kKeyBits>(params.centroids.bits[0], key_pairs);
  fill_pairs<kValueBits>(params.centroids.bits[1], value_pairs);
  wait_for_predecessor();
  __syncthreads();

  int const lane = threadIdx.x % 32;
  HadamardTile<__half, kHeadDim> const tile(lane / 4, lane % 4);
  auto const side_of = [&](bool is_value) {
    return Plain<Element>{static_cast<Element*>(is_value ? args.values : args.keys),
                          is_value ? args.value_token_stride : args.key_token_stride,
                          is_value ? args.value_head_stride : args.key_head_stride,
                          is_value ? args.page_size * (kKeyBytes + kNormBytes) : 0, (is_value ? value_pairs : key_pairs) + lane};
  };
  uint32_t const groups = static_cast<uint32_t>((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  for (uint32_t group = threadIdx.x / 32 * gridDim.x + blockIdx.x; group < 2 * groups; group += kDecompressThreads / 32 * gridDim.x) {
    bool const is_value = group >= groups;
    if constexpr (kKeyBits == kValueBits) {
      restore_vectors<kKeyBits>(params, side_of(is_value), tile, is_value ? group - groups : group, kTokenBytes);
    } else if (is_value) {
      restore_vectors<kValueBits>(params, side_of(true), tile, group - groups, kTokenBytes);
    } else {
      restore_vectors<kKeyBits>(params, side_of(false), tile, group, kTokenBytes);
    }
  }
}

// Host code: a launch. Vectors that would need 2^32 numbers do not fit into any memory.
template <class Variant, class Element, int kHeadDim, int kKeyBits, int kValueBits>
int32_t decompress(gemmill_kv_decompress_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  if (args.tokens == 0 || args.kv_heads == 0) return 0;
  uint64_t const strides = args.key_token_stride | args.key_head_stride | args.value_token_stride | args.value_head_stride;
  uint64_t const places =
      reinterpret_cast<uintptr_t>(args.keys) | reinterpret_cast<uintptr_t>(args.values) | strides * sizeof(Element);
  DecompressParams<kHeadDim> params{args, signs_of<kHeadDim>(static_cast<uint64_t>(args.seed)), centroids, places % 16 == 0};
  constexpr auto restore = decompress_tokens<Variant, Element, kHeadDim, kKeyBits, kValueBits>;
  if (cudaError_t error = allow_shared_memory<restore>(how.device, 2 * kPairsBytes); error != cudaSuccess) return error;
  int64_t const groups = 2 * ((args.tokens * args.kv_heads + kVectorsOfWarp - 1) / kVectorsOfWarp);
  int64_t const held = static_cast<int64_t>(how.sm_count) * kDecompressBlocks;
  LaunchShape const shape{dim3(static_cast<unsigned>(std::min(groups, held))), dim3(kDecompressThreads), dim3(1), 2 * kPairsBytes};
  void* parameters[] = {&params};
  return launch_kernel<restore>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
