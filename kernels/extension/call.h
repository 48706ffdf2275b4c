// One call of any op: its arguments off the dispatcher's stack, and the values that its contract computes for them. Python declares each
// op to an extension that it has loaded (gemmill.runtime.declaring).
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "extension/operand.h"

namespace gemmill {

inline constexpr size_t kMostArguments = 20, kMostValues = 256, kMostFound = 6, kMostResultSizes = 4, kMostDimensions = 64;

// In the order of gemmill.family.schema.ArgumentKind.
enum class Kind : int64_t { kTensor, kInt, kFloat, kBool, kInts, kText, kTensors };

struct Argument {
  Kind kind;
  int64_t optional, written;
};

// Mirrors gemmill.family.program.Instruction.
struct Instruction {
  int64_t code, otherwise, x, y, z, last;
};

// A tensor to return. Mirrors gemmill.family.program.Result.
struct Result {
  int64_t dtype, source, leading, is_column_major, count, sizes[kMostResultSizes];
};

class OpCall;

// A check that is written by hand in both languages: whether it holds. It may look at all of a tensor but its values and more
// of its address than the remainder by 16.
struct Special {
  char const* name;
  bool (*holds)(OpCall& call);
};

struct Family;

struct Op {
  std::string name;
  Family const* family = nullptr;
  std::vector<Argument> arguments;
  std::vector<int64_t> initial;           // values before the call; the last is 0, for those that the op has not
  std::vector<Instruction> program;
  std::vector<Result> results;
  std::vector<std::string> words;         // the possible values of its text argument
  std::vector<Special> specials;          // as the program numbers them
  std::vector<int64_t> tensors, values;   // places of those that the family names
  int64_t lists = 0;                      // a bit for each argument that is a list of tensors
  int64_t class_of = 0;                   // place of the number of a call's class
  int64_t result = 0;                     // place of the first tensor that is written
  int64_t serial = 0;                     // of its declaration
  std::string handed_to;                  // the dispatcher's op that gets the calls that this one refuses, and says whether it took them
};

// Tensors of a call in place: as many as it has, then one that is not given.
class Operands {
 public:
  explicit Operands(size_t count) : count_(count + 1) { std::uninitialized_default_construct_n(begin(), count_); }
  ~Operands() { std::destroy_n(begin(), count_); }
  Operands(Operands const&) = delete;
  Operands& operator=(Operands const&) = delete;

  Operand* begin() { return reinterpret_cast<Operand*>(memory_); }
  Operand const* begin() const { return reinterpret_cast<Operand const*>(memory_); }
  Operand& operator[](size_t i) { return begin()[i]; }
  Operand const& operator[](size_t i) const { return begin()[i]; }

 private:
  alignas(Operand) std::byte memory_[(kMostArguments + 1) * sizeof(Operand)];
  size_t count_;
};

class OpCall {
 public:
  OpCall(Op const& op, StableIValue* stack);

  Op const& op() const { return op_; }
  // By the family's own numbers.
  Operand const& tensor(int64_t role) const { return tensors[op_.tensors[role]]; }
  int64_t value(int64_t name) const { return values[op_.values[name]]; }
  double real(int64_t name) const { return std::bit_cast<double>(value(name)); }
  // A list of whole numbers; null where it is not given.
  std::vector<int64_t> const* list(int64_t name) const { return value(name) == 0 ? nullptr : &lists[value(name) - 1]; }
  void note_writes() const;

  // By position: the arguments come first, then the results, and the last tensor is none.
  Operands tensors;
  std::array<char const*, kMostArguments> ends;  // of present tensors: one past the last byte
  // Of an argument: the number, its bits, whether the tensor is given, the index of a text, or one more than that of a list.
  std::array<int64_t, kMostValues> values;
  std::vector<std::string> texts;
  std::vector<std::vector<int64_t>> lists;
  std::vector<std::vector<Operand>> tensor_lists;
  std::array<int64_t, kMostFound> found{};       // results of special checks, for the family

 private:
  Op const& op_;
};

// Whether the call keeps to its op's contract; then the values of the contract are in it.
bool holds(OpCall& call);
// Makes the results of a legal call.
void allocate(OpCall& call);

// Hands a refused call on to the op that gets those. Where there is none, or that does not take it either, throws std::runtime_error with
// the sentence for the call, which Python writes from the same facts.
void refuse(OpCall& call);

}  // namespace gemmill

extern "C" {
// Writes the sentence for a refused call of the op of this name. `facts` holds for each tensor: given, dtype, device type, device index,
// data pointer, whether autograd records it, rank, sizes, strides; for an integer or truth value itself; for a real number the bits of
// the double; for a list of integers: given, length, values; for a text: length, bytes; for a list of tensors: length, tensors.
typedef void (*gemmill_describe)(char const* op, int64_t const* facts, int64_t count, char* text, int64_t capacity);
__attribute__((visibility("default"))) void gemmill_set_describe(gemmill_describe describe);

// An op's declaration. Mirrored by gemmill.runtime.declaring.Declaration: the order of fields is the interface.
struct gemmill_op_declaration {
  char const* name;
  char const* family;
  int64_t argument_count;
  gemmill::Argument const* arguments;
  int64_t value_count;
  char const* const* value_names;  // those of the arguments are the family's for them
  int64_t const* value_places;
  int64_t initial_count;
  int64_t const* initial;
  int64_t word_count;
  char const* const* words;
  int64_t special_count;
  char const* const* specials;
  int64_t instruction_count;
  gemmill::Instruction const* program;
  int64_t result_count;
  gemmill::Result const* results;
};
// Declares an op, before any namespace is registered. Returns null, or why it cannot be.
__attribute__((visibility("default"))) char const* gemmill_declare(gemmill_op_declaration const* declared);
// Calls that an op refuses go to another op of the dispatcher from now on, which has the same arguments and returns whether it took the
// call. Returns null, or why that cannot be.
__attribute__((visibility("default"))) char const* gemmill_hand_on(char const* op, char const* to);
// Gives the declared ops under a namespace their kernels on a device ("CUDA"); the returned handle takes them away again.
__attribute__((visibility("default"))) void* gemmill_register(char const* ns, char const* device);
__attribute__((visibility("default"))) void gemmill_unregister(void* library);
}
