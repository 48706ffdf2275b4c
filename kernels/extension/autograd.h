// autograd's facts of a tensor, which the stable C interface does not show. A dispatch key of its own would cost every call a second way
// through the dispatcher; these are three reads and a write.
//
// The names are torch's C++ ones, weak: where a later torch lacks one, calls are made as if no tensor required grad, and
// `gemmill doctor` says so.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

extern "C" {
__attribute__((weak)) bool gemmill_torch_requires_grad(void const* impl) __asm__("_ZNK3c1010TensorImpl13requires_gradEv");
__attribute__((weak)) bool gemmill_torch_is_inference(void const* tensor) __asm__("_ZN2at6native12is_inferenceERKNS_6TensorE");
__attribute__((weak)) void gemmill_torch_bump_version(void const* tensor) __asm__("_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE");
}

namespace gemmill {

// A handle is the address of an at::Tensor, which is a pointer to its TensorImpl.
inline bool requires_grad(AtenTensorHandle handle) {
  return gemmill_torch_requires_grad != nullptr && gemmill_torch_requires_grad(*reinterpret_cast<void* const*>(handle));
}

// Tensors of inference mode have no version.
inline void bump_version(AtenTensorHandle handle) {
  if (gemmill_torch_is_inference == nullptr || gemmill_torch_bump_version == nullptr) return;
  if (!gemmill_torch_is_inference(handle)) gemmill_torch_bump_version(handle);
}

}  // namespace gemmill
