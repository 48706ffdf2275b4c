// The GEMM ops: the variant that serves a call, its arguments, launch.
#include <algorithm>
#include <string>

#include "extension/call.h"
#include "extension/device.h"
#include "extension/driver.h"
#include "extension/dtypes.h"
#include "scaled_mm/group_scales.h"
#include "scaled_mm/classes.h"
#include "scaled_mm/model.h"
#include "extension/selection.h"
#include "extension/workspace.h"

extern "C" gemmill_kernel const gemmill_kernels[];

namespace gemmill {
namespace {

enum Role { kOut, kA, kB, kAScales, kBScales, kAzpAdj, kAzp, kBiasOf };
enum Value { kM, kN, kK, kGroups };

constexpr int64_t kTmaBytes = 16;
constexpr int64_t kTmaFarthest = int64_t{1} << 40;  // bytes from one row to the next; no descriptor has more

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Largest power of two, up to TMA's 16, that divides both address and row stride in bytes. That of an element where TMA takes
// no such rows: they overlap (expanded tensors), or are too far apart.
int64_t alignment(void const* data, int64_t stride, int64_t columns, int64_t bytes) {
  if (stride < columns || stride >= kTmaFarthest / bytes) stride = 1;
  uint64_t bits = reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(stride * bytes) | kTmaBytes;
  return static_cast<int64_t>(bits & (~bits + 1));
}

// One value, or one for each row (column); vectors are [length], or [length, 1] for A and [1, length] for B.
bool fits_vector(Operand const& x, int64_t length, int64_t dim) {
  return x.numel() == 1 || (x.numel() == length && (x.rank == 1 || (x.rank == 2 && x.sizes[dim] == length)));
}

bool is_scale(Operand const& x, int64_t length, int64_t dim) {
  return fits_vector(x, length, dim) && x.is_vector();
}

OperandType operand_type(int32_t dtype) {
  Dtypes const& d = dtypes();
  return dtype == d.s8 ? kS8 : dtype == d.e4m3 ? kE4m3 : dtype == d.bf16 ? kBf16 : kF16;
}

// Whether scales of float32 are such as the op takes; leaves behind the groups that they come in, if they do.
bool scales_fit(OpCall& x) {
  int64_t const m = x.value(kM), n = x.value(kN), k = x.value(kK);
  Operand const &a_scales = x.tensor(kAScales), &b_scales = x.tensor(kBScales);
  if (is_scale(a_scales, m, 0) && is_scale(b_scales, n, 1)) return true;
  bool const codes = operand_bytes(operand_type(x.tensor(kA).dtype)) == 1;
  return x.value(kGroups) && codes && group_scales(a_scales, b_scales, m, n, k).keep(x.found.data());
}

bool run(OpCall& x) {
  Operand const &out = x.tensor(kOut), &a = x.tensor(kA), &b = x.tensor(kB);
  int64_t const m = x.value(kM), n = x.value(kN), k = x.value(kK);
  if (m == 0 || n == 0) return false;
  OperandType const type = operand_type(a.dtype);
  GroupedScales const groups(x.found.data());

  // The stride of a single row is never used: any will do that TMA takes.
  int64_t lda = m == 1 ? round_up(k, 16) : a.strides[0];
  int64_t ldb = n == 1 ? round_up(k, 16) : b.strides[1];
  int64_t ldd = m == 1 ? round_up(n, 8) : out.strides[0];
  Call call{};
  call.sizes[kSizeM] = m, call.sizes[kSizeN] = n, call.sizes[kSizeK] = k;
  int64_t bytes = operand_bytes(type);
  call.alignments[kAlignA] = alignment(a.data, lda, k, bytes);
  call.alignments[kAlignB] = alignment(b.data, ldb, k, bytes);
  call.alignments[kAlignD] = alignment(out.data, ldd | n, n, 2);  // a TMA store ends at a multiple of 16 bytes, not at n
  Need need = x.tensor(kAzpAdj).given() ? (x.tensor(kAzp).given() ? kAzpToken : kAzpRow) : (x.tensor(kBiasOf).given() ? kBias : kScale);
  call.problem = problem_code(groups.code, need, type, out.dtype == dtypes().f16 ? kToF16 : kToBf16);

  int32_t device = out.device;
  int64_t sms = std::max<int64_t>(sm_count(device), 1);
  Choice choice = choose(scaled_mm_model, call, sms);
  if (choice.row < 0) refuse(x);
  Row const& row = *row_at(choice.row);
  GemmFacts const& facts = gemm_facts(row);
  gemmill_kernel const& kernel = gemmill_kernels[row.kernel];

  gemmill_scaled_mm_args args{};
  groups.tell(args);
  args.a = a.data, args.b = b.data, args.d = out.data;
  args.a_scales = static_cast<float const*>(x.tensor(kAScales).data);
  args.b_scales = static_cast<float const*>(x.tensor(kBScales).data);
  args.bias = x.tensor(kBiasOf).data;
  args.azp_adj = static_cast<int32_t const*>(x.tensor(kAzpAdj).data);
  args.azp = static_cast<int32_t const*>(x.tensor(kAzp).data);
  args.lda = lda, args.ldb = ldb, args.ldd = ldd;
  args.m = static_cast<int32_t>(m), args.n = static_cast<int32_t>(n), args.k = static_cast<int32_t>(k);
  args.a_scale_per_row = x.tensor(kAScales).numel() > 1;
  args.b_scale_per_column = x.tensor(kBScales).numel() > 1;
  args.raster_order = static_cast<int32_t>(facts.raster_order);
  args.swizzle = static_cast<int32_t>(facts.swizzle);
  args.splits = static_cast<int32_t>(facts.splits);
  args.device = device;
  args.sm_count = static_cast<int32_t>(sms);
  args.programmatic_launch = programmatic_launch();
  args.constant_weights = constant_weights();

  DeviceScope scope(device);
  Workspace workspace(row.workspace ? kernel.workspace(&args) : 0, device);
  args.workspace = workspace.data();
  int32_t status = kernel.launch(&args, current_stream(device));
  check_launch(kernel.symbol, status, take_descriptor_failure());
  return true;
}

}  // namespace

Family const scaled_mm_family{
    "scaled_mm",
    {"out", "a", "b", "a_scales", "b_scales", "azp_adj", "azp", "bias"},
    {"M", "N", "K", "groups"},
    {{"scales", scales_fit}},
    run,
};

}  // namespace gemmill
