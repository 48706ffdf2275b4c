#include "fused_moe/model.h"

#include <algorithm>

namespace gemmill::fused_moe {
namespace {

constexpr double kMemory = 4000.0;

}  // namespace

// Mirrored by gemmill.families.fused_moe.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = reinterpret_cast<Facts const&>(of.facts);
  int64_t const pairs = call.sizes[kSizePairs], active = std::max<int64_t>(std::min(pairs, call.sizes[kSizeExperts]), 1);
  int64_t const tiles = active + pairs / row.tile_tokens;
  double const read = 3.0 * static_cast<double>(call.sizes[kSizeInner]) * static_cast<double>(call.sizes[kSizeHidden]) * static_cast<double>(row.bits) / 8.0;
  double const memory = static_cast<double>(active) * read / kMemory;
  double const working = static_cast<double>(tiles) * read / 1024.0 * static_cast<double>(row.tile_ps) / 1000.0 * 132.0 / static_cast<double>(sm_count);
  return static_cast<double>(row.begin_ns) + std::max(memory, working) + 0.1 * std::min(memory, working);
}

}  // namespace gemmill::fused_moe
