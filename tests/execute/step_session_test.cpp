// Steps of a server against each of its sequences run alone.
#include "model/execute/step_session.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/execute/machine_probe.h"
#include "model/families/config_reader.h"
#include "model/graph/work.h"
#include "tests/execute/oracle.h"
#include "tests/model/message_of.h"

namespace kvcast::execute {
namespace {

std::vector<double> numbers(const Output& logits, DType dtype) {
  const std::size_t n = logits.shape.elements();
  if (dtype == DType::FP32) return {logits.data.get(), logits.data.get() + n};
  const auto* const wide = reinterpret_cast<const double*>(logits.data.get());
  return {wide, wide + n};
}

/// What one sequence gives alone: its tokens, and the logits of each.
struct Alone {
  std::vector<TokenId> tokens;
  std::vector<std::vector<double>> logits;
  std::vector<std::vector<std::uint64_t>> kept;  ///< of one sequence, where a method chooses tokens
};

Alone run_alone(const Session& session, const std::vector<TokenId>& prompt, std::uint64_t output,
                std::size_t index) {
  Alone alone;
  Request request;
  request.first_index = index;
  request.tokens = {prompt};
  request.output_len = output;
  request.on_logits = [&](const Output& logits) {
    alone.logits.push_back(numbers(logits, session.options().dtype));
  };
  Generation g = session.run(request);
  alone.tokens = g.tokens[0];
  alone.kept = std::move(g.kept);
  return alone;
}

/// A sequence on a server that schedules at random.
struct Served {
  std::vector<TokenId> known;  ///< prompt, or what a method keeps of it, and generated tokens
  std::vector<std::uint64_t> positions;  ///< of known tokens, where a method chooses them
  std::size_t prompt_len = 0;            ///< of known tokens
  std::size_t output_len = 0;
  std::size_t joins_at = 0;  ///< step
  std::size_t computed = 0;  ///< of the known tokens
  std::size_t cached = 0;    ///< rows, fewer where a method bounds the cache
  std::vector<std::uint32_t> blocks;
  bool is_done() const { return known.size() == prompt_len + output_len; }
};

struct Schedule {
  unsigned seed = 1;
  std::uint64_t block_size = 4;
  std::size_t sequences = 5;
  std::size_t shortest_prompt = 1;
  std::size_t longest_prompt = 17;
  std::size_t longest_output = 7;
  bool moves = true;  ///< sequences are preempted, and share blocks
};

/// How often what the tests are about has happened.
struct Seen {
  std::size_t steps = 0;
  std::size_t mixed_steps = 0;  ///< of chunks and single tokens
  std::size_t preemptions = 0;
  std::size_t shared_blocks = 0;
  std::size_t same_step_blocks = 0;  ///< shared while another part computes them
};

class RandomServer {
 public:
  RandomServer(StepSession& steps, const Session& alone, const Schedule& schedule)
      : steps_(steps), alone_(alone), schedule_(schedule), random_(schedule.seed) {
    for (std::uint32_t i = 0; i < steps.cache_size().num_blocks; ++i) free_.push_back(i);
    std::shuffle(free_.begin(), free_.end(), random_);
    const std::uint64_t vocabulary = steps.architecture().vocab_size;
    std::vector<TokenId> common;
    for (std::size_t i = 0; i < schedule.longest_prompt; ++i) common.push_back(token(vocabulary));
    for (std::size_t i = 0; i < schedule.sequences; ++i) {
      Served s;
      s.prompt_len = schedule.shortest_prompt +
                     random_() % (schedule.longest_prompt + 1 - schedule.shortest_prompt);
      s.output_len = 1 + random_() % schedule.longest_output;
      s.joins_at = random_() % 6;
      // Half of them begin alike.
      s.known.assign(common.begin(), common.begin() + static_cast<std::ptrdiff_t>(s.prompt_len));
      const std::size_t alike = i % 2 == 0 ? random_() % s.prompt_len : s.prompt_len - 1;
      for (std::size_t j = alike; j < s.prompt_len; ++j) s.known[j] = token(vocabulary);
      expected_.push_back(run_alone(alone, s.known, s.output_len, i));
      if (!expected_.back().kept.empty()) keep_chosen(s, i);
      sequences_.push_back(std::move(s));
    }
  }

