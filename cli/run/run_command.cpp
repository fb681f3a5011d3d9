#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/frame/command.h"
#include "cli/frame/progress_bar.h"
#include "cli/frame/request_options.h"
#include "cli/frame/result.h"
#include "cli/run/device_threads.h"
#include "cli/run/run_experts.h"
#include "cli/run/run_importance.h"
#include "cli/run/run_inputs.h"
#include "cli/run/run_job.h"
#include "cli/run/run_profile.h"
#include "cli/run/run_ranks.h"
#include "cli/run/run_requests.h"
#include "measure/rounds.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/base/stopwatch.h"
#include "model/execute/batch_order.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/atomic_file.h"
#include "model/io/tensors/safetensors.h"
#include "model/io/weights/routed_tokens.h"

namespace kvcast::cli {
namespace {

using execute::Generation;
using execute::TokenId;
using Tokens = std::vector<TokenId>;
using Positions = std::vector<std::uint64_t>;

/// One sequence stands for itself, as the contract has it; a batch is a list.
ordered_json one_or_list(const ordered_json& list) { return list.size() == 1 ? list[0] : list; }

/// The text of generated tokens. Ids that only pad the model's vocabulary have no text.
std::string text_of(const text::Tokenizer& tokenizer, std::vector<execute::TokenId> tokens) {
  std::erase_if(tokens, [&](execute::TokenId token) { return token >= tokenizer.vocab_size(); });
  return tokenizer.decode(tokens);
}

/// Prints text as it comes, or token ids where there is no tokenizer.
class Printer {
 public:
  explicit Printer(const FoundTokenizer& tokenizer) {
    if (!tokenizer) return;
    stream_.emplace(*tokenizer);
    vocab_size_ = tokenizer->vocab_size();
  }
  void operator()(execute::TokenId token) {
    if (stream_ && token >= vocab_size_) return;  // the model's vocabulary is padded
    write(stream_ ? stream_->push(token) : fmt::format("{}{}", first_ ? "" : ",", token));
    first_ = false;
  }
  void finish() { write((stream_ ? stream_->finish() : "") + "\n"); }

