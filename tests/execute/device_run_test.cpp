// A model spread over devices gives what one process gives. Devices are threads here; that MPI's
// processes do the same is shown in tests/cli.
#include <map>
#include <set>
#include <span>
#include <utility>

#include <doctest/doctest.h>

#include "model/execute/rank_run.h"
#include "model/graph/work.h"
#include "tests/execute/analytic_work.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

/// How far logits may be apart, as a share of their range: rounding, as in the oracle's tests.
constexpr double of_fp64 = 1e-12;
constexpr double of_fp32 = 1e-4;

struct Single {
  Single(const Checkpoint& checkpoint, const SessionOptions& options, Request r)
      : request(std::move(r)), generation(Session(checkpoint, options).run(request)) {}
  Request request;
  Generation generation;
};

/// Prompts of `length` tokens that differ.
Request prompts(const Architecture& a, std::size_t batch, std::size_t length = 11) {
  Request r;
  for (std::size_t b = 0; b < batch; ++b) {
    std::vector<TokenId>& prompt = r.tokens.emplace_back();
    for (std::size_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<TokenId>((7919 * (i + 1) + 31 * b * i + b) % a.vocab_size));
    }
  }
  r.output_len = 4;
  if (!a.encoder_decoder) return r;
  // The encoder reads the prompts, or sound.
  r.encoder_tokens = std::exchange(r.tokens, {batch, {1}});
  if (a.num_mel_bins == 0) return r;
  r.encoder_tokens.clear();
  for (std::size_t i = 0; i < batch * 2 * a.max_source_positions * a.num_mel_bins; ++i) {
    r.features.push_back(static_cast<float>(i * 7919 % 101) / 50 - 1);
  }
  return r;
}

/// Runs the request on devices and compares tokens, logits, counts and messages with one process.
/// `parts`: of the prompt, with a placement in the options, whose ranks have such devices.
RankRun check_devices(const Checkpoint& checkpoint, const SessionOptions& options,
                      const Parallelism& plan, const Single& single, double tolerance,
                      const std::vector<std::uint64_t>& parts = {}) {
  CAPTURE(to_string(plan));
  CAPTURE(single.request.tokens.size());
  // Devices are threads: what each one counts is its own.
  struct Counted {
    std::uint64_t messages = 0;
    std::uint64_t sent = 0;
    std::uint64_t recorded_sent = 0;
    std::uint64_t recorded_received = 0;
    std::map<const Node*, Work> works;  // decode steps have the same nodes
  };
  std::vector<Counted> devices(plan.devices() * std::max<std::size_t>(parts.size(), 1));
  const auto request_of = [&](std::size_t rank) {
    Request request = single.request;
    request.on_node = [&, rank](const Graph& graph, const NodeRun& node,
                                std::span<const std::uint64_t> symbols) {
      Counted& device = devices.at(rank);
      const Node& done = graph.nodes()[node.node];
      constexpr auto of_messages = static_cast<std::size_t>(Storage::Messages);
      auto known = device.works.find(&done);
      if (known == device.works.end()) known = device.works.emplace(&done, work(graph, done)).first;
      const Work& w = known->second;
      const std::uint64_t sent = w.sent_bytes().at(symbols);
      const std::uint64_t received = w.read[of_messages].at(symbols);
      device.messages += node.exchanged.messages;
      device.sent += node.exchanged.sent_bytes;
      device.recorded_sent += sent;
      device.recorded_received += received;
      // Of millions: an assertion that holds costs more than what it looks at.
      if (node.exchanged.sent_bytes != sent || node.exchanged.received_bytes != received) {
        CAPTURE(done.label);
        CHECK(node.exchanged.sent_bytes == sent);
        CHECK(node.exchanged.received_bytes == received);
      }
      if (node.counted == nullptr) return;
      check_counted(done, *node.counted, w, symbols, plan.ep == 1);
    };
    return request;
  };
  RankRun run = parts.empty() ? run_devices(checkpoint, options, plan, request_of)
                              : run_ranks(checkpoint, options, parts, request_of, 600, plan);
  const Generation& g = run.generation;
  CHECK(g.tokens == single.generation.tokens);
  CHECK(g.kept == single.generation.kept);
  CHECK(g.logits_shape == single.generation.logits_shape);
  CHECK(relative_difference(std::span<const double>(logits_of(g)),
                            std::span<const double>(logits_of(single.generation))) < tolerance);
  REQUIRE(run.ranks.size() == devices.size());
  Counted all;
  std::uint64_t reported = 0;
  std::uint64_t reported_bytes = 0;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    all.messages += devices[rank].messages;
    all.sent += devices[rank].sent;
    all.recorded_sent += devices[rank].recorded_sent;
    all.recorded_received += devices[rank].recorded_received;
    reported += run.ranks[rank].messages;
    reported_bytes += run.ranks[rank].message_bytes;
  }
  CHECK(reported == all.messages);
  CHECK(reported_bytes == all.sent);
  CHECK(all.sent == all.recorded_sent);
  CHECK(all.sent == all.recorded_received);
  if (g.counted.flops > 0) {
    CHECK(g.counted.flops == g.analytic_flops);
    CHECK(g.counted.bytes() == g.analytic_bytes);
  }
  return run;
}

