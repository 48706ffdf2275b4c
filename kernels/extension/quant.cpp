// The quantisation ops: arguments to a QuantCall, the kernel that serves it, launch.
// Every check has its sentence in gemmill.runtime.quant_checks, which is asked for it when a check fails.
#include "quant.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "dtypes.h"
#include "gemmill/quant_abi.h"
#include "operand.h"
#include "quant_call.h"
#include "rejection.h"
#include "workspace.h"

extern "C" gemmill_quant_kernel const gemmill_quant_kernels[];

namespace gemmill {
namespace {

using torch::stable::detail::to;

// Indices of the ops in gemmill.runtime.schemas.
enum Op : int64_t {
  kStaticScaledFp8 = 2,
  kDynamicScaledFp8,
  kDynamicPerTokenScaledFp8,
  kStaticScaledInt8,
  kDynamicScaledInt8,
  kPerTokenGroupFp8,
  kPerTokenGroupInt8,
  kPerTokenGroupFp8Packed,
  kSiluAndMulPerBlock,
  kSiluAndMul,
  kSiluAndMulPerToken,
  kRmsNormDynamicPerToken,
  kRmsNormPerBlock,
  kActAndMulPerBlock,
  kActAndMul,
  kActAndMulPerToken,
  kDynamicTensorScaledInt8,
  kPerTokenGroupInt8Azp,
  kPerTokenGroupInt8Truncated,
};

constexpr double kMostE4m3 = 448.0, kLeastS8 = -128.0, kMostS8 = 127.0;
// Smallest scales of the ops that have one, as in gemmill.reference.quant.
constexpr float kSmallestE4m3Scale = 1.0f / (448.0f * 512.0f), kSmallestS8Scale = 1.1920929e-07f;

uint64_t key_of(QuantRow const& row) {
  return static_cast<uint64_t>(row.family) | row.in_dtype << 8 | row.out_dtype << 12 | row.activation << 16 |
         row.scale_format << 20 | row.symmetric << 24 | row.truncated << 25 | row.group_size << 28;
}

using Table = std::vector<std::pair<uint64_t, int64_t>>;
std::atomic<Table const*> current_table{nullptr};  // old ones are kept, so that readers need no lock
thread_local int64_t pinned_kernel = -1;

// Index of the kernel that serves a call that is well formed, or -1.
int64_t kernel_of(QuantCall const& x) {
  Dtypes const& d = dtypes();
  QuantRow row{};
  row.family = static_cast<int64_t>(x.family);
  row.in_dtype = x.in.dtype == d.bf16 ? 0 : x.in.dtype == d.f16 ? 1 : 2;
  row.out_dtype = x.s8();
  row.activation = static_cast<int64_t>(x.activation);
  row.group_size = x.group_size;
  row.scale_format = static_cast<int64_t>(x.format);
  row.symmetric = !x.azp.given();
  row.truncated = x.truncated;
  Table const* table = current_table.load(std::memory_order_acquire);
  if (table == nullptr) return -1;
  std::pair<uint64_t, int64_t> const wanted{key_of(row), 0};
  auto const found = std::lower_bound(table->begin(), table->end(), wanted);
  if (found == table->end() || found->first != wanted.first) return -1;
  return pinned_kernel >= 0 && pinned_kernel != found->second ? -1 : found->second;
}

int32_t launch_static(gemmill_quant_kernel const& kernel, QuantCall const& x, gemmill_quant_launch const& how) {
  gemmill_static_quant_args const args{x.in.data, x.out.data, static_cast<float const*>(x.scales.data),
                                       static_cast<int32_t const*>(x.azp.data), x.rows, x.hidden, x.in_stride, x.out_stride,
                                       x.group_m, x.group_n, x.scale_stride_m, x.scale_stride_n, how};
  return kernel.launch(&args);
}

int32_t launch_tensor(gemmill_quant_kernel const& kernel, QuantCall const& x, gemmill_quant_launch const& how) {
  Workspace const workspace(gemmill_tensor_quant_workspace_bytes, x.out.device);
  gemmill_tensor_quant_args const args{x.in.data, x.out.data, static_cast<float*>(x.scales.data),
                                       static_cast<int32_t*>(x.azp.data), workspace.data(), x.rows, x.hidden, x.in_stride, x.out_stride, how};
  return kernel.launch(&args);
}

int32_t launch_token(gemmill_quant_kernel const& kernel, QuantCall const& x, gemmill_quant_launch const& how) {
  gemmill_token_quant_args const args{x.in.data, x.out.data, static_cast<float*>(x.scales.data),
                                      static_cast<int32_t*>(x.azp.data), static_cast<float const*>(x.scale_ub.data),
                                      x.rows, x.hidden, x.in_stride, x.out_stride, how};
  return kernel.launch(&args);
}

int32_t launch_group(gemmill_quant_kernel const& kernel, QuantCall const& x, gemmill_quant_launch const& how) {
  float const smallest_scale = !x.gated() ? 0.0f : x.s8() ? kSmallestS8Scale : kSmallestE4m3Scale;
  gemmill_group_quant_args const args{x.in.data, x.out.data, x.scales.data, static_cast<int32_t*>(x.azp.data),
                                      static_cast<float const*>(x.scale_ub.data), x.rows, x.hidden, x.in_stride,
                                      x.out_stride, x.scale_stride_m, x.scale_stride_n, (x.rows + 3) / 4 * 4, x.out_rows,
                                      static_cast<float>(x.epsilon), smallest_scale, how};
  return kernel.launch(&args);
}

int32_t launch_rms_norm(gemmill_quant_kernel const& kernel, QuantCall const& x, gemmill_quant_launch const& how) {
  gemmill_rms_norm_quant_args const args{x.in.data, x.weight.data, x.residual.data, x.out.data,
                                         static_cast<float*>(x.scales.data), static_cast<float const*>(x.scale_ub.data),
                                         x.rows, x.hidden, x.in_stride, x.out_stride, x.residual_stride,
                                         x.scale_stride_m, x.scale_stride_n, static_cast<float>(x.epsilon), how};
  return kernel.launch(&args);
}

int32_t launch(gemmill_quant_kernel const& kernel, QuantCall const& x, gemmill_quant_launch const& how) {
  switch (x.family) {
    case QuantFamily::kStatic: return launch_static(kernel, x, how);
    case QuantFamily::kTensor: return launch_tensor(kernel, x, how);
    case QuantFamily::kToken: return launch_token(kernel, x, how);
    case QuantFamily::kGroup: return launch_group(kernel, x, how);
    default: return launch_rms_norm(kernel, x, how);
  }
}

// `describe` puts the arguments of the call, in the schema's order, into a Facts.
template <class Describe>
void run(Op op, QuantCall& x, Describe describe) {
  auto refuse_call = [&] {
    Facts facts;
    describe(facts);
    refuse(op, facts);
  };
  if (!well_formed(x)) refuse_call();
  // What belongs to an empty tensor, or to a row without elements, is written: scale and zero point.
  bool const writes_scales = x.family == QuantFamily::kTensor || (x.scale_a_row() && x.rows > 0);
  if (x.rows * x.hidden == 0 && !writes_scales) return;
  int64_t const index = kernel_of(x);
  if (index < 0) refuse_call();
  gemmill_quant_kernel const& kernel = gemmill_quant_kernels[index];
  int32_t const device = x.out.device;
  gemmill_quant_launch how{};
  how.device = device;
  how.sm_count = static_cast<int32_t>(std::max<int64_t>(sm_count(device), 1));
  how.programmatic_launch = programmatic_launch();
  DeviceScope scope(device);
  how.stream = current_stream(device);
  int32_t const status = launch(kernel, x, how);
  if (status != 0) {
    char const* why = status > 0 ? cudaGetErrorString(static_cast<cudaError_t>(status)) : "it refuses these arguments";
    throw std::runtime_error(std::string("gemmill: ") + kernel.symbol + " could not be launched: " + why);
  }
  x.note_writes();
}

void static_scaled_fp8_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kStatic};
  x.makes_s8 = false;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.group_shape = to<std::optional<std::vector<int64_t>>>(stack[3]);
  run(kStaticScaledFp8, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).integers(x.group_shape); });
}

