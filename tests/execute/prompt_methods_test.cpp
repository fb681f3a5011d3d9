#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"
#include "tests/near.h"

namespace kvcast::execute {
namespace {

/// A speculator of other depth and width, with random weights.
Checkpoint small_speculator(const OracleCase& c) {
  Architecture a = c.checkpoint.architecture();
  a.origin.clear();
  a.decoder.layers.resize(1);
  a.decoder.layers[0].intermediate_size = 20;
  return {a, 5};
}

/// A session whose methods may name "small".
Session session_of(const OracleCase& c, const std::string& methods, SessionOptions o = {}) {
  o.methods = parse_methods(methods);
  o.open = [&c](const std::string& name) {
    return name == "small" ? small_speculator(c) : Checkpoint(oracle_folder() / name);
  };
  return {c.checkpoint, o};
}

std::uint64_t ceil_share(std::uint64_t n, std::uint64_t percent) {
  return (n * percent + 99) / 100;
}

constexpr Kernels both_kernels[]{Kernels::Fused, Kernels::Eager};

/// One layer's attention of a prefill: operands and result, by sequence and row.
struct Attended {
  Heads heads;
  double scale = 1;
  std::size_t tokens = 0;
  std::vector<float> q, k, v, out;
};

/// Copies what layer `layer` of the prefill attends to.
std::vector<Attended> attentions_of(const Session& session, Request request) {
  std::vector<Attended> layers;
  request.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
    const Node& node = graph.nodes()[run.node];
    const auto* op = std::get_if<TiledAttention>(&node.op);
    if (&graph != &session.recording().prefill() || op == nullptr) return;
    const auto rows = [](const Operand& x) {
      return std::vector<float>(x.sequence(0), x.sequence(0) + x.shape[1] * x.shape[2]);
    };
    const auto& in = run.call->inputs;
    layers.push_back({op->heads, op->scale, in[0].shape[1], rows(in[0]), rows(in[1]), rows(in[2]),
                      rows(run.call->output)});
  };
  session.run(request);
  return layers;
}

/// Softmax weights of one head's query over keys, all by position, computed here in double.
std::vector<double> softmax_weights(const Attended& a, std::size_t head, std::uint64_t query,
                                    std::span<const std::uint64_t> keys) {
  const std::size_t hd = a.heads.head_dim;
  const std::size_t key_head = head * a.heads.num_key_value_heads / a.heads.num_attention_heads;
  const float* q = &a.q[(query * a.heads.num_attention_heads + head) * hd];
  std::vector<double> weights;
  double sum = 0;
  for (const std::uint64_t key : keys) {
    const float* k = &a.k[(key * a.heads.num_key_value_heads + key_head) * hd];
    double dot = 0;
    for (std::size_t d = 0; d < hd; ++d) dot += static_cast<double>(q[d]) * k[d];
    weights.push_back(std::exp(dot * a.scale));
    sum += weights.back();
  }
  for (double& w : weights) w /= sum;
  return weights;
}

/// The largest difference of a pruned run's attention from full attention in which the kept
/// queries see kept keys only.
double difference_from_masked(const Attended& full, const Attended& pruned,
                              const std::vector<std::uint64_t>& kept) {
  const std::size_t hd = full.heads.head_dim;
  const std::size_t query_row = full.heads.num_attention_heads * hd;
  const std::size_t key_row = full.heads.num_key_value_heads * hd;
  const std::size_t repeats = full.heads.num_attention_heads / full.heads.num_key_value_heads;
  double largest = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    for (std::size_t h = 0; h < full.heads.num_attention_heads; ++h) {
      const auto weights = softmax_weights(full, h, kept[i], std::span(kept).first(i + 1));
      for (std::size_t d = 0; d < hd; ++d) {
        double o = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          o += weights[j] * static_cast<double>(full.v[kept[j] * key_row + h / repeats * hd + d]);
        }
        const auto ours = static_cast<double>(pruned.out[i * query_row + h * hd + d]);
        largest = std::max(largest, std::abs(o - ours));
      }
    }
  }
  return largest;
}

// Whatever the speculator, the look-ahead, the pooling and the chunks.
TEST_CASE("prompt methods: keeping everything is the plain model to the last bit") {
  for (const char* name : {"llama_gqa_llama3_rope", "gpt2", "opt", "gpt_neox", "mistral"}) {
    const OracleCase c(name);
    for (const Kernels kernels : both_kernels) {
      const SessionOptions o{.attention = kernels, .elementwise = kernels, .logits = Logits::All};
      const Generation plain = session_of(c, "plain", o).run(c.request(c.prompt, 9));
      for (const char* method :
           {"specprefill:keep=1", "specprefill:keep=1,speculator=small,lookahead=3",
            "specprefill:keep=1,speculator=small,chunk=4,pool=5", "random-prune:keep=1",
            "static-prune:keep=1"}) {
        CAPTURE(name);
        CAPTURE(method);
        const Generation g = session_of(c, method, o).run(c.request(c.prompt, 9));
        CHECK(g.tokens == plain.tokens);
        REQUIRE(g.logits.size() == plain.logits.size());
        CHECK(std::equal(g.logits.begin(), g.logits.end(), plain.logits.begin()));
      }
    }
  }
}

