// The parameters of generator/gemmill/families/grouped_mm/dsl/grouped_mm.py, in the order of its kernel's.
#include "grouped_mm/driver_call.h"

namespace gemmill {

int32_t launch_gemm(gemmill_driver_kernel& kernel, ExpertFacts const& facts, gemmill_grouped_mm_args const& args, gemmill_launch const& how) {
  void* const none = nullptr;
  auto const vectors = [&](Parameters& all) {
    all.add(args.a_scales, args.b_scales);
    if (facts.biased) {
      all.add(args.bias);
    } else {
      all.add(none);
    }
    all.add(none, none, args.tokens, args.n, args.k, args.a_scale_per_row, args.b_scale_per_column, args.b_scale_stride_expert);
    if (facts.biased) all.add(args.alpha);
  };
  return launch_experts(kernel, facts, args, how, args.n, vectors, [](Parameters&) {});
}

}  // namespace gemmill
