// Registering the ops' CUDA kernels under a namespace, when Python asks for it: several builds can be loaded, and each
// op name belongs to one of them at a time. Schemas are defined in Python.
#include <torch/csrc/stable/library.h>

#include <string>

#include "quant.h"
#include "scaled_mm.h"

using torch::stable::detail::StableLibrary;

extern "C" __attribute__((visibility("default"))) void* gemmill_register(char const* ns) {
  // The dispatcher keeps the pointers.
  auto* kept = new std::string(ns);
  auto* library = new StableLibrary(StableLibrary::Kind::IMPL, kept->c_str(), "CUDA", "gemmill", 0);
  library->impl("cutlass_scaled_mm", &gemmill::scaled_mm);
  library->impl("cutlass_scaled_mm_azp", &gemmill::scaled_mm_azp);
  for (auto const& op : gemmill::quant_ops) library->impl(op.name, op.kernel);
  return library;
}

extern "C" __attribute__((visibility("default"))) void gemmill_unregister(void* library) {
  delete static_cast<StableLibrary*>(library);
}
