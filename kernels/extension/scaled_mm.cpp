// cutlass_scaled_mm and cutlass_scaled_mm_azp on CUDA tensors: check, choose, launch.
// Every check here has its sentence in gemmill.runtime.checks, which is asked for it when a check fails.
#include "scaled_mm.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

#include "device.h"
#include "driver.h"
#include "dtypes.h"
#include "group_scales.h"
#include "operand.h"
#include "problem.h"
#include "rejection.h"
#include "scaled_mm_model.h"
#include "selection.h"
#include "workspace.h"

extern "C" gemmill_kernel const gemmill_kernels[];

namespace gemmill {
namespace {

enum Op : int64_t { kScaledMm = 0, kScaledMmAzp = 1 };

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

struct Operands {
  Operand out, a, b, a_scales, b_scales, azp_adj, azp, bias;
};

bool overlaps(Operand const& out, int64_t out_bytes, Operand const& x, int64_t element_bytes) {
  return x.given() && overlap(out.data, out_bytes, x.data, x.span_bytes(element_bytes));
}

bool is_vector(Operand const& x, int32_t dtype, int64_t length) {
  return x.dtype == dtype && x.numel() == length && x.is_vector();
}

// One value, or one for each row (column); vectors are [length], or [length, 1] for A and [1, length] for B.
bool fits_vector(Operand const& x, int64_t length, int64_t dim) {
  return x.numel() == 1 || (x.numel() == length && (x.rank == 1 || (x.rank == 2 && x.sizes[dim] == length)));
}

bool is_scale(Operand const& x, int64_t length, int64_t dim) {
  return x.dtype == dtypes().f32 && fits_vector(x, length, dim) && x.is_vector();
}

// The type of operands; false if it is none that the op takes.
bool operand_type(Op op, int32_t dtype, OperandType& found) {
  Dtypes const& d = dtypes();
  if (dtype == d.s8) return found = kS8, true;
  if (op == kScaledMmAzp) return false;
  if (dtype == d.e4m3) return found = kE4m3, true;
  if (dtype == d.bf16) return found = kBf16, true;
  if (dtype == d.f16) return found = kF16, true;
  return false;
}

// Whether the call can be made; fills in the type of its operands, and the groups that its scales come in, if they do.
bool well_formed(Op op, Operands const& x, OperandType& type, GroupedScales& groups) {
  Dtypes const& d = dtypes();
  if (x.out.rank != 2 || x.a.rank != 2 || x.b.rank != 2) return false;
  int64_t m = x.a.sizes[0], k = x.a.sizes[1], n = x.b.sizes[1];
  if (x.b.sizes[0] != k || x.out.sizes[0] != m || x.out.sizes[1] != n) return false;
  if (std::max({m, n, k}) > INT_MAX) return false;
  if (!operand_type(op, x.a.dtype, type) || x.b.dtype != x.a.dtype) return false;
  bool codes = operand_bytes(type) == 1;  // 16-bit operands have results of their own type, and no scales in groups
  if (codes ? x.out.dtype != d.bf16 && x.out.dtype != d.f16 : x.out.dtype != x.a.dtype) return false;
  if ((k > 1 && (x.a.strides[1] != 1 || x.b.strides[0] != 1)) || (n > 1 && x.out.strides[1] != 1)) return false;
  if (m > 1 && n > 0 && x.out.strides[0] < n) return false;
  if (!is_scale(x.a_scales, m, 0) || !is_scale(x.b_scales, n, 1)) {
    if (op == kScaledMm && codes) groups = group_scales(x.a_scales, x.b_scales, m, n, k);
    if (!groups.given()) return false;
  }
  if (x.bias.given() && !is_vector(x.bias, x.out.dtype, n)) return false;
  if (op == kScaledMmAzp && !is_vector(x.azp_adj, d.s32, n)) return false;
  if (x.azp.given() && !is_vector(x.azp, d.s32, m)) return false;
  if (x.out.is_differentiated()) return false;
  int64_t out_bytes = x.out.span_bytes(2), element_bytes = operand_bytes(type);
  for (auto [operand, bytes] : {std::pair(&x.a, element_bytes), {&x.b, element_bytes}, {&x.a_scales, 4}, {&x.b_scales, 4}, {&x.azp_adj, 4}, {&x.azp, 4}, {&x.bias, 2}}) {
    if (!operand->given()) continue;
    if (operand->device != x.out.device || operand->is_differentiated()) return false;
    if (overlaps(x.out, out_bytes, *operand, bytes)) return false;
  }
  return true;
}

void run(Op op, Operands const& x) {
  auto refuse_call = [&] {
    if (op == kScaledMm) refuse(op, {&x.out, &x.a, &x.b, &x.a_scales, &x.b_scales, &x.bias});
    refuse(op, {&x.out, &x.a, &x.b, &x.a_scales, &x.b_scales, &x.azp_adj, &x.azp, &x.bias});
  };
  OperandType type{};
  GroupedScales groups;
  if (!well_formed(op, x, type, groups)) refuse_call();
  int64_t m = x.a.sizes[0], k = x.a.sizes[1], n = x.b.sizes[1];
  if (m == 0 || n == 0) return;

  // The stride of a single row is never used: any will do that TMA takes.
  int64_t lda = m == 1 ? round_up(k, 16) : x.a.strides[0];
  int64_t ldb = n == 1 ? round_up(k, 16) : x.b.strides[1];
  int64_t ldd = m == 1 ? round_up(n, 8) : x.out.strides[0];
  Call call{};
  call.sizes[kM] = m, call.sizes[kN] = n, call.sizes[kK] = k;
  int64_t bytes = operand_bytes(type);
  call.alignments[kA] = alignment(x.a.data, lda, k, bytes);
  call.alignments[kB] = alignment(x.b.data, ldb, k, bytes);
  call.alignments[kD] = alignment(x.out.data, ldd | n, n, 2);  // a TMA store ends at a multiple of 16 bytes, not at n
  Need need = op == kScaledMmAzp ? (x.azp.given() ? kAzpToken : kAzpRow) : (x.bias.given() ? kBias : kScale);
  call.problem = problem_code(groups.code, need, type, x.out.dtype == dtypes().f16 ? kToF16 : kToBf16);

  int32_t device = x.out.device;
  int64_t sms = std::max<int64_t>(sm_count(device), 1);
  Choice choice = choose(scaled_mm_model, call, sms);
  if (choice.row < 0) refuse_call();
  Row const& row = *row_at(choice.row);
  GemmFacts const& facts = gemm_facts(row);
  gemmill_kernel const& kernel = gemmill_kernels[row.kernel];

  gemmill_group_scaled_mm_args whole{};
  groups.tell(whole);
  gemmill_scaled_mm_args& args = whole.mm;
  args.a = x.a.data, args.b = x.b.data, args.d = x.out.data;
  args.a_scales = static_cast<float const*>(x.a_scales.data);
  args.b_scales = static_cast<float const*>(x.b_scales.data);
  args.bias = x.bias.data;
  args.azp_adj = static_cast<int32_t const*>(x.azp_adj.data);
  args.azp = static_cast<int32_t const*>(x.azp.data);
  args.lda = lda, args.ldb = ldb, args.ldd = ldd;
  args.m = static_cast<int32_t>(m), args.n = static_cast<int32_t>(n), args.k = static_cast<int32_t>(k);
  args.a_scale_per_row = x.a_scales.numel() > 1;
  args.b_scale_per_column = x.b_scales.numel() > 1;
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
  std::string why = take_descriptor_failure();
  if (status != 0) {
    if (why.empty()) why = status > 0 ? cudaGetErrorString(static_cast<cudaError_t>(status)) : "it refuses these arguments";
    throw std::runtime_error(std::string("gemmill: ") + kernel.symbol + " could not be launched: " + why);
  }
  x.out.note_write();
}

Operand taken(StableIValue value) { return Operand::required(value); }
Operand absent() { return Operand(); }

}  // namespace

void scaled_mm(StableIValue* stack, uint64_t, uint64_t) {
  Operands x{taken(stack[0]), taken(stack[1]), taken(stack[2]), taken(stack[3]),
             taken(stack[4]), absent(),        absent(),        Operand::optional(stack[5])};
  run(kScaledMm, x);
}

void scaled_mm_azp(StableIValue* stack, uint64_t, uint64_t) {
  Operands x{taken(stack[0]), taken(stack[1]), taken(stack[2]),           taken(stack[3]),
             taken(stack[4]), taken(stack[5]), Operand::optional(stack[6]), Operand::optional(stack[7])};
  run(kScaledMmAzp, x);
}

}  // namespace gemmill
