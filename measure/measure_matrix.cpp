#include "measure/measure_matrix.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "measure/calibration.h"
#include "measure/validation.h"
#include "measure/validation_store.h"
#include "model/base/error.h"
#include "model/execute/batch_order.h"
#include "model/execute/generate.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/csv_writer.h"
#include "model/io/files/fnv_hash.h"
#include "model/io/files/number_text.h"
#include "model/methods/method.h"
#include "model/record/rank_recording.h"
#include "search/placed_estimator.h"

namespace kvcast::measure {
namespace {

using execute::Session;
using execute::SessionOptions;
using roofline::DesignPoint;

constexpr std::string_view matrix_header =
    "model,hardware,method,attention,elementwise,dtype,weight_dtype,arithmetic,cache_dtype,batch,"
    "prompt_len,output_len,ttft_s,tpot_s,"
    "ttft_spread,tpot_spread,rounds,predicted_ttft_s,predicted_tpot_s,ttft_relative_error,"
    "tpot_relative_error,error\n";

/// None of these models has the shape of calibration's probe model.
const std::vector<std::string> all_models{"smollm2-135m", "pythia-160m", "smollm2-360m",
                                          "pythia-410m", "tinyllama-1.1b"};
const std::vector<std::string> quick_models{"smollm2-135m", "pythia-160m"};

/// The most prompt tokens of a batch in the default matrix. TinyLlama takes half a minute for a
/// prompt of this length on two cores.
constexpr std::uint64_t most_default_tokens = 2048;

/// The methods that need no files, and those of several ranks.
std::vector<std::string> default_methods(const std::string& model, const Architecture& a,
                                         std::uint64_t ranks) {
  std::vector<std::string> methods{"plain",
                                   "slim",
                                   "kvp:auxiliary=lp-0.50",
                                   "random-prune:keep=0.5",
                                   "static-prune:keep=0.5",
                                   "lazyllm:begin=0.75,end=0.25"};
  const std::size_t layers = a.decoder.layers.size();
  methods.push_back(fmt::format("mlkv:layers={},heads=1", layers % 2 == 0 ? layers / 2 : 1));
  // The speculator of each family is its smallest member.
  const bool pythia = model.starts_with("pythia");
  const bool smollm2 = model.starts_with("smollm2");
  if (pythia || smollm2) {
    methods.push_back(fmt::format("specprefill:speculator={},keep=0.25",
                                  pythia ? "pythia-160m" : "smollm2-135m"));
  }
  if (ranks > 1) {
    for (const char* method : {"kvr", "tsp"})
      methods.push_back(fmt::format("{}:p={}", method, ranks));
  }
  return methods;
}

/// As estimates have it; FP32: what the operands are.
std::optional<DType> products_of(execute::Arithmetic arithmetic) {
  switch (arithmetic) {
    case execute::Arithmetic::BF16: return DType::BF16;
    case execute::Arithmetic::INT8: return DType::INT8;
    case execute::Arithmetic::FP32: break;
  }
  return {};
}

/// With weights in fp32.
Lowering lowering_of(const MeasurePoint& p) {
  Lowering l;
  l.attention = l.elementwise = p.attention;
  l.weights = l.activations = DType::FP32;
  l.cache = p.cache;
  l.products = products_of(p.arithmetic);
  return l;
}

roofline::Configuration configuration_of(const MeasurePoint& p, const Catalog& catalog,
                                         const roofline::Hardware& hardware) {
  roofline::Configuration c;
  c.architecture = load_model(catalog, p.model);
  c.methods = parse_methods(p.method);
  c.lowering = lowering_of(p);
  c.hardware = hardware;
  c.find_model = find_model_in(catalog);
  return c;
}

execute::Request made_up_request(const roofline::DesignPoint& size, std::uint64_t vocab_size) {
  execute::Request request;
  request.tokens.assign(size.batch, execute::made_up_prompt(size.prompt_len, vocab_size));
  request.output_len = size.output_len;
  return request;
}

/// Nothing when the methods do not fit the model.
std::optional<Recording> find_recording(const roofline::Configuration& c) {
  try {
    if (const std::optional<Placement> placement = find_placement(c.methods)) {
      const std::vector<std::uint64_t> a_token_each(placement->ranks, 1);
      return record_rank(c.architecture, c.methods, c.lowering,
                         {a_token_each, placement->ranks - 1}, {.find_model = c.find_model});
    }
    return record(c.architecture, c.methods, c.lowering, {.find_model = c.find_model});
  } catch (const Error& e) {
    if (e.fault() == Fault::Run) throw;
    return {};
  }
}

std::string fingerprint_of(const std::vector<MeasurePoint>& points, const MeasureOptions& o) {
  FnvHash hash;
  bool any_ranks = false;
  for (const MeasurePoint& p : points) {
    hash.add(fmt::format("{}|{}|{}|{}|{}|{}|{}|{};", p.model, p.method, attention_name(p.attention),
                         execute::name(p.arithmetic), name(p.cache), p.size.batch,
                         p.size.prompt_len, p.size.output_len));
    any_ranks |= num_ranks(p) > 1;
  }
  hash.add(fmt::format("{}|{}|{}|{}|{}", o.hardware.name, fingerprint(o.hardware), o.seed, o.rounds,
                       o.threads));
  if (any_ranks && o.rank_hardware) {
    hash.add(fmt::format("{}|{}|{}", o.rank_hardware->name, fingerprint(*o.rank_hardware),
                         exchange_fingerprint(*o.rank_hardware)));
  }
  return hash.text();
}

const roofline::Hardware& hardware_of(const MeasurePoint& p, const MeasureOptions& o) {
  if (num_ranks(p) == 1) return o.hardware;
  KVCAST_ASSERT(o.rank_hardware && o.run_ranks);
  return *o.rank_hardware;
}

/// A model and its forecasts, shared by the points that differ in sizes alone.
class Subject {
 public:
  Subject(const MeasurePoint& p, const Catalog& catalog, const MeasureOptions& o)
      : options_(o),
        on_ranks_(num_ranks(p) > 1),
        configuration_(configuration_of(p, catalog, hardware_of(p, o))) {
    if (on_ranks_) return;
    checkpoint_.emplace(open(p.model, catalog, o.seed));
    session_options_.methods = configuration_.methods;
    session_options_.attention = session_options_.elementwise = p.attention;
    session_options_.arithmetic = p.arithmetic;
    session_options_.cache = p.cache;
    if (has_weights(p.model)) {
      session_options_.weights = execute::stored_weight_types(*checkpoint_);
    }
    session_options_.open = [catalog, seed = o.seed](const std::string& name) {
      return open(name, catalog, seed);
    };
  }