 private:
  static void write(const std::string& text) {
    print_text(text);
    std::fflush(stdout);
  }
  std::optional<text::StreamDecoder> stream_;
  std::size_t vocab_size_ = 0;
  bool first_ = true;
};

/// The mean over decode steps, for each run of layers that share their tokens.
ordered_json revived_json(const Recording& recording,
                          const std::vector<std::vector<std::uint64_t>>& revived) {
  ordered_json rows = ordered_json::array();
  for (std::size_t i = 0; i < recording.revived.size(); ++i) {
    std::uint64_t sum = 0;
    for (const std::vector<std::uint64_t>& step : revived) sum += step[i];
    rows.push_back(
        {{"from_layer", recording.revived[i].first_layer},
         {"mean_per_step", static_cast<double>(sum) / static_cast<double>(revived.size())}});
  }
  return rows;
}

void write_logits(AtomicFile& file, const Generation& g) {
  // One sequence: [positions, vocab]; a batch keeps its dimension.
  std::vector<std::uint64_t> shape;
  for (std::size_t i = g.logits_shape[0] == 1 ? 1 : 0; i < 3; ++i) {
    shape.push_back(g.logits_shape[i]);
  }
  const auto write = [&](const auto& numbers, DType dtype) {
    // Greedy decoding has looked at the last position alone.
    const auto bad = std::find_if_not(numbers.begin(), numbers.end(),
                                      [](auto logit) { return std::isfinite(logit); });
    if (bad != numbers.end()) {
      const auto row = static_cast<std::uint64_t>(bad - numbers.begin()) / shape.back();
      throw Error(fmt::format("sequence {}, position {}: the logits are not finite numbers; the "
                              "model's numbers overflow {}, or keys and values a narrower cache",
                              row / g.logits_shape[1], row % g.logits_shape[1], name(dtype)),
                  Fault::Run);
    }
    file.write(safetensors_header({{"logits", shape, numbers, dtype}}));
    file.write({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
  };
  if (g.logits64.empty()) {
    write(g.logits, DType::FP32);
  } else {
    write(g.logits64, DType::FP64);
  }
  file.commit();
}

/// The length of the prompts, or of the encoder's input; a list where lengths differ.
ordered_json prompt_len_json(const execute::Request& request, std::size_t prompt_len) {
  if (!execute::have_different_lengths(request.tokens)) return prompt_len;
  return rows_of(request.tokens, std::size<Tokens>);
}

ordered_json run_json(const RunOptions& o, const Checkpoint& checkpoint,
                      const std::vector<MethodSpec>& methods, const execute::Session& session,
                      const Generation& g, const ordered_json& prompt_len, int threads) {
  ordered_json j{{"model", checkpoint.architecture().name},
                 {"method", to_string(methods)},
                 {"attention", o.attention},
                 {"dtype", o.dtype},
                 {"weights", session.options().weights.in_file ? "as-stored" : o.dtype},
                 {"arithmetic", o.arithmetic},
                 {"cache_dtype", name(execute::session_lowering(session.options()).cache)},
                 {"threads", threads},
                 {"batch", g.tokens.size()},
                 {"prompt_len", prompt_len},
                 {"generated_tokens", one_or_list(g.tokens)},
                 {"ttft_s", g.ttft_s},
                 {"tpot_s", g.tpot_s},
                 {"load_s", session.load_s()},
                 {"kv_cache_bytes", g.kv_cache_bytes},
                 {"weight_bytes", session.weight_bytes()},
                 {"peak_memory_bytes", static_cast<std::uint64_t>(execute::peak_resident_bytes())},
                 {"analytic_flops", g.analytic_flops},
                 {"analytic_bytes", g.analytic_bytes}};
  if (g.skipped.all_pairs > 0) {
    j["skipped_share"] =
        static_cast<double>(g.skipped.pairs) / static_cast<double>(g.skipped.all_pairs);
    j["skipped_flops"] = g.skipped.flops;
    j["skipped_bytes"] = g.skipped.bytes;
  }
  if (!g.kept.empty()) j["kept_tokens"] = one_or_list(rows_of(g.kept, std::size<Positions>));
  if (!g.revived.empty()) {
    j["revived_tokens"] = revived_json(session.recording(), g.revived);
    // Of the first sequence, as the tokens are.
    const std::uint64_t length = prompt_len.is_array() ? prompt_len.front() : prompt_len;
    const RevivedShares shares = execute::revived_shares(session.recording(), g, length);
    j["revived_share"] = {{"first_step", shares.first_step}, {"later_steps", shares.later_steps}};
  }
  if (o.count) {
    j["counted_flops"] = g.counted.flops;
    j["counted_bytes"] = g.counted.bytes();
  }
  return j;
}

void add_ranks(ordered_json& j, const execute::SessionOptions& options,
               const std::vector<execute::RankReport>& ranks) {
  std::uint64_t messages = 0;
  std::uint64_t message_bytes = 0;
  for (const execute::RankReport& r : ranks) {
    messages += r.messages;
    message_bytes += r.message_bytes;
  }
  if (options.share) j["partition_tokens"] = options.share->partition;
  if (options.place) {
    j["devices"] = options.place->plan.devices() * (options.share ? options.share->ranks() : 1);
    j["parallelism"] = to_string(options.place->plan);
  }
  j["messages"] = messages;
  j["message_bytes"] = message_bytes;
  j["ranks"] = ranks_json(ranks, options.place.has_value());
}

std::string summary(const execute::Session& session, const Generation& g,
                    const ordered_json& prompt_len, bool one_by_one) {
  const auto seconds = [](double s) { return format_quantity(s, Dimension::Seconds); };
  std::string line = fmt::format("prompt {} tokens", prompt_len.dump());
  if (prompt_len.is_array()) {
    const auto [least, most] = std::minmax_element(prompt_len.begin(), prompt_len.end());
    line = fmt::format("prompts of {} to {} tokens", least->dump(), most->dump());
  }
  line += fmt::format(", TTFT {}", seconds(g.ttft_s));
  if (g.decode_steps > 0) {
    line += fmt::format(", then {} tokens at {} each", g.decode_steps, seconds(g.tpot_s));
  }
  if (one_by_one)
    line += fmt::format(", times summed over {} sequences that ran one by one", g.tokens.size());
  return line +
         fmt::format("; loaded in {}, cache {}, peak memory {}", seconds(session.load_s()),
                     format_quantity(static_cast<double>(g.kv_cache_bytes), Dimension::Bytes),
                     format_quantity(execute::peak_resident_bytes(), Dimension::Bytes));
}

void run_job(const RunOptions& o, const Globals& globals, RunJob& job, RunRanks* ranks) {
  execute::Request& request = job.request;
  FoundTokenizer& tokenizer = job.tokenizer;
  const std::size_t prompt_len = job.point.prompt_len;
  const execute::Session session(job.checkpoint, job.options);
  if (!session.opened().empty() && !tokenizer && !job.checkpoint.is_random()) {
    tokenizer = find_tokenizer(job.checkpoint);
  }
  if (tokenizer) check_tokenizers(session.opened(), request.tokens, *tokenizer);
  check_importance(o.dump_importance, o.plot_importance, session);
  const bool one_by_one = execute::runs_one_by_one(session, request);
  if (o.profile && one_by_one) {
    throw Error(
        "--profile",
        "a batch with " + to_string(job.options.methods) + ", whose sequences run one by one",
        "one sequence");
  }

  RoutedTokens routed;
  if (!o.expert_tokens.empty()) {
    check_routes(session, ranks != nullptr);
    request.on_node = [&](const Graph& graph, const execute::NodeRun& run,
                          std::span<const std::uint64_t>) {
      add_routed_tokens(routed, session, graph, run);
    };
  }

  Printer printer(tokenizer);
  const bool speaks = ranks == nullptr || ranks->speaks();
  // Where a file is written too, text is printed after it: a full disk leaves no partial answer.
  const bool writes = job.logits || !o.expert_tokens.empty() || !o.dump_importance.empty() ||
                      !o.plot_importance.empty();
  const bool stream = speaks && !o.json && !writes && request.tokens.size() == 1 && o.rounds == 0;
  if (stream) request.on_token = [&](std::span<const TokenId> next) { printer(next[0]); };
  ProgressBar bar(globals.quiet || (stream && isatty(STDOUT_FILENO) != 0));
  const Stopwatch watch;
  request.on_pass = [&](std::uint64_t done, std::uint64_t all) {
    bar.draw(done, 0, all, watch.seconds());
  };
  std::optional<DeviceThreads> devices;
  if (ranks != nullptr && ranks->are_threads()) {
    devices.emplace(job.checkpoint, job.options, job.threads);
  }
  const measure::TimedRuns timed = measure::time_runs(o.rounds, [&]() -> execute::RankRun {
    routed.clear();
    if (ranks == nullptr) return {session.run(request), {}};
    if (devices) return devices->run(session, request, ranks->mailboxes());
    return run_rank(session, request, ranks->messenger());
  });
  if (!speaks) return;
  const execute::RankRun& done = timed.run;
  const Generation& g = done.generation;
  if (stream) printer.finish();

  if (job.logits) write_logits(*job.logits, g);
  if (!o.expert_tokens.empty()) write_routed_tokens(o.expert_tokens, routed);
  if (!o.dump_importance.empty()) write_importance_csv(o.dump_importance, request, g);
  if (!o.plot_importance.empty()) {
    write_importance_plot(o.plot_importance,
                          session.architecture().name + ", " + to_string(job.options.methods), g);
  }
  const ordered_json lengths = prompt_len_json(request, prompt_len);
  ordered_json j =
      run_json(o, job.checkpoint, job.options.methods, session, g, lengths, job.threads);
  // Times and the cache are then sums over all sequences.
  if (one_by_one) j["one_by_one"] = true;
  if (o.rounds > 0) {
    j["ttft_rounds_s"] = timed.rounds.ttft.seconds;
    j["tpot_rounds_s"] = timed.rounds.tpot.seconds;
  }
  if (ranks != nullptr) add_ranks(j, job.options, done.ranks);
  if (tokenizer) {
    j["text"] = one_or_list(
        rows_of(g.tokens, [&](const Tokens& tokens) { return text_of(*tokenizer, tokens); }));
  }
  if (o.profile) {
    // After the run: it needs memory of its own.
    if (!job.hardware) job.hardware = measured_machine();
    j["profile_hardware"] = job.hardware->name;
    j["profile"] =
        profile_json(session, job.options, g, job.point.batch, prompt_len, *job.hardware);
    j["packed_weights"] = packed_json(session.weights());
  }
  if (o.json) {
    print_json(j);
    return;
  }
  if (!stream) {
    for (const auto& tokens : g.tokens) {
      print_text(
          (tokenizer ? text_of(*tokenizer, tokens) : fmt::format("{}", fmt::join(tokens, ","))) +
          "\n");
    }
  }
  if (o.count) {
    print_text(count_text(g.analytic_flops, g.analytic_bytes, g.counted));
  }
  if (o.profile) {
    print_text(profile_text(j["profile"]));
    if (!j["packed_weights"].empty()) print_text(packed_text(j["packed_weights"]));
  }
  if (ranks != nullptr) {
    for (const ordered_json& rank : j["ranks"]) globals.say(rank_text(rank));
  }
  globals.say(summary(session, g, lengths, one_by_one));
}

void run(const RunOptions& o, const Globals& globals) {
  const Parallelism plan = o.parallelism.parallelism();
  const std::vector<MethodSpec> methods = with_ranks_of_mpirun(parse_methods(o.method), plan);
  if (is_idle_rank(methods, plan)) return;
  const auto ranks = RunRanks::start(methods, plan, o.wait_limit_s);
  if (ranks == nullptr) {
    RunJob job = prepare_run(o, globals, nullptr);
    return run_job(o, globals, job, nullptr);
  }
  Globals mine = globals;
  mine.quiet = globals.quiet || !ranks->speaks();
  std::optional<RunJob> job;
  const bool agreed = ranks->prepare([&] {
    job.emplace(prepare_run(o, mine, ranks.get()));
    return common_text(o, *job, globals);
  });
  if (agreed) ranks->work([&] { run_job(o, mine, *job, ranks.get()); });
}

}  // namespace

void add_run(Command app, const Globals& globals) {
  Command c = app.add_subcommand(
      "run",
      "Run a checkpoint on the CPU: prefill and greedy decoding.\n\nExamples:\n"
      "  kvcast run --model weights/smollm2-135m-instruct.gguf --prompt 'The capital of France "
      "is'\n"
      "  kvcast run --model tests/oracle/llama_mha --tokens 1,2,3 --output-len 8 --count --json\n"
      "  kvcast run --model weights/whisper-base --audio speech.wav\n"
      "  mpirun -quiet -n 4 kvcast run --model weights/smollm2-135m-instruct.gguf --method kvr:p=4 "
      "--prompt-len 1k\n"
      "  kvcast run --model tinyllama-1.1b --random-weights 1 --prompt-len 512 --profile");
  const auto o = std::make_shared<RunOptions>();
  c.add("--model", o->model, "a folder with config.json and safetensors, or a GGUF file")
      .required();
  c.add("--method", o->method);
  c.add("--semantics", o->semantics);
  o->inputs.add_to(c);
  c.add("--output-len", o->output_len);
  c.add("--attention", o->attention);
  c.add("--elementwise", o->elementwise);
  c.add("--skip-unread-rows", o->skip_unread_rows);
  c.add("--dtype", o->dtype, "fp32, or fp64 (plain loops in double precision, slow)");
  c.add("--weights as-stored|fp32", o->weights,
        "as-stored (the default; fp64 runs have none): matrices stay in the file's types where "
        "products read them (bf16, fp16, fp8, groups of int4, and GGUF's blocks but Q2_K and "
        "Q3_K); or fp32");
  c.add("--arithmetic fp32|bf16|int8", o->arithmetic,
        "what prompts are multiplied by weights in: fp32; bf16, both rounded, sums in fp32; int8, "
        "weights as stored in whole numbers with scales, the prompt's rounded by group");
  c.add("--cache-dtype", o->cache_dtype,
        "fp32, fp16, bf16, fp8 (e4m3) or int8 (a scale for each token and head)");
  c.add("--random-weights SEED", o->random_weights,
        "random weights from this seed; MODEL is then a catalog name or a config.json");
  c.add("--chunk TOKENS", o->chunk, "prefill this many prompt tokens at a time");
  c.add("--threads", o->threads).range(0, 1024);
  c.add("--wait-limit SECONDS", o->wait_limit_s,
        "several ranks: stop if one waits longer than this for a message or for MPI to start")
      .positive();
  o->parallelism.add_to(c);
  c.add("--rounds N", o->rounds, "medians of N timed runs after one warm-up run").range(1, 1000);
  c.add("--count", o->count, "count every FLOP and byte with plain loops (slow)");
  c.add("--logits FILE.safetensors", o->logits,
        "write the prompt's logits [positions, vocab] in --dtype")
      .writes();
  c.add("--dump-importance FILE.csv", o->dump_importance,
        "write the importance of every prompt token and whether it was kept (methods that select "
        "tokens)")
      .writes();
  c.add("--plot-importance FILE.svg|png", o->plot_importance,
        "draw the importance and the kept tokens over the prompt")
      .draws();
  c.add(
       "--expert-tokens FILE.csv", o->expert_tokens,
       "write how many tokens each expert of each layer has read; forecasts take the file as --set "
       "expert_tokens=FILE.csv")
      .writes();
  c.add("--profile", o->profile,
        "time per operator, measured and predicted; with several ranks, of the one that prints");
  c.add("--hardware", o->hardware,
        "device for --profile (default: this machine, measured); device and links for "
        "kvr:p=P,partition=search");
  c.add("--ignore-eos", o->ignore_eos, "do not stop at the end-of-text token");
  c.add("--json", o->json);
  const auto requests = std::make_shared<RunRequestsFlags>();
  requests->add_to(c);
  c.callback([o, requests, &globals] {
    if (requests->is_given()) return run_requests(*o, *requests, globals);
    run(*o, globals);
  });
}

}  // namespace kvcast::cli
