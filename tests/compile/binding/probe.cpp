// The binding on CPU tensors, in front of kernels that only record what they are given: so it runs without a GPU.
#include "probe.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "fused_experts/abi.h"
#include "quant/abi.h"
#include "scaled_mm/abi.h"
#include "machine.h"
#include "extension/family.h"

// The family of tests/toy_tuning.py.
static bool toy_takes(gemmill::Row const&, gemmill::Call const& call) { return call.sizes[1] % 2 == 1; }
static double toy_ns(gemmill::Row const& row, gemmill::Call const& call, int64_t) {
  int64_t const at_a_time = row.facts[0];
  return static_cast<double>((call.sizes[0] + at_a_time - 1) / at_a_time * call.sizes[1] * call.sizes[2]);
}
static bool toy_wastes(gemmill::Row const& row, int64_t const*, int64_t const* sizes) { return sizes[0] % row.facts[0] > 0; }
static gemmill::Family const toy("toy", {}, {}, {}, nullptr, nullptr, {toy_takes, toy_ns, toy_wastes});

extern "C" {
// Of the last launch; the arguments of whatever family, as many bytes as the largest have.
PROBE_EXPORT unsigned char probe_args[std::max({sizeof(gemmill_scaled_mm_args), sizeof(gemmill_quant_args), sizeof(gemmill_fused_experts_args)})];
PROBE_EXPORT gemmill_launch probe_how;
PROBE_EXPORT int32_t probe_launches;
PROBE_EXPORT int32_t probe_status;
PROBE_EXPORT char probe_symbol[512];
PROBE_EXPORT int64_t probe_workspace;  // bytes that kernels ask for
PROBE_EXPORT int64_t probe_stride;     // bytes; of a descriptor that kernels make before they are launched, if it is not 0
PROBE_EXPORT int32_t probe_current;   // the current device at the last launch

// As CUTLASS does: a descriptor that cannot be made is no reason not to launch.
static int32_t launch_with_descriptor(gemmill_scaled_mm_args const& args) {
  CUtensorMap map;
  cuuint64_t const dims[2] = {static_cast<cuuint64_t>(args.k), static_cast<cuuint64_t>(args.m)};
  cuuint64_t const stride = static_cast<cuuint64_t>(probe_stride);
  cuuint32_t const box[2] = {64, 1}, element_strides[2] = {1, 1};
  cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(args.a), dims, &stride, box, element_strides,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CUlaunchConfig const config{};
  return cuLaunchKernelEx(&config, nullptr, nullptr, nullptr);
}

int32_t probe_record(char const* symbol, void const* args, gemmill_launch const* how) {
  std::memcpy(probe_args, args, sizeof(probe_args));
  probe_how = *how;
  ++probe_launches;
  probe_current = probe_machine.current;
  std::strncpy(probe_symbol, symbol, sizeof(probe_symbol) - 1);
  return probe_stride != 0 ? launch_with_descriptor(*static_cast<gemmill_scaled_mm_args const*>(args)) : probe_status;
}

// The estimate of a family's model for a row of the table.
PROBE_EXPORT double probe_nanoseconds(char const* family, int64_t row, gemmill::Call const* call, int64_t sm_count) {
  return gemmill::Family::named(family)->model.nanoseconds(*gemmill::row_at(row), *call, sm_count);
}
PROBE_EXPORT bool probe_wastes(char const* family, int64_t row, gemmill::Call const* measured, gemmill::Call const* call) {
  return gemmill::Family::named(family)->model.wastes(*gemmill::row_at(row), measured->sizes, call->sizes);
}

// Holds the lock of noted choices most of the time, until `stop`.
PROBE_EXPORT void probe_take_noted_until(int32_t const volatile* end) {
  while (*end == 0) gemmill_take_noted(nullptr, 0);
}
}
