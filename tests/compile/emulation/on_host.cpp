// The emulated instructions on the host: a warp's threads are fibers (block.h). Each function below is one instruction of one warp, whose
// registers lie in memory as [lane][register].
#include "block.h"

#include <cuda.h>

#define GEMMILL_EMULATED inline
#define GEMMILL_EMULATED_INLINE inline

namespace gemmill::emulation {

inline uint8_t* shared = nullptr;  // shared memory, from address 0 on
inline uint32_t completed = 0;     // bytes that the barrier counted

template <class Value>
Value of_lane(Value value, int lane) { return __shfl_sync(0xFFFFFFFFu, value, lane); }
inline int lane_of_warp() { return static_cast<int>(threadIdx.x % 32); }
inline uint32_t shared_word(uint32_t address) {
  uint32_t word;
  if (address % 4) exit(1);
  memcpy(&word, shared + address, 4);
  return word;
}
inline void store_shared(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  if (address % 16) exit(1);
  uint32_t const words[4] = {x, y, z, w};
  memcpy(shared + address, words, 16);
}
inline void complete_bytes(uint32_t, uint32_t bytes) { completed += bytes; }
inline double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

}  // namespace gemmill::emulation

#include "emulation/ldmatrix.cuh"
#include "emulation/mma.cuh"
#include "emulation/tma.cuh"

namespace {

using namespace gemmill::emulation;

struct Call {
  uint32_t const *a, *b, *scale_a, *scale_b;
  float const* c;
  float* d;
  int selectors[4];
};

template <class Instruction>
void run_warp(Call const& call, Instruction instruction) {
  struct Both {
    Call const& call;
    Instruction& instruction;
  } both{call, instruction};
  on_host::run(dim3(1), dim3(32), 0, [](void* argument) {
    auto& [call, instruction] = *static_cast<Both*>(argument);
    int const lane = lane_of_warp();
    Operands own;
    memcpy(own.a, call.a + 4 * lane, 16), memcpy(own.b, call.b + 2 * lane, 8);
    Sums c;
    memcpy(c.d, call.c + 4 * lane, 16);
    Sums const d = instruction(own, c, call.scale_a[lane], call.scale_b[lane], call.selectors);
    memcpy(call.d + 4 * lane, d.d, 16);
  }, &both);
}

template <class A, class B>
void run_containers(Call const& call, bool is_scaled) {
  run_warp(call, [is_scaled](Operands const& own, Sums const& c, uint32_t x, uint32_t y, int const* s) {
    return is_scaled ? mma_mxf8f6f4<A, B>(own, c, x, y, s[0], s[1], s[2], s[3]) : mma_f8f6f4<A, B>(own, c);
  });
}

template <class A>
void run_with_b(Call const& call, bool is_scaled, int b) {
  switch (b) {
    case 0: return run_containers<A, E4M3>(call, is_scaled);
    case 1: return run_containers<A, E5M2>(call, is_scaled);
    case 2: return run_containers<A, E3M2>(call, is_scaled);
    case 3: return run_containers<A, E2M3>(call, is_scaled);
    default: return run_containers<A, E2M1>(call, is_scaled);
  }
}

}  // namespace

// Types: 0 e4m3, 1 e5m2, 2 e3m2, 3 e2m3, 4 e2m1.
extern "C" void mma_k32(Call const& call, bool is_scaled, int a, int b) {
  switch (a) {
    case 0: return run_with_b<E4M3>(call, is_scaled, b);
    case 1: return run_with_b<E5M2>(call, is_scaled, b);
    case 2: return run_with_b<E3M2>(call, is_scaled, b);
    case 3: return run_with_b<E2M3>(call, is_scaled, b);
    default: return run_with_b<E2M1>(call, is_scaled, b);
  }
}

extern "C" void mma_k64(Call const& call, int vectors, bool is_ue4m3) {
  run_warp(call, [=](Operands const& own, Sums const& c, uint32_t x, uint32_t y, int const* s) {
    return vectors == 2 ? mma_mxf4nvf4<2, false>(own, c, x, y, s[0], s[1], s[2], s[3])
           : is_ue4m3   ? mma_mxf4nvf4<4, true>(own, c, x, y, s[0], s[1], s[2], s[3])
                        : mma_mxf4nvf4<4, false>(own, c, x, y, s[0], s[1], s[2], s[3]);
  });
}

extern "C" void ldmatrix(uint8_t* memory, int bits, uint32_t const* addresses, uint32_t* result) {
  struct Given {
    int bits;
    uint32_t const* addresses;
    uint32_t* result;
  } given{bits, addresses, result};
  shared = memory;
  on_host::run(dim3(1), dim3(32), 0, [](void* argument) {
    auto& [bits, addresses, result] = *static_cast<Given*>(argument);
    int const lane = lane_of_warp();
    uint32_t words[4];
    bits == 4 ? ldmatrix_m8n16<4>(words, addresses[lane]) : ldmatrix_m8n16<6>(words, addresses[lane]);
    memcpy(result + 4 * lane, words, 16);
  }, &given);
}

// Makes a map and loads a box by it. Returns the bytes that the barrier counted, or a negative error of the driver's numbers.
extern "C" int load_packed(uint8_t* memory, uint32_t to, int type, int rank, void* address, uint64_t const* dims, uint64_t const* strides,
                           uint32_t const* box, int swizzle, int32_t const* at) {
  CUtensorMap map;
  uint32_t const ones[5] = {1, 1, 1, 1, 1};
  CUresult const result = encode_packed(&map, static_cast<CUtensorMapDataType>(type), rank, address, dims, strides, box, ones,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(swizzle),
                                        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return -static_cast<int>(result);
  if (!is_packed_map(&map)) return -1000;
  shared = memory, completed = 0;
  load_box(&map, 0, to, at[0], at[1], at[2], at[3], at[4]);
  return static_cast<int>(completed);
}
