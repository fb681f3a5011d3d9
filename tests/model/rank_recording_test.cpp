#include "model/record/rank_recording.h"

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "tests/model/message_of.h"
#include "tests/model/tiny_models.h"

using namespace kvcast;

namespace {

using Parts = std::vector<std::uint64_t>;

/// 2 layers, 6 heads over 3 of 4 dims, gated MLP of 37, so that no two sizes agree.
Architecture tiny(const char* type = "llama") {
  nlohmann::json config{
      {"model_type", type},       {"vocab_size", 51},       {"hidden_size", 42},
      {"intermediate_size", 37},  {"num_hidden_layers", 2}, {"num_attention_heads", 6},
      {"num_key_value_heads", 3}, {"head_dim", 4},          {"max_position_embeddings", 64}};
  return read_config(config, "tiny", "f");
}

Recording rank_of(const std::string& method, const Parts& parts, std::size_t rank,
                  Kernels kernels = Kernels::Fused, RecordOptions options = {}) {
  const Lowering lowering{kernels, kernels, DType::FP16, DType::FP16, DType::FP16};
  const auto methods = parse_methods(method + ":p=" + std::to_string(parts.size()));
  return record_rank(tiny(), methods, lowering, {parts, rank}, options);
}

SymbolValues values_of(const Recording& r, const Parts& parts, std::size_t rank,
                       std::uint64_t batch = 1) {
  const RankShare share{parts, rank};
  return r.symbols.resolve({batch, share.tokens(), share.end()});
}

/// Scores that a rank's first layer computes for one head, and rows of keys or values it sends.
struct Share {
  std::uint64_t scores = 0;
  std::uint64_t sent_rows = 0;
  bool operator==(const Share&) const = default;
};

std::vector<Share> shares(const std::string& method, const Parts& parts) {
  std::vector<Share> all;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const Recording r = rank_of(method, parts, rank, Kernels::Eager);
    const SymbolValues values = values_of(r, parts, rank);
    Share s;
    for (const Node& node : r.prefill().nodes()) {
      if (node.layer != 0) continue;
      const std::vector<Count>& shape = r.prefill().tensor(node.output()).shape;
      if (std::holds_alternative<AttentionScores>(node.op)) {
        s.scores = (shape[2] * shape[3]).at(values);
      }
      if (std::holds_alternative<Send>(node.op)) s.sent_rows += shape[1].at(values);
    }
    all.push_back(s);
  }
  return all;
}

TEST_CASE("placement: kvr and tsp have the scores and the traffic of the paper's figures 4 and 5") {
  // 9 tokens on 3 ranks. TSP: 3 x 9 scores each, and each rank sends 2 parts of 3 rows, of keys and
  // of values. KVR [4, 3, 2]: 4·4, 3·7, 2·9 scores; 4 and then 7 rows of each go on.
  CHECK(shares("tsp", {3, 3, 3}) == std::vector<Share>{{27, 12}, {27, 12}, {27, 12}});
  CHECK(shares("kvr", {4, 3, 2}) == std::vector<Share>{{16, 8}, {21, 14}, {18, 0}});
  CHECK(shares("kvr", {3, 3, 3}) == std::vector<Share>{{9, 6}, {18, 12}, {27, 0}});
  // Table 4: 11 words; TSP 3,3,3,2 has 33 scores at most, KVR 5,3,2,1 has 25, 24, 20, 11.
  const auto tsp = shares("tsp", {3, 3, 3, 2});
  CHECK(tsp[0].scores == 33);
  CHECK(tsp[3].scores == 22);
  const auto kvr = shares("kvr", {5, 3, 2, 1});
  CHECK(kvr[0].scores == 25);
  CHECK(kvr[1].scores == 24);
  CHECK(kvr[2].scores == 20);
  CHECK(kvr[3].scores == 11);
}

TEST_CASE("placement: a listed partition says how many ranks there are") {
  const auto ranks = [](const std::string& method) {
    return find_placement(parse_methods(method)).value().ranks;
  };
  CHECK(ranks("kvr:partition=5/3/2/1") == 4);
  CHECK(ranks("kvr:partition=9") == 1);
  CHECK(ranks("kvr:p=2,partition=5/4") == 2);
}