SessionOptions in_fp64(Kernels kernels = Kernels::Fused) {
  SessionOptions o;
  o.attention = o.elementwise = kernels;
  o.logits = Logits::All;
  o.dtype = DType::FP64;
  return o;
}
SessionOptions fast(Kernels kernels = Kernels::Fused) {
  SessionOptions o = in_fp64(kernels);
  o.dtype = DType::FP32;
  return o;
}

/// The model with sizes that 2 and 4 divide: the oracle's are prime where they can be.
Architecture widened(Architecture a) {
  constexpr std::uint64_t by = 4;
  const auto up = [](std::uint64_t n) { return (n + by - 1) / by * by; };
  // Heads that are shared stay so, and stay in proportion.
  const auto factor = [](std::uint64_t heads, std::uint64_t shared) {
    std::uint64_t m = 1;
    const auto fits = [&](std::uint64_t n) {
      return n == 1 || n * m % by == 0 || by % (n * m) == 0;
    };
    while (heads * m % by != 0 || !fits(shared)) ++m;
    return m;
  };
  const auto times = [](std::uint64_t& heads, std::uint64_t m) {
    if (heads > 1) heads *= m;
  };
  const auto widen = [&](LayerShape& l) {
    l.intermediate_size = up(l.intermediate_size);
    if (l.attends()) {
      const std::uint64_t m = factor(l.heads.num_attention_heads, l.heads.num_key_value_heads);
      l.heads.num_attention_heads *= m;
      times(l.heads.num_key_value_heads, m);
    }
    if (l.experts) {
      Experts& e = *l.experts;
      e.routing.num_experts = up(e.routing.num_experts) / e.routing.groups * e.routing.groups;
      while (e.routing.num_experts % by != 0) e.routing.num_experts += e.routing.groups;
      e.intermediate_size = up(e.intermediate_size);
      e.shared_intermediate_size = up(e.shared_intermediate_size);
    }
    if (l.state_space) {
      StateSpace& s = *l.state_space;
      const std::uint64_t m = factor(s.num_heads, s.num_groups);
      s.num_heads *= m;
      times(s.num_groups, m);
      times(s.norm_groups, m);
    }
  };
  for (Stack* stack : {&a.encoder, &a.decoder}) {
    for (LayerShape& l : stack->layers) widen(l);
  }
  return a;
}

/// Random weights in a case's shape widened.
Checkpoint wide(const std::string& name) {
  return {widened(OracleCase(name).checkpoint.architecture()), 1};
}