TEST_CASE("prompt methods: as many tokens are kept as the rule says, at rising positions") {
  const OracleCase c("llama_gqa_llama3_rope");
  const std::uint64_t length = c.prompt[0].size();
  for (const std::uint64_t percent : {1u, 10u, 37u, 50u, 100u}) {
    const std::string keep = std::to_string(static_cast<double>(percent) / 100);
    for (const std::string method :
         {"specprefill:lookahead=1,keep=", "random-prune:keep=", "static-prune:keep="}) {
      CAPTURE(method + keep);
      const Generation g = session_of(c, method + keep).run(c.request(c.prompt, 3));
      if (g.kept.empty()) continue;  // random pruning that keeps everything is plain
      for (const std::vector<std::uint64_t>& kept : g.kept) {
        CHECK(kept.size() == ceil_share(length, percent));
        CHECK(std::is_sorted(kept.begin(), kept.end()));
        CHECK(std::adjacent_find(kept.begin(), kept.end()) == kept.end());
        CHECK(kept.back() < length);
      }
    }
    // Chunks of 4: all but the last one have 4 tokens.
    const Generation g =
        session_of(c, "specprefill:lookahead=2,chunk=4,keep=" + keep).run(c.request(c.prompt, 3));
    const std::uint64_t chunks = (length + 3) / 4;
    for (const std::vector<std::uint64_t>& kept : g.kept) {
      std::vector<std::uint64_t> of_chunk(chunks);
      for (const std::uint64_t p : kept) ++of_chunk[p / 4];
      std::uint64_t whole = 0;
      for (std::uint64_t i = 0; i < chunks; ++i) {
        const std::uint64_t size = std::min<std::uint64_t>(4, length - 4 * i);
        CHECK((of_chunk[i] == 0 || of_chunk[i] == size));
        if (of_chunk[i] == size) ++whole;
      }
      CHECK(whole == ceil_share(chunks, percent));
    }
  }
}

TEST_CASE(
    "prompt methods: importance without pooling and look-ahead is a maximum of distributions") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Architecture& a = c.checkpoint.architecture();
  const double distributions =
      static_cast<double>(a.decoder.layers.size() * a.decoder.layers[0].heads.num_attention_heads);
  const Generation g =
      session_of(c, "specprefill:keep=0.5,lookahead=1").run(c.request(c.prompt, 2));
  REQUIRE(g.importance.size() == c.prompt.size());
  for (const std::vector<double>& importance : g.importance) {
    CHECK(importance.size() == c.prompt[0].size());
    double sum = 0;
    for (const double x : importance) {
      CHECK(x >= 0);
      sum += x;
    }
    CHECK(sum >= 1 - 1e-6);
    CHECK(sum <= distributions + 1e-6);
  }
}

// Deeper layers differ: kept tokens have not seen the dropped ones in the first.
TEST_CASE("prompt methods: the first layer is full attention with the dropped keys masked") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Request request = c.request({c.prompt[0]}, 1);
  const auto full = attentions_of(session_of(c, "plain"), request);
  REQUIRE(full.size() == 2);
  for (const char* method : {"specprefill:keep=0.4,lookahead=2", "random-prune:keep=0.4",
                             "static-prune:keep=0.4,probe=0.5"}) {
    CAPTURE(method);
    const Session session = session_of(c, method);
    const auto kept = session.run(request).kept[0];
    const auto pruned = attentions_of(session, request);
    REQUIRE(pruned.size() == 2);
    CHECK(pruned[0].tokens == kept.size());
    CHECK(difference_from_masked(full[0], pruned[0], kept) < 1e-5);
    CHECK(difference_from_masked(full[1], pruned[1], kept) > 1e-3);
  }
}

