// A borrowed look at a tensor argument, through the stable C interface alone.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <utility>

#include "extension/autograd.h"

namespace gemmill {

// Owns the handle that the dispatcher passed, as boxed kernels must.
class Operand {
 public:
  Operand() = default;  // an optional argument that is not given
  explicit Operand(AtenTensorHandle handle) : handle_(handle) { read(); }
  static Operand required(StableIValue value) { return Operand(torch::stable::detail::to<AtenTensorHandle>(value)); }
  // An optional argument: null, or a heap cell with the handle.
  static Operand optional(StableIValue value) {
    auto* cell = torch::stable::detail::to<StableIValue*>(value);
    if (cell == nullptr) return Operand();
    auto handle = torch::stable::detail::to<AtenTensorHandle>(*cell);
    delete cell;
    return Operand(handle);
  }
  Operand(Operand&& other) noexcept { *this = static_cast<Operand&&>(other); }
  Operand& operator=(Operand&& other) noexcept {
    std::swap(handle_, other.handle_);
    data = other.data, sizes = other.sizes, strides = other.strides;
    rank = other.rank, dtype = other.dtype, device = other.device;
    return *this;
  }
  ~Operand() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  // Gives the handle away.
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  bool given() const { return handle_ != nullptr; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t i = 0; i < rank; ++i) n *= sizes[i];
    return n;
  }
  // Whether the elements lie behind one another along one dimension, whatever the strides of dimensions of one element.
  bool is_vector() const {
    int64_t longer = 0;
    for (int64_t i = 0; i < rank; ++i) {
      if (sizes[i] <= 1) continue;
      if (++longer > 1 || strides[i] != 1) return numel() == 0;
    }
    return true;
  }
  // Bytes from the first element to one past the last, whatever the strides; 0 if there are none.
  int64_t span_bytes(int64_t element_bytes) const {
    int64_t last = 0;
    for (int64_t i = 0; i < rank; ++i) {
      if (sizes[i] == 0) return 0;
      last += (sizes[i] - 1) * strides[i];
    }
    return (last + 1) * element_bytes;
  }

  // Asked only where the index does not tell: every question is a call into torch.
  int32_t device_type() const {
    int32_t type = -1;
    aoti_torch_get_device_type(handle_, &type);
    return type;
  }

  // Whether autograd would have to record the call for this tensor's gradient, which the ops do not have.
  bool is_differentiated() const { return given() && requires_grad(handle_) && aoti_torch_grad_mode_is_enabled(); }
  // Tells autograd that the call has written it.
  void note_write() const {
    if (given()) bump_version(handle_);
  }

  void* data = nullptr;
  int64_t const* sizes = nullptr;
  int64_t const* strides = nullptr;
  int64_t rank = 0;
  int32_t dtype = -1;
  int32_t device = -1;  // its index; -1 in host memory

 private:
  void read() {
    int64_t* borrowed = nullptr;
    aoti_torch_get_data_ptr(handle_, &data);
    aoti_torch_get_dim(handle_, &rank);
    aoti_torch_get_sizes(handle_, &borrowed);
    sizes = borrowed;
    aoti_torch_get_strides(handle_, &borrowed);
    strides = borrowed;
    aoti_torch_get_dtype(handle_, &dtype);
    aoti_torch_get_device_index(handle_, &device);
  }

  AtenTensorHandle handle_ = nullptr;
};

}  // namespace gemmill