bool is_possible(const Architecture& a, const Parallelism& plan) {
  try {
    check_parallelism(a, plan);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The plans that the model can be spread by.
std::vector<Parallelism> possible(const Architecture& a, std::vector<Parallelism> plans) {
  std::erase_if(plans, [&](const Parallelism& p) { return !is_possible(a, p); });
  return plans;
}

/// Calls `check` with every case's checkpoint, and with random weights in its shape
/// widened, and the plans that they can be spread by. How many plans the latter had.
template <typename Check>
std::map<std::string, std::size_t> for_all_models(const std::vector<Parallelism>& plans,
                                                  Check check) {
  std::map<std::string, std::size_t> checked;
  for (const std::string& name : oracle_cases()) {
    const OracleCase c(name);
    const Architecture& a = c.checkpoint.architecture();
    CAPTURE(name);
    const Checkpoint wide(widened(a), 1);
    for (const Checkpoint* checkpoint : {&c.checkpoint, &wide}) {
      CAPTURE(checkpoint->is_random());
      const auto own = possible(checkpoint->architecture(), plans);
      if (checkpoint == &wide) checked[name] = own.size();
      if (!own.empty()) check(*checkpoint, own);
    }
  }
  return checked;
}

const std::vector<Parallelism> tensor_plans{{.tp = 2}, {.tp = 3}, {.tp = 4}};
const std::vector<Parallelism> expert_plans{
    {.tp = 2, .ep = 2},          {.tp = 4, .ep = 2},         {.tp = 4, .ep = 4},
    {.ep = 2, .dp = 2},          {.ep = 4, .dp = 4},         {.tp = 2, .dp = 2},
    {.tp = 2, .ep = 2, .dp = 2}, {.tp = 2, .ep = 4, .dp = 2}};

TEST_CASE("devices: every family split by tp is one process, counted in fp64") {
  const auto checked = for_all_models(
      tensor_plans, [](const Checkpoint& checkpoint, const std::vector<Parallelism>& plans) {
        for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
          const SessionOptions o = in_fp64(kernels);
          const Single single(checkpoint, o, prompts(checkpoint.architecture(), 2));
          for (const Parallelism& plan : plans) {
            check_devices(checkpoint, o, plan, single, of_fp64);
          }
        }
      });
  // Norms of all heads together, which more devices than key-value heads cannot split.
  std::set<std::string> none;
  for (const auto& [name, n] : checked) {
    if (n == 0) none.insert(name);
  }
  CHECK(none == std::set<std::string>{"minimax_m2_share", "olmo3", "olmoe"});
}

TEST_CASE("devices: every family split by tp is one process with fast loops") {
  for_all_models(tensor_plans,
                 [](const Checkpoint& checkpoint, const std::vector<Parallelism>& plans) {
                   for (const Kernels kernels : {Kernels::Fused, Kernels::Eager}) {
                     const SessionOptions o = fast(kernels);
                     const Single single(checkpoint, o, prompts(checkpoint.architecture(), 2));
                     for (const Parallelism& plan : plans) {
                       check_devices(checkpoint, o, plan, single, of_fp32);
                     }
                   }
                 });
}

TEST_CASE("devices: replicas of encoder-decoder models have their own sequences") {
  for (const char* const name : {"t5", "whisper"}) {
    CAPTURE(name);
    const Checkpoint checkpoint = wide(name);
    const SessionOptions o = in_fp64();
    const Single single(checkpoint, o, prompts(checkpoint.architecture(), 3));
    for (const Parallelism& plan : {Parallelism{.dp = 2}, Parallelism{.tp = 2, .dp = 2}}) {
      check_devices(checkpoint, o, plan, single, of_fp64);
    }
  }
  const Architecture t5 = widened(OracleCase("t5").checkpoint.architecture());
  check_line(message_of([&] { check_parallelism(t5, {.pp = 2}); }),
             {"pp 2", "encoder-decoder model", "--tp and --dp alone"});
}

TEST_CASE("devices: spread experts are those of one process, one sequence and three") {
  const auto checked = for_all_models(expert_plans, [](const Checkpoint& checkpoint,
                                                       const std::vector<Parallelism>& plans) {
    if (layers_with_experts(checkpoint.architecture().decoder) == 0) return;
    for (const std::size_t batch : {std::size_t{1}, std::size_t{3}}) {
      for (const SessionOptions& o : {in_fp64(), fast()}) {
        const Single single(checkpoint, o, prompts(checkpoint.architecture(), batch));
        for (const Parallelism& plan : plans) {
          check_devices(checkpoint, o, plan, single, o.dtype == DType::FP64 ? of_fp64 : of_fp32);
        }
      }
    }
  });
  CHECK(std::count_if(checked.begin(), checked.end(), [](const auto& c) { return c.second > 3; }) >
        20);
}

TEST_CASE("devices: methods with helpers, which devices have by themselves or split") {
  struct Case {
    std::string checkpoint;
    std::string methods;
  };
  for (const Case& x :
       {Case{"llama_gqa_llama3_rope", "streaming:sinks=1,window=4"},
        {"llama_gqa_llama3_rope", "random-prune:keep=0.5"},
        {"llama_gqa_llama3_rope", "specprefill:speculator=small,keep=0.5,lookahead=2"},
        {"llama_gqa_llama3_rope", "specprefill:speculator=small,keep=0.5,lookahead=2,chunk=4"},
        {"llama_gqa_llama3_rope", "specprefill:speculator=qwen3,keep=0.5,pool=3"},
        {"llama_gqa_llama3_rope", "specprefill:speculator=llama_mqa_linear_rope,keep=0.5"},
        {"llama_gqa_llama3_rope", "specprefill:speculator=deepseek_v3,keep=0.3,lookahead=1"},
        {"llama_gqa_llama3_rope", "mlkv:layers=1,heads=1"},
        {"llama_mha", "slim:option=xcache"},
        {"opt", "slim:option=xcache"},
        {"qwen3_moe", "streaming:sinks=1,window=4"},
        {"qwen3_moe", "random-prune:keep=0.5"}}) {
    CAPTURE(x.checkpoint);
    CAPTURE(x.methods);
    const Checkpoint checkpoint = wide(x.checkpoint);
    for (SessionOptions o : {in_fp64(), fast(), fast(Kernels::Eager)}) {
      o.methods = parse_methods(x.methods);
      // The first has three heads, which lie whole on each device; the others are split.
      o.open = [](const std::string& name) {
        if (name == "small") {
          return Checkpoint(OracleCase("llama_mha").checkpoint.architecture(), 2);
        }
        Architecture a = widened(OracleCase(name).checkpoint.architecture());
        a.name = "speculator";
        return Checkpoint(a, 2);
      };
      o.logits = Logits::Last;
      const Single single(checkpoint, o, prompts(checkpoint.architecture(), 3));
      const Session whole(checkpoint, o);  // mlkv widens MLPs
      for (const Parallelism& plan : possible(whole.recording().model, {{.tp = 2},
                                                                        {.tp = 4},
                                                                        {.dp = 2},
                                                                        {.tp = 2, .dp = 2},
                                                                        {.tp = 2, .ep = 2},
                                                                        {.ep = 2, .dp = 2},
                                                                        {.ep = 4, .dp = 4}})) {
        check_devices(checkpoint, o, plan, single, o.dtype == DType::FP64 ? of_fp64 : of_fp32);
      }
    }
  }
}

TEST_CASE("devices: chunks, rows that nobody reads, and the last position's logits") {
  for (const char* name : {"llama_gqa_llama3_rope", "qwen3_moe", "deepseek_v3", "gemma3n_text"}) {
    CAPTURE(name);
    const Checkpoint checkpoint = wide(name);
    for (const auto& [chunk, skips] : {std::pair{std::uint64_t{4}, false}, {0, true}, {0, false}}) {
      SessionOptions o = in_fp64();
      o.logits = Logits::Last;
      o.chunk = chunk;
      o.skip_unread_rows = skips;
      const Single single(checkpoint, o, prompts(checkpoint.architecture(), 2));
      for (const Parallelism& plan :
           possible(checkpoint.architecture(),
                    {{.tp = 2}, {.dp = 3}, {.tp = 2, .ep = 2}, {.ep = 2, .dp = 2}})) {
        check_devices(checkpoint, o, plan, single, of_fp64);
      }
    }
  }
}

TEST_CASE(
    "devices: replicas that stop at different tokens go on together while they share experts") {
  const Checkpoint checkpoint = wide("qwen3_moe");
  const SessionOptions o = fast();
  Request request = prompts(checkpoint.architecture(), 3);
  request.output_len = 6;
  const Single all(checkpoint, o, request);
  // The first sequence stops at its second token.
  request.stop_tokens = {all.generation.tokens[0][1]};
  const Single single(checkpoint, o, request);
  CHECK(single.generation.tokens[0].size() < 6);
  for (const Parallelism& plan : {Parallelism{.dp = 3},
                                  {.ep = 2, .dp = 2},
                                  {.ep = 4, .dp = 4},
                                  {.tp = 2, .ep = 4, .dp = 2}}) {
    check_devices(checkpoint, o, plan, single, of_fp32);
  }
}

TEST_CASE("devices: ranks of kvr and tsp that are groups of devices") {
  for (const char* name : {"llama_gqa_llama3_rope", "gemma2", "qwen3_moe", "deepseek_v3"}) {
    CAPTURE(name);
    const Checkpoint checkpoint = wide(name);
    for (const bool chooses : {false, true}) {
      if (chooses && has_windows(checkpoint.architecture().decoder)) continue;  // does not compose
      SessionOptions o = in_fp64();
      o.logits = chooses ? Logits::Last : Logits::All;
      if (chooses) o.methods = parse_methods("random-prune:keep=0.7");
      const Single single(checkpoint, o, prompts(checkpoint.architecture(), 2));
      const std::vector<std::uint64_t> parts =
          chooses ? std::vector<std::uint64_t>{5, 3} : std::vector<std::uint64_t>{5, 4, 2};
      for (const char* placement : {"kvr", "tsp"}) {
        CAPTURE(placement);
        SessionOptions placed = o;
        placed.methods.push_back({placement, {{"p", std::to_string(parts.size())}}});
        for (const Parallelism& plan :
             possible(checkpoint.architecture(), {{.tp = 2}, {.tp = 2, .ep = 2}})) {
          check_devices(checkpoint, placed, plan, single, of_fp64, parts);
        }
      }
    }
  }
  // Replicas and stages are refused.
  const Checkpoint checkpoint = wide("llama_gqa_llama3_rope");
  SessionOptions o = in_fp64();
  const Single single(checkpoint, o, prompts(checkpoint.architecture(), 1));
  o.methods = parse_methods("kvr:p=2");
  CHECK(message_of([&] {
          check_devices(checkpoint, o, {.dp = 2}, single, of_fp64, {6, 5});
        }) == "method kvr:p=2: got dp 2, expected tp alone: each rank is such a group of devices");
}

TEST_CASE("devices: prompts of different lengths and tokens that are given") {
  const Checkpoint checkpoint = wide("llama_gqa_llama3_rope");
  SessionOptions o = in_fp64();
  o.logits = Logits::Last;
  Request request = prompts(checkpoint.architecture(), 3);
  request.tokens[1].resize(5);
  request.continuation = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  const Single single(checkpoint, o, request);
  for (const Parallelism& plan : {Parallelism{.tp = 2}, {.dp = 2}, {.tp = 2, .dp = 3}}) {
    check_devices(checkpoint, o, plan, single, of_fp64);
  }
}

TEST_CASE("devices: a tp group's messages are those of its sums, by hand") {
  // 2 layers of width 36 -> sums of attention and MLP, of the embedding, and the gathered logits of
  // 61 tokens, 31 of each of 2 devices. A device sends half of its sum's columns, then its half of
  // the total: 36 numbers of a row.
  const Checkpoint checkpoint = wide("llama_gqa_llama3_rope");
  SessionOptions o = fast();
  o.logits = Logits::Last;
  Request request = prompts(checkpoint.architecture(), 1, 11);
  request.output_len = 3;
  const RankRun run =
      check_devices(checkpoint, o, {.tp = 2}, Single(checkpoint, o, request), of_fp32);
  for (const RankReport& r : run.ranks) {
    CHECK(r.message_bytes == 4 * ((11 + 2) * 5 * 36 + 3 * 31));
    CHECK(r.messages == 3 * (5 * 2 + 1));
  }
  // Half of the matrices of heads and MLP, of the vocabulary a padded half; norms are whole.
  const Architecture& a = checkpoint.architecture();
  const Heads& h = a.decoder.layers[0].heads;
  const std::uint64_t layer = 36 * (h.num_attention_heads + h.num_key_value_heads) * h.head_dim +
                              36 * 3 * a.decoder.layers[0].intermediate_size / 2 + 2 * 36;
  const std::uint64_t vocabulary = 31 * 36 * (a.tied_embeddings ? 1 : 2);
  SessionOptions one = o;
  one.loops = Loops::Counting;  // the fast loops' matrices are padded, and rows of tables not held
  one.place = DevicePlace{{.tp = 2}, 1};
  CHECK(Session(checkpoint, one).weight_bytes() == 4 * (2 * layer + vocabulary + 36));
  // Half of the key-value heads.
  CHECK(2 * run.ranks[1].kv_cache_bytes ==
        Single(checkpoint, o, request).generation.kv_cache_bytes);
}

TEST_CASE("devices: key-value heads that tp exceeds are on several devices") {
  const Checkpoint checkpoint = wide("falcon_7b");
  REQUIRE(checkpoint.architecture().decoder.layers[0].heads.num_key_value_heads == 1);
  const SessionOptions o = in_fp64();
  const Single single(checkpoint, o, prompts(checkpoint.architecture(), 1));
  const RankRun run = check_devices(checkpoint, o, {.tp = 4}, single, of_fp64);
  for (const RankReport& r : run.ranks) {
    CHECK(r.kv_cache_bytes == single.generation.kv_cache_bytes);
  }
}

TEST_CASE("devices: what only forecasts know is refused") {
  const Checkpoint checkpoint = wide("llama_gqa_llama3_rope");
  const auto refusal = [&](const Parallelism& plan, const char* methods) {
    SessionOptions o;
    o.methods = parse_methods(methods);
    o.place = DevicePlace{plan, 0};
    return message_of([&] { Session(checkpoint, o); });
  };
  CHECK(refusal({.pp = 2}, "plain") ==
        "a run with pp 2: got stages of layers, expected pp 1: only forecasts know stages");
  CHECK(refusal({.tp = 2, .sequence_parallel = true}, "plain")
            .find("got sequence-parallel norms, expected norms of all tokens") !=
        std::string::npos);
  CHECK(refusal({.tp = 2}, "specprefill:keep=0.5").find("reads the base's weights") !=
        std::string::npos);
  CHECK(refusal({.tp = 2}, "lazyllm:begin=0.8,end=0.4")
            .find("tokens are chosen by the scores of all heads") != std::string::npos);
  CHECK(refusal({.tp = 5}, "plain").find("--tp 5: ") == 0);
}

TEST_CASE("devices: replicas that share experts refuse prompts that may differ in length") {
  const Checkpoint checkpoint = wide("qwen3_moe");
  SessionOptions o;
  Request request = prompts(checkpoint.architecture(), 2);
  request.tokens[1].resize(5);
  const auto run = [&] {
    run_devices(checkpoint, o, {.ep = 2, .dp = 2}, [&](std::size_t) { return request; });
  };
  CHECK(message_of(run).find("expected prompts of one length") != std::string::npos);
  request = prompts(checkpoint.architecture(), 2);
  o.methods = parse_methods("specprefill:speculator=small,keep=0.5,lookahead=1,chunk=8");
  o.open = [&](const std::string&) {
    Architecture small = OracleCase("llama_mha").checkpoint.architecture();
    small.vocab_size = checkpoint.architecture().vocab_size;
    return Checkpoint(small, 2);
  };
  CHECK(message_of(run).find("expected full chunks") != std::string::npos);
}

TEST_CASE("devices: one device's error ends all") {
  const Checkpoint checkpoint = wide("llama_gqa_llama3_rope");
  CHECK(message_of([&] {
          run_devices(checkpoint, {}, {.tp = 2}, [&](std::size_t device) {
            Request request = prompts(checkpoint.architecture(), 1);
            if (device == 1) request.tokens[0][3] = 1000000;
            return request;
          });
        }).find("token id 1000000 at position 3") != std::string::npos);
}

}  // namespace
}  // namespace kvcast::execute
