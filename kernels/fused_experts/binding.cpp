// Fused experts: the inputs of the choice, and the arguments of a kernel.
#include "fused_experts/abi.h"
#include "fused_experts/apart_workspace.h"
#include "fused_experts/model.h"
#include "extension/device.h"
#include "extension/dtypes.h"
#include "extension/family.h"
#include "extension/layout.h"
#include "gemm/multiply.h"

namespace gemmill::fused_moe {
namespace {

enum Role { kOut, kX, kW13, kW2, kW13Scales, kW2Scales, kIds, kWeights, kW13Bias, kW2Bias, kMap, kWorkspace };
enum Value { kM, kK, kInner, kTopk, kExperts, kPairs, kGroups, kActivation, kAlpha, kLimit, kBeta, kOrder, kWeightOnInput, kAdds, kPacked };
enum Order { kGateUp, kUpGate, kInterleaved };

int64_t alignment_of(Operand const& x) { return tma_alignment(x.data, row_stride(x), x.sizes[x.rank - 1], element_bytes(x.dtype)); }

bool asks(OpCall const& x, Call& asked) {
  if (x.value(kM) == 0 || x.value(kK) == 0) return false;
  asked.sizes[kSizePairs] = x.value(kPairs), asked.sizes[kSizeInner] = x.value(kInner);
  asked.sizes[kSizeHidden] = x.value(kK), asked.sizes[kSizeExperts] = x.value(kExperts);
  asked.alignments[kAlignX] = alignment_of(x.tensor(kX)), asked.alignments[kAlignW13] = alignment_of(x.tensor(kW13));
  asked.alignments[kAlignW2] = alignment_of(x.tensor(kW2));
  return true;
}

struct ScaleStrides {
  int64_t expert = 0, row = 0, k = 0;

