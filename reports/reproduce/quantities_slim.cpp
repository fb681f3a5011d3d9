#include <memory>
#include <set>
#include <tuple>

#include "model/base/error.h"
#include "model/record/recording.h"
#include "reports/reproduce/quantities.h"
#include "reports/reproduce/slim_steps.h"

namespace kvcast::reports {
namespace {

StepLabels labels_of(const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  return {words.begin(), words.end()};
}

/// Elements of the matrices that one decode step multiplies by, each once: biases, norms and
/// position tables are left out as in the paper, the head is in.
Count decode_matrices(const Architecture& a) {
  const Recording recording = record(a, {}, {});
  std::set<TensorId> read;
  for (const Node& node : recording.decode().nodes()) {
    if (std::holds_alternative<Linear>(node.op)) read.insert(node.inputs[1]);
  }
  Count elements;
  for (const TensorId id : read) elements += recording.decode().tensor(id).elements();
  return elements;
}

/// Operations of the projections that a phase's prefill has, without biases, of kv_len rows.
Count phase_product_ops(const Architecture& a, const std::string& phase) {
  const Recording recording = record(a, {}, {});
  Count ops;
  for (const Node& node : recording.prefill().nodes()) {
    if (node.phase != phase || !std::holds_alternative<Linear>(node.op)) continue;
    const std::vector<Count>& weight = recording.prefill().tensor(node.inputs[1]).shape;
    ops += product_ops(symbol::kv_len, weight[1], weight[0]);
  }
  return ops;
}

/// Multiplications and additions of an [m, n] by [n, p] product, one by one.
std::uint64_t counted_product(std::uint64_t m, std::uint64_t n, std::uint64_t p) {
  std::uint64_t ops = 0;
  for (std::uint64_t element = 0; element < m * p; ++element) {
    for (std::uint64_t k = 0; k < n; ++k) ops += k == 0 ? 1 : 2;
  }
  return ops;
}

}  // namespace

void add_slim_quantities(const Catalog& catalog, Quantities& all) {
  // (variant, model ...): one decode step of its first decoder layer over kv_len cached rows
  const auto steps =
      std::make_shared<std::map<std::pair<std::string, std::string>, AttentionStep>>();
  const auto step = [&catalog, steps](const QuantityArguments& a) -> const AttentionStep& {
    return remembered(*steps, {a.word(0), a.word(1)}, [&] {
      const SlimShape shape = slim_shape(load_described(catalog, a.word(1)));
      return attention_step(a.word(0), shape, symbol::kv_len);
    });
  };
  all["step_ops"] = [step](const QuantityArguments& a) {
    return step(a).ops(labels_of(a.word(2)));
  };
  all["step_weights"] = [step](const QuantityArguments& a) {
    return step(a).weights(labels_of(a.word(2)));
  };
  all["step_cache"] = [step](const QuantityArguments& a) { return step(a).cache(); };
  all["product_ops"] = [](const QuantityArguments& a) {
    return product_ops(a.count(0), a.count(1), a.count(2));
  };
  all["counted_product"] = [](const QuantityArguments& a) {
    return Count(counted_product(a.whole(0), a.whole(1), a.whole(2)));
  };
  // Throws where heads are grouped.
  all["mha_hidden_size"] = [&catalog](const QuantityArguments& a) {
    return Count(slim_shape(load_described(catalog, a.word(0))).hidden_size);
  };
  all["decode_matrices"] = [&catalog](const QuantityArguments& a) {
    return decode_matrices(load_described(catalog, a.word(0)));
  };
  all["phase_product_ops"] = [&catalog](const QuantityArguments& a) {
    return phase_product_ops(load_described(catalog, a.word(0)), a.word(1));
  };
}

}  // namespace kvcast::reports