  /// Until all are done. Logits may differ by `tolerance` of their range from those alone.
  Seen run(double tolerance) {
    while (std::any_of(sequences_.begin(), sequences_.end(),
                       [](const Served& s) { return !s.is_done(); })) {
      step(tolerance);
    }
    CHECK(free_.size() == steps_.cache_size().num_blocks);
    return seen_;
  }

 private:
  /// The method's choice is the sequence's prompt, generated tokens come after the whole one.
  void keep_chosen(Served& s, std::size_t i) {
    const std::vector<TokenId> prompt = std::move(s.known);
    s.known.clear();
    s.positions = steps_.choose_tokens(prompt, i);
    CHECK(s.positions == expected_.back().kept[0]);
    check_counted();
    for (const std::uint64_t position : s.positions) s.known.push_back(prompt[position]);
    s.prompt_len = s.known.size();
    for (std::size_t j = 0; j < s.output_len; ++j) s.positions.push_back(prompt.size() + j);
  }

  TokenId token(std::uint64_t vocabulary) { return static_cast<TokenId>(random_() % vocabulary); }

  void step(double tolerance) {
    std::vector<std::size_t> ran;
    std::vector<StepPart> parts;
    std::vector<std::size_t> order(sequences_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    after_.clear();
    for (const std::size_t i : order) {
      Served& s = sequences_[i];
      if (s.is_done() || s.joins_at > seen_.steps || random_() % 4 == 0) continue;
      if (schedule_.moves && s.computed > 0 && random_() % 12 == 0) preempt(s);
      const bool shares = schedule_.moves && !steps_.has_states();
      if (shares && s.computed == 0) share_prefix(s);
      const std::size_t left = s.known.size() - s.computed;
      const std::size_t n = random_() % 3 == 0 ? left : 1 + random_() % left;
      while (s.blocks.size() * schedule_.block_size < s.cached + n) take_block(s);
      StepPart part{std::span(s.known).subspan(s.computed, n), s.cached, s.blocks};
      part.state = i;
      if (!s.positions.empty()) part.positions = std::span(s.positions).subspan(s.computed, n);
      part.prompt_goes_on = n < left;
      parts.push_back(part);
      ran.push_back(i);
      after_[i] = s.computed + n;
    }
    ++seen_.steps;
    if (parts.empty()) return;
    const auto is_one = [](const StepPart& p) { return p.tokens.size() == 1; };
    seen_.mixed_steps += std::any_of(parts.begin(), parts.end(), is_one) &&
                         !std::all_of(parts.begin(), parts.end(), is_one);
    const std::vector<TokenId> next = steps_.step(parts);
    REQUIRE(next.size() == parts.size());
    check_work(parts);
    const std::vector<double> logits = numbers(steps_.logits(), alone_.options().dtype);
    const std::size_t width = logits.size() / parts.size();
    for (std::size_t p = 0; p < parts.size(); ++p) {
      Served& s = sequences_[ran[p]];
      s.computed += parts[p].tokens.size();
      s.cached = steps_.rows_after(parts[p]);
      give_back(s, (s.cached + schedule_.block_size - 1) / schedule_.block_size);
      if (s.computed < s.known.size()) continue;
      const Alone& expected = expected_[ran[p]];
      const std::size_t output = s.known.size() - s.prompt_len;
      CAPTURE(output);
      CAPTURE(s.prompt_len);
      CHECK(next[p] == expected.tokens[output]);
      const auto row = std::span(logits).subspan(p * width, width);
      const std::span<const double> alone(expected.logits[output]);
      if (tolerance == 0) {
        CHECK(std::ranges::equal(row, alone));
      } else {
        CHECK(relative_difference(row, alone) < tolerance);
      }
      s.known.push_back(expected.tokens[output]);
      if (s.is_done()) give_back(s, 0);
    }
  }

  bool counts() const { return loops_of(alone_.options()) == Loops::Counting; }
  void check_counted() const {
    const StepWork& work = steps_.work();
    if (!counts()) return;
    CHECK(work.counted.flops == work.analytic_flops);
    CHECK(work.counted.bytes() == work.analytic_bytes);
  }
  void check_work(std::span<const StepPart> parts) const {
    const StepWork& work = steps_.work();
    CHECK(work.analytic_flops > 0);
    check_counted();
    if (!counts()) return;
    std::vector<StepSequence> lengths;
    for (const StepPart& p : parts) {
      const std::uint64_t rows = p.cached + p.tokens.size();
      lengths.push_back({p.tokens.size(), p.cached, rows - steps_.rows_after(p)});
    }
    if (layers_with_experts(steps_.architecture().decoder) > 0)
      return;  // a run finds which ones it reads
    const SymbolValues sizes = step_sizes(steps_.recording(), steps_.sums(), lengths);
    const Work formula = total_work(steps_.recording().pass(step_name).graph);
    CHECK(work.counted.flops == formula.flops.at(sizes));
    CHECK(work.counted.bytes() == formula.bytes().at(sizes));
  }

  void take_block(Served& s) {
    REQUIRE(!free_.empty());
    s.blocks.push_back(free_.back());
    free_.pop_back();
    owners_[s.blocks.back()] = 1;
  }

  /// All blocks after the first `kept`.
  void give_back(Served& s, std::size_t kept) {
    for (; s.blocks.size() > kept; s.blocks.pop_back()) {
      if (--owners_[s.blocks.back()] == 0) free_.insert(free_.begin(), s.blocks.back());
    }
  }

  void preempt(Served& s) {
    give_back(s, 0);
    s.computed = s.cached = 0;
    ++seen_.preemptions;
  }

  /// Full blocks of another sequence with the same tokens, computed or of this step; at least one
  /// token is left to compute.
  void share_prefix(Served& s) {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const Served& other = sequences_[i];
      if (&other == &s || other.blocks.empty()) continue;
      std::size_t alike = 0;
      while (alike < s.known.size() - 1 && alike < other.known.size() &&
             s.known[alike] == other.known[alike] &&
             (s.positions.empty() || s.positions[alike] == other.positions[alike])) {
        ++alike;
      }
      const std::size_t there = after_.contains(i) ? after_.at(i) : other.computed;
      const std::size_t blocks = std::min(alike, there) / schedule_.block_size;
      for (std::size_t b = 0; b < blocks; ++b) {
        s.blocks.push_back(other.blocks[b]);
        ++owners_[other.blocks[b]];
        ++seen_.shared_blocks;
        seen_.same_step_blocks += (b + 1) * schedule_.block_size > other.computed;
      }
      s.computed = s.cached = blocks * schedule_.block_size;
      if (blocks > 0) return;
    }
  }

