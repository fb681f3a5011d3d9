// kvr and tsp on several ranks give what one process gives. Ranks are threads here; that MPI's
// processes do the same is shown in tests/cli.
#include "model/execute/rank_run.h"

#include <algorithm>
#include <map>
#include <span>
#include <thread>

#include <doctest/doctest.h>

#include "model/forward/state_space.h"
#include "model/graph/work.h"
#include "tests/execute/analytic_work.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

using Parts = std::vector<std::uint64_t>;
/// Each cache tensor's rows [batch, rows, features] as they stand at the end of prefill.
struct Cached {
  Shape shape;
  std::vector<double> numbers;
};
using Caches = std::map<std::string, Cached>;

std::string cache_name(const Graph& graph, TensorId id) {
  while (graph.tensor(id).producer) {
    const std::vector<TensorId>& inputs = graph.node(*graph.tensor(id).producer).inputs;
    id = *std::find_if(inputs.begin(), inputs.end(),
                       [&](TensorId in) { return graph.tensor(in).storage == Storage::KvCache; });
  }
  return graph.tensor(id).name;
}

/// Keeps what a node leaves in a cache, in numbers of the session's dtype.
void keep(Caches& caches, const Graph& graph, const NodeRun& run, DType dtype) {
  const std::vector<TensorId>& ids = run.call->node.outputs;
  const std::size_t last = ids.size() - 1;
  if (graph.tensor(ids[last]).storage != Storage::KvCache) return;
  const Operand& out = last == 0 ? run.call->output : run.call->more_outputs[last - 1];
  Cached& cached = caches[cache_name(graph, ids[last])];
  cached = {out.shape, {}};
  const std::size_t of_sequence = out.shape[1] * out.shape[2];
  for (std::size_t b = 0; b < out.shape[0]; ++b) {
    for (std::size_t i = 0; i < of_sequence; ++i) {
      cached.numbers.push_back(dtype == DType::FP64 ? out.sequence<double>(b)[i]
                                                    : double{out.sequence(b)[i]});
    }
  }
}

/// The last `rows` of the first `end` rows of each sequence.
std::vector<double> rows_until(const Cached& c, std::size_t end, std::size_t rows) {
  std::vector<double> numbers;
  for (std::size_t b = 0; b < c.shape[0]; ++b) {
    const auto first =
        c.numbers.begin() + static_cast<std::ptrdiff_t>((b * c.shape[1] + end - rows) * c.shape[2]);
    numbers.insert(numbers.end(), first, first + static_cast<std::ptrdiff_t>(rows * c.shape[2]));
  }
  return numbers;
}

/// Of the tokens before position `first`, those that it sees in the layer of the cache
/// "layers.3.keys".
std::size_t seen_before(const Architecture& a, const std::string& cache, std::size_t first) {
  const LayerShape& layer = a.decoder.layers[std::stoul(cache.substr(cache.find('.') + 1))];
  if (is_state(cache)) return std::min<std::size_t>(first, layer.state_space->kernel - 1);
  if (layer.attention_chunk > 0) return first % layer.attention_chunk;
  return layer.sliding_window > 0 ? std::min<std::size_t>(first, layer.sliding_window - 1) : first;
}

/// A batch of two prompts of `length` tokens.
std::vector<std::vector<TokenId>> prompts(const Architecture& a, std::uint64_t length) {
  std::vector<TokenId> first = made_up_prompt(length, a.vocab_size);
  const std::vector<TokenId> second(first.rbegin(), first.rend());
  return {first, second};
}

struct Single {
  Single(const Checkpoint& checkpoint, const SessionOptions& options, std::uint64_t length)
      : session(checkpoint, options) {
    request.tokens = prompts(checkpoint.architecture(), length);
    request.output_len = 4;
    Request watched = request;
    watched.on_node = [&](const Graph& graph, const NodeRun& run, std::span<const std::uint64_t>) {
      if (&graph == &session.recording().prefill()) keep(caches, graph, run, options.dtype);
    };
    generation = session.run(watched);
    logits = logits_of(generation);
  }
  Session session;
  Request request;
  Caches caches;
  Generation generation;
  std::vector<double> logits;
};

