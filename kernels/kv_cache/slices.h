// Host code: of how many slices the tokens of a sequence are, so that their blocks fill so many waves of a device. How many is a
// setting of a variant's launch, which is chosen as any variant is (model.cpp, tuned tables).
#pragma once

#include <algorithm>
#include <cstdint>

namespace gemmill::kv_cache {

// `tiles` have `stages` of tokens each, and a device holds `blocks` at a time. `fixed` is how many there are where it is not 0: then a
// sequence's slices do not depend on the batch. Mirrored by gemmill.families.kv_cache.model.
inline int64_t slices_of(int64_t tiles, int64_t stages, int64_t blocks, int64_t half_waves, int64_t fixed) {
  if (fixed > 0) return fixed;
  int64_t const wanted = half_waves * blocks / (2 * std::max<int64_t>(tiles, 1));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(stages, 1));
}

}  // namespace gemmill::kv_cache
