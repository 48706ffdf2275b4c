// The GEMM ops: the special check, the inputs of the choice, and the arguments of a kernel.
#include <stdexcept>

#include "extension/family.h"
#include "extension/layout.h"
#include "gemm/multiply.h"
#include "scaled_mm/abi.h"
#include "scaled_mm/classes.h"
#include "scaled_mm/group_scales.h"
#include "scaled_mm/model.h"

namespace gemmill {
namespace {

enum Role { kOut, kA, kB, kAScales, kBScales, kAzpAdj, kAzp, kBiasOf, kRow0, kColumn0 = kRow0 + 4 };
enum Value { kM, kN, kK, kGroups, kEitherWay, kOwn, kScalar0 };

bool scales_fit(OpCall& x) {
  int64_t const m = x.value(kM), n = x.value(kN), k = x.value(kK);
  Operand const &a_scales = x.tensor(kAScales), &b_scales = x.tensor(kBScales);
  bool const either = x.value(kEitherWay), codes = operand_bytes(operand_type(x.tensor(kA).dtype)) == 1;
  if (is_vector_of(a_scales, m, 0, either) && is_vector_of(b_scales, n, 1, either)) return true;
  return x.value(kGroups) && codes && find_groups(a_scales, b_scales, m, n, k, x.found.data());
}

// Leading dimensions. No access uses the stride of a single row: any will do that TMA takes.
struct Strides {
  int64_t a, b, d;