  /// After a run with the shares of dropped tokens that decode steps took back. These depend on the
  /// data, so that estimates take them as options.
  std::vector<MethodSpec> methods() const {
    std::vector<MethodSpec> methods = configuration_.methods;
    for (MethodSpec& spec : methods) {
      const bool told = !text_option(spec, "revive", "").empty() ||
                        !text_option(spec, "revive_first", "").empty();
      if (spec.name != "lazyllm" || told) continue;
      if (revived_.first_step == 0 && revived_.later_steps == 0) continue;
      spec.options.emplace_back("revive_first", fmt::format("{:.4f}", revived_.first_step));
      spec.options.emplace_back("revive", fmt::format("{:.4f}", revived_.later_steps));
    }
    return methods;
  }

  /// The type of most weights: of a GGUF file's, else of the bytes that a session has.
  DType weights() const {
    const auto& stored = configuration_.architecture.stored_weights;
    DType most = DType::FP32;
    if (session_ == nullptr) return most;
    if (stored && stored->in_file != nullptr) return stored->main;
    std::uint64_t bytes = 0;
    for (const auto& [dtype, packed] : session_->weights().packed()) {
      if (packed.bytes > bytes) most = dtype;
      bytes = std::max(bytes, packed.bytes);
    }
    return most;
  }

  RunSeconds predicted(const roofline::DesignPoint& size) const {
    roofline::Configuration c = configuration_;
    c.methods = methods();
    c.lowering.weights = weight_types_of(c.architecture, weights());
    const roofline::Estimate e = search::PlacedEstimator(c).at(size);
    return {e.ttft_s, size.output_len > 1 ? e.tpot_s : no_value};
  }

  MeasuredRounds measured(const MeasurePoint& p) {
    revived_ = {};
    std::function<RunSeconds()> run;
    if (on_ranks_) {
      run = [this, &p] { return options_.run_ranks(p); };
    } else {
      run = in_process(p.size);
    }
    // The warm-up run allocates memory; with ranks it loads the program.
    run();
    return measure_rounds(options_.rounds, [&] {
      options_.check_stop();
      return run();
    });
  }