  StepSession& steps_;
  const Session& alone_;
  Schedule schedule_;
  std::mt19937 random_;
  std::vector<std::uint32_t> free_;
  std::map<std::uint32_t, std::size_t> owners_;
  std::vector<Served> sequences_;
  std::vector<Alone> expected_;
  std::map<std::size_t, std::size_t> after_;  ///< by sequence of the step: tokens computed after it
  Seen seen_;
};

/// Blocks for all sequences of a schedule at once, and a few more.
PagedCacheSize cache_for(const Schedule& schedule) {
  const std::size_t rows = schedule.longest_prompt + schedule.longest_output;
  const std::size_t blocks = (rows + schedule.block_size - 1) / schedule.block_size;
  return {schedule.sequences * blocks + 3, schedule.block_size, schedule.sequences};
}

Seen serve(const Checkpoint& checkpoint, const SessionOptions& options, const Schedule& schedule,
           double tolerance) {
  StepSession steps(checkpoint, options, cache_for(schedule));
  const Session alone(checkpoint, options);
  return RandomServer(steps, alone, schedule).run(tolerance);
}

SessionOptions in_fp64() { return {.dtype = DType::FP64}; }

/// What steps do not do yet; each is refused.
bool is_beyond_steps(const Architecture& a) {
  const auto& layers = a.decoder.layers;
  return a.encoder_decoder || a.decoder.position == Position::Alibi ||
         std::any_of(layers.begin(), layers.end(),
                     [](const LayerShape& l) { return l.latent && l.latent->indexer; });
}

/// Steps sum in another order than a sequence alone where that absorbs latents into its queries, or
/// scans a prompt in other chunks.
bool sums_otherwise(const Architecture& a) {
  const auto& layers = a.decoder.layers;
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerShape& l) { return l.latent || l.state_space; });
}

