#include "blockscaled/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::blockscaled {
namespace {

constexpr int64_t kSide = 64, kMostCtas = int64_t{1} << 30;
constexpr double kAlone = 1.5, kBeginNs = 2000.0, kMeetingNs = 500.0;

int64_t ctas_of(Facts const& row, Call const& call) {
  return ceil_div(call.sizes[kSizeM], row.tile_m) * ceil_div(call.sizes[kSizeN], row.tile_n) * row.splits;
}

}  // namespace

bool takes(Row const& row, Call const& call) {
  return ctas_of(facts_of(row), call) <= kMostCtas && call.sizes[kSizeK] % facts_of(row).k_multiple == 0;
}

// Mirrored by gemmill.families.blockscaled.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = facts_of(of);
  double const m = static_cast<double>(call.sizes[kSizeM]), n = static_cast<double>(call.sizes[kSizeN]), k = static_cast<double>(call.sizes[kSizeK]);
  int64_t const ctas = ctas_of(row, call), sms = std::max<int64_t>(sm_count / row.sms, 1);
  int64_t const on_sm = std::min(row.ctas_of_sm, ceil_div(ctas, sms)), waves = ceil_div(ctas, sms * on_sm);
  int64_t const steps = ceil_div(ceil_div(call.sizes[kSizeK], kSide), row.splits);
  double const alone = on_sm * row.k_groups == 1 ? kAlone : 1.0;
  double const working = static_cast<double>(waves * on_sm) * static_cast<double>(steps) * static_cast<double>(row.step_ps) * alone / 1000.0;
  double const read = n * k * static_cast<double>(row.b_bits) + m * k * static_cast<double>(row.a_bits);
  double const memory = (read / 128.0 + 2.0 * m * n) / static_cast<double>(row.memory);
  return kBeginNs + std::max(working, memory) + (row.splits > 1 ? kMeetingNs : 0.0);
}

}  // namespace gemmill::blockscaled
