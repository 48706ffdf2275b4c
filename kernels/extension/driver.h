// The driver functions that kernels' launch code calls, found by `driver.cpp`.
#pragma once

#include <string>

namespace gemmill {

// Returns and forgets the description of the calling thread's last TMA descriptor that could not be made; empty
// where there was none. Until it is asked, nothing is launched on this thread.
std::string take_descriptor_failure();

}  // namespace gemmill
