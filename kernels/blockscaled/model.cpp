#include "blockscaled/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::blockscaled {
namespace {

constexpr int64_t kMostCtas = int64_t{1} << 30;
constexpr double kBeginNs = 1095.0, kUnhidden = 0.156, kL2 = 18505.0;
constexpr double kMeetingNs[] = {0.0, 0.0, 1903.0, 2499.0, 3469.0, 3873.0, 4282.0, 6025.0, 4483.0};  // to add up so many slices of K
constexpr int64_t kReached[] = {0, 1000, 1000, 760, 760, 760, 850, 940, 760};  // of 1000 multiprocessors

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
  int64_t const ctas = ctas_of(row, call), sms = std::max<int64_t>(std::max<int64_t>(sm_count / row.sms, 1) * kReached[row.splits] / 1000, 1);
  int64_t const on_sm = std::min(row.ctas_of_sm, ceil_div(ctas, sms)), waves = ceil_div(ctas, sms * on_sm);
  int64_t const steps = ceil_div(ceil_div(call.sizes[kSizeK], row.step_columns), row.splits);
  double const step = static_cast<double>(row.step_ps);
  double const each = on_sm == 1 ? step / 1000.0 : static_cast<double>(on_sm * row.shared_permille) * step / 1e6;
  double const working = static_cast<double>(waves) * static_cast<double>(steps) * each;
  double const of_a = m * k * static_cast<double>(row.a_bits) / 128.0, of_b = n * k * static_cast<double>(row.b_bits) / 128.0;
  double const again = of_a * static_cast<double>(ceil_div(call.sizes[kSizeN], row.tile_n)) / kL2;
  double const memory = (of_a + of_b + 2.0 * m * n) / static_cast<double>(row.memory) + again;
  return kBeginNs + std::max(working, memory) + kUnhidden * std::min(working, memory) + kMeetingNs[row.splits];
}

}  // namespace gemmill::blockscaled
