#include "rejection.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace gemmill {
namespace {

std::atomic<gemmill_describe> describe_call{nullptr};

}  // namespace

void refuse(int64_t op, std::initializer_list<Operand const*> operands) {
  std::vector<int64_t> facts;
  for (Operand const* x : operands) {
    facts.push_back(x->given());
    if (!x->given()) continue;
    facts.insert(facts.end(), {x->dtype, x->device_type, x->device, reinterpret_cast<int64_t>(x->data), x->rank});
    facts.insert(facts.end(), x->sizes, x->sizes + x->rank);
    facts.insert(facts.end(), x->strides, x->strides + x->rank);
  }
  std::string text(16384, '\0');
  if (auto describe = describe_call.load()) describe(op, facts.data(), static_cast<int64_t>(facts.size()), text.data(), 16384);
  throw std::runtime_error(text.c_str());
}

}  // namespace gemmill

void gemmill_set_describe(gemmill_describe describe) { gemmill::describe_call.store(describe); }