TEST_CASE("prompt methods: lazyllm without pruning is plain, and with it layers shrink") {
  for (const char* name : {"llama_gqa_llama3_rope", "gpt2"}) {
    const OracleCase c(name);
    for (const Kernels kernels : both_kernels) {
      const SessionOptions o{.attention = kernels, .elementwise = kernels};
      CAPTURE(name);
      const Generation g = session_of(c, "lazyllm:begin=1,end=1", o).run(c.request(c.prompt, 9));
      const Generation plain = session_of(c, "plain", o).run(c.request(c.prompt, 9));
      CHECK(g.tokens == plain.tokens);
      REQUIRE(g.logits.size() == plain.logits.size());
      CHECK(std::equal(g.logits.begin(), g.logits.end(), plain.logits.begin()));
    }
  }
  const OracleCase c("llama_gqa_llama3_rope");
  const Request request = c.request({c.prompt[0]}, 1);
  const std::uint64_t length = c.prompt[0].size();
  const auto full = attentions_of(session_of(c, "plain"), request);
  const auto lazy = attentions_of(session_of(c, "lazyllm:begin=0.4,end=0.4,from=0.5"), request);
  REQUIRE(lazy.size() == 2);
  CHECK(lazy[0].tokens == length);
  CHECK(lazy[0].out == full[0].out);
  CHECK(lazy[1].tokens == ceil_share(length, 40));

  // The last token's attention in the first layer, summed over heads, says who goes on: their
  // rows of the next layer's keys are those of the plain run, computed from the same states.
  const Heads& heads = full[0].heads;
  std::vector<std::uint64_t> keys(length);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<double> sums(length, 0.0);
  for (std::size_t h = 0; h < heads.num_attention_heads; ++h) {
    const auto weights = softmax_weights(full[0], h, length - 1, keys);
    for (std::size_t j = 0; j < length; ++j) sums[j] += weights[j];
  }
  sums[length - 1] = 1e9;  // the last one always goes on
  const std::vector<std::uint64_t> kept = select_tokens(sums, {.keep = 0.4});
  const std::size_t row = heads.num_key_value_heads * heads.head_dim;
  REQUIRE(kept.size() == lazy[1].tokens);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    for (std::size_t d = 0; d < row; ++d) {
      CHECK(lazy[1].k[i * row + d] == near(full[1].k[kept[i] * row + d]).epsilon(1e-4));
    }
  }
}

// Every token that the model's greedy look-ahead can reach is made a stop token in turn.
TEST_CASE("specprefill: a stop token ends the look-ahead, whatever its length") {
  const OracleCase c("llama_gqa_llama3_rope");
  Request request = c.request({c.prompt[0]}, 6);
  const Generation plain = session_of(c, "plain").run(request);
  for (std::size_t stop = 0; stop < 3; ++stop) {
    request.stop_tokens = {plain.tokens[0][stop]};
    const auto importance = [&](const std::string& lookahead) {
      return session_of(c, "specprefill:keep=0.5,lookahead=" + lookahead).run(request).importance;
    };
    // The speculator is the base itself: its token at step j is the plain model's.
    const std::size_t first = static_cast<std::size_t>(
        std::find(plain.tokens[0].begin(), plain.tokens[0].end(), plain.tokens[0][stop]) -
        plain.tokens[0].begin());
    const auto expected = importance(std::to_string(first + 1));
    CHECK(importance(std::to_string(first + 2)) == expected);
    CHECK(importance("8") == expected);
    if (first > 0) CHECK(importance(std::to_string(first)) != expected);
  }
}

TEST_CASE("specprefill: sequences that keep differently many tokens run one after another") {
  const OracleCase c("llama_gqa_llama3_rope");
  const std::string method = "specprefill:keep=0.5,lookahead=2,chunk=8";
  REQUIRE(c.prompt.size() > 1);
  REQUIRE(c.prompt[0].size() % 8 != 0);
  const Generation together = session_of(c, method).run(c.request(c.prompt, 5));
  std::uint64_t flops = 0;
  for (std::size_t b = 0; b < c.prompt.size(); ++b) {
    const Generation one = session_of(c, method).run(c.request({c.prompt[b]}, 5));
    CHECK(together.tokens[b] == one.tokens[0]);
    CHECK(together.kept[b] == one.kept[0]);
    CHECK(together.importance[b] == one.importance[0]);
    flops += one.analytic_flops;
  }
  CHECK(together.analytic_flops == flops);
  CHECK(together.logits_shape[0] == c.prompt.size());
}

TEST_CASE("specprefill: a speculator with weights of its own is not the base") {
  const OracleCase c("llama_gqa_llama3_rope");
  const Request request = c.request(c.prompt, 4);
  const Session own = session_of(c, "specprefill:keep=0.4,lookahead=3,speculator=small");
  const Session self = session_of(c, "specprefill:keep=0.4,lookahead=3");
  const Session named =
      session_of(c, "specprefill:keep=0.4,lookahead=3,speculator=llama_gqa_llama3_rope");
  CHECK(own.run(request).importance != self.run(request).importance);
  CHECK(named.run(request).importance == self.run(request).importance);
  CHECK(named.run(request).tokens == self.run(request).tokens);
  CHECK(own.recording().helper_parameters > 0);
  CHECK(own.recording().parameters == self.recording().parameters);
}