TEST_CASE("placement: message bytes are the formulas of keys and values, layer by layer") {
  // Bytes of a token-KV unit in a layer: 2·G·hd·b = 2 · 3·4 · 2; 2 layers.
  const std::uint64_t unit = 2 * 3 * 4 * 2 * 2;
  for (const Parts& parts : {Parts{4, 3, 2}, Parts{1, 1, 1, 1, 1}, Parts{7, 1, 5, 2}, Parts{9}}) {
    std::uint64_t tokens = 0;
    std::uint64_t runahead = 0;  // Σ_{i<p-1} S_i
    for (const std::uint64_t part : parts) {
      tokens += part;
      runahead += tokens;
    }
    runahead -= tokens;
    for (const std::uint64_t batch : {1u, 3u}) {
      std::uint64_t kvr = 0;
      std::uint64_t tsp = 0;
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const Recording k = rank_of("kvr", parts, rank);
        kvr += total_work(k.prefill()).sent_bytes().at(values_of(k, parts, rank, batch));
        const Recording t = rank_of("tsp", parts, rank);
        tsp += total_work(t.prefill()).sent_bytes().at(values_of(t, parts, rank, batch));
      }
      CHECK(kvr == batch * unit * runahead);
      CHECK(tsp == batch * unit * (parts.size() - 1) * tokens);
    }
  }
}

/// Rows of each message between two ranks, in order.
template <typename Message>
Parts rows_of(const Recording& r, const SymbolValues& values, std::size_t peer) {
  Parts rows;
  for (const Node& node : r.prefill().nodes()) {
    const auto* op = std::get_if<Message>(&node.op);
    if (op == nullptr || op->rank != peer) continue;
    const TensorId message = std::is_same_v<Message, Send> ? node.output() : node.inputs[1];
    CHECK(r.prefill().tensor(message).storage == Storage::Messages);
    rows.push_back(op->first_row.at(values));
    rows.push_back(r.prefill().tensor(message).shape[1].at(values));
  }
  return rows;
}

TEST_CASE("placement: what a rank sends is what the other waits for, in that order") {
  for (const std::string method : {"kvr", "tsp"}) {
    for (const Parts& parts : {Parts{4, 3, 2}, Parts{1, 2}, Parts{2, 1, 1, 5}}) {
      std::vector<Recording> r;
      std::vector<SymbolValues> values;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        r.push_back(rank_of(method, parts, i));
        values.push_back(values_of(r[i], parts, i));
      }
      for (std::size_t from = 0; from < parts.size(); ++from) {
        for (std::size_t to = 0; to < parts.size(); ++to) {
          CAPTURE(method);
          CAPTURE(from);
          CAPTURE(to);
          const Parts sent = rows_of<Send>(r[from], values[from], to);
          CHECK(sent == rows_of<Receive>(r[to], values[to], from));
          CHECK(sent.empty() == (from == to || (method == "kvr" && to != from + 1) ||
                                 (method == "tsp" && to != (from + 1) % parts.size())));
        }
      }
    }
  }
}

TEST_CASE("placement: rank i's cache has the rows of tokens up to its own, with tsp of all") {
  const Parts parts{4, 3, 2};
  for (const std::string method : {"kvr", "tsp"}) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const Recording r = rank_of(method, parts, rank);
      const std::uint64_t rows = method == "tsp" ? 9 : RankShare{parts, rank}.end();
      std::size_t caches = 0;
      for (const TensorId id : r.prefill().outputs()) {
        const TensorInfo& t = r.prefill().tensor(id);
        if (t.storage != Storage::KvCache) continue;
        ++caches;
        CHECK(t.shape[1].at(values_of(r, parts, rank)) == rows);
      }
      CHECK(caches == 4);
      CHECK(r.prompt_slots.at(values_of(r, parts, rank)) == rows);
    }
  }
}