  ScaleStrides(Operand const& scales, int64_t experts, int64_t rows, bool blocks) {
    if (!scales.given()) return;
    if (blocks) {
      expert = scales.strides[0], row = scales.strides[1], k = scales.strides[2];
    } else {
      row = scales.numel() > experts, expert = row ? rows : 1;
    }
  }
};

// Both products as grouped GEMMs: five launches, that share a workspace.
void launch_apart(gemmill_apart_experts_args& args, moe::Multiplied const& what, Chosen const& chosen) {
  auto& x = args.layer;
  Workspace const own = chosen.workspace_for(&args);
  if (x.workspace == nullptr) x.workspace = own.data();
  bool const coded = what.dtype != what.out_dtype;
  constexpr int64_t kGroups[] = {0, 128, 32};
  ApartWorkspace const ws(x, coded, kGroups[what.groups], static_cast<char*>(x.workspace));
  int64_t const pairs = int64_t{x.tokens} * x.topk;
  auto const stage = [&](int32_t number) { args.stage = number, chosen.launch(&args); };
  auto const multiply = [&](void const* a, float const* a_scales, void* d, int32_t n, int32_t k, gemmill_grouped_mm_args product) {
    product.a = a, product.a_scales = coded ? a_scales : nullptr, product.d = d, product.offsets = ws.offsets;
    product.lda = k, product.ldd = n, product.b_stride_expert = product.ldb * n;
    product.m = product.tokens = static_cast<int32_t>(pairs), product.n = n, product.k = k;
    product.experts = product.weights = x.weights, product.offset_words = product.id_words = 1;
    if (what.groups) {
      product.a_scale_stride_m = 1, product.a_scale_stride_k = pairs;
    } else if (coded) {
      product.a_scale_per_row = pairs > 1, product.b_scale_per_column = product.b_scale_stride_n != 0, product.b_scale_stride_n = 0;
    }
    moe::multiply(product, what, chosen);
  };
  gemmill_grouped_mm_args up{}, down{};
  up.b = x.w13, up.b_scales = x.w13_scales, up.ldb = x.w13_stride_row;
  up.b_scale_stride_expert = x.w13_scale_stride_expert, up.b_scale_stride_n = x.w13_scale_stride_row, up.b_scale_stride_k = x.w13_scale_stride_k;
  down.b = x.w2, down.b_scales = x.w2_scales, down.ldb = x.w2_stride_row;
  down.b_scale_stride_expert = x.w2_scale_stride_expert, down.b_scale_stride_n = x.w2_scale_stride_row, down.b_scale_stride_k = x.w2_scale_stride_k;
  stage(GEMMILL_PERMUTE);
  multiply(ws.rows, ws.scales, ws.products, 2 * x.inner, x.hidden, up);
  stage(GEMMILL_ACTIVATE);
  multiply(ws.inner_rows, ws.inner_scales, ws.parts, x.hidden, x.inner, down);
  stage(GEMMILL_COMBINE);
}

void launch(OpCall const& x, Chosen const& chosen) {
  Operand const &map = x.tensor(kMap), &workspace = x.tensor(kWorkspace);
  int64_t const experts = x.value(kExperts), inner = x.value(kInner), hidden = x.value(kK), order = x.value(kOrder);
  ScaleStrides const of_w13(x.tensor(kW13Scales), experts, 2 * inner, x.value(kGroups)), of_w2(x.tensor(kW2Scales), experts, hidden, x.value(kGroups));
  gemmill_apart_experts_args apart{};
  gemmill_fused_experts_args& args = apart.layer;
  args.x = x.tensor(kX).data, args.w13 = x.tensor(kW13).data, args.w2 = x.tensor(kW2).data, args.out = x.tensor(kOut).data;
  args.w13_scales = static_cast<float const*>(x.tensor(kW13Scales).data), args.w2_scales = static_cast<float const*>(x.tensor(kW2Scales).data);
  args.w13_bias = x.tensor(kW13Bias).data, args.w2_bias = x.tensor(kW2Bias).data;
  args.topk_ids = static_cast<int32_t const*>(x.tensor(kIds).data), args.topk_weights = static_cast<float const*>(x.tensor(kWeights).data);
  args.expert_map = static_cast<int32_t const*>(map.data);
  args.workspace = workspace.given() ? workspace.data : nullptr;
  args.ldx = row_stride(x.tensor(kX)), args.ldout = row_stride(x.tensor(kOut));
  args.ld_ids = row_stride(x.tensor(kIds)), args.ld_weights = row_stride(x.tensor(kWeights));
  args.w13_stride_row = row_stride(x.tensor(kW13)), args.w2_stride_row = row_stride(x.tensor(kW2));
  args.w13_stride_expert = args.w13_stride_row * 2 * inner, args.w2_stride_expert = args.w2_stride_row * hidden;
  if (x.value(kPacked)) args.w13_stride_expert = x.tensor(kW13).numel() / experts, args.w2_stride_expert = x.tensor(kW2).numel() / experts;
  args.w13_scale_stride_expert = of_w13.expert, args.w13_scale_stride_row = of_w13.row, args.w13_scale_stride_k = of_w13.k;
  args.w2_scale_stride_expert = of_w2.expert, args.w2_scale_stride_row = of_w2.row, args.w2_scale_stride_k = of_w2.k;
  args.tokens = static_cast<int32_t>(x.value(kM)), args.hidden = static_cast<int32_t>(hidden), args.inner = static_cast<int32_t>(inner);
  args.topk = static_cast<int32_t>(x.value(kTopk)), args.weights = static_cast<int32_t>(experts);
  args.experts = static_cast<int32_t>(map.given() ? map.numel() : experts);
  args.id_words = static_cast<int32_t>(element_bytes(x.tensor(kIds).dtype) / 4);
  args.row_step = order == kInterleaved ? 2 : 1;
  args.gate_row = order == kUpGate ? args.inner : 0;
  args.up_row = order == kGateUp ? args.inner : order == kInterleaved ? 1 : 0;
  args.weight_on_input = x.value(kWeightOnInput) != 0, args.adds = x.value(kAdds) != 0;
  args.activation = static_cast<int32_t>(x.value(kActivation));
  args.endless_waits = endless_waits();
  args.alpha = static_cast<float>(x.real(kAlpha)), args.limit = static_cast<float>(x.real(kLimit)), args.beta = static_cast<float>(x.real(kBeta));
  if (reinterpret_cast<Facts const&>(chosen.row.facts).apart == 0) return chosen.launch(&args);
  launch_apart(apart, {x.tensor(kW13).dtype, x.tensor(kX).dtype, static_cast<int32_t>(x.value(kGroups))}, chosen);
}

Family const family{
    "fused_experts",
    {"out", "x", "w13", "w2", "w13_scales", "w2_scales", "topk_ids", "topk_weights", "w13_bias", "w2_bias", "expert_map", "workspace"},
    {"M", "K", "inner", "topk", "weights", "pairs", "groups", "activation_index", "alpha", "limit", "beta", "order", "weight_on_input", "adds", "packed"},
    {},
    asks,
    launch,
    {[](Row const&, Call const&) { return true; }, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

}  // namespace
}  // namespace gemmill::fused_moe