TEST_CASE(
    "step session: sequences of every family give the tokens and logits that each has alone") {
  unsigned seed = 0;
  std::size_t refused = 0;
  for (const std::string& name : oracle_cases()) {
    CAPTURE(name);
    const OracleCase c(name);
    if (is_beyond_steps(c.checkpoint.architecture())) {
      ++refused;
      CHECK_THROWS_AS(StepSession(c.checkpoint, {}, {1, 1}), Error);
      continue;
    }
    const std::uint64_t block_sizes[]{1, 4, 16};
    const Schedule schedule{.seed = ++seed, .block_size = block_sizes[seed % 3], .sequences = 4};
    const bool otherwise = sums_otherwise(c.checkpoint.architecture());
    serve(c.checkpoint, in_fp64(), schedule, otherwise ? 1e-10 : 0);
    serve(c.checkpoint, {}, schedule, 1e-4);
  }
  CHECK(refused == 7);
}

TEST_CASE("step session: chunks, preemption and shared blocks in any order change no number") {
  Seen all;
  for (const char* name :
       {"llama_gqa_llama3_rope", "qwen3", "gemma2", "mixtral", "opt", "cohere"}) {
    CAPTURE(name);
    const OracleCase c(name);
    for (unsigned seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      const std::uint64_t block_sizes[]{1, 4, 16};
      const Schedule schedule{.seed = seed,
                              .block_size = block_sizes[seed % 3],
                              .sequences = 2 + seed % 6,
                              .longest_prompt = 40};
      const Seen seen = serve(c.checkpoint, in_fp64(), schedule, 0);
      serve(c.checkpoint, {}, schedule, 1e-4);
      serve(c.checkpoint, {.skip_unread_rows = true, .loops = Loops::Counting}, schedule, 1e-4);
      SessionOptions narrow;
      narrow.cache = DType::FP16;
      serve(c.checkpoint, narrow, schedule, 2e-3);
      CHECK(2 * StepSession(c.checkpoint, narrow, cache_for(schedule)).cache_bytes() ==
            StepSession(c.checkpoint, {}, cache_for(schedule)).cache_bytes());
      all.mixed_steps += seen.mixed_steps;
      all.preemptions += seen.preemptions;
      all.shared_blocks += seen.shared_blocks;
      all.same_step_blocks += seen.same_step_blocks;
    }
  }
  // Else the schedules have not shown what they are for.
  CHECK(all.mixed_steps > 50);
  CHECK(all.preemptions > 20);
  CHECK(all.shared_blocks > 100);
  CHECK(all.same_step_blocks > 20);
}