/// Runs the request on ranks and compares logits, caches, tokens and counts with one process.
void check_ranks(const Checkpoint& checkpoint, SessionOptions options, const std::string& placement,
                 const Parts& parts, const Single& single, double tolerance) {
  CAPTURE(placement);
  CAPTURE(parts.size());
  CAPTURE(parts.front());
  for (const MethodSpec& spec : parse_methods(placement + ":p=" + std::to_string(parts.size()))) {
    options.methods.push_back(spec);
  }
  // Ranks are threads: what each one counts is its own.
  struct Counted {
    Caches caches;
    std::uint64_t sent = 0;
    std::uint64_t analytic_sent = 0;
    bool decodes = false;
    std::map<const Node*, Work> works;  // decode steps have the same nodes
  };
  std::vector<Counted> ranks(parts.size());
  const RankRun run = run_ranks(checkpoint, options, parts, [&](std::size_t number) {
    Request request = single.request;
    request.on_node = [&, number](const Graph& graph, const NodeRun& node,
                                  std::span<const std::uint64_t> symbols) {
      Counted& rank = ranks[number];
      const bool is_decode = symbols[symbol::kv_len.id] > single.request.tokens[0].size();
      rank.decodes = rank.decodes || is_decode;
      if (!is_decode) keep(rank.caches, graph, node, options.dtype);
      const Node& done = graph.nodes()[node.node];
      auto known = rank.works.find(&done);
      if (known == rank.works.end()) known = rank.works.emplace(&done, work(graph, done)).first;
      const Work& w = known->second;
      rank.analytic_sent += w.sent_bytes().at(symbols);
      if (node.counted == nullptr) return;
      rank.sent += node.counted->written[static_cast<std::size_t>(Storage::Messages)];
      // Every operator of every rank does the work that the recorder says.
      check_counted(done, *node.counted, w, symbols);
    };
    return request;
  });
  std::uint64_t sent = 0;
  std::uint64_t analytic_sent = 0;
  std::set<std::size_t> decoded;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    sent += ranks[rank].sent;
    analytic_sent += ranks[rank].analytic_sent;
    if (ranks[rank].decodes) decoded.insert(rank);
  }

  const Generation& g = run.generation;
  CHECK(g.tokens == single.generation.tokens);
  CHECK(decoded == std::set<std::size_t>{placement == "tsp" ? 0 : parts.size() - 1});
  CHECK(relative_difference(std::span<const double>(logits_of(g)),
                            std::span<const double>(single.logits)) < tolerance);
  std::uint64_t end = 0;
  std::uint64_t messages = 0;
  std::uint64_t message_bytes = 0;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    end += parts[rank];
    const std::size_t until = placement == "tsp" ? single.request.tokens[0].size() : end;
    CHECK(ranks[rank].caches.size() == single.caches.size());
    for (const auto& [name, cached] : ranks[rank].caches) {
      CAPTURE(rank);
      CAPTURE(name);
      const std::size_t first = end - parts[rank];
      if (name.ends_with(".state.heads")) {  // of one row, which the last token leaves
        REQUIRE(cached.shape[1] == 1);
        if (rank + 1 < parts.size()) continue;
        CHECK(relative_difference(std::span<const double>(cached.numbers),
                                  std::span<const double>(single.caches.at(name).numbers)) <
              tolerance);
        continue;
      }
      const std::size_t rows =
          placement == "tsp" ? until
                             : parts[rank] + seen_before(checkpoint.architecture(), name, first);
      REQUIRE(cached.shape[1] == rows);
      const std::vector<double> expected = rows_until(single.caches.at(name), until, rows);
      CHECK(relative_difference(std::span<const double>(cached.numbers),
                                std::span<const double>(expected)) < tolerance);
    }
    CHECK(run.ranks[rank].tokens == parts[rank]);
    messages += run.ranks[rank].messages;
    message_bytes += run.ranks[rank].message_bytes;
  }
  // A message for each cache tensor: p - 1 of them in a chain, p(p - 1) in a ring.
  const std::uint64_t hops = (parts.size() - 1) * (placement == "tsp" ? parts.size() : 1);
  CHECK(messages == hops * single.caches.size());
  CHECK(message_bytes == analytic_sent);
  if (g.counted.flops > 0) {
    CHECK(sent == analytic_sent);
    CHECK(g.counted.flops == g.analytic_flops);
    CHECK(g.counted.bytes() == g.analytic_bytes);
  }
}

/// Both placements of each partition; of models with states only the chain.
void check_placements(const Checkpoint& checkpoint, const SessionOptions& options,
                      std::span<const Parts> partitions, const Single& single, double tolerance) {
  for (const Parts& parts : partitions) {
    for (const char* placement : {"kvr", "tsp"}) {
      if (has_states(checkpoint.architecture().decoder) && placement == std::string("tsp"))
        continue;
      check_ranks(checkpoint, options, placement, parts, single, tolerance);
    }
  }
}

