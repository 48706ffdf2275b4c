// The block-scaled GEMMs: what the choice depends on, and what a kernel is given.
#include "blockscaled/abi.h"
#include "blockscaled/model.h"
#include "extension/dtypes.h"
#include "extension/family.h"
#include "extension/layout.h"

namespace gemmill::blockscaled {
namespace {

enum Role { kOut, kA, kB, kASf, kBSf, kAlpha, kBias };
enum Value { kM, kN, kK };

// Of a matrix's rows. The stride of a single row is never used: any will do that TMA takes. Packed blocks have none.
int64_t row_stride_of(Operand const& x) {
  return x.rank == 2 && x.sizes[0] > 1 ? x.strides[0] : round_up(x.sizes[x.rank - 1], kTmaBytes);
}

int64_t alignment_of(Operand const& x, int64_t also = 0) {
  return tma_alignment(x.data, row_stride_of(x) | also, x.sizes[x.rank - 1], element_bytes(x.dtype));
}

// Where A has 8-bit codes, TMA spreads packed ones of 4 and 6 bits to bytes: it takes rows at multiples of 32 bytes, and of whole elements.
int64_t alignment_of_b(OpCall const& x) {
  Operand const &a = x.tensor(kA), &b = x.tensor(kB);
  int64_t const k = x.value(kK);
  bool const bytes = element_bytes(a.dtype) == 1 && a.rank == 2 && a.sizes[1] == k;  // codes of e4m3 come as e4m3 or as bytes
  if (!bytes || b.dtype != dtypes().u8 || b.rank != 2) return alignment_of(b);
  bool const whole = 4 * b.sizes[1] != 3 * k || row_stride_of(b) % 3 == 0;
  int64_t const found = alignment_of(b);
  return whole && found == kTmaBytes && (reinterpret_cast<uint64_t>(b.data) | static_cast<uint64_t>(row_stride_of(b))) % (2 * kTmaBytes) == 0 ? 2 * kTmaBytes : found;
}

// Of the scales of both operands. Swizzled ones have no rows, and what is not given has no address.
int64_t alignment_of_scales(OpCall const& x) {
  auto const address = [&](Role role) { return reinterpret_cast<uint64_t>(x.tensor(role).data); };
  uint64_t const bits = address(kASf) | address(kBSf) | kTmaBytes;
  return static_cast<int64_t>(bits & (~bits + 1));
}

bool asks(OpCall const& x, Call& asked) {
  asked.sizes[kSizeM] = x.value(kM), asked.sizes[kSizeN] = x.value(kN), asked.sizes[kSizeK] = x.value(kK);
  if (asked.sizes[kSizeM] == 0 || asked.sizes[kSizeN] == 0) return false;
  asked.alignments[kAlignA] = alignment_of(x.tensor(kA));
  asked.alignments[kAlignB] = alignment_of_b(x);
  asked.alignments[kAlignOut] = alignment_of(x.tensor(kOut), x.value(kN));  // a TMA store ends at a multiple of 16 bytes, not at n
  asked.alignments[kAlignScales] = alignment_of_scales(x);
  return true;
}

void launch(OpCall const& x, Chosen const& chosen) {
  gemmill_blockscaled_args args{};
  args.a = x.tensor(kA).data, args.b = x.tensor(kB).data, args.d = x.tensor(kOut).data;
  args.a_sf = x.tensor(kASf).data, args.b_sf = x.tensor(kBSf).data;
  args.alpha = static_cast<float const*>(x.tensor(kAlpha).data);
  args.bias = x.tensor(kBias).data;
  args.lda = row_stride_of(x.tensor(kA)), args.ldb = row_stride_of(x.tensor(kB)), args.ldd = row_stride_of(x.tensor(kOut));
  args.m = static_cast<int32_t>(x.value(kM)), args.n = static_cast<int32_t>(x.value(kN)), args.k = static_cast<int32_t>(x.value(kK));
  args.splits = static_cast<int32_t>(facts_of(chosen.row).splits);
  chosen.launch(&args);
}

Family const family{
    "blockscaled",
    {"out", "a", "b", "a_sf", "b_sf", "alpha", "bias"},
    {"M", "N", "K"},
    {},
    asks,
    launch,
    {takes, model_ns, [](Row const&, int64_t const*, int64_t const*) { return false; }},
};

}  // namespace
}  // namespace gemmill::blockscaled
