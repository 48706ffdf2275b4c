// A contract interpreted: the same instructions, in the same order, as by gemmill.family.judging, which has the sentences.
#include <algorithm>
#include <stdexcept>

#include "extension/contract.h"
#include "extension/layout.h"

namespace gemmill {
namespace {

// In the order of gemmill.family.program's enumerations.
enum class Code : int64_t { kFact, kCalc, kItem, kJump, kCompare, kReal, kDtype, kLike, kStrides, kWord, kDetached, kTogether, kApart, kSpecial, kAligned };
enum class Fact : int64_t { kRank, kSize, kRows, kNumel, kRowStride, kStep, kLonger, kDense, kDtype };
enum class Calc : int64_t { kAdd, kSubtract, kMultiply, kDivide, kRemainder, kMost };
enum class Relation : int64_t { kEqual, kUnequal, kAtMost, kAtLeast, kBelow, kAbove };

int64_t fact(Fact which, Operand const& x, int64_t dim) {
  if (dim < 0) dim += x.rank;
  switch (which) {
    case Fact::kRank: return x.rank;
    case Fact::kSize: return x.sizes[dim];
    case Fact::kRows: return rows_of(x);
    case Fact::kNumel: return x.numel();
    case Fact::kRowStride: return row_stride(x);
    case Fact::kStep: return x.sizes[dim] > 1 ? x.strides[dim] : 1;
    case Fact::kLonger: return x.numel() == 0 ? 0 : std::count_if(x.sizes, x.sizes + x.rank, [](int64_t n) { return n > 1; });
    case Fact::kDense: return is_dense(x);
    default: return x.dtype;
  }
}

int64_t calc(Calc how, int64_t x, int64_t y) {
  switch (how) {
    case Calc::kAdd: return x + y;
    case Calc::kSubtract: return x - y;
    case Calc::kMultiply: return x * y;
    case Calc::kDivide: return y == 0 ? 0 : x / y;
    case Calc::kRemainder: return y == 0 ? 0 : x % y;
    default: return std::max(x, y);
  }
}

template <class Number>
bool compare(Number x, Relation how, Number y) {
  switch (how) {
    case Relation::kEqual: return x == y;
    case Relation::kUnequal: return x != y;
    case Relation::kAtMost: return x <= y;
    case Relation::kAtLeast: return x >= y;
    case Relation::kBelow: return x < y;
    default: return x > y;
  }
}

bool like(Operand const& x, Operand const& y, int64_t last) {
  return x.rank == y.rank && x.rank > 0 && x.sizes[x.rank - 1] == last && std::equal(x.sizes, x.sizes + x.rank - 1, y.sizes);
}

// Of two tensors of one shape.
bool same_strides(Operand const& x, Operand const& y) {
  for (int64_t i = 0; i < x.rank && x.numel() > 0; ++i) {
    if (x.sizes[i] > 1 && x.strides[i] != y.strides[i]) return false;
  }
  return true;
}

// Whether a test holds for all tensors that have a bit and are given, those of lists too; it gets where each ends.
template <class Test>
bool all_of(OpCall const& call, int64_t bits, Test test) {
  for (; bits != 0; bits &= bits - 1) {
    int const i = __builtin_ctzll(bits);
    if (call.tensors[i].given() && !test(call.tensors[i], call.ends[i])) return false;
    if ((call.op().lists >> i & 1) == 0) continue;
    for (Operand const& x : call.tensor_lists[call.values[i] - 1]) {
      if (!test(x, end_of(x))) return false;
    }
  }
  return true;
}

int64_t item(OpCall const& call, int64_t argument, int64_t which) {
  int64_t const list = call.values[argument] - 1;
  if (list < 0) return 0;
  if (call.op().arguments[argument].kind == Kind::kTensors) return static_cast<int64_t>(call.tensor_lists[list].size());
  auto const count = static_cast<int64_t>(call.lists[list].size());
  return which < 0 ? count : which < count ? call.lists[list][which] : 0;
}

bool take_word(OpCall& call, Instruction const& i) {
  auto const& words = call.op().words;
  auto const word = std::find(words.begin(), words.end(), call.texts[call.values[i.y]]);
  call.values[i.x] = word - words.begin();
  return word != words.end();
}

// Executes an instruction; false for a test that fails, or goes elsewhere.
bool done(OpCall& call, Instruction const& i) {
  auto& values = call.values;
  auto const& tensors = call.tensors;
  switch (static_cast<Code>(i.code)) {
    case Code::kFact: values[i.x] = fact(static_cast<Fact>(i.y), tensors[i.z], i.last); return true;
    case Code::kCalc: values[i.x] = calc(static_cast<Calc>(i.y), values[i.z], values[i.last]); return true;
    case Code::kItem: values[i.x] = item(call, i.y, i.z); return true;
    case Code::kJump: return false;
    case Code::kCompare: return compare(values[i.x], static_cast<Relation>(i.y), values[i.z]);
    case Code::kReal: return compare(std::bit_cast<double>(values[i.x]), static_cast<Relation>(i.y), std::bit_cast<double>(i.z));
    case Code::kDtype: return tensors[i.x].dtype >= 0 && tensors[i.x].dtype < 63 && (i.y >> tensors[i.x].dtype & 1) != 0;
    case Code::kLike: return like(tensors[i.x], tensors[i.y], values[i.z]);
    case Code::kStrides: return same_strides(tensors[i.x], tensors[i.y]);
    case Code::kWord: return take_word(call, i);
    case Code::kDetached: return all_of(call, i.y, [](Operand const& x, char const*) { return !x.is_differentiated(); });
    case Code::kTogether: {
      Operand const& x = tensors[i.x];
      return !x.given() || all_of(call, i.y, [&](Operand const& y, char const*) { return x.device == y.device; });
    }
    case Code::kApart: {
      Operand const& x = tensors[i.x];
      char const* const end = call.ends[i.x];
      return !x.given() || all_of(call, i.y, [&](Operand const& y, char const* end_of_y) { return x.data >= end_of_y || y.data >= end; });
    }
    case Code::kAligned: {
      return all_of(call, i.y, [&](Operand const& x, char const*) {
        return reinterpret_cast<uintptr_t>(x.data) % std::max(i.x, element_bytes(x.dtype)) == 0 || x.numel() == 0;
      });
    }
    case Code::kSpecial: return call.op().specials[i.x].holds(call);
  }
  return false;
}

// Dense memory for a result, by sizes that the contract has found out.
Operand allocated(OpCall const& call, Result const& result) {
  std::array<int64_t, kMostDimensions> sizes, strides;
  int64_t rank = 0, step = 1;
  Operand const& first = *std::find_if(call.tensors.begin(), call.tensors.begin() + call.op().arguments.size(), [](Operand const& x) { return x.given(); });
  if (result.leading >= 0) {
    Operand const& leading = call.tensors[result.leading];
    for (; rank + 1 < leading.rank; ++rank) sizes[rank] = leading.sizes[rank];
  }
  for (int64_t i = 0; i < result.count; ++i) sizes[rank++] = call.values[result.sizes[i]];
  for (int64_t i = rank; i-- > 0;) strides[i] = step, step *= std::max<int64_t>(sizes[i], 1);
  if (result.is_column_major) strides[rank - 2] = 1, strides[rank - 1] = std::max<int64_t>(sizes[rank - 2], 1);
  AtenTensorHandle handle = nullptr;
  int32_t const dtype = result.dtype < 0 ? call.tensors[result.source].dtype : static_cast<int32_t>(result.dtype);
  if (aoti_torch_empty_strided(rank, sizes.data(), strides.data(), dtype, first.device_type(), first.device, &handle) != 0) {
    throw std::runtime_error(call.op().name + ": no memory for what it returns");
  }
  return Operand(handle);
}

}  // namespace

void allocate(OpCall& call) {
  auto place = call.op().arguments.size();
  for (Result const& result : call.op().results) call.tensors[place++] = allocated(call, result);
}

bool interpreted(OpCall& call, OfAddresses& tests) {
  auto const& program = call.op().program;
  for (auto i = program.begin(); i < program.end(); ++i) {
    bool const is_done = done(call, *i);
    auto const code = static_cast<Code>(i->code);
    if (code == Code::kDetached || code == Code::kApart) tests.add(i - program.begin(), is_done);
    if (is_done) continue;
    if (i->otherwise == 0) return false;
    i += i->otherwise;
  }
  return true;
}

bool still_hold(OpCall& call, OfAddresses const& tests) {
  auto const& program = call.op().program;
  return std::all_of(tests.begin(), tests.end(), [&](int32_t i) { return done(call, program[i]); });
}

}  // namespace gemmill
