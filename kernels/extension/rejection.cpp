#include "rejection.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

namespace gemmill {
namespace {

std::atomic<gemmill_describe> describe_call{nullptr};

}  // namespace

Facts& Facts::operand(Operand const& x) {
  numbers_.push_back(x.given());
  if (!x.given()) return *this;
  numbers_.insert(numbers_.end(), {x.dtype, x.device_type(), x.device, reinterpret_cast<int64_t>(x.data), x.is_differentiated(), x.rank});
  numbers_.insert(numbers_.end(), x.sizes, x.sizes + x.rank);
  numbers_.insert(numbers_.end(), x.strides, x.strides + x.rank);
  return *this;
}

Facts& Facts::integer(int64_t x) {
  numbers_.push_back(x);
  return *this;
}

Facts& Facts::real(double x) {
  int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return integer(bits);
}

Facts& Facts::text(std::string const& x) {
  numbers_.push_back(static_cast<int64_t>(x.size()));
  for (char c : x) numbers_.push_back(static_cast<unsigned char>(c));
  return *this;
}

Facts& Facts::integers(std::optional<std::vector<int64_t>> const& x) {
  numbers_.push_back(x.has_value());
  if (!x) return *this;
  numbers_.push_back(static_cast<int64_t>(x->size()));
  numbers_.insert(numbers_.end(), x->begin(), x->end());
  return *this;
}

void refuse(int64_t op, Facts const& facts) {
  std::string text(16384, '\0');
  if (auto describe = describe_call.load()) {
    describe(op, facts.numbers().data(), static_cast<int64_t>(facts.numbers().size()), text.data(), 16384);
  }
  throw std::runtime_error(text.c_str());
}

void refuse(int64_t op, std::initializer_list<Operand const*> operands) {
  Facts facts;
  for (Operand const* x : operands) facts.operand(*x);
  refuse(op, facts);
}

}  // namespace gemmill

void gemmill_set_describe(gemmill_describe describe) { gemmill::describe_call.store(describe); }
