#include "model/config/sharding.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "model/record/recording.h"
#include "tests/model/message_of.h"
#include "tests/source_catalog.h"

using namespace kvcast;

namespace {

Recording recorded(const Architecture& a, const Parallelism& p, std::uint64_t device,
                   const std::string& methods = "plain") {
  RecordOptions options;
  options.find_model = [](const std::string& name) { return load_model(catalog(), name); };
  options.place = DevicePlace{p, device};
  return record(a, parse_methods(methods), {}, options);
}

std::map<std::string, TensorInfo> weights_of(const Recording& r) {
  std::map<std::string, TensorInfo> weights;
  for (const Graph* graph : graphs_of(r)) {
    for (const TensorInfo& t : graph->tensors()) {
      if (t.storage == Storage::Weights) weights.emplace(t.name, t);
    }
  }
  return weights;
}

std::vector<std::uint64_t> numbers(const std::vector<Count>& shape) {
  std::vector<std::uint64_t> sizes;
  for (const Count& dim : shape) sizes.push_back(dim.constant());
  return sizes;
}

/// How often the devices together have each element of a stored matrix [rows, columns], rows and
/// columns marked apart: the least and the most.
struct Cover {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

/// Of one dimension from the ranges that devices have of it.
Cover cover(std::uint64_t size, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& parts) {
  std::vector<std::int64_t> change(size + 1);
  for (const auto& [first, end] : parts) {
    if (first < size) ++change[first];
    if (first < size) --change[std::min(end, size)];
  }
  std::int64_t now = 0;
  Cover c{parts.size(), 0};
  for (std::uint64_t i = 0; i < size; ++i) {
    now += change[i];
    c.least = std::min<std::uint64_t>(c.least, static_cast<std::uint64_t>(now));
    c.most = std::max<std::uint64_t>(c.most, static_cast<std::uint64_t>(now));
  }
  return c;
}

/// Collectives of a pass by kind, and the bytes of their results at these sizes.
struct Messages {
  std::map<CollectiveKind, std::uint64_t> count;
  std::map<CollectiveKind, std::uint64_t> bytes;
};
Messages messages_of(const Recording& r, const Graph& graph, std::uint64_t batch,
                     std::uint64_t tokens) {
  Messages m;
  const SymbolValues at = r.symbols.resolve({batch, tokens, tokens});
  for (const Node& node : graph.nodes()) {
    const auto* op = std::get_if<Collective>(&node.op);
    if (op == nullptr) continue;
    ++m.count[op->kind];
    m.bytes[op->kind] += graph.tensor(node.output()).bytes().at(at);
  }
  return m;
}

}  // namespace

TEST_CASE("sharding: devices together have each stored row and column as often as heads ask") {
  for (const char* name :
       {"llama-3.1-8b", "falcon-7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "gemma2-9b",
        "olmo-2-7b", "granite-4.0-h-tiny", "qwen3-next-80b-a3b", "jamba-1.5-large", "gemma-3n-e2b",
        "command-r-plus", "pythia-1.4b", "t5-3b", "flan-t5-xl", "whisper-medium"}) {
    CAPTURE(name);
    const Architecture a = load_model(catalog(), name);
    for (const std::uint64_t tp : {2U, 4U, 8U}) {
      CAPTURE(tp);
      try {
        check_parallelism(a, {.tp = tp});
      } catch (const Error&) {
        continue;
      }
      const auto whole = weights_of(record(a, {}, {}));
      std::vector<std::map<std::string, TensorInfo>> parts;
      for (std::uint64_t d = 0; d < tp; ++d)
        parts.push_back(weights_of(recorded(a, {.tp = tp}, d)));
      for (const auto& [weight, info] : whole) {
        CAPTURE(weight);
        const bool summed_bias = parts[0].contains(weight) && !parts[1].contains(weight);
        std::vector<std::pair<std::uint64_t, std::uint64_t>> rows;
        std::vector<std::pair<std::uint64_t, std::uint64_t>> columns;
        for (const auto& of_device : parts) {
          if (summed_bias) continue;  // the first device alone adds it
          REQUIRE(of_device.contains(weight));
          const TensorInfo& t = of_device.at(weight);
          const auto here = numbers(t.shape);
          if (!t.part) {
            CHECK(here == numbers(info.shape));
            continue;
          }
          CHECK(numbers(t.part->whole) == numbers(info.shape));
          const std::uint64_t each = here[0] / t.part->blocks_here;
          CHECK(t.part->blocks == t.part->blocks_here);  // no expert parallelism here
          CHECK(t.part->first_row < numbers(info.shape)[0] / t.part->blocks);
          rows.emplace_back(t.part->first_row, t.part->first_row + each);
          if (here.size() > 1) {
            columns.emplace_back(t.part->first_column, t.part->first_column + here[1]);
          }
        }
        if (rows.empty()) continue;
        const auto of = numbers(info.shape);
        const std::uint64_t block_rows = of[0] / parts[0].at(weight).part->blocks;
        const Cover by_rows = cover(block_rows, rows);
        // Every row on at least one device, and all rows on equally many.
        CHECK(by_rows.least > 0);
        CHECK(by_rows.most == by_rows.least);
        if (columns.empty()) continue;
        const Cover by_columns = cover(of[1], columns);
        CHECK(by_columns.least == by_columns.most);
        // Rows or columns are split, not both.
        CHECK((by_rows.least == tp) != (by_columns.least == tp));
      }
    }
  }
}

TEST_CASE("sharding: FLOPs of products are divided, norms and routers are not") {
  const Architecture a = load_model(catalog(), "llama-3.1-8b");
  const auto products = [&](const Recording& r) {
    double flops = 0;
    for (const Node& node : r.prefill().nodes()) {
      if (!std::holds_alternative<Linear>(node.op)) continue;
      flops +=
          static_cast<double>(work(r.prefill(), node).flops.at(r.symbols.resolve({2, 100, 100})));
    }
    return flops;
  };
  const double whole = products(record(a, {}, {}));
  double all = 0;
  for (std::uint64_t d = 0; d < 8; ++d) all += products(recorded(a, {.tp = 8}, d));
  CHECK(all == whole);
}

TEST_CASE("sharding: Llama sends two all-reduces a layer, one of the embedding, and its logits") {
  const Architecture a = load_model(catalog(), "llama-3.1-8b");
  const Recording r = recorded(a, {.tp = 4}, 1);
  const Messages prompt = messages_of(r, r.prefill(), 3, 50);
  const std::uint64_t states = 3 * 50 * 4096 * 2;
  CHECK(prompt.count.at(CollectiveKind::AllReduce) == 2 * 32 + 1);
  CHECK(prompt.bytes.at(CollectiveKind::AllReduce) == (2 * 32 + 1) * states);
  CHECK(prompt.count.at(CollectiveKind::AllGather) == 1);
  CHECK(prompt.bytes.at(CollectiveKind::AllGather) == 3 * 128256 * 2);
  CHECK(prompt.count.size() == 2);
  const Messages step = messages_of(r, r.decode(), 3, 50);
  CHECK(step.bytes.at(CollectiveKind::AllReduce) == (2 * 32 + 1) * states / 50);
}

TEST_CASE("sharding: parallel branches are summed once; norms of all heads gather them") {
  const auto count = [](const char* name, std::uint64_t tp, CollectiveKind kind) {
    const Architecture a = load_model(catalog(), name);
    const Recording r = recorded(a, {.tp = tp}, 0);
    return messages_of(r, r.prefill(), 1, 10).count[kind];
  };
  CHECK(count("pythia-1.4b", 2, CollectiveKind::AllReduce) == 24 + 1);
  CHECK(count("command-r-plus", 2, CollectiveKind::AllReduce) == 64 + 1);
  const std::uint64_t layers = load_model(catalog(), "olmo-2-7b").num_hidden_layers();
  CHECK(count("olmo-2-7b", 2, CollectiveKind::AllGather) == 2 * layers + 1);
}

TEST_CASE("sharding: sequence-parallel norms move the same bytes, and norm a part of the rows") {
  const Architecture a = load_model(catalog(), "llama-3.1-8b");
  Parallelism p{.tp = 4};
  const Recording plain = recorded(a, p, 0);
  p.sequence_parallel = true;
  const Recording r = recorded(a, p, 0);
  const Messages m = messages_of(r, r.prefill(), 2, 64);
  CHECK(m.count.at(CollectiveKind::ReduceScatter) == 2 * 32 + 1);
  CHECK(m.count.at(CollectiveKind::AllGather) == 2 * 32 + 2);  // the last rows, and logits
  CHECK(!m.count.contains(CollectiveKind::AllReduce));
  const auto normed = [&](const Recording& recording) {
    std::uint64_t elements = 0;
    for (const Node& node : recording.prefill().nodes()) {
      if (!std::holds_alternative<RmsNorm>(node.op) || node.layer == no_layer) continue;
      elements += recording.prefill()
                      .tensor(node.output())
                      .elements()
                      .at(recording.symbols.resolve({2, 64, 64}));
    }
    return elements;
  };
  CHECK(4 * normed(r) == normed(plain));
  // Decode steps have one row, which all devices keep.
  CHECK(messages_of(r, r.decode(), 2, 64).count.at(CollectiveKind::AllReduce) == 2 * 32 + 1);
}

TEST_CASE("sharding: cache bytes stop falling where a device has one key-value head") {
  const Architecture a = load_model(catalog(), "qwen3-30b-a3b");  // 48 layers, 4 heads of 128
  for (const std::uint64_t tp : {1U, 2U, 4U, 8U}) {
    const Recording r = recorded(a, {.tp = tp}, tp - 1);
    CHECK(r.kv_cache_bytes_per_token.constant() ==
          2 * 48 * std::max<std::uint64_t>(1, 4 / tp) * 128 * 2);
  }
  const Architecture latent = load_model(catalog(), "deepseek-v3");
  CHECK(recorded(latent, {.tp = 8}, 0).kv_cache_bytes_per_token ==
        record(latent, {}, {}).kv_cache_bytes_per_token);
}

TEST_CASE("sharding: stages have all layers between them, and hand hidden states on") {
  const Architecture a = load_model(catalog(), "llama-3.1-8b");
  std::set<std::string> seen;
  std::uint64_t weights = 0;
  for (std::uint64_t stage = 0; stage < 3; ++stage) {
    const Recording r = recorded(a, {.tp = 2, .pp = 3}, 2 * stage + 1);
    for (const auto& [name, info] : weights_of(r)) {
      CHECK(seen.insert(name).second);
      weights += info.part ? 2 * info.elements().constant() : info.elements().constant();
    }
    std::uint64_t sends = 0;
    for (const Node& node : r.prefill().nodes()) {
      if (const auto* send = std::get_if<Send>(&node.op)) {
        CHECK(send->rank == 2 * stage + 3);
        CHECK(r.prefill().tensor(node.output()).bytes().at(r.symbols.resolve({2, 9, 9})) ==
              2 * 9 * 4096 * 2);
        ++sends;
      }
    }
    CHECK(sends == (stage < 2 ? 1 : 0));
  }
  CHECK(seen.size() == weights_of(record(a, {}, {})).size());
  CHECK(weights == record(a, {}, {}).parameters);
  CHECK(stage_ends(a, 3) == std::vector<std::size_t>{11, 22, 32});
  CHECK(stage_ends(a, 3, {12, 10, 10}) == std::vector<std::size_t>{12, 22, 32});
}

TEST_CASE("sharding: experts are spread, and what a device's experts read is expected") {
  const Architecture a = load_model(catalog(), "qwen3-30b-a3b");  // 128 experts, 8 a token
  const auto experts = [](const Recording& r) {
    std::uint64_t elements = 0;
    for (const auto& [name, info] : weights_of(r)) {
      if (name.find(".experts.") != std::string::npos) elements += info.elements().constant();
    }
    return elements;
  };
  const std::uint64_t whole = experts(record(a, {}, {}));
  CHECK(experts(recorded(a, {.tp = 4, .ep = 4}, 3)) == whole / 4);
  CHECK(experts(recorded(a, {.tp = 4, .ep = 2}, 3)) == whole / 4);  // two devices split each
  CHECK(experts(recorded(a, {.ep = 8, .dp = 8}, 3)) == whole / 8);
  // 8 replicas of 16 sequences: 8 x 16 x 8 pairs, an eighth of them here. A token reaches 7 other
  // devices with 16 experts each.
  const Recording r = recorded(a, {.ep = 8, .dp = 8}, 0);
  const SymbolValues at = r.symbols.resolve({16, 1, 100});
  double miss = 1;
  for (int i = 0; i < 8; ++i) miss *= (112.0 - i) / (128.0 - i);
  for (const Node& node : r.decode().nodes()) {
    const auto* op = std::get_if<DispatchTokens>(&node.op);
    if (op == nullptr) continue;
    CHECK(op->group.size == 8);
    CHECK(static_cast<double>(at[op->pairs.id]) / 48 == 8 * 16 * 8 / 8);
    CHECK(static_cast<double>(at[op->sent.id]) / 48 == std::ceil(16 * 7 * (1 - miss)));
  }
}

TEST_CASE("sharding: what does not divide is refused with the numbers that would") {
  const auto refused = [](const char* name, const Parallelism& p) {
    return message_of([&] { check_parallelism(load_model(catalog(), name), p); });
  };
  CHECK(refused("llama-3.1-8b", {.tp = 3}) ==
        "--tp 3: llama-3.1-8b has 32 attention heads; expected one of 1, 2, 4, 8, 16, 32");
  CHECK(refused("llama-3.1-8b", {.pp = 33}) ==
        "--pp 33: got 32 layers, expected a layer for each stage");
  CHECK(refused("glm-5.2", {.pp = 2}) ==
        "--pp 2: got glm-5.2, whose layers hand on the tokens they chose, expected --pp 1");
  CHECK(refused("llama-3.1-8b", {.tp = 2, .ep = 2}) ==
        "--ep 2: got llama-3.1-8b, which has no experts, expected --ep 1");
  CHECK(refused("qwen3-30b-a3b", {.tp = 4, .ep = 3}) ==
        "--ep 3: got 4 devices in a stage (tp 4 x dp 1), expected a divisor of them");
  CHECK(refused("whisper-large-v3", {.tp = 3}) ==
        "--tp 3: whisper-large-v3 has 20 attention heads; expected one of 1, 2, 4, 5, 10, 20");
  CHECK(refused("whisper-large-v3", {.pp = 2}) ==
        "pp 2: got the encoder-decoder model whisper-large-v3, expected --tp and --dp alone, or a "
        "decoder-only model");
  const Architecture llama = load_model(catalog(), "llama-3.1-8b");
  CHECK(message_of([&] { recorded(llama, {.tp = 2}, 0, "slim:option=vcache"); }) != "");
  CHECK(message_of([&] { recorded(llama, {.tp = 2}, 0, "kvp:auxiliary=lp-0.5"); }) != "");
  CHECK(message_of([&] { stage_ends(llama, 2, {10, 10}); }) != "");
}

TEST_CASE("sharding: words become a plan; experts without replicas are spread over as many") {
  CHECK(parse_parallelism({{"tp", "2"}, {"pp", "3"}}) == Parallelism{.tp = 2, .pp = 3});
  CHECK(parse_parallelism({{"ep", "8"}}) == Parallelism{.ep = 8, .dp = 8});
  CHECK(parse_parallelism({{"tp", "4"}, {"ep", "4"}}) == Parallelism{.tp = 4, .ep = 4});
  CHECK(parse_parallelism({{"ep", "8"}, {"dp", "2"}, {"tp", "4"}}) ==
        Parallelism{.tp = 4, .ep = 8, .dp = 2});
  for (const char* wrong : {"0", "-1", "two", "1e3", "70000"}) {
    CHECK(message_of([&] {
            parse_parallelism({{"tp", wrong}});
          }) == "--tp: got '" + std::string(wrong) + "', expected a whole number from 1 to 65536");
  }
}
