#include "cli/run/run_job.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/frame/mpirun_environment.h"
#include "cli/frame/request_options.h"
#include "model/base/error.h"
#include "model/base/quantity.h"
#include "model/execute/batch_order.h"
#include "model/execute/machine_probe.h"
#include "model/families/config_reader.h"
#include "model/io/files/file_fingerprint.h"
#include "search/placed_estimator.h"

namespace kvcast::cli {
namespace {

/// Our limit: a prompt of more contexts is a typing error, and would run for hours.
constexpr std::uint64_t most_contexts = 64;

DType parse_run_dtype(const std::string& text) {
  for (const DType dtype : {DType::FP32, DType::FP64}) {
    if (text == name(dtype)) return dtype;
  }
  throw Error("--dtype", text, "fp32 or fp64");
}

/// The types that weights stay in: those of the files, or fp32.
WeightTypes parse_run_weights(const RunOptions& o, const Checkpoint& checkpoint) {
  if (o.weights == "fp32" || (o.weights.empty() && o.dtype != "fp32")) return DType::FP32;
  if (!o.weights.empty() && o.weights != "as-stored") {
    throw Error("--weights", o.weights, "as-stored or fp32");
  }
  if (o.dtype != "fp32") throw Error("--weights as-stored", "--dtype " + o.dtype, "fp32");
  return execute::stored_weight_types(checkpoint);
}

execute::Arithmetic parse_run_arithmetic(const RunOptions& o) {
  const execute::Arithmetic a = execute::parse_arithmetic(o.arithmetic, "--arithmetic");
  if (a != execute::Arithmetic::FP32 && o.dtype != "fp32") {
    throw Error("--arithmetic " + o.arithmetic, "--dtype " + o.dtype, "fp32");
  }
  return a;
}

void check_memory(const Architecture& a, const execute::SessionOptions& options,
                  const roofline::DesignPoint& point, const RunRanks* ranks) {
  // Ranks on one machine share its memory.
  const bool threads = ranks != nullptr && ranks->are_threads();
  const std::uint64_t replicas = options.place ? options.place->plan.dp : 1;
  const double needed =
      execute::needed_bytes(a, options, (point.batch + replicas - 1) / replicas, point.prompt_len,
                            point.output_len) *
      static_cast<double>(threads ? options.place->plan.devices()
                                  : static_cast<std::uint64_t>(ranks_on_this_machine()));
  check_machine_memory(
      fmt::format("{} in {} with this prompt and output", a.name, name(options.dtype)), needed,
      Fault::Run);
}

/// The fastest partition on the devices and links of --hardware.
search::Partition search_partition(const RunOptions& o, const Globals& globals, const RunJob& job) {
  if (o.hardware.empty()) {
    throw Error("--method", o.method,
                "--hardware, because partition=search needs a device and its links");
  }
  roofline::Configuration c;
  c.architecture = job.checkpoint.architecture();
  c.methods = job.options.methods;
  c.lowering = execute::session_lowering(job.options);
  c.logits = job.options.logits;
  c.hardware = roofline::load_hardware(globals.catalog(), o.hardware);
  if (c.hardware.links.empty()) {
    throw Error("hardware " + c.hardware.name, "no links",
                "a link, such as mpirun -n 2 kvcast calibrate measures");
  }
  const search::PlacedEstimator estimator(c);
  const std::uint64_t prompt_len = job.point.prompt_len;
  return estimator.is_placed() ? estimator.at(job.point).prefill->tokens
                               : search::Partition{prompt_len};
}

/// Throws Error for requests that prompts of different lengths, run one by one, cannot have.
void check_lengths(const RunOptions& o, const RunRanks* ranks) {
  const auto refuse = [](const std::string& flag) {
    throw Error(flag, "prompts of different lengths", "prompts of one length");
  };
  const Parallelism plan = o.parallelism.parallelism();
  if (ranks != nullptr && ranks->shares()) refuse("--method " + o.method);
  if (plan.dp > 1 && plan.ep > 1) refuse("--ep of replicas with prompts of their own");
  if (!o.logits.empty()) refuse("--logits");
  if (o.profile) refuse("--profile");
}

}  // namespace

void check_machine_memory(const std::string& what, double needed, Fault fault,
                          std::string_view otherwise) {
  const double memory = execute::machine_memory_bytes();
  if (needed <= memory) return;
  const auto bytes = [](double b) { return format_quantity(b, Dimension::Bytes); };
  const std::string most = "at most this machine's memory of " + bytes(memory);
  throw Error(Error(what, bytes(needed), most + std::string(otherwise)).what(), fault);
}

Checkpoint open_checkpoint(const RunOptions& o, const Globals& globals) {
  Checkpoint checkpoint = o.random_weights.empty()
                              ? Checkpoint(o.model)
                              : Checkpoint(load_model(globals.catalog(), o.model),
                                           parse_token_count(o.random_weights, "--random-weights"));
  for (const std::string& line : config_warnings(checkpoint.architecture())) globals.warn(line);
  return checkpoint;
}

execute::SessionOptions session_options(const RunOptions& o, const Checkpoint& checkpoint,
                                        std::size_t decoder_tokens, const Catalog& catalog) {
  const Architecture& a = checkpoint.architecture();
  execute::SessionOptions s;
  s.methods = with_ranks_of_mpirun(parse_methods(o.method), o.parallelism.parallelism());
  apply_semantics(o.semantics, a, s.methods);
  RequestOptions kernels;
  kernels.attention = o.attention;
  kernels.elementwise = o.elementwise;
  kernels.skip_unread_rows = o.skip_unread_rows;
  const Lowering lowering = parse_lowering(kernels, a);
  s.attention = lowering.attention;
  s.elementwise = lowering.elementwise;
  s.skip_unread_rows = lowering.skip_unread_rows;
  s.loops = o.count ? execute::Loops::Counting : execute::Loops::Fast;
  s.dtype = parse_run_dtype(o.dtype);
  s.weights = parse_run_weights(o, checkpoint);
  s.arithmetic = parse_run_arithmetic(o);
  if (!o.cache_dtype.empty()) s.cache = execute::parse_cache_dtype(o.cache_dtype, "--cache-dtype");
  s.logits = o.logits.empty() ? Logits::Last : Logits::All;
  s.decoder_tokens = decoder_tokens;
  if (!o.chunk.empty()) s.chunk = parse_token_count(o.chunk, "--chunk");
  if (!o.random_weights.empty()) {
    const std::uint64_t seed = parse_token_count(o.random_weights, "--random-weights");
    s.open = [catalog, seed](const std::string& name) {
      return Checkpoint(load_model(catalog, name), seed + 1);
    };
  }
  return s;
}

RunJob prepare_run(const RunOptions& o, const Globals& globals, const RunRanks* ranks) {
  RunJob job{.threads = execute::use_threads(rank_threads(o.threads, ranks)),
             .checkpoint = open_checkpoint(o, globals)};
  const std::uint64_t output_len = parse_token_count(o.output_len, "--output-len");
  const Checkpoint& checkpoint = job.checkpoint;
  const Architecture& a = checkpoint.architecture();
  const bool sound_given = a.num_mel_bins > 0 && o.inputs.tokens.empty();
  const bool text_given = o.inputs.prompt || o.inputs.has_text_file() || sound_given;
  if (checkpoint.is_random()) {
    job.tokenizer.missing = "random weights have no tokenizer";
  } else if (text_given || !o.json) {
    job.tokenizer = find_tokenizer(checkpoint);
  }
  execute::Request& request = job.request;
  request = read_request(o.inputs, checkpoint, job.tokenizer,
                         [&](const std::string& line) { globals.warn(line); });
  request.output_len = output_len;
  // A prompt of token ids always gives --output-len tokens; a text ends where the model ends it.
  if (text_given && job.tokenizer && !o.ignore_eos) {
    request.stop_tokens = job.tokenizer->end_of_text();
  }

  execute::SessionOptions& options = job.options;
  options = session_options(o, checkpoint, request.tokens.front().size(), globals.catalog());
  std::size_t prompt_len =
      a.encoder_decoder
          ? (a.num_mel_bins > 0 ? a.max_source_positions : request.encoder_tokens[0].size())
          : request.tokens[0].size();
  if (!a.encoder_decoder && execute::have_different_lengths(request.tokens)) {
    check_lengths(o, ranks);
    for (const auto& prompt : request.tokens) prompt_len = std::max(prompt_len, prompt.size());
  }
  job.point = {request.tokens.size(), prompt_len, output_len};
  const bool searches = ranks != nullptr && ranks->searches();
  if (!o.hardware.empty() && !o.profile && !searches) {
    throw Error("--hardware: has no effect here; expected --profile or partition=search");
  }
  check_parallelism(a, o.parallelism.parallelism());
  if (ranks != nullptr && ranks->spreads()) {
    options.place = ranks->place();
  }
  if (ranks != nullptr && ranks->shares()) {
    options.share = ranks->share(execute::tokens_to_share(a, options, prompt_len),
                                 [&] { return search_partition(o, globals, job); });
  }
  // A position table is a hard limit, refused later; any other context is only a warning.
  if (a.decoder.position_rows == 0) {
    const auto far = roofline::context_warnings(a, job.point, most_contexts);
    if (!far.empty()) {
      throw Error(fmt::format("{}; expected at most {} times that", far.front(), most_contexts));
    }
    for (const std::string& line : roofline::context_warnings(a, job.point)) globals.warn(line);
  }
  if (o.profile) {
    if (options.dtype != DType::FP32) {
      throw Error("--profile", "--dtype " + o.dtype, "fp32, which the fast loops compute in");
    }
    if (!o.hardware.empty()) job.hardware = roofline::load_hardware(globals.catalog(), o.hardware);
  }
  if (!o.logits.empty() && (ranks == nullptr || ranks->speaks())) job.logits.emplace(o.logits);
  execute::check_checkpoint(checkpoint, options);
  check_memory(a, options, job.point, ranks);
  return job;
}

std::string common_text(const RunOptions& o, const RunJob& job, const Globals& globals) {
  // Of random weights the shape and the seed.
  const bool is_random = job.checkpoint.is_random();
  const auto files =
      is_random ? globals.catalog().find("models", "model", o.model) : job.checkpoint.path();
  return fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} '{}' {} '{}' {} {} '{}' {}", KVCAST_VERSION,
      file_fingerprint(files), fingerprint(job.request.tokens), to_string(job.options.methods),
      o.attention, o.elementwise, o.dtype, o.weights, o.arithmetic + o.cache_dtype, o.output_len,
      o.logits.empty(), is_random ? o.random_weights : "", o.count, o.chunk, o.skip_unread_rows,
      o.rounds, to_string(o.parallelism.parallelism()),
      fmt::join(job.options.share ? job.options.share->partition : std::vector<std::uint64_t>{},
                "/"));
}

}  // namespace kvcast::cli