/// Calls `check` with every decoder-only case's number, checkpoint and both kinds of kernels.
template <typename Check>
void for_all_models(Check check) {
  std::size_t number = 0;
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    const Architecture& a = c.checkpoint.architecture();
    if (a.encoder_decoder) continue;
    CAPTURE(name);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      check(number, c.checkpoint, kernels);
    }
    ++number;
  }
}

const std::vector<Parts>& partitions() {  // of 23 tokens
  static const std::vector<Parts> all{{23},
                                      {22, 1},
                                      {1, 22},
                                      {8, 8, 7},
                                      {1, 1, 21},
                                      {9, 7, 4, 3},
                                      {5, 1, 6, 1, 10},
                                      {1, 1, 1, 1, 1, 18},
                                      {4, 4, 4, 3, 3, 3, 2},
                                      {3, 3, 3, 3, 3, 3, 3, 2}};
  return all;
}

SessionOptions all_logits(Kernels kernels) {
  SessionOptions o;
  o.attention = o.elementwise = kernels;
  o.logits = Logits::All;
  return o;
}

TEST_CASE("ranks: every family's logits and caches are those of one process, counted in fp64") {
  for_all_models([](std::size_t, const Checkpoint& checkpoint, Kernels kernels) {
    SessionOptions o = all_logits(kernels);
    o.dtype = DType::FP64;
    const Parts parts[]{{9, 1, 13}, {6, 6, 6, 5}};
    check_placements(checkpoint, o, parts, Single(checkpoint, o, 23), 1e-10);
  });
}

TEST_CASE("ranks: fast loops agree with one process for every family, the partitions in turn") {
  for_all_models([](std::size_t number, const Checkpoint& checkpoint, Kernels kernels) {
    const SessionOptions o = all_logits(kernels);
    const std::vector<Parts>& all = partitions();
    std::vector<Parts> some{all[number % all.size()]};
    if (kernels == Kernels::Fused) some.push_back(all[(number + all.size() / 2) % all.size()]);
    check_placements(checkpoint, o, some, Single(checkpoint, o, 23), 1e-5);
  });
}

TEST_CASE("ranks: fast loops agree with one process for every partition") {
  // Full attention, windows beside it, chunks, latents, states.
  for (const char* name :
       {"llama_gqa_llama3_rope", "gemma2", "llama4_text", "deepseek_v3", "qwen3_next"}) {
    CAPTURE(name);
    const OracleCase c(name);
    const SessionOptions o = all_logits(Kernels::Fused);
    check_placements(c.checkpoint, o, partitions(), Single(c.checkpoint, o, 23), 1e-5);
  }
}

TEST_CASE("ranks: the last rank alone has the last token's logits") {
  const OracleCase c("llama_gqa_llama3_rope");
  SessionOptions o = all_logits(Kernels::Fused);
  o.logits = Logits::Last;
  check_placements(c.checkpoint, o, partitions(), Single(c.checkpoint, o, 23), 1e-5);
}

TEST_CASE("ranks: states are passed on in a chain, and refused where ranks read side by side") {
  const OracleCase c("qwen3_next");
  SessionOptions o{.methods = parse_methods("tsp:p=2")};
  o.share = RankShare{{9, 8}, 0};
  CHECK(message_of([&] {
          const Session session(c.checkpoint, o);
        }).find("which are made token after token") != std::string::npos);
}

TEST_CASE("ranks: slim and MLKV send what they cache") {
  struct Case {
    const char* checkpoint;
    const char* methods;
    std::size_t caches;  // of 2 layers
  };
  for (const Case& x : {Case{"llama_mha", "slim:option=kcache", 2},
                        {"llama_mha", "slim:option=vcache", 2},
                        {"llama_mha", "slim:option=kcache,rope=unrotate", 2},
                        {"opt", "slim:option=xcache", 2},
                        {"llama_gqa_llama3_rope", "mlkv:layers=1,heads=1", 2}}) {
    CAPTURE(x.methods);
    const Checkpoint random(OracleCase(x.checkpoint).checkpoint.architecture(), 1);
    for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
      SessionOptions o = all_logits(kernels);
      o.methods = parse_methods(x.methods);
      o.dtype = DType::FP64;
      const Single single(random, o, 23);
      CHECK(single.caches.size() == x.caches);
      const Parts parts[]{{9, 1, 13}, {12, 11}};
      check_placements(random, o, parts, single, 1e-10);
    }
  }
}

