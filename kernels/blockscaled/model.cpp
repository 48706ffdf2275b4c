#include "blockscaled/model.h"

#include <algorithm>

#include "extension/layout.h"

namespace gemmill::blockscaled {
namespace {

constexpr int64_t kMostCtas = int64_t{1} << 30;
constexpr double kBeginNs = 8.0, kUnhidden = 0.0021, kL2 = 46294.0;
constexpr double kFillNs = 2806.0, kFillSharedNs = 800.6;
constexpr double kMeetingNs[] = {0.0, 0.0, 922.0, 1423.0, 1478.0, 2055.0, 2400.0, 2861.0, 1950.0};  // of so many slices of K
constexpr double kSumNs = 0.0462, kSumOfSlicesNs = 0.1377;  // for each sum of a tile
// Of 1000 multiprocessors: of kernels that have one alone, then of those that share one.
constexpr int64_t kReached[2][9] = {{0, 1000, 1000, 864, 900, 820, 850, 820, 900}, {0, 1000, 1000, 900, 940, 909, 900, 860, 940}};

int64_t ctas_of(Facts const& row, Call const& call) {
  return ceil_div(call.sizes[kSizeM], row.tile_m) * ceil_div(call.sizes[kSizeN], row.tile_n) * row.splits;
}

double turn_ns(Facts const& row, int64_t k, int64_t on_sm) {
  int64_t const steps = ceil_div(ceil_div(k, row.step_columns), row.splits);
  double const step = static_cast<double>(row.step_ps);
  double each = step / 1000.0;
  if (on_sm > 1) {
    double const of_all = std::max(each, static_cast<double>(row.ctas_of_sm * row.shared_permille) * step / 1e6);
    each += (of_all - each) * static_cast<double>(on_sm - 1) / static_cast<double>(row.ctas_of_sm - 1);
  }
  double const fill = on_sm == 1 ? kFillNs : static_cast<double>(on_sm) * kFillSharedNs;
  double const of_sum = row.splits == 1 ? kSumNs : kSumOfSlicesNs;
  return fill + static_cast<double>(steps) * each + kMeetingNs[row.splits] + of_sum * static_cast<double>(row.tile_m * row.tile_n);
}

}  // namespace

bool takes(Row const& row, Call const& call) {
  return ctas_of(facts_of(row), call) <= kMostCtas && call.sizes[kSizeK] % facts_of(row).k_multiple == 0;
}

// Mirrored by gemmill.families.blockscaled.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = facts_of(of);
  double const m = static_cast<double>(call.sizes[kSizeM]), n = static_cast<double>(call.sizes[kSizeN]), k = static_cast<double>(call.sizes[kSizeK]);
  int64_t const ctas = ctas_of(row, call), sms = std::max<int64_t>(std::max<int64_t>(sm_count / row.sms, 1) * kReached[row.ctas_of_sm > 1][row.splits] / 1000, 1);
  int64_t const on_sm = std::min(row.ctas_of_sm, ceil_div(ctas, sms)), turns = ctas / (sms * on_sm), left = ctas % (sms * on_sm);
  double const of_turn = turn_ns(row, call.sizes[kSizeK], on_sm);
  double working = static_cast<double>(turns) * of_turn;
  if (left > 0) {
    double const alone = turn_ns(row, call.sizes[kSizeK], ceil_div(left, sms)), part = of_turn * static_cast<double>(left) / static_cast<double>(sms * on_sm);
    working += turns == 0 ? alone : part + static_cast<double>(row.left_permille) / 1000.0 * (alone - part);
  }
  double const of_a = m * k * static_cast<double>(row.a_bits) / 128.0, of_b = n * k * static_cast<double>(row.b_bits) / 128.0;
  double const again = of_a * static_cast<double>(ceil_div(call.sizes[kSizeN], row.tile_n)) / kL2;
  double const memory = (of_a + of_b + 2.0 * m * n) / static_cast<double>(row.memory) + again;
  return kBeginNs + std::max(working, memory) + kUnhidden * std::min(working, memory);
}

}  // namespace gemmill::blockscaled