TEST_CASE("placement: the ranks' FLOPs are those of one device, but for the head") {
  const Recording whole = record(tiny(), {}, {});
  const auto head = [](const Recording& r, const SymbolValues& values) {
    std::uint64_t flops = 0;
    for (const Node& node : r.prefill().nodes()) {
      if (node.phase == "head") flops += work(r.prefill(), node).flops.at(values);
    }
    return flops;
  };
  for (const Parts& parts : {Parts{13}, Parts{4, 3, 6}, Parts{1, 1, 1, 1, 9}, Parts{6, 7}}) {
    for (const std::string method : {"kvr", "tsp"}) {
      std::uint64_t flops = 0;
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const Recording r = rank_of(method, parts, rank);
        const SymbolValues values = values_of(r, parts, rank);
        flops += total_work(r.prefill()).flops.at(values);
        // Only the last rank has a head, and one row of it.
        const bool last = rank + 1 == parts.size();
        CHECK(head(r, values) == (last ? head(whole, whole.symbols.resolve({1, 13, 13})) : 0));
      }
      CHECK(flops == total_work(whole.prefill()).flops.at(whole.symbols.resolve({1, 13, 13})));
    }
  }
}

TEST_CASE("placement: kvr's eager products are the paper's FLOPs for a process and layer") {
  // 2c(D·hd·(H+2G) + H·hd·D + 3·D·F) + 4c·S·H·hd with D 42, H 6, G 3, hd 4, F 37.
  const Parts parts{5, 3, 2};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Recording r = rank_of("kvr", parts, rank, Kernels::Eager);
    const SymbolValues values = values_of(r, parts, rank);
    std::uint64_t flops = 0;
    for (const Node& node : r.prefill().nodes()) {
      const RateClass e = rate_class(node.op);
      const bool product = e == RateClass::Matrix || e == RateClass::BatchedMatrix;
      if (node.layer == 1 && product) flops += work(r.prefill(), node).flops.at(values);
    }
    const std::uint64_t c = parts[rank];
    const std::uint64_t s = RankShare{parts, rank}.end();
    CHECK(flops == 2 * c * (42 * 4 * 12 + 24 * 42 + 3 * 42 * 37) + 4 * c * s * 24);
  }
}

// Slim attention rotates all cached keys as it reads them. On tsp's first rank, whose queries start
// at position 0 too, eager code once gave the keys the queries' shorter tables of cos and sin.
TEST_CASE("placement: eager code rotates each row of the keys, whoever computed it") {
  const Architecture a = model_of(R"({"model_type": "llama", "hidden_size": 48, "vocab_size": 51,
    "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 20})");
  const Lowering eager{Kernels::Eager, Kernels::Eager};
  const Parts parts{4, 3, 2};
  for (const char* methods : {"slim:option=kcache+tsp:p=3", "slim:option=kcache+kvr:p=3"}) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const Recording r = record_rank(a, parse_methods(methods), eager, {parts, rank});
      std::size_t rotations = 0;
      for (const Node& node : r.prefill().nodes()) {
        if (node.label != "key_rope" || node.inputs.size() != 2) continue;
        const auto& x = r.prefill().tensor(node.inputs[0]).shape;
        const auto& table = r.prefill().tensor(node.inputs[1]).shape;
        CHECK(table[table.size() - 2].at(values_of(r, parts, rank)) ==
              x[1].at(values_of(r, parts, rank)));
        ++rotations;
      }
      CHECK(rotations == 2 * 3);  // layers; x·cos, rotated·sin and their sum
    }
  }
}

TEST_CASE("placement: one graph of kvr holds for every partition") {
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Recording a = rank_of("kvr", {4, 3, 2}, rank);
    const Recording b = rank_of("kvr", {1, 20, 6}, rank);
    CHECK(total_work(a.prefill()) == total_work(b.prefill()));
  }
}

TEST_CASE("placement: one rank is plain") {
  for (const std::string method : {"kvr", "tsp"}) {
    const Recording one = rank_of(method, {13}, 0);
    const Recording plain = record(tiny(), {}, {});
    CHECK(total_work(one.prefill()) == total_work(plain.prefill()));
    CHECK(total_work(one.decode()) == total_work(plain.decode()));
  }
}

