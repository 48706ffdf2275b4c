// Kernels that start while their predecessor in the stream drains.
#pragma once

namespace gemmill {

// The kernel's successor may start its CTAs as ours leave; its own wait keeps it from our results until we are done.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace gemmill