void dynamic_scaled_fp8_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kTensor};
  x.makes_s8 = false;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  run(kDynamicScaledFp8, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales); });
}

void dynamic_per_token_scaled_fp8_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kToken};
  x.makes_s8 = false;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.scale_ub = Operand::optional(stack[3]);
  run(kDynamicPerTokenScaledFp8, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).operand(x.scale_ub); });
}

void int8_quant(Op op, QuantFamily family, StableIValue* stack) {
  QuantCall x{family};
  x.makes_e4m3 = false, x.one_scale = true;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.azp = Operand::optional(stack[3]);
  run(op, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).operand(x.azp); });
}

void static_scaled_int8_quant(StableIValue* stack, uint64_t, uint64_t) { int8_quant(kStaticScaledInt8, QuantFamily::kStatic, stack); }

void dynamic_scaled_int8_quant(StableIValue* stack, uint64_t, uint64_t) { int8_quant(kDynamicScaledInt8, QuantFamily::kToken, stack); }

// The first seven arguments are the same for all ops that quantise by groups: input, codes, scales, group size, eps and
// the codes' limits. What follows is left to the caller.
template <class Describe>
void per_token_group_quant(Op op, bool s8, QuantFormat format, StableIValue* stack, Describe describe_rest) {
  QuantCall x{QuantFamily::kGroup};
  x.truncated = op == kPerTokenGroupInt8Truncated;
  x.makes_e4m3 = !s8, x.makes_s8 = s8, x.takes_group_32 = true, x.format = format;
  x.in = Operand::required(stack[0]), x.out = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.group_size = to<int64_t>(stack[3]);
  x.epsilon = to<double>(stack[4]);
  double const least = to<double>(stack[5]), most = to<double>(stack[6]);
  x.limits_fit = s8 ? least == kLeastS8 && most == kMostS8 : least == -kMostE4m3 && most == kMostE4m3;
  run(op, x, [&](Facts& f) {
    f.operand(x.in).operand(x.out).operand(x.scales).integer(x.group_size).real(x.epsilon).real(least).real(most);
    describe_rest(f);
  });
}

