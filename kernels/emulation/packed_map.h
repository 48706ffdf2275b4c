// Tensor maps of packed elements, 4 and 6 bits, which Hopper's TMA does not know. Such a map is made here, under the rules that CUDA's
// driver API gives for cuTensorMapEncodeTiled, and the emulated load reads it. The kernel passes it on like any other.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>

namespace gemmill::emulation {

constexpr uint64_t kMarkLow = 0x656C756D65206D67u, kMarkHigh = 0x7061642064657461u;  // no map of the driver's ends so

struct alignas(64) PackedMap {
  uint64_t address;
  uint64_t strides[4];  // in bytes, of dimensions 1 to 4
  uint64_t dims[5];     // in elements
  uint16_t box[5];
  uint8_t rank;
  uint8_t bits;            // of an element
  uint8_t row_bytes;       // of 16 elements in shared memory: 8, or 16 with a gap
  uint8_t swizzle_bytes;   // 16-byte chunks change places within so many bytes; 0: they stay
  uint8_t unused[18];
  uint64_t mark[2];
};
static_assert(sizeof(PackedMap) == sizeof(CUtensorMap));

inline bool is_packed(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B || type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B ||
         type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

// cuTensorMapEncodeTiled for a packed type.
inline CUresult encode_packed(CUtensorMap* result, CUtensorMapDataType type, cuuint32_t rank, void* address, cuuint64_t const* dims,
                              cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const* element_strides,
                              CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill fill) {
  bool const has_gaps = type != CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B;
  uint64_t const alignment = has_gaps ? 32 : 16;
  PackedMap map{};
  map.address = reinterpret_cast<uint64_t>(address);
  map.rank = static_cast<uint8_t>(rank);
  map.bits = type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B ? 6 : 4;
  map.row_bytes = has_gaps ? 16 : 8;
  bool is_legal = rank >= 1 && rank <= 5 && map.address % alignment == 0 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                  fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  for (cuuint32_t i = 0; is_legal && i < rank; ++i) {
    is_legal = dims[i] >= 1 && dims[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256 && element_strides[i] == 1;
    map.dims[i] = dims[i];
    map.box[i] = static_cast<uint16_t>(box[i]);
    if (i > 0) {
      is_legal = is_legal && strides[i - 1] % alignment == 0 && strides[i - 1] < uint64_t{1} << 40;
      map.strides[i - 1] = strides[i - 1];
    }
  }
  if (!is_legal) return CUDA_ERROR_INVALID_VALUE;
  uint64_t const inner_bytes = uint64_t{box[0]} / 16 * map.row_bytes;
  if (has_gaps ? dims[0] % 128 != 0 || box[0] != 128 : dims[0] % 2 != 0 || box[0] % 32 != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: break;
    case CU_TENSOR_MAP_SWIZZLE_32B: map.swizzle_bytes = 32; break;
    case CU_TENSOR_MAP_SWIZZLE_64B: map.swizzle_bytes = 64; break;
    case CU_TENSOR_MAP_SWIZZLE_128B: map.swizzle_bytes = 128; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  if (has_gaps && map.swizzle_bytes != 0 && map.swizzle_bytes != 128) return CUDA_ERROR_INVALID_VALUE;
  if (map.swizzle_bytes != 0 && inner_bytes > map.swizzle_bytes) return CUDA_ERROR_INVALID_VALUE;
  map.mark[0] = kMarkLow, map.mark[1] = kMarkHigh;
  std::memcpy(result, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace gemmill::emulation
