// The facts that `driver.cpp` has of the driver functions that kernels' launch code calls.
#pragma once

#include <string>

namespace gemmill {

// Describes the calling thread's last TMA descriptor that failed, in words, and forgets it; empty where there was none. Until this call,
// nothing launches on this thread.
std::string take_descriptor_failure();

}  // namespace gemmill
