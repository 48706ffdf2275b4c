#include "extension/family.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/abi.h"
#include "extension/device.h"
#include "extension/dtypes.h"
#include "extension/driver.h"

extern "C" {
extern gemmill_kernel const gemmill_kernels[];
// A CPU-only torch has no such functions, nor has an older one: weak, so that the extension loads there.
__attribute__((weak)) AOTITorchError aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t bytes, void** memory);
__attribute__((weak)) AOTITorchError aoti_torch_cuda_caching_allocator_raw_delete(void* memory);
}

namespace gemmill {
namespace {

Family const* first_family = nullptr;

// Memory in place of the allocator's in a variant's test, whose owner sees writes around `used`.
struct Arena {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t used = 0;
};
thread_local Arena arena;

// Takes the parameters of the thread's kernels, which then do not launch.
using Recorder = void(char const* symbol, void const* args, int64_t bytes);
thread_local Recorder* recorder = nullptr;

[[noreturn]] void refuse_workspace(int64_t bytes) {
  throw std::runtime_error("gemmill: no memory for a workspace of " + std::to_string(bytes) + " bytes");
}

// Throws for a kernel's status that is not 0; `why` replaces the text of the status.
void check_launch(char const* symbol, int32_t status, std::string why) {
  if (status == 0) return;
  if (why.empty()) why = status > 0 ? cudaGetErrorString(static_cast<cudaError_t>(status)) : "it refuses these arguments";
  throw std::runtime_error(std::string("gemmill: ") + symbol + " could not be launched: " + why);
}

}  // namespace

Workspace::Workspace(int64_t bytes, int32_t device) {
  if (bytes == 0) return;
  if (arena.data != nullptr) {
    if (bytes > arena.bytes) throw std::runtime_error("gemmill: a workspace of " + std::to_string(bytes) + " bytes is not in the arena");
    arena.used = bytes;
    lent_ = arena.data;
    return;
  }
  if (device >= 0 && aoti_torch_cuda_caching_allocator_raw_alloc != nullptr && aoti_torch_cuda_caching_allocator_raw_delete != nullptr) {
    if (aoti_torch_cuda_caching_allocator_raw_alloc(static_cast<uint64_t>(bytes), &raw_) != 0) refuse_workspace(bytes);
    return;
  }
  int64_t const stride = 1;
  if (aoti_torch_empty_strided(1, &bytes, &stride, dtypes().u8, device < 0 ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(), device, &handle_) != 0) {
    refuse_workspace(bytes);
  }
}

Workspace::~Workspace() {
  if (raw_ != nullptr) aoti_torch_cuda_caching_allocator_raw_delete(raw_);
  if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
}

void* Workspace::data() const {
  void* result = raw_ != nullptr ? raw_ : lent_;
  if (handle_ != nullptr) aoti_torch_get_data_ptr(handle_, &result);
  return result;
}

Family::Family(char const* name, std::vector<char const*> tensors, std::vector<char const*> values, std::vector<Special> specials,
               Asks* asks, Launches* launches, Model model)
    : name(name), tensors(std::move(tensors)), values(std::move(values)), specials(std::move(specials)), asks(asks),
      launches(launches), model(model), next(first_family) {
  first_family = this;
}

Family const* Family::named(std::string_view name) {
  Family const* family = first_family;
  while (family != nullptr && name != family->name) family = family->next;
  return family;
}

Workspace Chosen::workspace_for(void const* args) const {
  gemmill_kernel const& kernel = gemmill_kernels[row.kernel];
  gemmill_launch const how{nullptr, nullptr, device, sm_count, programmatic_launch(), constant_weights()};
  return Workspace(kernel.workspace == nullptr ? 0 : kernel.workspace(args, &how), device);
}

void Chosen::launch(void const* args, int64_t bytes) const {
  gemmill_kernel const& kernel = gemmill_kernels[row.kernel];
  if (recorder != nullptr) return recorder(kernel.symbol, args, bytes);
  DeviceScope const scope(device);
  gemmill_launch how{current_stream(device), nullptr, device, sm_count, programmatic_launch(), constant_weights()};
  Workspace const workspace(kernel.workspace == nullptr ? 0 : kernel.workspace(args, &how), device);
  how.workspace = workspace.data();
  int32_t const status = kernel.launch(args, &how);
  check_launch(kernel.symbol, status, take_descriptor_failure());
}

bool run(OpCall& call) {
  Op const& op = call.op();
  Call asked{};
  asked.call_class = call.values[op.class_of];
  if (!op.family->asks(call, asked)) return false;
  int32_t const device = call.tensors[op.result].device;
  int64_t const sms = std::max<int64_t>(sm_count(device), 1);
  Choice const choice = choose(*op.family, asked, sms);
  if (choice.row < 0) return refuse(call), false;
  op.family->launches(call, {*row_at(choice.row), device, static_cast<int32_t>(sms)});
  return true;
}

}  // namespace gemmill

extern "C" {
// Workspaces of the calling thread lie in this memory from now on; null ends that.
__attribute__((visibility("default"))) void gemmill_set_arena(void* data, int64_t bytes) {
  gemmill::arena = {static_cast<char*>(data), bytes, 0};
}
// Launches of the calling thread come here from now on, instead of to kernels; null ends that.
__attribute__((visibility("default"))) void gemmill_set_recorder(gemmill::Recorder* recorder) { gemmill::recorder = recorder; }
// Bytes that the last workspace in the arena had.
__attribute__((visibility("default"))) int64_t gemmill_arena_used() { return gemmill::arena.used; }
}