void per_token_group_fp8_quant(StableIValue* stack, uint64_t, uint64_t) {
  bool const rounded = to<bool>(stack[7]), transposed = to<bool>(stack[8]), aligned = to<bool>(stack[9]);
  per_token_group_quant(kPerTokenGroupFp8, false, rounded ? QuantFormat::kPowerOfTwo : QuantFormat::kF32, stack,
                        [&](Facts& f) { f.integer(rounded).integer(transposed).integer(aligned); });
}

void per_token_group_quant_int8(StableIValue* stack, uint64_t, uint64_t) {
  per_token_group_quant(kPerTokenGroupInt8, true, QuantFormat::kF32, stack, [](Facts&) {});
}

void per_token_group_quant_int8_truncated(StableIValue* stack, uint64_t, uint64_t) {
  per_token_group_quant(kPerTokenGroupInt8Truncated, true, QuantFormat::kF32, stack, [](Facts&) {});
}

void per_token_group_fp8_quant_packed(StableIValue* stack, uint64_t, uint64_t) {
  per_token_group_quant(kPerTokenGroupFp8Packed, false, QuantFormat::kPackedUe8m0, stack, [](Facts&) {});
}

void dynamic_tensor_scaled_int8_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kTensor};
  x.makes_e4m3 = false;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.azp = Operand::optional(stack[3]);
  run(kDynamicTensorScaledInt8, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).operand(x.azp); });
}

void per_token_group_quant_int8_azp(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kGroup};
  x.makes_e4m3 = false, x.takes_group_32 = true;
  x.in = Operand::required(stack[0]), x.out = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.azp = Operand::required(stack[3]);
  x.group_size = to<int64_t>(stack[4]);
  run(kPerTokenGroupInt8Azp, x, [&](Facts& f) { f.operand(x.in).operand(x.out).operand(x.scales).operand(x.azp).integer(x.group_size); });
}

void silu_and_mul_per_block_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kGroup, QuantActivation::kSilu};
  x.takes_f32 = false;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.group_size = to<int64_t>(stack[3]);
  x.scale_ub = Operand::optional(stack[4]);
  x.transposed = to<bool>(stack[5]);
  run(kSiluAndMulPerBlock, x, [&](Facts& f) {
    f.operand(x.out).operand(x.in).operand(x.scales).integer(x.group_size).operand(x.scale_ub).integer(*x.transposed);
  });
}

void silu_and_mul_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kStatic, QuantActivation::kSilu};
  x.takes_f32 = false, x.makes_s8 = false, x.one_scale = true;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  run(kSiluAndMul, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales); });
}

void silu_and_mul_per_token_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kToken, QuantActivation::kSilu};
  x.takes_f32 = false;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  x.scale_ub = Operand::optional(stack[3]);
  run(kSiluAndMulPerToken, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).operand(x.scale_ub); });
}

// Takes a text over, whose handle belongs to who takes it. torch 2.11's own conversion leaves a copy behind in each call.
std::string take_text(StableIValue value) {
  auto handle = to<StringHandle>(value);
  char const* data = nullptr;
  size_t length = 0;
  torch_string_c_str(handle, &data);
  torch_string_length(handle, &length);
  std::string text(data, length);
  torch_delete_string(handle);
  return text;
}

// The activation of an op that is told which, by its name. Returns the name, for the sentence where there is no such.
std::string take_activation(QuantCall& x, StableIValue value) {
  std::string const name = take_text(value);
  x.takes_f32 = false;
  if (name == "silu") {
    x.activation = QuantActivation::kSilu;
  } else if (name == "gelu") {
    x.activation = QuantActivation::kGeluErf;
  } else if (name == "gelu_tanh") {
    x.activation = QuantActivation::kGeluTanh;
  } else {
    x.activation = QuantActivation::kSilu, x.knows_activation = false;
  }
  return name;
}

