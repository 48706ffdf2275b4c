// The sparse GEMMs: the inputs of the choice, and the arguments of a kernel.
#include "extension/family.h"
#include "extension/layout.h"
#include "sparse_mm/abi.h"
#include "sparse_mm/model.h"

namespace gemmill::sparse_mm {
namespace {

enum Role { kOut, kA, kValues, kMeta, kAScales, kBScales, kAzpAdj, kAzp, kBias };
enum Value { kM, kN, kK, kKept };

// No access uses that of a single row: any will do that TMA takes.
int64_t stride_of(Operand const& x) {
  int64_t const columns = x.sizes[1];
  return x.sizes[0] == 1 ? round_up(columns, kTmaBytes / element_bytes(x.dtype)) : row_stride(x);
}

int64_t alignment_of(Operand const& x, int64_t also = 0) {
  return tma_alignment(x.data, stride_of(x) | also, x.sizes[1], element_bytes(x.dtype));
}

bool asks(OpCall const& x, Call& asked) {
  if (x.value(kM) == 0 || x.value(kN) == 0) return false;
  asked.sizes[kSizeM] = x.value(kM), asked.sizes[kSizeN] = x.value(kN), asked.sizes[kSizeK] = x.value(kK);
  asked.alignments[kAlignA] = alignment_of(x.tensor(kA));
  asked.alignments[kAlignValues] = alignment_of(x.tensor(kValues));
  asked.alignments[kAlignMeta] = alignment_of(x.tensor(kMeta));
  asked.alignments[kAlignOut] = alignment_of(x.tensor(kOut), x.value(kN));  // a TMA store ends at a multiple of 16 bytes, not at n
  return true;
}

void launch(OpCall const& x, Chosen const& chosen) {
  Facts const& facts = facts_of(chosen.row);
  Operand const &a_scales = x.tensor(kAScales), &b_scales = x.tensor(kBScales);
  gemmill_sparse_mm_args args{};
  args.a = x.tensor(kA).data, args.values = x.tensor(kValues).data, args.meta = x.tensor(kMeta).data, args.d = x.tensor(kOut).data;
  args.a_scales = static_cast<float const*>(a_scales.data), args.b_scales = static_cast<float const*>(b_scales.data);
  args.bias = x.tensor(kBias).data;
  args.azp_adj = static_cast<int32_t const*>(x.tensor(kAzpAdj).data), args.azp = static_cast<int32_t const*>(x.tensor(kAzp).data);
  args.lda = stride_of(x.tensor(kA)), args.ldv = stride_of(x.tensor(kValues)), args.ldd = stride_of(x.tensor(kOut));
  args.m = static_cast<int32_t>(x.value(kM)), args.n = static_cast<int32_t>(x.value(kN)), args.k = static_cast<int32_t>(x.value(kK));
  args.kept = static_cast<int32_t>(x.value(kKept));
  args.a_scale_per_row = a_scales.numel() > 1, args.b_scale_per_column = b_scales.numel() > 1;
  args.raster_order = static_cast<int32_t>(facts.raster_order), args.swizzle = static_cast<int32_t>(facts.swizzle);
  chosen.launch(&args);
}

Family const family{
    "sparse_mm",
    {"out", "a", "bt_nzs", "bt_meta", "a_scales", "b_scales", "azp_adj", "azp", "bias"},
    {"M", "N", "K", "kept"},
    {},
    asks,
    launch,
    {nullptr, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

}  // namespace
}  // namespace gemmill::sparse_mm
