// The binding on CPU tensors, in front of kernels that only record what they are given: so it runs without a GPU.
#include "probe.h"

#include <torch/csrc/stable/library.h>

#include <cstring>
#include <string>

#include "gemmill/group_abi.h"
#include "gemmill/quant_abi.h"
#include "quant.h"
#include "scaled_mm.h"
#include "selection.h"

using torch::stable::detail::StableLibrary;

extern "C" {
PROBE_EXPORT gemmill_group_scaled_mm_args probe_args;
PROBE_EXPORT int32_t probe_launches;
PROBE_EXPORT int32_t probe_status;
PROBE_EXPORT char probe_symbol[512];

int32_t probe_record(char const* symbol, gemmill_scaled_mm_args const* args) {
  probe_args = group_args(*args);
  ++probe_launches;
  std::strncpy(probe_symbol, symbol, sizeof(probe_symbol) - 1);
  return probe_status;
}

// Large enough for the arguments of any family, which Python reads.
PROBE_EXPORT unsigned char probe_quant_args[sizeof(gemmill_rms_norm_quant_args)];

int32_t probe_record_quant(char const* symbol, void const* args) {
  std::memcpy(probe_quant_args, args, sizeof(probe_quant_args));
  ++probe_launches;
  std::strncpy(probe_symbol, symbol, sizeof(probe_symbol) - 1);
  return probe_status;
}

PROBE_EXPORT void probe_register(char const* ns) {
  auto* kept = new std::string(ns);
  auto* library = new StableLibrary(StableLibrary::Kind::IMPL, kept->c_str(), "CPU", "probe", 0);
  library->impl("cutlass_scaled_mm", &gemmill::scaled_mm);
  library->impl("cutlass_scaled_mm_azp", &gemmill::scaled_mm_azp);
  for (auto const& op : gemmill::quant_ops) library->impl(op.name, op.kernel);
}

// Holds the lock of noted misses most of the time, until it is told to end.
PROBE_EXPORT void probe_take_misses_until(int32_t const volatile* end) {
  while (*end == 0) gemmill_take_misses(nullptr, 0);
}
}
