#include "roofline/kernel.h"

#include "model/base/error.h"
#include "roofline/step_cost.h"

namespace kvcast::roofline {
namespace {

Lowering lowering_of(DType dtype) {
  return {.weights = dtype, .activations = dtype, .cache = dtype};
}

/// A pass of that operator alone.
Graph graph_of(const Kernel& k) {
  Symbols symbols;
  Recorder r(symbols, lowering_of(k.dtype));
  if (k.kind == Kernel::Kind::Product) {
    const Value x = r.input("x", {k.rows, k.inner}, k.dtype);
    r.output(r.linear("product", x, r.weight("weight", {k.outputs, k.inner})));
    return r.take();
  }
  const bool decodes = k.kind == Kernel::Kind::DecodeAttention;
  const Count queries = decodes ? 1 : k.length;
  const auto features = [&](std::uint64_t heads) { return Count(heads * k.head_dim); };
  const Value q = r.input("q", {k.batch, queries, features(k.num_attention_heads)}, k.dtype);
  const std::vector<Count> cached{k.batch, k.length, features(k.num_key_value_heads)};
  Recorder::Attention attention;
  attention.heads = {k.num_attention_heads, k.num_key_value_heads, k.head_dim};
  attention.mask.past = Count(k.length) - queries;
  r.output(r.attention(attention, q, r.cache("keys", cached), r.cache("values", cached)));
  return r.take();
}

}  // namespace

Work work(const Kernel& kernel) { return total_work(graph_of(kernel)); }

Seconds seconds_of(const Kernel& kernel, const Hardware& hardware) {
  const Lowering lowering = lowering_of(kernel.dtype);
  const std::vector<OpGroup> groups = fold(graph_of(kernel), lowering);
  KVCAST_ASSERT(groups.size() == 1);
  return time_of(groups.front(), make_rates(hardware, lowering, Mode::Calibrated), {}).total;
}

}  // namespace kvcast::roofline
