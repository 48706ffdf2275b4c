// In place of kernels/core/launch.cuh: a launch runs all blocks at once.
#pragma once

#include "block.h"
#include "core/abi.h"

namespace gemmill {

struct LaunchShape {
  dim3 grid, block, cluster;
  int shared_bytes;
};

template <auto entry>
cudaError_t allow_shared_memory(int, int) { return cudaSuccess; }

template <class Parameter>
struct Called {
  void (*entry)(Parameter const);
  Parameter const* parameter;
};

template <class Parameter>
void call(void (*entry)(Parameter const), LaunchShape const& shape, void** parameters) {
  Called<Parameter> called{entry, static_cast<Parameter const*>(parameters[0])};
  auto body = [](void* argument) {
    auto const& of = *static_cast<Called<Parameter>*>(argument);
    of.entry(*of.parameter);
  };
  on_host::run(shape.grid, shape.block, shape.shared_bytes, body, &called);
}

template <auto entry>
int32_t launch_kernel(LaunchShape const& shape, gemmill_launch const&, void** parameters) {
  call(entry, shape, parameters);
  return 0;
}

}  // namespace gemmill
