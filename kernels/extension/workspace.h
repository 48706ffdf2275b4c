// Memory for the length of a launch, from torch's allocator, which knows of streams and graph capture.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "extension/dtypes.h"

namespace gemmill {

// Memory that stands in for the allocator's while a variant is tested: who gave it sees what was written around `used`.
struct Arena {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t used = 0;
};
inline thread_local Arena arena;

class Workspace {
 public:
  Workspace(int64_t bytes, int32_t device) {
    if (bytes == 0) return;
    if (arena.data != nullptr) {
      if (bytes > arena.bytes) throw std::runtime_error("gemmill: a workspace of " + std::to_string(bytes) + " bytes is not in the arena");
      arena.used = bytes;
      lent_ = arena.data;
      return;
    }
    int64_t const stride = 1;
    if (aoti_torch_empty_strided(1, &bytes, &stride, dtypes().u8, device < 0 ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(), device, &handle_) != 0) {
      throw std::runtime_error("gemmill: no memory for a workspace of " + std::to_string(bytes) + " bytes");
    }
  }
  ~Workspace() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;
  void* data() const {
    void* result = lent_;
    if (handle_ != nullptr) aoti_torch_get_data_ptr(handle_, &result);
    return result;
  }

 private:
  AtenTensorHandle handle_ = nullptr;
  void* lent_ = nullptr;
};

}  // namespace gemmill