TEST_CASE("step session: states in a narrow cache are rounded as those of a sequence alone") {
  for (const char* name : {"granitemoehybrid", "qwen3_next", "jamba", "lfm2", "nemotron_h"}) {
    CAPTURE(name);
    const OracleCase c(name);
    SessionOptions options;
    options.cache = DType::BF16;
    serve(c.checkpoint, options, {.seed = 3, .longest_prompt = 24}, 1e-3);
  }
}

// Slim's decode steps sum in another order than its prefill, of which a step is made.
TEST_CASE("step session: methods that change what is cached, as each sequence has them alone") {
  for (const char* method : {"slim", "slim:option=vcache", "slim:option=xcache",
                             "slim:rope=unrotate", "mlkv:layers=1,heads=1"}) {
    CAPTURE(method);
    const std::vector<MethodSpec> methods = parse_methods(method);
    const OracleCase c(case_for(methods));
    const Checkpoint checkpoint = checkpoint_for(c, methods);
    for (unsigned seed = 1; seed <= 2; ++seed) {
      CAPTURE(seed);
      const Schedule schedule{.seed = seed, .longest_prompt = 30};
      SessionOptions options = in_fp64();
      options.methods = methods;
      serve(checkpoint, options, schedule, 1e-10);
      options.dtype = DType::FP32;
      serve(checkpoint, options, schedule, 1e-4);
    }
  }
}

// A sequence that is recomputed would read as a prompt what it has generated behind a smaller
// cache.
TEST_CASE("step session: streaming keeps sinks and a window once a sequence's prompt is read") {
  for (const char* name : {"llama_mha", "mistral", "qwen3"}) {
    CAPTURE(name);
    const OracleCase c(name);
    for (unsigned seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      const std::uint64_t block_sizes[]{1, 4, 16};
      const Schedule schedule{.seed = seed,
                              .block_size = block_sizes[seed % 3],
                              .longest_prompt = 24,
                              .longest_output = 15,
                              .moves = false};
      SessionOptions options = in_fp64();
      options.methods = parse_methods("streaming:sinks=2,window=3");
      serve(c.checkpoint, options, schedule, 0);
      options.dtype = DType::FP32;
      serve(c.checkpoint, options, schedule, 1e-4);
      options.cache = DType::FP16;
      serve(c.checkpoint, options, schedule, 2e-3);
    }
  }
  // Layers with windows of their own keep other rows than those that see all tokens.
  SessionOptions options;
  options.methods = parse_methods("streaming:sinks=2,window=3");
  const OracleCase mixed("gemma2");
  check_line(message_of([&] {
               StepSession(mixed.checkpoint, options, {4, 4});
             }),
             {"unequal numbers of a sequence's rows"});
}

TEST_CASE("step session: kept tokens of a prompt at their positions, decoding behind them") {
  const std::string pooled = "specprefill:keep=0.5,lookahead=3,chunk=2,pool=3";
  const std::string other = (oracle_folder() / "llama_mqa_linear_rope").string();
  const std::vector<std::pair<std::string, std::string>> runs{
      {"llama_mha", pooled},
      {"opt", pooled},
      {"olmoe", pooled},
      {"llama_mha", "specprefill:keep=0.3,lookahead=1,speculator=" + other},
      {"qwen3", "random-prune:keep=0.6"},
      {"llama_gqa_llama3_rope", "static-prune:keep=0.5"}};
  for (const auto& [name, method] : runs) {
    CAPTURE(name);
    CAPTURE(method);
    const OracleCase c(name);
    for (unsigned seed = 1; seed <= 2; ++seed) {
      CAPTURE(seed);
      const Schedule schedule{.seed = seed, .shortest_prompt = 6, .longest_prompt = 30};
      SessionOptions options = in_fp64();
      options.methods = parse_methods(method);
      serve(c.checkpoint, options, schedule, 0);
      options.dtype = DType::FP32;
      serve(c.checkpoint, options, schedule, 1e-4);
    }
  }
  // Windows go by positions, which each sequence would have to look up among its own.
  SessionOptions options;
  options.methods = parse_methods(pooled);
  const OracleCase windows("gemma2");
  check_line(message_of([&] {
               StepSession(windows.checkpoint, options, {4, 4});
             }),
             {"gemma2", "windows"});
}