void act_and_mul_per_block_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kGroup};
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  std::string const activation = take_activation(x, stack[3]);
  x.group_size = to<int64_t>(stack[4]);
  x.scale_ub = Operand::optional(stack[5]);
  bool const rounded = to<bool>(stack[6]);
  x.format = rounded ? QuantFormat::kPowerOfTwo : QuantFormat::kF32;
  run(kActAndMulPerBlock, x, [&](Facts& f) {
    f.operand(x.out).operand(x.in).operand(x.scales).text(activation).integer(x.group_size).operand(x.scale_ub).integer(rounded);
  });
}

void act_and_mul_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kStatic};
  x.one_scale = true;
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  std::string const activation = take_activation(x, stack[3]);
  run(kActAndMul, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).text(activation); });
}

void act_and_mul_per_token_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kToken};
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]), x.scales = Operand::required(stack[2]);
  std::string const activation = take_activation(x, stack[3]);
  x.scale_ub = Operand::optional(stack[4]);
  run(kActAndMulPerToken, x, [&](Facts& f) { f.operand(x.out).operand(x.in).operand(x.scales).text(activation).operand(x.scale_ub); });
}

void rms_norm_quant(Op op, QuantCall& x, StableIValue* stack) {
  x.out = Operand::required(stack[0]), x.in = Operand::required(stack[1]);
  x.weight = Operand::required(stack[2]), x.scales = Operand::required(stack[3]);
  x.epsilon = to<double>(stack[4]);
  x.scale_ub = Operand::optional(stack[5]), x.residual = Operand::optional(stack[6]);
  run(op, x, [&](Facts& f) {
    f.operand(x.out).operand(x.in).operand(x.weight).operand(x.scales).real(x.epsilon).operand(x.scale_ub).operand(x.residual);
    if (x.grouped()) f.integer(x.group_size).integer(*x.transposed);
  });
}

void rms_norm_dynamic_per_token_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kRmsToken};
  rms_norm_quant(kRmsNormDynamicPerToken, x, stack);
}

void rms_norm_per_block_quant(StableIValue* stack, uint64_t, uint64_t) {
  QuantCall x{QuantFamily::kRmsGroup};
  x.group_size = to<int64_t>(stack[7]);
  x.transposed = to<bool>(stack[8]);
  rms_norm_quant(kRmsNormPerBlock, x, stack);
}

}  // namespace

QuantOp const quant_ops[kQuantOps] = {
    {"static_scaled_fp8_quant", static_scaled_fp8_quant},
    {"dynamic_scaled_fp8_quant", dynamic_scaled_fp8_quant},
    {"dynamic_per_token_scaled_fp8_quant", dynamic_per_token_scaled_fp8_quant},
    {"static_scaled_int8_quant", static_scaled_int8_quant},
    {"dynamic_scaled_int8_quant", dynamic_scaled_int8_quant},
    {"per_token_group_fp8_quant", per_token_group_fp8_quant},
    {"per_token_group_quant_int8", per_token_group_quant_int8},
    {"per_token_group_fp8_quant_packed", per_token_group_fp8_quant_packed},
    {"silu_and_mul_per_block_quant", silu_and_mul_per_block_quant},
    {"silu_and_mul_quant", silu_and_mul_quant},
    {"silu_and_mul_per_token_quant", silu_and_mul_per_token_quant},
    {"rms_norm_dynamic_per_token_quant", rms_norm_dynamic_per_token_quant},
    {"rms_norm_per_block_quant", rms_norm_per_block_quant},
    {"act_and_mul_per_block_quant", act_and_mul_per_block_quant},
    {"act_and_mul_quant", act_and_mul_quant},
    {"act_and_mul_per_token_quant", act_and_mul_per_token_quant},
    {"dynamic_tensor_scaled_int8_quant", dynamic_tensor_scaled_int8_quant},
    {"per_token_group_quant_int8_azp", per_token_group_quant_int8_azp},
    {"per_token_group_quant_int8_truncated", per_token_group_quant_int8_truncated},
};

}  // namespace gemmill

void gemmill_set_quant_table(gemmill::QuantRow const* rows, int64_t count) {
  auto* table = new gemmill::Table;
  for (int64_t i = 0; i < count; ++i) table->emplace_back(gemmill::key_of(rows[i]), rows[i].kernel);
  std::sort(table->begin(), table->end());
  gemmill::current_table.store(table, std::memory_order_release);
}

int64_t gemmill_pin_quant(int64_t kernel) {
  int64_t const before = gemmill::pinned_kernel;
  gemmill::pinned_kernel = kernel;
  return before;
}
