// `cp.async.bulk.tensor` of packed elements in device code: one thread copies a box, as PTX ISA 9.1 says in "Tensors" and "Sub-byte
// Types", and tells the barrier of the bytes that it brought. Elements outside the tensor are zero. Gaps have a pattern that
// no code should be read from.
#pragma once

#include "emulation/packed_map.h"
#include "emulation/warp.cuh"

namespace gemmill::emulation {

constexpr uint32_t kGap = 0xA5A5A5A5u;

GEMMILL_EMULATED_INLINE bool is_packed_map(void const* map) {
  auto const* packed = static_cast<PackedMap const*>(map);
  return packed->mark[0] == kMarkLow && packed->mark[1] == kMarkHigh;
}

// The place of a byte of a box: the three bits above bits 4 to 6 of an address, or fewer, change them.
GEMMILL_EMULATED_INLINE uint32_t swizzled(uint32_t address, uint32_t bytes) {
  return bytes == 0 ? address : address ^ (address >> 3 & (bytes - 16));
}

struct Chunk {
  uint32_t words[4];
};

// 16 bytes of shared memory: 32 elements without gaps, 16 with. `from` is the first element's address, `inside` how many elements
// from there on are the tensor's.
GEMMILL_EMULATED_INLINE Chunk load_chunk(PackedMap const& map, uint64_t from, int64_t inside) {
  Chunk result{};
  auto const* words = reinterpret_cast<uint32_t const*>(from);
  if (map.row_bytes == 16) {  // extents are multiples of 128: 16 elements are inside, or none
    int const count = map.bits / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.words[i] = i >= count ? kGap : inside > 0 ? words[i] : 0;
    return result;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int64_t const left = inside - 8 * i;
    if (left >= 8) {
      result.words[i] = words[i];
    } else {  // an even number: whole bytes
      for (int j = 0; j < left / 2; ++j) result.words[i] |= static_cast<uint32_t>(reinterpret_cast<uint8_t const*>(words + i)[j]) << (8 * j);
    }
  }
  return result;
}

// cp.async.bulk.tensor.Nd.shared.global.tile.mbarrier::complete_tx::bytes
GEMMILL_EMULATED void load_box(void const* descriptor, uint32_t barrier, uint32_t shared, int32_t c0, int32_t c1, int32_t c2, int32_t c3,
                               int32_t c4) {
  PackedMap const map = *static_cast<PackedMap const*>(descriptor);
  int32_t const first[5] = {c0, c1, c2, c3, c4};
  int const per_chunk = map.row_bytes == 16 ? 16 : 32, chunks = map.box[0] / per_chunk, chunk_bytes = per_chunk * map.bits / 8;
  int rows = 1;
#pragma unroll
  for (int i = 1; i < 5; ++i) rows *= i < map.rank ? map.box[i] : 1;
  if (c0 % per_chunk != 0 || shared % 16 != 0) __trap();
  for (int row = 0; row < rows; ++row) {
    int rest = row;
    uint64_t from = map.address;
    bool is_inside = true;
#pragma unroll
    for (int i = 1; i < 5; ++i) {
      if (i >= map.rank) continue;
      int64_t const at = int64_t{first[i]} + rest % map.box[i];
      rest /= map.box[i];
      is_inside = is_inside && at >= 0 && at < static_cast<int64_t>(map.dims[i]);
      from += static_cast<uint64_t>(at) * map.strides[i - 1];
    }
    constexpr int kTogether = 4;  // loads under way at a time
    for (int begin = 0; begin < chunks; begin += kTogether) {
      Chunk loaded[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        int64_t const at = int64_t{c0} + (begin + i) * per_chunk;
        int64_t const inside = is_inside && at >= 0 && begin + i < chunks ? static_cast<int64_t>(map.dims[0]) - at : 0;
        loaded[i] = load_chunk(map, from + static_cast<uint64_t>(at / per_chunk * chunk_bytes), inside);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (begin + i >= chunks) continue;
        uint32_t const to = swizzled(shared + static_cast<uint32_t>(16 * (row * chunks + begin + i)), map.swizzle_bytes);
        store_shared(to, loaded[i].words[0], loaded[i].words[1], loaded[i].words[2], loaded[i].words[3]);
      }
    }
  }
  complete_bytes(barrier, static_cast<uint32_t>(rows * chunks * chunk_bytes));
}

}  // namespace gemmill::emulation