// Helpers of steps once had fp32 caches whatever the type of the others.
TEST_CASE("step session: helpers choose by a cache of the type that a run's have") {
  for (const char* name : {"llama_mha", "qwen3", "olmoe"}) {
    CAPTURE(name);
    const OracleCase c(name);
    SessionOptions options;
    options.methods = parse_methods("specprefill:keep=0.5,lookahead=3");
    options.cache = DType::FP8;
    StepSession steps(c.checkpoint, options, {4, 16});
    const Session alone(c.checkpoint, options);
    for (const std::uint64_t length : {11U, 16U, 23U}) {
      Request request;
      request.tokens = {made_up_prompt(length, 61)};
      CHECK(steps.choose_tokens(request.tokens[0], 0) == alone.run(request).kept[0]);
    }
  }
}

TEST_CASE("streaming: a prompt in chunks gives the logits and tokens of one piece") {
  const OracleCase c("llama_mha");
  SessionOptions options = in_fp64();
  options.methods = parse_methods("streaming:sinks=2,window=3");
  Request request;
  request.tokens = {made_up_prompt(17, 61)};
  request.output_len = 9;
  const Generation whole = Session(c.checkpoint, options).run(request);
  for (const std::uint64_t chunk : {1U, 3U, 16U}) {
    CAPTURE(chunk);
    options.chunk = chunk;
    const Generation g = Session(c.checkpoint, options).run(request);
    CHECK(std::ranges::equal(g.logits64, whole.logits64));
    CHECK(g.tokens == whole.tokens);
    CHECK(g.counted.flops == g.analytic_flops);
    CHECK(g.counted.bytes() == g.analytic_bytes);
  }
}

// Large enough that every kernel shares its work among threads, and that a sequence's keys are cut
// into several stretches of several pieces.
TEST_CASE("step session: threads and blocks change no bit of fp32") {
  const Architecture wide = read_config(nlohmann::json::parse(R"({"model_type": "llama",
    "hidden_size": 320, "vocab_size": 1003, "num_hidden_layers": 2, "num_attention_heads": 5,
    "num_key_value_heads": 5, "intermediate_size": 900})"),
                                        "wide", "wide.json");
  const Checkpoint checkpoint(wide, 7);
  const std::vector<TokenId> prompt = made_up_prompt(700, 1003);
  const int before = use_threads(0);
  std::vector<std::vector<double>> expected;  // by step
  for (const int threads : {1, 2, 3}) {
    for (const std::uint64_t block_size : {700U, 16U, 4U, 1U}) {
      CAPTURE(threads);
      CAPTURE(block_size);
      use_threads(threads);
      StepSession steps(checkpoint, {}, {2400 / block_size + 9, block_size});
      std::vector<std::uint32_t> order(steps.cache_size().num_blocks);
      std::iota(order.begin(), order.end(), 0);
      std::mt19937 random(5);
      std::shuffle(order.begin(), order.end(), random);
      const std::span<const std::uint32_t> blocks(order);
      const auto blocks_of = [&](std::size_t i) {
        return blocks.subspan(i * (order.size() / 3), order.size() / 3);
      };
      const std::span<const TokenId> tokens(prompt);
      std::vector<std::vector<double>> found;
      const auto step = [&](const std::vector<StepPart>& parts) {
        steps.step(parts);
        found.push_back(numbers(steps.logits(), DType::FP32));
      };
      step({{tokens.first(650), 0, blocks_of(0)}, {tokens.first(90), 0, blocks_of(1)}});
      step({{tokens.subspan(650, 1), 650, blocks_of(0)},
            {tokens.subspan(90, 30), 90, blocks_of(1)},
            {tokens.subspan(3, 1), 0, blocks_of(2)}});
      step({{tokens.subspan(651, 1), 651, blocks_of(0)},
            {tokens.subspan(120, 1), 120, blocks_of(1)},
            {tokens.subspan(4, 1), 1, blocks_of(2)}});
      if (expected.empty()) expected = found;
      CHECK(found == expected);
    }
  }
  use_threads(before);
}

