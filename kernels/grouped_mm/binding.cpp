// The grouped GEMMs: the inputs of the choice, and the arguments of a kernel.
#include "extension/family.h"
#include "extension/layout.h"
#include "grouped_mm/abi.h"
#include "grouped_mm/model.h"
#include "gemm/multiply.h"

#include <stdexcept>

namespace gemmill::moe {
namespace {

enum Role { kOut, kA, kB, kAScales, kBScales, kOffsets, kMap, kIds, kAlpha, kBias };
enum Value { kM, kN, kK, kExperts, kWeights, kSlot, kExpectedRows, kGroups, kTokens, kScaled, kPacked };

int64_t alignment_of(Operand const& x, int64_t also = 0) {
  return tma_alignment(x.data, row_stride(x) | also, x.sizes[x.rank - 1], element_bytes(x.dtype));
}

bool asks(OpCall const& x, Call& asked) {
  int64_t const slot = x.value(kSlot), expected = x.value(kExpectedRows) == 0 ? slot : x.value(kExpectedRows);
  if (x.value(kM) == 0 || x.value(kN) == 0 || x.value(kExperts) == 0 || x.value(kWeights) == 0) return false;
  asked.sizes[kSizeM] = slot == 0 ? x.value(kM) : x.value(kExperts) * std::min(expected, slot);
  asked.sizes[kSizeN] = x.value(kN), asked.sizes[kSizeK] = x.value(kK), asked.sizes[kSizeExperts] = x.value(kExperts);
  asked.alignments[kAlignA] = alignment_of(x.tensor(kA));
  asked.alignments[kAlignB] = alignment_of(x.tensor(kB));
  asked.alignments[kAlignOut] = alignment_of(x.tensor(kOut), x.value(kN));  // a TMA store ends at a multiple of 16 bytes, not at n
  return true;
}

void launch(OpCall const& x, Chosen const& chosen) {
  Operand const &a_scales = x.tensor(kAScales), &b_scales = x.tensor(kBScales), &offsets = x.tensor(kOffsets);
  gemmill_grouped_mm_args args{};
  args.a = x.tensor(kA).data, args.b = x.tensor(kB).data, args.d = x.tensor(kOut).data;
  args.a_scales = static_cast<float const*>(a_scales.data), args.b_scales = static_cast<float const*>(b_scales.data);
  args.offsets = static_cast<int32_t const*>(offsets.data);
  args.expert_map = static_cast<int32_t const*>(x.tensor(kMap).data);
  args.lda = row_stride(x.tensor(kA)), args.ldb = row_stride(x.tensor(kB)), args.ldd = row_stride(x.tensor(kOut));
  args.b_stride_expert = x.value(kPacked) ? x.tensor(kB).numel() / x.value(kWeights) : args.ldb * x.value(kN);
  args.alpha = static_cast<float const*>(x.tensor(kAlpha).data), args.bias = x.tensor(kBias).data;
  args.token_ids = static_cast<int32_t const*>(x.tensor(kIds).data);
  args.tokens = static_cast<int32_t>(x.value(kTokens));
  args.id_words = x.tensor(kIds).given() ? static_cast<int32_t>(element_bytes(x.tensor(kIds).dtype) / 4) : 1;
  args.m = static_cast<int32_t>(x.value(kM)), args.n = static_cast<int32_t>(x.value(kN)), args.k = static_cast<int32_t>(x.value(kK));
  args.experts = static_cast<int32_t>(x.value(kExperts)), args.weights = static_cast<int32_t>(x.value(kWeights));
  args.slot = static_cast<int32_t>(x.value(kSlot));
  args.offset_words = static_cast<int32_t>(element_bytes(offsets.dtype) / 4);
  if (x.value(kGroups)) {
    bool const one_of_each = a_scales.rank == 3 && a_scales.sizes[1] == 1;  // whose stride means nothing
    args.a_scale_stride_m = a_scales.strides[one_of_each ? 0 : a_scales.rank - 2], args.a_scale_stride_k = a_scales.strides[a_scales.rank - 1];
    args.b_scale_stride_expert = b_scales.strides[0];
    args.b_scale_stride_n = b_scales.strides[1], args.b_scale_stride_k = b_scales.strides[2];
  } else if (x.value(kScaled) || x.value(kPacked)) {
    args.a_scale_per_row = a_scales.given() && a_scales.numel() > 1;
    args.b_scale_per_column = x.value(kPacked) || b_scales.numel() > x.value(kWeights);
    args.b_scale_stride_expert = args.b_scale_per_column ? x.value(kN) : 1;
  }
  chosen.launch(&args);
}

Family const family{
    "grouped_mm",
    {"out", "a", "b", "a_scales", "b_scales", "expert_offsets", "expert_map", "token_ids", "alpha", "bias"},
    {"M", "N", "K", "experts", "weights", "slot", "expected_rows", "groups", "tokens", "scaled", "packed"},
    {},
    asks,
    launch,
    {takes, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

// The number of the class of calls. Mirrors gemmill.families.grouped_mm.classes, whose other axes are 0 here.
int64_t class_of(Multiplied const& what) {
  constexpr int64_t kBiased = 2, kFormats = 3, kIndexed = 2, kRowsScaled = 2, kGroupSizes = 3, kOutTypes = 16;
  return ((what.dtype * kOutTypes + what.out_dtype) * kGroupSizes + what.groups) * kRowsScaled * kIndexed * kFormats * kBiased;
}

}  // namespace

void multiply(gemmill_grouped_mm_args const& args, Multiplied const& what, Chosen const& of) {
  Call const asked{class_of(what), {what.rows != 0 ? what.rows : args.m, args.n, args.k, args.experts}, {kTmaBytes, kTmaBytes, kTmaBytes}};
  Choice const choice = choose(family, asked, of.sm_count);
  if (choice.row < 0) throw std::runtime_error("gemmill: the build has no grouped GEMM for the products of these experts");
  Chosen{*row_at(choice.row), of.device, of.sm_count}.launch(&args);
}

}  // namespace gemmill::moe