 private:
  std::function<RunSeconds()> in_process(const roofline::DesignPoint& size) {
    check_memory(size);
    if (session_ == nullptr) session_ = std::make_unique<Session>(*checkpoint_, session_options_);
    execute::Request request = made_up_request(size, vocab_size());
    request.on_pass = [this](std::uint64_t, std::uint64_t) { options_.check_stop(); };
    return [this, request = std::move(request)]() -> RunSeconds {
      const execute::Generation g = session_->run(request);
      revived_ = execute::revived_shares(session_->recording(), g, request.tokens[0].size());
      return {g.ttft_s, g.tpot_s};
    };
  }

  /// The ids below this exist in every model. Prompts are made up, so that the tokenizers of helper
  /// models may differ.
  std::uint64_t vocab_size() const {
    std::uint64_t least = configuration_.architecture.vocab_size;
    for (const HelperModel& model : session_->recording().helper_models) {
      least = std::min(least, model.architecture.vocab_size);
    }
    return least;
  }

  /// A folder's own weights, else random ones.
  static Checkpoint open(const std::string& model, const Catalog& catalog, std::uint64_t seed) {
    if (has_weights(model)) return Checkpoint(model);
    return {load_model(catalog, model), seed};
  }

  void check_memory(const roofline::DesignPoint& size) const {
    const double needed = execute::needed_bytes(configuration_.architecture, session_options_,
                                                size.batch, size.prompt_len, size.output_len);
    if (needed > execute::machine_memory_bytes()) {
      throw Error("it needs more than this machine's memory");
    }
  }

