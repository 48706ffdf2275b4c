// The router: the arguments of a kernel.
#include "extension/family.h"
#include "extension/layout.h"
#include "routing/abi.h"

namespace gemmill::routing {
namespace {

enum Role { kLogits, kTopkWeights, kTopkIds, kX, kWeight, kIsPadding };
enum Value { kM, kE, kK, kTopk, kRenormalize };

bool asks(OpCall const& x, Call&) { return x.value(kM) != 0; }

void launch(OpCall const& x, Chosen const& chosen) {
  gemmill_router_topk_args args{};
  args.x = x.tensor(kX).data, args.weight = x.tensor(kWeight).data, args.logits = x.tensor(kLogits).data;
  args.topk_weights = static_cast<float*>(x.tensor(kTopkWeights).data), args.topk_ids = static_cast<int32_t*>(x.tensor(kTopkIds).data);
  args.is_padding = static_cast<uint8_t const*>(x.tensor(kIsPadding).data);
  args.ldx = row_stride(x.tensor(kX)), args.ldw = row_stride(x.tensor(kWeight)), args.ldl = row_stride(x.tensor(kLogits));
  args.ld_weights = row_stride(x.tensor(kTopkWeights)), args.ld_ids = row_stride(x.tensor(kTopkIds));
  args.tokens = static_cast<int32_t>(x.value(kM)), args.hidden = static_cast<int32_t>(x.value(kK));
  args.experts = static_cast<int32_t>(x.value(kE)), args.topk = static_cast<int32_t>(x.value(kTopk));
  args.renormalize = static_cast<int32_t>(x.value(kRenormalize));
  chosen.launch(&args);
}

Family const family{
    "routing",
    {"logits", "topk_weights", "topk_ids", "x", "weight", "is_padding"},
    {"M", "E", "K", "topk", "renormalize"},
    {},
    asks,
    launch,
};

}  // namespace
}  // namespace gemmill::routing
