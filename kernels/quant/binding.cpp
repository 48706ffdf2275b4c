// The quantisation ops: the arguments of a kernel.
#include "extension/family.h"
#include "quant/abi.h"
#include "quant/call.h"

namespace gemmill::quant {
namespace {

bool asks(OpCall const& x, Call&) { return x.value(kWorks) != 0; }

void launch(OpCall const& x, Chosen const& chosen) {
  gemmill_quant_args const args{
      x.tensor(kIn).data,
      x.tensor(kOut).data,
      x.tensor(kScales).data,
      static_cast<int32_t*>(x.tensor(kAzp).data),
      static_cast<float const*>(x.tensor(kScaleUb).data),
      x.tensor(kWeight).data,
      x.tensor(kResidual).data,
      static_cast<float const*>(x.tensor(kGlobalScale).data),
      x.tensor(kModScale).data,
      x.tensor(kModShift).data,
      static_cast<int32_t const*>(x.tensor(kExpertOffsets).data),
      static_cast<int32_t const*>(x.tensor(kScaleOffsets).data),
      x.value(kRows), x.value(kHidden),
      x.value(kInStride), x.value(kOutStride), x.value(kResidualStride),
      x.found[kScaleStrideM], x.found[kScaleStrideN], x.found[kGroupM], x.found[kGroupN],
      x.value(kScaleRows),
      x.value(kOutRows),
      x.value(kIsSwizzled),
      x.value(kScalesStride),
      x.value(kRoundsUp),
      x.value(kRoundsToInput),
      x.value(kPadded),
      x.value(kModScaleStride), x.value(kModShiftStride),
      x.value(kExperts),
      static_cast<int32_t*>(x.tensor(kRowSums).data),
      static_cast<float>(x.real(kEps)),
  };
  chosen.launch(&args);
}

Family const family{
    "quant",
    {"out", "input", "scales", "azp", "scale_ub", "weight", "residual", "global_scale", "mod_scale", "mod_shift",
     "expert_offsets", "scale_offsets", "row_sums"},
    {"rows", "hidden", "out_rows", "input_stride", "out_stride", "residual_stride", "eps", "words", "scale_rows", "works", "packed",
     "is_scale_transposed", "takes_group_shape", "group_shape", "is_swizzled", "scales_stride", "rounds_up", "padded",
     "mod_scale_stride", "mod_shift_stride", "experts", "group_size",
     "rounds_to_input"},
    {{"static_scales", static_scales_fit}, {"group_scales", group_scales_fit}},
    asks,
    launch,
};

}  // namespace
}  // namespace gemmill::quant