TEST_CASE("step session: what does not fit the model or the cache is refused in one line") {
  const OracleCase c("opt");
  StepSession steps(c.checkpoint, {}, {40, 4});
  const std::vector<TokenId> tokens(150, 7);
  const std::vector<std::uint32_t> blocks{3, 39, 0};
  const auto message = [&](std::vector<StepPart> parts) {
    return message_of([&] { steps.step(parts); });
  };
  const std::span<const TokenId> all(tokens);
  const std::string nothing = message_of([] {});
  check_line(message({}), {"no part"});
  check_line(message({{all.first(0), 3, blocks}}), {"no token"});
  check_line(message({{all.first(5), 8, blocks}}), {"3 blocks", "13"});
  CHECK(message({{all.first(4), 8, blocks}}) == nothing);
  const std::vector<std::uint32_t> beyond{3, 40};
  check_line(message({{all.first(1), 0, beyond}}), {"block 40", "40"});
  check_line(message({{all.first(3), 4, blocks}, {all.first(2), 6, blocks}}), {"two tokens"});
  // Cached rows may be the same.
  CHECK(message({{all.first(1), 4, blocks}, {all.first(1), 5, blocks}}) == nothing);
  const std::vector<TokenId> unknown{61, 83};
  check_line(message({{unknown, 0, blocks}}), {"token id 83", "vocabulary"});
  std::vector<std::uint32_t> many(40);
  std::iota(many.begin(), many.end(), 0);
  check_line(message({{all, 0, many}}), {"150 positions"});
  const std::vector<std::uint64_t> positions{3};
  check_line(message({{all.first(1), 0, blocks, positions}}), {"1 positions", "none"});
  const auto chooses = parse_methods("random-prune:keep=0.5");
  StepSession chosen(c.checkpoint, {.methods = chooses}, {40, 4});
  const StepPart unplaced{all.first(2), 0, blocks};
  check_line(message_of([&] { chosen.step({&unplaced, 1}); }), {"0 positions of 2 tokens"});

  const OracleCase hybrid("granitemoehybrid");
  StepSession states(hybrid.checkpoint, {}, {40, 4, 2});
  const std::vector<std::uint32_t> others{5, 6};
  StepPart one{all.first(2), 0, blocks};
  StepPart two{all.first(3), 0, others};
  const auto both = [&] {
    return message_of([&] { states.step(std::vector<StepPart>{one, two}); });
  };
  check_line(both(), {"two sequences with state 0"});
  two.state = 2;
  check_line(both(), {"state 2", "one of 2"});
  two.state = 1;
  CHECK(both() == nothing);

  const auto refused = [&](const SessionOptions& o, const PagedCacheSize& size) {
    return message_of([&] { StepSession(c.checkpoint, o, size); });
  };
  check_line(refused({.logits = Logits::All}, {4, 4}), {"logits"});
  check_line(refused({.attention = Kernels::Eager}, {4, 4}), {"causal_mask"});
  check_line(refused({}, {0, 4}), {"0 blocks"});
  check_line(refused({}, {std::uint64_t{1} << 31, 4}), {"2147483648 blocks"});
  check_line(
      refused({.methods = parse_methods("lazyllm:begin=0.8,end=0.4,from=0.2,to=0.9")}, {4, 4}),
      {"lazyllm", "chunks"});
  check_line(refused({.methods = parse_methods("specprefill:keep=0.5,reuse=kept")}, {4, 4}),
             {"specprefill", "reused"});
}

}  // namespace
}  // namespace kvcast::execute
