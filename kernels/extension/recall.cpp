// Verdicts remembered. A server makes the same calls again and again: where numbers, dtypes, devices, sizes, strides and the alignment of
// addresses are those of a call that held, only tests of whole addresses or gradients run again.
#include <algorithm>
#include <cstring>
#include <memory>

#include "extension/contract.h"

namespace gemmill {
namespace {

constexpr int64_t kMostFacts = 96, kPlaces = 64;
constexpr uint64_t kAlignments = 16;  // special checks may read an address's remainder by this

struct Remembered {
  int64_t serial = 0;
  std::array<int64_t, kMostFacts> facts;
  std::array<int64_t, kMostValues> values;
  std::array<int64_t, kMostFound> found;
  OfAddresses tests;
};
thread_local std::array<std::unique_ptr<Remembered>, kPlaces> remembered;

int64_t packed(Operand const& x) {
  uint64_t const alignment = reinterpret_cast<uint64_t>(x.data) % kAlignments;
  return static_cast<int64_t>(uint64_t{x.given()} | alignment << 1 | static_cast<uint64_t>(x.rank) << 8 | static_cast<uint64_t>(x.dtype & 0xFF) << 16) |
         static_cast<int64_t>(x.device) << 32;
}

// Shows everything that a verdict depends on, but for whole addresses and gradients, word by word, until `see` returns false. Words say
// how many words follow.
template <class See>
bool facts_of(Operand const& x, See& see) {
  if (!see(packed(x))) return false;
  for (int64_t i = 0; i < x.rank; ++i) {
    if (!see(x.sizes[i]) || !see(x.strides[i])) return false;
  }
  return true;
}

template <class See>
bool facts_of(std::string const& text, See& see) {
  if (!see(static_cast<int64_t>(text.size()))) return false;
  for (size_t at = 0; at < text.size(); at += sizeof(int64_t)) {
    int64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof(word), text.size() - at));
    if (!see(word)) return false;
  }
  return true;
}

template <class See>
bool facts_of(OpCall const& call, See see) {
  auto const& arguments = call.op().arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    switch (arguments[i].kind) {
      case Kind::kTensor:
        if (!facts_of(call.tensors[i], see)) return false;
        break;
      case Kind::kInts: {
        if (call.values[i] == 0) { if (!see(-1)) return false; break; }
        auto const& list = call.lists[call.values[i] - 1];
        if (!see(static_cast<int64_t>(list.size())) || !std::all_of(list.begin(), list.end(), see)) return false;
        break;
      }
      case Kind::kText:
        if (!facts_of(call.texts[call.values[i]], see)) return false;
        break;
      case Kind::kTensors: return false;
      default:
        if (!see(call.values[i])) return false;
    }
  }
  return true;
}

bool is_known(OpCall const& call, Remembered const& before) {
  int64_t const* word = before.facts.data();
  return before.serial == call.op().serial && facts_of(call, [&](int64_t x) { return x == *word++; });
}

// The place of a call of these sizes.
std::unique_ptr<Remembered>& place_of(OpCall const& call) {
  uint64_t hash = static_cast<uint64_t>(call.op().serial);
  for (size_t i = 0; i < call.op().arguments.size(); ++i) {
    Operand const& x = call.tensors[i];
    if (x.rank > 0) hash = (hash ^ static_cast<uint64_t>(x.sizes[0] + (x.sizes[x.rank - 1] << 24))) * 0x9E3779B97F4A7C15u;
  }
  return remembered[hash >> 58];
}

void remember(OpCall const& call, OfAddresses const& tests, std::unique_ptr<Remembered>& place) {
  if (!tests.all_held()) return;
  if (place == nullptr) place = std::make_unique<Remembered>();
  place->serial = 0;  // of no op, should there be too many facts
  auto word = place->facts.begin();
  if (!facts_of(call, [&](int64_t x) { return word != place->facts.end() && (*word++ = x, true); })) return;
  std::copy_n(call.values.begin(), call.op().initial.size(), place->values.begin());
  place->serial = call.op().serial, place->found = call.found, place->tests = tests;
}

}  // namespace

bool holds(OpCall& call) {
  auto& place = place_of(call);
  if (place != nullptr && is_known(call, *place) && still_hold(call, place->tests)) {
    std::copy_n(place->values.begin(), call.op().initial.size(), call.values.begin());
    call.found = place->found;
    return true;
  }
  OfAddresses tests;
  if (!interpreted(call, tests)) return false;
  remember(call, tests, place);
  return true;
}

}  // namespace gemmill