TEST_CASE("ranks: a lost message ends the run with one line, not a hang") {
  Mailboxes mailboxes(2, 0.05);
  const auto receiver = mailboxes.messenger(1);
  std::uint64_t number = 0;
  try {
    receive_bytes(*receiver, 0, &number, sizeof number);
    FAIL("no Error was thrown");
  } catch (const Error& e) {
    CHECK(e.fault() == Fault::Run);
    CHECK(std::string(e.what()) == "rank 1: no message from rank 0 within 0.05 s");
  }
}

TEST_CASE("ranks: a message of another length is refused") {
  Mailboxes mailboxes(2, 10);
  const auto sender = mailboxes.messenger(0);
  const auto receiver = mailboxes.messenger(1);
  std::uint64_t number = 0;
  send_bytes(*sender, 1, &number, 5);
  CHECK_THROWS_WITH_AS(receive_bytes(*receiver, 0, &number, sizeof number),
                       "rank 1: message from rank 0: got 5 bytes, expected 8", Error);
}

TEST_CASE("ranks: one rank's error ends all, and is the one that is told") {
  const OracleCase c("llama_mha");
  const SessionOptions o{.methods = parse_methods("kvr:p=3")};
  const auto request_of = [&](std::size_t rank) {
    Request r;
    r.tokens = {made_up_prompt(9, c.checkpoint.architecture().vocab_size)};
    if (rank == 1) r.tokens[0][5] = 1000000;
    return r;
  };
  const std::string line = message_of([&] {
    run_ranks(c.checkpoint, o, {3, 3, 3}, request_of, 60);
  });
  CHECK(line.find("token id 1000000 at position 5") != std::string::npos);
}

/// first_error on ranks of threads: what each of them gets.
std::vector<std::string> errors_of(const std::vector<std::string>& errors,
                                   const std::vector<std::string>& commons) {
  Mailboxes mailboxes(errors.size(), 60);
  std::vector<std::string> found(errors.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < errors.size(); ++r) {
    threads.emplace_back([&, r] {
      const auto m = mailboxes.messenger(r);
      found[r] = first_error(*m, errors[r], commons[r]);
    });
  }
  for (std::thread& t : threads) t.join();
  return found;
}

TEST_CASE("ranks: all ranks hear of the first error, or of the first that differs") {
  using Texts = std::vector<std::string>;
  CHECK(errors_of({"", "", ""}, {"a", "a", "a"}) == Texts{"", "", ""});
  CHECK(errors_of({"", "x", "y"}, {"a", "", ""}) == Texts{"x", "x", "x"});
  CHECK(errors_of({"z", "x", ""}, {"", "", "b"}) == Texts{"z", "z", "z"});
  const Texts differs = errors_of({"", "", ""}, {"a", "a", "b"});
  CHECK(differs[0].find("rank 2 has another kvcast, model or request") != std::string::npos);
  CHECK(differs == Texts(3, differs[0]));
}

TEST_CASE("ranks: a session refuses a prompt that is not its partition's, and chunks") {
  const OracleCase c("llama_mha");
  SessionOptions o{.methods = parse_methods("kvr:p=1")};
  o.share = RankShare{{9}, 0};
  Request r;
  r.tokens = {made_up_prompt(8, 50)};
  CHECK_THROWS_WITH_AS(Session(c.checkpoint, o).run(r),
                       "prompt: got 8 tokens, expected the 9 of the session's partition", Error);
  o.chunk = 3;
  CHECK_THROWS_AS(Session(c.checkpoint, o), Error);
  o.share.reset();
  o.chunk = 0;
  CHECK_THROWS_AS(Session(c.checkpoint, o), Error);  // one process by itself is no placement
}

TEST_CASE("ranks: needed bytes are those of a rank's own tokens and cache") {
  const OracleCase c("llama_mha");
  const Architecture& a = c.checkpoint.architecture();
  const auto needed = [&](std::size_t rank) {
    SessionOptions o{.methods = parse_methods("kvr:p=2")};
    o.share = RankShare{{30, 10}, rank};
    return needed_bytes(a, o, 1, 40, 1);
  };
  SessionOptions plain;
  // Keys and values of 2 layers, 3 heads of 8, fp32: 384 bytes a token; the decode step has a slot.
  const double whole = needed_bytes(a, plain, 1, 40, 1);
  CHECK(needed(0) < whole);
  CHECK(needed(1) < whole);
  CHECK(needed(0) >= 15288 * 4 + 30 * 384);
  CHECK(needed(1) >= 15288 * 4 + 41 * 384);
}

}  // namespace
}  // namespace kvcast::execute
