// The gated GEMMs: what the choice depends on, and what a kernel is given.
#include "extension/family.h"
#include "extension/layout.h"
#include "gated_mm/abi.h"
#include "gated_mm/model.h"

namespace gemmill::gated_mm {
namespace {

enum Role { kOut, kOutScales, kA, kB, kAScales, kBScales, kStaticScale };
enum Value { kM, kN, kK, kAlpha, kLimit, kBeta, kActivation, kInGroups };

// Leading dimensions. That of a single row or column is never used: any will do that TMA takes.
struct Strides {
  int64_t a, b, d;

  explicit Strides(OpCall const& x)
      : a(x.value(kM) == 1 ? round_up(x.value(kK), 16) : x.tensor(kA).strides[0]),
        b(x.value(kN) == 1 ? round_up(x.value(kK), 16) : x.tensor(kB).strides[1]),
        d(x.value(kM) == 1 ? round_up(x.value(kN) / 2, 16) : x.tensor(kOut).strides[0]) {}
};

bool asks(OpCall const& x, Call& asked) {
  Operand const &out = x.tensor(kOut), &a = x.tensor(kA), &b = x.tensor(kB);
  int64_t const m = x.value(kM), n = x.value(kN), k = x.value(kK), hidden = n / 2;
  if (m == 0 || n == 0) return false;
  Strides const strides(x);
  asked.sizes[kSizeM] = m, asked.sizes[kSizeN] = n, asked.sizes[kSizeK] = k;
  asked.alignments[kAlignA] = tma_alignment(a.data, strides.a, k, element_bytes(a.dtype));
  asked.alignments[kAlignB] = tma_alignment(b.data, strides.b, k, element_bytes(b.dtype));
  asked.alignments[kAlignOut] = tma_alignment(out.data, strides.d | hidden, hidden, element_bytes(out.dtype));  // a TMA store ends at a multiple of 16 bytes
  return true;
}

void launch(OpCall const& x, Chosen const& chosen) {
  Strides const strides(x);
  Operand const& out_scales = x.tensor(kOutScales);
  gemmill_gated_mm_args args{};
  args.a = x.tensor(kA).data, args.b = x.tensor(kB).data, args.d = x.tensor(kOut).data;
  args.a_scales = static_cast<float const*>(x.tensor(kAScales).data);
  args.b_scales = static_cast<float const*>(x.tensor(kBScales).data);
  args.static_scale = static_cast<float const*>(x.tensor(kStaticScale).data);
  if (out_scales.given()) {
    args.out_scales = static_cast<float*>(out_scales.data);
    args.out_scale_stride_m = out_scales.strides[0], args.out_scale_stride_g = out_scales.strides[1];
  }
  args.lda = strides.a, args.ldb = strides.b, args.ldd = strides.d;
  args.m = static_cast<int32_t>(x.value(kM)), args.n = static_cast<int32_t>(x.value(kN)), args.k = static_cast<int32_t>(x.value(kK));
  args.a_scale_per_row = x.tensor(kAScales).numel() > 1, args.b_scale_per_column = x.tensor(kBScales).numel() > 1;
  if (x.value(kInGroups)) {
    Operand const &a_scales = x.tensor(kAScales), &b_scales = x.tensor(kBScales);
    args.a_scale_stride_m = a_scales.strides[0], args.a_scale_stride_k = a_scales.strides[1];
    args.b_scale_stride_n = b_scales.strides[1], args.b_scale_stride_k = b_scales.strides[0];
  }
  args.alpha = static_cast<float>(x.real(kAlpha)), args.limit = static_cast<float>(x.real(kLimit)), args.beta = static_cast<float>(x.real(kBeta));
  args.activation = static_cast<int32_t>(x.value(kActivation));
  chosen.launch(&args);
}

Family const family{
    "gated_mm",
    {"out", "out_scales", "a", "b", "a_scales", "b_scales", "static_scale"},
    {"M", "N", "K", "alpha", "limit", "beta", "activation_index", "in_groups"},
    {},
    asks,
    launch,
    {[](Row const&, Call const&) { return true; }, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

}  // namespace
}  // namespace gemmill::gated_mm
