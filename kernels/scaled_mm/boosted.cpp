#include "scaled_mm/boosted.h"

#include <algorithm>
#include <cstdint>

#include "scaled_mm/boosted_trees.h"

namespace gemmill {

double log_of(TreeInputs const& inputs) {
  int64_t total = 0;
  for (Tree const& tree : kTrees) {
    int leaf = 0;
    for (int i = 0; i < kTreeDepth; ++i) leaf = 2 * leaf + (inputs[tree.properties[i]] > tree.thresholds[i] ? 1 : 0);
    total += tree.leaves[leaf];
  }
  return std::clamp(static_cast<double>(total) * 1e-4, kLeastLog, -kLeastLog);
}

}  // namespace gemmill