TEST_CASE("placement: with all logits every rank has a head") {
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Recording r = rank_of("kvr", {4, 3}, rank, Kernels::Fused, {.logits = Logits::All});
    const TensorInfo& logits = r.prefill().tensor(r.prefill().outputs().back());
    CHECK(logits.shape[1].at(values_of(r, {4, 3}, rank)) == (rank == 0 ? 4 : 3));
    CHECK(logits.shape[2] == Count(51));
  }
}

TEST_CASE("placement: the even partition gives the first ranks the rest") {
  CHECK(even_partition(11, 4) == Parts{3, 3, 3, 2});  // the paper's table 4
  CHECK(even_partition(9, 3) == Parts{3, 3, 3});
  CHECK(even_partition(5, 5) == Parts{1, 1, 1, 1, 1});
  const auto placement = [](const char* text) { return *find_placement(parse_methods(text)); };
  CHECK(partition_tokens(placement("kvr:p=4"), 11) == Parts{3, 3, 3, 2});
  CHECK(partition_tokens(placement("slim+kvr:p=4,partition=even"), 11) == Parts{3, 3, 3, 2});
  CHECK(partition_tokens(placement("kvr:p=4,partition=5/3/2/1"), 11) == Parts{5, 3, 2, 1});
  CHECK_FALSE(find_placement(parse_methods("slim")).has_value());
}

std::string line_of(const std::string& methods, std::uint64_t prompt_len,
                    const Architecture& a = tiny()) {
  return message_of([&] {
    const auto specs = parse_methods(methods);
    record_rank(a, specs, {}, {partition_tokens(find_placement(specs).value(), prompt_len), 0});
  });
}

TEST_CASE("placement: wrong partitions and models are refused in one line") {
  const auto says = [](const std::string& line, std::string_view part) {
    check_line(line, {part});
  };
  says(line_of("kvr:p=2,partition=5/3", 9), "got a prompt of 9 tokens, expected 8, the sum of 5/3");
  says(line_of("kvr:p=4", 3), "a prompt of 3 tokens, expected at least one token per rank (4)");
  for (const char* partition : {"5/0", "5/", "/5", "5//4", "a/b", "5:4", "-1/5", " 5/4", "1e3/2",
                                "99999999999999999999/1"}) {
    says(line_of("kvr:p=2,partition=" + std::string(partition), 9), "as in 5/3/2/1");
  }
  says(line_of("kvr:p=2,partition=18446744073709551615/2", 9), "exceeds 64 bits");
  says(line_of("kvr:p=3,partition=5/4", 9), "got 2 parts, expected 3, one for each rank");
  says(line_of("kvr:p=0", 9), "option p: got '0'");
  says(line_of("kvr", 9), "option 'p' is missing");
  says(line_of("kvr:partition=search", 9), "option 'p' is missing");
  says(line_of("tsp:p=100000", 9), "at most 65536 ranks");
  says(line_of("tsp:p=2,partition=even", 9), "unknown option 'partition'");
  says(line_of("streaming:sinks=1,window=4+kvr:p=2", 9), "read the prompt in one piece");
  says(line_of("lazyllm:begin=0.8,end=0.4+tsp:p=2", 9), "cannot be combined with lazyllm");
  const Architecture t5 =
      read_config(nlohmann::json::parse(R"({"model_type": "t5", "d_model": 42, "vocab_size": 51,
        "num_layers": 3, "num_heads": 6, "d_kv": 5, "d_ff": 20})"),
                  "tiny-t5", "f");
  says(line_of("tsp:p=2", 9, t5), "got the encoder-decoder model tiny-t5");
  says(line_of("mlkv:layers=1,heads=1,semantics=released+kvr:p=2", 9), "semantics=paper");
}

TEST_CASE("placement: an estimate of one device refuses it and says what to use") {
  for (const char* method :
       {"kvr:p=4", "tsp:p=4", "mlkv:layers=1,heads=1+kvr:p=4,partition=5/3/2/1"}) {
    const std::string line = message_of([&] { record(tiny(), parse_methods(method), {}); });
    check_line(line, {"'kvcast simulate prefill --schedule'", "'mpirun -n 4 kvcast run'"});
  }
}

}  // namespace