  const MeasureOptions& options_;
  bool on_ranks_;
  roofline::Configuration configuration_;
  std::optional<Checkpoint> checkpoint_;  ///< none of what ranks run
  SessionOptions session_options_;
  std::unique_ptr<Session> session_;
  RevivedShares revived_;
};

/// A row of the CSV; `error`: why there are no times. Missing values are empty cells.
std::string row_text(const MeasurePoint& p, const std::string& method, DType weights,
                     const std::string& device, const MeasuredRounds& measured,
                     const RunSeconds& predicted, std::string error) {
  CsvText csv;
  csv.cell(p.model).cell(device).cell(method).cell(attention_name(p.attention));
  csv.cell(elementwise_name(p.attention)).cell("fp32").cell(name(weights));
  csv.cell(execute::name(p.arithmetic)).cell(name(p.cache));
  csv.cell(p.size.batch).cell(p.size.prompt_len).cell(p.size.output_len);
  const RunSeconds median{measured.ttft.median(), measured.tpot.median()};
  const std::size_t rounds = measured.ttft.seconds.size();
  csv.cell(median.ttft_s).cell(median.tpot_s);
  csv.cell(measured.ttft.spread()).cell(measured.tpot.spread());
  rounds > 0 ? csv.cell(rounds) : csv.missing_cell();
  csv.cell(predicted.ttft_s).cell(predicted.tpot_s);
  csv.cell(predicted.ttft_s / median.ttft_s - 1).cell(predicted.tpot_s / median.tpot_s - 1);
  // A row is one line, even where a message has several.
  std::replace(error.begin(), error.end(), '\n', ' ');
  csv.cell(error);
  csv.end_row();
  return csv.text();
}

std::string in_words(const MeasurePoint& p) {
  return fmt::format("{} {} {}, {} with a cache in {}, batch {}, prompt {}", p.model, p.method,
                     attention_name(p.attention), execute::name(p.arithmetic), name(p.cache),
                     p.size.batch, p.size.prompt_len);
}

bool same_subject(const MeasurePoint& a, const MeasurePoint& b) {
  return a.model == b.model && a.method == b.method && a.attention == b.attention &&
         a.arithmetic == b.arithmetic && a.cache == b.cache;
}

}  // namespace

void tell_unsettled(const std::string& row, const char* what, const Rounds& rounds,
                    const MeasureOptions& o) {
  const std::string unsettled =
      fmt::format("{}: the middle half of {} {}s spreads over {:.0f} % of their median", row,
                  rounds.seconds.size(), what, 100 * rounds.spread());
  if (o.on_unsettled) return o.on_unsettled(unsettled);
  throw Error(
      fmt::format("the machine is too noisy: {}, more than {:.0f} %; the rows before it are "
                  "kept: try again when the machine is idle, or keep such rows with --force",
                  unsettled, 100 * measure::settled),
      Fault::Run);
}

std::uint64_t num_ranks(const MeasurePoint& point) {
  const std::optional<Placement> placement = find_placement(parse_methods(point.method));
  return placement ? placement->ranks : 1;
}

bool has_weights(const std::string& model) {
  const std::filesystem::path folder(model);
  std::error_code ec;
  return folder.extension() == ".gguf" ||
         std::filesystem::exists(folder / "model.safetensors", ec) ||
         std::filesystem::exists(folder / "model.safetensors.index.json", ec);
}

std::vector<MeasurePoint> measure_matrix(const MeasureAxes& axes, const Catalog& catalog) {
  const bool default_sizes = axes.batch.empty() && axes.prompt_len.empty();
  const auto batches = or_default(
      axes.batch, axes.quick ? std::vector<std::uint64_t>{1} : std::vector<std::uint64_t>{1, 4});
  const auto prompts =
      or_default(axes.prompt_len, axes.quick ? std::vector<std::uint64_t>{64, 384}
                                             : std::vector<std::uint64_t>{128, 512, 1024});
  const auto kernels = or_default(axes.attention, {Kernels::Fused, Kernels::Eager});
  const auto every_arithmetic = or_default(axes.arithmetic, {execute::Arithmetic::FP32});
  const auto caches = or_default(axes.caches, {DType::FP32});
  std::vector<MeasurePoint> points;
  const auto add_sizes = [&](MeasurePoint p, const Architecture& a, const Recording& recording) {
    for (const std::uint64_t batch : batches) {
      for (const std::uint64_t prompt_len : prompts) {
        p.size = {batch, prompt_len, axes.output_len};
        const std::uint64_t positions = a.decoder.position_rows;
        if (positions > 0 && prompt_len + axes.output_len > positions) continue;
        if (default_sizes && batch * prompt_len > most_default_tokens) continue;
        if (execute::runs_one_by_one(recording, made_up_request(p.size, a.vocab_size))) continue;
        points.push_back(p);
      }
    }
  };
  for (const std::string& model : or_default(axes.models, axes.quick ? quick_models : all_models)) {
    const Architecture a = load_model(catalog, model);
    for (const std::string& method :
         or_default(axes.methods, default_methods(model, a, axes.ranks))) {
      for (const Kernels attention : kernels) {
        MeasurePoint p{model, to_string(parse_methods(method)), attention};
        const auto recording = find_recording(configuration_of(p, catalog, {}));
        if (!recording) continue;
        for (const execute::Arithmetic arithmetic : every_arithmetic) {
          for (const DType cache : caches) {
            p.arithmetic = arithmetic;
            p.cache = cache;
            add_sizes(p, a, *recording);
          }
        }
      }
    }
  }
  if (points.empty()) {
    throw Error(
        "--measure: no valid combination; expected a method that fits a model and prompts within "
        "its positions");
  }
  return points;
}

MeasuredRows measure(const std::vector<MeasurePoint>& points, const Catalog& catalog,
                     const MeasureOptions& options) {
  std::unique_ptr<Subject> subject;
  return measure_rows(
      options, matrix_header, fingerprint_of(points, options), points.size(), [&](std::uint64_t i) {
        const MeasurePoint& p = points[i];
        MeasuredRounds measured;
        RunSeconds predicted{no_value, no_value};
        std::string error;
        try {
          const bool same = subject != nullptr && i > 0 && same_subject(points[i - 1], p);
          if (!same) {
            subject.reset();  // its memory first
            subject = std::make_unique<Subject>(p, catalog, options);
          }
          predicted = subject->predicted(p.size);
          measured = subject->measured(p);
          predicted = subject->predicted(p.size);  // a run finds out more
        } catch (const Error& e) {
          error = e.what();
        }
        const bool ran = !measured.ttft.seconds.empty();
        if (ran && !measured.settled()) {
          const bool ttft =
              measured.tpot.seconds.empty() || measured.ttft.spread() >= measured.tpot.spread();
          tell_unsettled(in_words(p), ttft ? "TTFT" : "TPOT", ttft ? measured.ttft : measured.tpot,
                         options);
        }
        const std::string method = ran ? to_string(subject->methods()) : p.method;
        const DType weights = subject == nullptr ? DType::FP32 : subject->weights();
        return row_text(p, method, weights, hardware_of(p, options).name, measured, predicted,
                        std::move(error));
      });
}

}  // namespace kvcast::measure
