#include "extension/call.h"

#include <atomic>
#include <new>
#include <stdexcept>

#include "extension/layout.h"

namespace gemmill {
namespace {

using torch::stable::detail::to;

std::atomic<gemmill_describe> describe_call{nullptr};

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

void describe_tensor(Operand const& x, std::vector<int64_t>& facts) {
  facts.push_back(x.given());
  if (!x.given()) return;
  facts.insert(facts.end(), {x.dtype, x.device_type(), x.device, reinterpret_cast<int64_t>(x.data), x.is_differentiated(), x.rank});
  facts.insert(facts.end(), x.sizes, x.sizes + x.rank);
  facts.insert(facts.end(), x.strides, x.strides + x.rank);
}

void describe_integers(OpCall const& call, int64_t list, std::vector<int64_t>& facts) {
  facts.push_back(list >= 0);
  if (list < 0) return;
  auto const& x = call.lists[list];
  facts.push_back(static_cast<int64_t>(x.size()));
  facts.insert(facts.end(), x.begin(), x.end());
}

void describe_tensors(std::vector<Operand> const& list, std::vector<int64_t>& facts) {
  facts.push_back(static_cast<int64_t>(list.size()));
  for (Operand const& x : list) describe_tensor(x, facts);
}

std::vector<int64_t> facts_of(OpCall const& call) {
  std::vector<int64_t> facts;
  auto const& arguments = call.op().arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    switch (arguments[i].kind) {
      case Kind::kTensor: describe_tensor(call.tensors[i], facts); break;
      case Kind::kInts: describe_integers(call, call.values[i] - 1, facts); break;
      case Kind::kTensors: describe_tensors(call.tensor_lists[call.values[i] - 1], facts); break;
      case Kind::kText: {
        std::string const& text = call.texts[call.values[i]];
        facts.push_back(static_cast<int64_t>(text.size()));
        for (char c : text) facts.push_back(static_cast<unsigned char>(c));
        break;
      }
      default: facts.push_back(call.values[i]);
    }
  }
  return facts;
}

// As the dispatcher has an argument on its stack. Its tensor is given away.
StableIValue stacked(OpCall& call, size_t i) {
  auto const pointer = [](void* x) { return reinterpret_cast<StableIValue>(x); };
  bool const optional = call.op().arguments[i].optional != 0;
  switch (call.op().arguments[i].kind) {
    case Kind::kTensor: {
      StableIValue const handle = pointer(call.tensors[i].release());
      return optional && handle != 0 ? pointer(new StableIValue(handle)) : handle;
    }
    case Kind::kFloat: return torch::stable::detail::from(std::bit_cast<double>(call.values[i]));
    case Kind::kBool: return torch::stable::detail::from(call.values[i] != 0);
    case Kind::kInts: {
      if (call.values[i] == 0) return 0;
      StableIValue const list = torch::stable::detail::from(std::vector<int64_t>(call.lists[call.values[i] - 1]));
      return optional ? pointer(new StableIValue(list)) : list;
    }
    default: return torch::stable::detail::from(call.values[i]);
  }
}

// Gives the call's tensors away; whether another op took the call.
bool hand_on(OpCall& call) {
  std::vector<StableIValue> stack;
  for (size_t i = 0; i < call.op().arguments.size(); ++i) stack.push_back(stacked(call, i));
  return aoti_torch_call_dispatcher(call.op().handed_to.c_str(), "", stack.data()) == 0 && to<bool>(stack[0]);
}

}  // namespace

OpCall::OpCall(Op const& op, StableIValue* stack) : tensors(op.arguments.size() + op.results.size()), op_(op) {
  std::memcpy(values.data(), op.initial.data(), op.initial.size() * sizeof(int64_t));
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    switch (op.arguments[i].kind) {
      case Kind::kTensor:
        // In its place, where there is nothing yet: moving it would cost as much as reading it.
        new (&tensors[i]) Operand(op.arguments[i].optional ? Operand::optional(stack[i]) : Operand::required(stack[i]));
        values[i] = tensors[i].given();
        ends[i] = end_of(tensors[i]);
        break;
      case Kind::kInt: values[i] = to<int64_t>(stack[i]); break;
      case Kind::kFloat: values[i] = std::bit_cast<int64_t>(to<double>(stack[i])); break;
      case Kind::kBool: values[i] = to<bool>(stack[i]); break;
      case Kind::kInts:
        values[i] = 0;
        if (!op.arguments[i].optional) {
          lists.push_back(to<std::vector<int64_t>>(stack[i]));
        } else if (auto given = to<std::optional<std::vector<int64_t>>>(stack[i])) {
          lists.push_back(std::move(*given));
        } else {
          break;
        }
        values[i] = static_cast<int64_t>(lists.size());
        break;
      case Kind::kTensors:
        tensor_lists.emplace_back();
        for (AtenTensorHandle handle : to<std::vector<AtenTensorHandle>>(stack[i])) tensor_lists.back().emplace_back(handle);
        values[i] = static_cast<int64_t>(tensor_lists.size());
        break;
      case Kind::kText: values[i] = static_cast<int64_t>(texts.size()), texts.push_back(take_text(stack[i])); break;
    }
  }
}

void OpCall::note_writes() const {
  for (size_t i = 0; i < op_.arguments.size(); ++i) {
    if (op_.arguments[i].written) tensors[i].note_write();
  }
}

void refuse(OpCall& call) {
  auto const facts = facts_of(call);
  if (!call.op().handed_to.empty() && hand_on(call)) return;
  std::string text(16384, '\0');
  if (auto describe = describe_call.load()) {
    describe(call.op().name.c_str(), facts.data(), static_cast<int64_t>(facts.size()), text.data(), 16384);
  }
  throw std::runtime_error(text.c_str());
}

}  // namespace gemmill

void gemmill_set_describe(gemmill_describe describe) { gemmill::describe_call.store(describe); }
