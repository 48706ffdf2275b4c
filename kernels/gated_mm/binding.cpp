// The gated GEMMs: the inputs of the choice, and the arguments of a kernel.
#include <algorithm>

#include "extension/dtypes.h"
#include "extension/family.h"
#include "extension/layout.h"
#include "gated_mm/abi.h"
#include "gated_mm/model.h"
#include "gated_mm/parts.h"
#include "gemm/multiply.h"

namespace gemmill::gated_mm {
namespace {

enum Role { kOut, kOutScales, kA, kB, kAScales, kBScales, kStaticScale, kOffsets, kMap, kIds };
enum Value { kM, kN, kK, kAlpha, kLimit, kBeta, kActivation, kInGroups, kOfExperts, kExperts, kWeights, kSlot, kExpectedRows, kTokens };

// Leading dimensions. No access uses that of a single row or column: any will do that TMA takes.
struct Strides {
  int64_t a, b, d;

  explicit Strides(OpCall const& x)
      : a(x.value(kM) == 1 ? round_up(x.value(kK), 16) : x.tensor(kA).strides[0]),
        b(x.value(kN) == 1 ? round_up(x.value(kK), 16) : x.tensor(kB).strides[1]),
        d(x.value(kM) == 1 ? round_up(x.value(kN) / 2, 16) : x.tensor(kOut).strides[0]) {}
};

int64_t alignment_of(Operand const& x, int64_t also = 0) {
  return tma_alignment(x.data, row_stride(x) | also, x.sizes[x.rank - 1], element_bytes(x.dtype));
}

// The rows that a choice counts with: in slots as many as the caller expects.
int64_t expected_rows(OpCall const& x) {
  int64_t const slot = x.value(kSlot), expected = x.value(kExpectedRows) == 0 ? slot : x.value(kExpectedRows);
  return slot == 0 ? x.value(kM) : x.value(kExperts) * std::min(expected, slot);
}

bool asks_experts(OpCall const& x, Call& asked) {
  if (x.value(kM) == 0 || x.value(kN) == 0 || x.value(kExperts) == 0 || x.value(kWeights) == 0) return false;
  asked.sizes[kSizeM] = expected_rows(x);
  asked.sizes[kSizeN] = x.value(kN), asked.sizes[kSizeK] = x.value(kK), asked.sizes[kSizeExperts] = x.value(kExperts);
  asked.alignments[kAlignA] = alignment_of(x.tensor(kA));
  asked.alignments[kAlignB] = alignment_of(x.tensor(kB));
  asked.alignments[kAlignOut] = alignment_of(x.tensor(kOut), x.value(kN) / 2);
  return true;
}

bool asks(OpCall const& x, Call& asked) {
  if (x.value(kOfExperts)) return asks_experts(x, asked);
  Operand const &out = x.tensor(kOut), &a = x.tensor(kA), &b = x.tensor(kB);
  int64_t const m = x.value(kM), n = x.value(kN), k = x.value(kK), hidden = n / 2;
  if (m == 0 || n == 0) return false;
  Strides const strides(x);
  asked.sizes[kSizeM] = m, asked.sizes[kSizeN] = n, asked.sizes[kSizeK] = k, asked.sizes[kSizeExperts] = 0;
  asked.alignments[kAlignA] = tma_alignment(a.data, strides.a, k, element_bytes(a.dtype));
  asked.alignments[kAlignB] = tma_alignment(b.data, strides.b, k, element_bytes(b.dtype));
  asked.alignments[kAlignOut] = tma_alignment(out.data, strides.d | hidden, hidden, element_bytes(out.dtype));  // a TMA store ends at a multiple of 16 bytes
  return true;
}

// The row of a tensor's scales from the next one's, where all rows but those of slots of one have one stride.
int64_t scale_stride(Operand const& x) { return x.strides[x.rank == 3 && x.sizes[1] == 1 ? 0 : x.rank - 2]; }

void give_experts(OpCall const& x, gemmill_gated_mm_args& args) {
  Operand const &offsets = x.tensor(kOffsets), &b_scales = x.tensor(kBScales);
  args.offsets = static_cast<int32_t const*>(offsets.data), args.offset_words = static_cast<int32_t>(element_bytes(offsets.dtype) / 4);
  args.expert_map = static_cast<int32_t const*>(x.tensor(kMap).data);
  args.experts = static_cast<int32_t>(x.value(kExperts)), args.weights = static_cast<int32_t>(x.value(kWeights));
  args.slot = static_cast<int32_t>(x.value(kSlot));
  args.token_ids = static_cast<int32_t const*>(x.tensor(kIds).data), args.tokens = static_cast<int32_t>(x.value(kTokens));
  args.id_words = x.tensor(kIds).given() ? static_cast<int32_t>(element_bytes(x.tensor(kIds).dtype) / 4) : 1;
  args.lda = row_stride(x.tensor(kA)), args.ldb = row_stride(x.tensor(kB)), args.ldd = row_stride(x.tensor(kOut));
  args.b_stride_expert = args.ldb * x.value(kN);
  args.b_scale_per_column = b_scales.numel() > x.value(kWeights);
  args.b_scale_stride_expert = args.b_scale_per_column ? x.value(kN) : 1;
  if (x.value(kInGroups)) {
    args.a_scale_stride_m = scale_stride(x.tensor(kAScales)), args.a_scale_stride_k = x.tensor(kAScales).strides[x.tensor(kAScales).rank - 1];
    args.b_scale_stride_expert = b_scales.strides[0];
    args.b_scale_stride_n = b_scales.strides[1], args.b_scale_stride_k = b_scales.strides[2];
  }
  if (x.tensor(kOutScales).given()) {
    args.out_scale_stride_m = scale_stride(x.tensor(kOutScales));
    args.out_scale_stride_g = x.tensor(kOutScales).strides[x.tensor(kOutScales).rank - 1];
  }
}

void give_dense(OpCall const& x, gemmill_gated_mm_args& args) {
  Strides const strides(x);
  Operand const& out_scales = x.tensor(kOutScales);
  args.lda = strides.a, args.ldb = strides.b, args.ldd = strides.d;
  args.b_scale_per_column = x.tensor(kBScales).numel() > 1;
  if (out_scales.given()) args.out_scale_stride_m = out_scales.strides[0], args.out_scale_stride_g = out_scales.strides[1];
  if (x.value(kInGroups)) {
    Operand const &a_scales = x.tensor(kAScales), &b_scales = x.tensor(kBScales);
    args.a_scale_stride_m = a_scales.strides[0], args.a_scale_stride_k = a_scales.strides[1];
    args.b_scale_stride_n = b_scales.strides[1], args.b_scale_stride_k = b_scales.strides[0];
  }
}

// The product by a plain GEMM of packed weights, then the row's own kernel, which reads it.
void launch_parts(OpCall const& x, gemmill_gated_mm_args const& call, Chosen const& chosen) {
  Workspace const workspace(int64_t{call.m} * call.n * 2, chosen.device);
  gemmill_gated_parts_args const args{call, workspace.data()};
  int32_t const dtype = x.tensor(kA).dtype, groups = static_cast<int32_t>(x.value(kInGroups));
  if (x.value(kOfExperts)) {
    gemmill_grouped_mm_args product{};
    product.a = call.a, product.b = call.b, product.d = args.product, product.a_scales = call.a_scales, product.b_scales = call.b_scales;
    product.offsets = call.offsets, product.expert_map = call.expert_map, product.token_ids = call.token_ids;
    product.lda = call.lda, product.ldb = call.ldb, product.ldd = call.n, product.b_stride_expert = call.b_stride_expert;
    product.m = call.m, product.n = call.n, product.k = call.k, product.experts = call.experts, product.weights = call.weights;
    product.slot = call.slot, product.offset_words = call.offset_words, product.tokens = call.tokens, product.id_words = call.id_words;
    product.a_scale_per_row = call.a_scale_per_row, product.b_scale_per_column = call.b_scale_per_column;
    product.a_scale_stride_m = call.a_scale_stride_m, product.a_scale_stride_k = call.a_scale_stride_k;
    product.b_scale_stride_n = call.b_scale_stride_n, product.b_scale_stride_k = call.b_scale_stride_k;
    product.b_scale_stride_expert = call.b_scale_stride_expert;
    moe::multiply(product, {dtype, dtypes().bf16, groups, expected_rows(x)}, chosen);
  } else {
    constexpr ProductGroups kKinds[] = {kNoGroups, kBlocksOf128, kBlocksOf32, kRowsOf32};
    multiply({dtype, kKinds[groups], call.a, call.b, args.product, x.tensor(kAScales), x.tensor(kBScales), call.lda, call.ldb, call.n,
              call.m, call.n, call.k}, chosen);
  }
  chosen.launch(&args);
}

void launch(OpCall const& x, Chosen const& chosen) {
  gemmill_gated_mm_args args{};
  args.a = x.tensor(kA).data, args.b = x.tensor(kB).data, args.d = x.tensor(kOut).data;
  args.a_scales = static_cast<float const*>(x.tensor(kAScales).data);
  args.b_scales = static_cast<float const*>(x.tensor(kBScales).data);
  args.static_scale = static_cast<float const*>(x.tensor(kStaticScale).data);
  args.out_scales = static_cast<float*>(x.tensor(kOutScales).data);
  args.m = static_cast<int32_t>(x.value(kM)), args.n = static_cast<int32_t>(x.value(kN)), args.k = static_cast<int32_t>(x.value(kK));
  args.a_scale_per_row = x.tensor(kAScales).numel() > 1;
  if (x.value(kOfExperts)) {
    give_experts(x, args);
  } else {
    give_dense(x, args);
  }
  args.alpha = static_cast<float>(x.real(kAlpha)), args.limit = static_cast<float>(x.real(kLimit)), args.beta = static_cast<float>(x.real(kBeta));
  args.activation = static_cast<int32_t>(x.value(kActivation));
  if (reinterpret_cast<Facts const&>(chosen.row.facts).parts) return launch_parts(x, args, chosen);
  chosen.launch(&args);
}

Family const family{
    "gated_mm",
    {"out", "out_scales", "a", "b", "a_scales", "b_scales", "static_scale", "expert_offsets", "expert_map", "token_ids"},
    {"M", "N", "K", "alpha", "limit", "beta", "activation_index", "in_groups", "of_experts", "experts", "weights", "slot", "expected_rows", "tokens"},
    {},
    asks,
    launch,
    {[](Row const&, Call const&) { return true; }, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

}  // namespace
}  // namespace gemmill::gated_mm
