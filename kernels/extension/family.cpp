#include "extension/family.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/abi.h"
#include "extension/device.h"
#include "extension/driver.h"
#include "extension/workspace.h"

extern "C" gemmill_kernel const gemmill_kernels[];

namespace gemmill {
namespace {

Family const* first_family = nullptr;

}  // namespace

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

void Chosen::launch(void const* args) const {
  gemmill_kernel const& kernel = gemmill_kernels[row.kernel];
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
  asked.problem = call.values[op.class_of];
  if (!op.family->asks(call, asked)) return false;
  int32_t const device = call.tensors[op.result].device;
  int64_t const sms = std::max<int64_t>(sm_count(device), 1);
  Choice const choice = choose(*op.family, asked, sms);
  if (choice.row < 0) refuse(call);
  op.family->launches(call, {*row_at(choice.row), device, static_cast<int32_t>(sms)});
  return true;
}

}  // namespace gemmill