// The speculator's cache can be reused when it is the base, whatever the folder is called.
TEST_CASE("specprefill: a base named as its own speculator is loaded once, and reused") {
  namespace fs = std::filesystem;
  const OracleCase c("llama_gqa_llama3_rope");
  const Request request = c.request(c.prompt, 4);
  const fs::path scratch =
      fs::temp_directory_path() / ("kvcast-own-speculator-" + std::to_string(::getpid()));
  fs::remove_all(scratch);
  fs::create_directories(scratch);
  fs::create_directory_symlink(c.folder, scratch / "link");
  fs::copy(c.folder, scratch / "copy");
  const auto session = [&](const std::string& methods) {
    return Session(c.checkpoint, {.methods = parse_methods(methods)});
  };
  for (const std::string options : {"keep=0.4,lookahead=3", "keep=0.4,lookahead=3,reuse=kept"}) {
    const Session self = session("specprefill:" + options);
    const Generation expected = self.run(request);
    for (const fs::path& spelling :
         {c.folder, c.folder / "", c.folder / ".." / c.folder.filename(), scratch / "link"}) {
      CAPTURE(options);
      CAPTURE(spelling.string());
      const Session named = session("specprefill:speculator=" + spelling.string() + "," + options);
      CHECK(named.weight_bytes() == self.weight_bytes());
      CHECK(named.recording().weight_bytes.at({}) == self.recording().weight_bytes.at({}));
      CHECK(named.recording().helper_parameters == 0);
      CHECK(named.opened().empty());
      const Generation run = named.run(request);
      CHECK(run.tokens == expected.tokens);
      CHECK(run.kept == expected.kept);
      CHECK(run.importance == expected.importance);
      CHECK(std::equal(run.logits.begin(), run.logits.end(), expected.logits.begin(),
                       expected.logits.end()));
      CHECK(run.analytic_flops == expected.analytic_flops);
      CHECK(run.analytic_bytes == expected.analytic_bytes);
    }
  }
  // Nobody knows that a copy holds the same numbers.
  const std::string copy = (scratch / "copy").string();
  const Session self = session("specprefill:keep=0.4");
  const Session other = session("specprefill:keep=0.4,speculator=" + copy);
  CHECK(other.weight_bytes() == 2 * self.weight_bytes());
  CHECK(message_of([&] {
          session("specprefill:keep=0.4,reuse=kept,speculator=" + copy);
        }).find("got the speculator " + copy) != std::string::npos);
  fs::remove_all(scratch);
}

TEST_CASE("prompt methods: what a prompt is too short for, and logits that would not line up") {
  const OracleCase c("llama_mha");
  const std::uint64_t length = c.prompt[0].size();
  const auto refused = [&](const std::string& method, const std::string& part,
                           Logits logits = Logits::Last) {
    CAPTURE(method);
    int passes = 0;
    Request request = c.request(c.prompt, 2);
    request.on_pass = [&](std::uint64_t, std::uint64_t) { ++passes; };
    const std::string line =
        message_of([&] { session_of(c, method, {.logits = logits}).run(request); });
    CAPTURE(line);
    CHECK(line.find(part) != std::string::npos);
    CHECK(passes == 0);
  };
  REQUIRE(length == 17);
  refused("specprefill:keep=0.5,chunk=18", "option chunk: got 18");
  refused("specprefill:keep=0.5,pool=37", "at most 35 for a prompt of 17 tokens");
  session_of(c, "specprefill:keep=0.5,pool=35").run(c.request(c.prompt, 2));
  refused("specprefill:keep=0.5,chunk=8", "may keep different numbers of tokens", Logits::All);
  const Generation one = session_of(c, "specprefill:keep=0.5,chunk=8", {.logits = Logits::All})
                             .run(c.request({c.prompt[0]}, 2));
  CHECK(one.logits_shape[1] == one.kept[0].size());
}

// As random-prune's help says.
TEST_CASE(
    "prompt methods: a seed draws the same tokens again, and sequence b with the seed plus b") {
  const OracleCase c("llama_mha");
  const auto kept = [&](const std::string& seed) {
    return session_of(c, "random-prune:keep=0.4,seed=" + seed)
        .run(c.request({c.prompt[0], c.prompt[0]}, 1))
        .kept;
  };
  CHECK(kept("3") == kept("3"));
  CHECK(kept("3") != kept("4"));
  CHECK(kept("3")[1] == kept("4")[0]);
  CHECK(kept("3")[1] != kept("3")[0]);
}

}  // namespace
}  // namespace kvcast::execute
