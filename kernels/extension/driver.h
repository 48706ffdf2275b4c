// What `driver.cpp` knows of the driver functions that kernels' launch code calls.
#pragma once

#include <string>

namespace gemmill {

// What the calling thread's last TMA descriptor that could not be made was to describe, in words, and forgets it; empty
// where there was none. Until it is asked, nothing is launched on this thread.
std::string take_descriptor_failure();

}  // namespace gemmill