  explicit Strides(OpCall const& x)
      : a(x.value(kM) == 1 ? round_up(x.value(kK), 16) : x.tensor(kA).strides[0]),
        b(x.value(kN) == 1 ? round_up(x.value(kK), 16) : x.tensor(kB).strides[1]),
        d(x.value(kM) == 1 ? round_up(x.value(kN), 16 / element_bytes(x.tensor(kOut).dtype)) : x.tensor(kOut).strides[0]) {}
};

bool asks(OpCall const& x, Call& asked) {
  Operand const &out = x.tensor(kOut), &a = x.tensor(kA);
  int64_t const m = x.value(kM), n = x.value(kN), k = x.value(kK);
  if (m == 0 || n == 0) return false;
  OperandType const type = operand_type(a.dtype);
  int64_t const bytes = operand_bytes(type);
  Strides const strides(x);
  asked.sizes[kSizeM] = m, asked.sizes[kSizeN] = n, asked.sizes[kSizeK] = k;
  asked.alignments[kAlignA] = tma_alignment(a.data, strides.a, k, bytes);
  asked.alignments[kAlignB] = tma_alignment(x.tensor(kB).data, strides.b, k, bytes);
  asked.alignments[kAlignD] = tma_alignment(out.data, strides.d | n, n, element_bytes(out.dtype));  // a TMA store ends at a multiple of 16 bytes, not at n
  Need const need = x.tensor(kAzpAdj).given() ? (x.tensor(kAzp).given() ? kAzpToken : kAzpRow) : (x.tensor(kBiasOf).given() ? kBias : kScale);
  int64_t const own = x.value(kOwn);
  asked.call_class = own != 0 ? class_code(0, kScale, type, out_type(out.dtype), own)
                              : class_code(x.found[kScaleGroups], need, type, out_type(out.dtype));
  return true;
}

// The inputs of a user's epilogue.
void fill_own(gemmill_scaled_mm_args& args, OpCall const& x) {
  void const** const vectors[] = {&args.row0, &args.row1, &args.row2, &args.row3, &args.column0, &args.column1, &args.column2, &args.column3};
  int32_t* const steps[] = {&args.row0_step, &args.row1_step, &args.row2_step, &args.row3_step,
                            &args.column0_step, &args.column1_step, &args.column2_step, &args.column3_step};
  for (int i = 0; i < 8; ++i) {
    Operand const& given = x.tensor(kRow0 + i);
    if (given.given()) *vectors[i] = given.data, *steps[i] = given.numel() > 1;
  }
  float* const scalars[] = {&args.scalar0, &args.scalar1, &args.scalar2, &args.scalar3};
  for (int i = 0; i < 4; ++i) *scalars[i] = static_cast<float>(x.real(kScalar0 + i));
}

// Launches a variant with the settings of its row.
void launch_row(gemmill_scaled_mm_args& args, Chosen const& chosen) {
  GemmFacts const& facts = gemm_facts(chosen.row);
  args.raster_order = static_cast<int32_t>(facts.raster_order), args.swizzle = static_cast<int32_t>(facts.swizzle);
  args.splits = static_cast<int32_t>(facts.splits);
  chosen.launch(&args);
}

void launch(OpCall const& x, Chosen const& chosen) {
  Strides const strides(x);
  gemmill_scaled_mm_args args{};
  args.a = x.tensor(kA).data, args.b = x.tensor(kB).data, args.d = x.tensor(kOut).data;
  args.a_scales = static_cast<float const*>(x.tensor(kAScales).data);
  args.b_scales = static_cast<float const*>(x.tensor(kBScales).data);
  args.bias = x.tensor(kBiasOf).data;
  args.azp_adj = static_cast<int32_t const*>(x.tensor(kAzpAdj).data);
  args.azp = static_cast<int32_t const*>(x.tensor(kAzp).data);
  args.lda = strides.a, args.ldb = strides.b, args.ldd = strides.d;
  args.m = static_cast<int32_t>(x.value(kM)), args.n = static_cast<int32_t>(x.value(kN)), args.k = static_cast<int32_t>(x.value(kK));
  args.a_scale_stride_m = x.found[kAScaleStrideM], args.a_scale_stride_k = x.found[kAScaleStrideK];
  args.b_scale_stride_n = x.found[kBScaleStrideN], args.b_scale_stride_k = x.found[kBScaleStrideK];
  args.a_scale_per_row = x.tensor(kAScales).numel() > 1, args.b_scale_per_column = x.tensor(kBScales).numel() > 1;
  if (x.value(kOwn) != 0) fill_own(args, x);
  launch_row(args, chosen);
}

Family const scaled_mm{
    "scaled_mm",
    {"out", "a", "b", "a_scales", "b_scales", "azp_adj", "azp", "bias", "row0", "row1", "row2", "row3", "column0", "column1", "column2", "column3"},
    {"M", "N", "K", "groups", "either_way", "own", "scalar0", "scalar1", "scalar2", "scalar3"},
    {{"scales", scales_fit}},
    asks,
    launch,
    {takes, model_ns, pads_more, least_ns},
};

}  // namespace

void multiply(Product const& what, Chosen const& of) {
  int64_t found[kBScaleStrideK + 1] = {};
  if (what.groups != kNoGroups) describe_groups(what.groups, what.a_scales, what.b_scales, what.m, found);
  Call const asked{class_code(found[kScaleGroups], kScale, operand_type(what.dtype), kToBf16), {what.m, what.n, what.k},
                   {kTmaBytes, kTmaBytes, kTmaBytes}};
  Choice const choice = choose(scaled_mm, asked, of.sm_count);
  if (choice.row < 0) throw std::runtime_error("gemmill: the build has no scaled GEMM for the product of gates and ups");
  gemmill_scaled_mm_args args{};
  args.a = what.a, args.b = what.b, args.d = what.d;
  args.a_scales = static_cast<float const*>(what.a_scales.data), args.b_scales = static_cast<float const*>(what.b_scales.data);
  args.lda = what.lda, args.ldb = what.ldb, args.ldd = what.ldd, args.m = what.m, args.n = what.n, args.k = what.k;
  args.a_scale_stride_m = found[kAScaleStrideM], args.a_scale_stride_k = found[kAScaleStrideK];
  args.b_scale_stride_n = found[kBScaleStrideN], args.b_scale_stride_k = found[kBScaleStrideK];
  args.a_scale_per_row = what.a_scales.numel() > 1, args.b_scale_per_column = what.b_scales.numel() > 1;
  Chosen const chosen{*row_at(choice.row), of.device, of.sm_count};
  launch_row(args, chosen);
}

}  // namespace gemmill
