// The ops that Python has declared, and registering them under a namespace when it asks for it: several builds can be loaded, and each op
// name belongs to one of them at a time. Python defines the schemas.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "extension/family.h"

using torch::stable::detail::StableLibrary;

namespace gemmill {
namespace {

constexpr size_t kMostOps = 128;
std::vector<Op> ops;  // reserved for all that there can be: calls keep addresses of them
int64_t serials = 0;

void serve(Op const& op, StableIValue* stack) {
  OpCall call(op, stack);
  if (!holds(call)) return refuse(call);
  allocate(call);
  if (run(call)) call.note_writes();
  for (size_t i = 0; i < op.results.size(); ++i) stack[i] = torch::stable::detail::from(call.tensors[op.arguments.size() + i].release());
}

// The dispatcher gives a boxed kernel nothing by which to know its op: each has a function of its own.
using Boxed = void (*)(StableIValue* stack, uint64_t argument_count, uint64_t output_count);
template <size_t... I>
constexpr std::array<Boxed, sizeof...(I)> make_boxed(std::index_sequence<I...>) {
  return {[](StableIValue* stack, uint64_t, uint64_t) { serve(ops[I], stack); }...};
}
constexpr auto boxed = make_boxed(std::make_index_sequence<kMostOps>());

// Where the family's names are among the op's; `absent` for one that it has not.
std::vector<int64_t> places(std::vector<char const*> const& names, gemmill_op_declaration const& declared, int64_t end, int64_t absent) {
  std::vector<int64_t> found;
  for (std::string_view name : names) {
    int64_t place = absent;
    for (int64_t i = 0; i < declared.value_count; ++i) {
      if (name == declared.value_names[i] && declared.value_places[i] < end) place = declared.value_places[i];
    }
    found.push_back(place);
  }
  return found;
}

char const* declare(gemmill_op_declaration const& declared) {
  ops.reserve(kMostOps);
  int64_t const tensors = declared.argument_count + declared.result_count;
  if (tensors > static_cast<int64_t>(kMostArguments)) return "it has too many arguments";
  if (declared.initial_count >= static_cast<int64_t>(kMostValues)) return "its contract has too many sizes";
  Op op;
  op.name = declared.name;
  op.family = Family::named(declared.family);
  if (op.family == nullptr) return "the extension does not know its family";
  op.arguments.assign(declared.arguments, declared.arguments + declared.argument_count);
  op.initial.assign(declared.initial, declared.initial + declared.initial_count);
  op.initial.push_back(0);
  op.program.assign(declared.program, declared.program + declared.instruction_count);
  op.results.assign(declared.results, declared.results + declared.result_count);
  op.words.assign(declared.words, declared.words + declared.word_count);
  for (int64_t i = 0; i < declared.special_count; ++i) {
    auto const& known = op.family->specials;
    auto const same = [&](Special const& special) { return std::string_view(special.name) == declared.specials[i]; };
    auto const special = std::find_if(known.begin(), known.end(), same);
    if (special == known.end()) return "the extension does not know one of its special checks";
    op.specials.push_back(*special);
  }
  op.tensors = places(op.family->tensors, declared, tensors, tensors);
  for (size_t i = 0; i < op.arguments.size(); ++i) op.lists |= int64_t{op.arguments[i].kind == Kind::kTensors} << i;
  op.values = places(op.family->values, declared, declared.initial_count, declared.initial_count);
  op.class_of = places({"class"}, declared, declared.initial_count, declared.initial_count).front();
  op.result = std::find_if(op.arguments.begin(), op.arguments.end(), [](Argument const& x) { return x.written; }) - op.arguments.begin();
  op.serial = ++serials;
  // A second load of a library, as after a load that failed, finds the first.
  auto const before = std::find_if(ops.begin(), ops.end(), [&](Op const& known) { return known.name == op.name; });
  if (before != ops.end()) return *before = std::move(op), nullptr;
  if (ops.size() == kMostOps) return "there are too many ops";
  ops.push_back(std::move(op));
  return nullptr;
}

char const* hand_on(std::string_view name, char const* to) {
  auto const op = std::find_if(ops.begin(), ops.end(), [&](Op const& known) { return known.name == name; });
  if (op == ops.end()) return "there is no such op";
  auto const is_kept = [](Argument const& x) { return x.kind == Kind::kText || x.kind == Kind::kTensors; };
  if (!op->results.empty() || std::any_of(op->arguments.begin(), op->arguments.end(), is_kept)) return "its arguments or results stay here";
  op->handed_to = to;
  return nullptr;
}

}  // namespace
}  // namespace gemmill

char const* gemmill_hand_on(char const* op, char const* to) { return gemmill::hand_on(op, to); }

char const* gemmill_declare(gemmill_op_declaration const* declared) { return gemmill::declare(*declared); }

void* gemmill_register(char const* ns, char const* device) {
  // The dispatcher keeps the pointers.
  auto* kept = new std::string(ns);
  auto* library = new StableLibrary(StableLibrary::Kind::IMPL, kept->c_str(), device, "gemmill", 0);
  for (size_t i = 0; i < gemmill::ops.size(); ++i) library->impl(gemmill::ops[i].name.c_str(), gemmill::boxed[i]);
  return library;
}

void gemmill_unregister(void* library) { delete static_cast<StableLibrary*>(library); }
