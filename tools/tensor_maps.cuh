// The tensor maps that the host side of Blackwell's kernels asks the driver for, and the shape of the launch. The driver's function is
// replaced by one that writes down the questions, and passes them on where it was given the driver's own.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "emulation/packed_map.h"
#include "blockscaled/pair_arguments.h"

struct Map {
  uint64_t address, dims[5], strides[5];  // strides in bytes, of dimensions 1 and on
  uint32_t box[5], element_strides[5];
  int32_t type, rank, interleave, swizzle, fill;
  int32_t driver, emulated;  // verdicts: of the driver, 0 without one; of packed_map.h, -1 where elements are whole bytes
};

struct Launched {
  int32_t grid[3], block[3], cluster[3], shared_bytes;
};

inline Map* told = nullptr;
inline int told_count = 0, told_room = 0;
inline decltype(&cuTensorMapEncodeTiled) driver = nullptr;

extern "C" void ask_driver(void* encode) { driver = reinterpret_cast<decltype(driver)>(encode); }

// `map` is a question, and has the verdicts afterwards.
extern "C" void encode(Map* map) {
  alignas(64) CUtensorMap made;
  auto const type = static_cast<CUtensorMapDataType>(map->type);
  auto ask = [&](auto function) {
    return function(&made, type, map->rank, reinterpret_cast<void*>(map->address), reinterpret_cast<cuuint64_t const*>(map->dims),
                    reinterpret_cast<cuuint64_t const*>(map->strides), map->box, map->element_strides,
                    static_cast<CUtensorMapInterleave>(map->interleave), static_cast<CUtensorMapSwizzle>(map->swizzle),
                    CU_TENSOR_MAP_L2_PROMOTION_NONE, static_cast<CUtensorMapFloatOOBfill>(map->fill));
  };
  map->driver = driver == nullptr ? 0 : static_cast<int32_t>(ask(driver));
  map->emulated = gemmill::emulation::is_packed(type) ? static_cast<int32_t>(ask(gemmill::emulation::encode_packed)) : -1;
}

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void* address, cuuint64_t const* dims,
                                           cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const* element_strides,
                                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill fill) {
  if (told_count == told_room) return CUDA_ERROR_OUT_OF_MEMORY;
  Map& map = told[told_count++] = {};
  map.address = reinterpret_cast<uint64_t>(address);
  std::copy_n(dims, rank, map.dims), std::copy_n(strides, rank - 1, map.strides);
  std::copy_n(box, rank, map.box), std::copy_n(element_strides, rank, map.element_strides);
  map.type = type, map.rank = static_cast<int32_t>(rank), map.interleave = interleave, map.swizzle = swizzle, map.fill = fill;
  encode(&map);
  return CUDA_SUCCESS;
}

// Writes up to `room` maps, and returns how many there are.
template <class Kernel, class Alpha, class Bias>
int describe(gemmill_blockscaled_args const& x, gemmill_launch const& how, Map* maps, int room, Launched* shape) {
  told = maps, told_count = 0, told_room = room;
  auto arguments = gemmill::blockscaled::pair_arguments<Kernel, Alpha, Bias>(x);
  arguments.hw_info = cutlass::KernelHardwareInfo{how.device, how.sm_count, how.sm_count};
  auto const params = Kernel::to_underlying_arguments(arguments, nullptr);
  dim3 const grid = Kernel::get_grid_shape(params), block = Kernel::get_block_shape();
  using Cluster = typename Kernel::ClusterShape;
  *shape = {{int(grid.x), int(grid.y), int(grid.z)},
            {int(block.x), int(block.y), int(block.z)},
            {int(cute::size<0>(Cluster{})), int(cute::size<1>(Cluster{})), int(cute::size<2>(Cluster{}))},
            int(Kernel::SharedStorageSize)};
  return told_count;
}
