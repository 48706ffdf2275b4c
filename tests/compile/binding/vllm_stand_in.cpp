// Registers ops in vLLM's namespace the way its library does. They compute nothing, count calls, and say yes to every question.
#include <torch/csrc/stable/library.h>

#include <cstdint>

namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

int64_t count = 0;

void nothing(StableIValue*, uint64_t, uint64_t) { ++count; }
void counted(StableIValue* stack, uint64_t, uint64_t) { stack[0] = from(count); }
void yes(StableIValue* stack, uint64_t, uint64_t) { stack[0] = from(true); }
void successor(StableIValue* stack, uint64_t, uint64_t) { stack[0] = from(to<int64_t>(stack[0]) + 1); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(_C, ops) {
  ops.def("dynamic_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale) -> ()");
  ops.def("cutlass_scaled_mm_supports_fp8(int cuda_device_capability) -> bool");
  ops.def("cutlass_group_gemm_supported(int cuda_device_capability) -> bool");
  ops.def("of_vllm_alone(int x) -> int");
  ops.def("count_of_calls() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(_C, CUDA, ops) { ops.impl("dynamic_scaled_fp8_quant", &nothing); }

STABLE_TORCH_LIBRARY_IMPL(_C, CPU, ops) { ops.impl("dynamic_scaled_fp8_quant", &nothing); }

STABLE_TORCH_LIBRARY_IMPL(_C, CompositeExplicitAutograd, ops) {
  ops.impl("cutlass_scaled_mm_supports_fp8", &yes);
  ops.impl("cutlass_group_gemm_supported", &yes);
  ops.impl("of_vllm_alone", &successor);
  ops.impl("count_of_calls", &counted);
}
