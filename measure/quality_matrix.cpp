#include "measure/quality_matrix.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/execute/machine_probe.h"
#include "model/io/files/csv_writer.h"
#include "model/io/files/file_fingerprint.h"
#include "model/io/files/fnv_hash.h"
#include "model/io/files/number_text.h"
#include "model/methods/method.h"

namespace kvcast::measure {
namespace {

using execute::Generation;
using execute::Request;
using execute::Session;
using execute::SessionOptions;

constexpr std::string_view quality_header =
    "task,sample,method,family,keep,weights,arithmetic,cache_dtype,prompt_len,kept_tokens,"
    "positions,"
    "agreement,correct,kl_nats,cross_entropy_nats,base_cross_entropy_nats,answered,ttft_s,tpot_s,"
    "memory_bytes\n";
constexpr std::string_view placeholder = "{keep}";

/// "keep={keep}" where the method takes a share and has none.
std::string with_share(std::string word) {
  const std::string name = word.substr(0, word.find_first_of(":+"));
  const std::size_t colon = word.find(':');
  const auto has = [&](std::string_view option) {
    return word.find(std::string(option) + "=") != std::string::npos;
  };
  if (word.find('+') != std::string::npos) return word;
  const auto& options = find_method(name).options;
  std::string share;
  if (std::find(options.begin(), options.end(), "keep") != options.end() && !has("keep")) {
    share = "keep={keep}";
  } else if (name == "lazyllm" && !has("begin") && !has("end")) {
    share = "begin={keep},end={keep}";
  }
  if (share.empty()) return word;
  return word + (colon == std::string::npos ? ':' : ',') + share;
}

void check_rate(const std::string& rate) {
  double value = 0;
  if (parse_number(rate, value) && value > 0 && value <= 1) return;
  throw Error("--keep", "'" + rate + "'", "a fraction above 0 and at most 1");
}

std::string filled(std::string word, const std::string& rate) {
  for (std::size_t at = 0; (at = word.find(placeholder, at)) != std::string::npos;) {
    word.replace(at, placeholder.size(), rate);
    at += rate.size();
  }
  return word;
}

/// How much of a method's options is in the name of its family.
enum class FamilyName { WithoutRate, LastNames, Whole };

/// The method: without the options that hold the keep rate, or with them, folders by their last
/// names or whole.
std::string family_of(const std::string& word, FamilyName form) {
  std::vector<MethodSpec> methods = parse_methods(word);
  for (MethodSpec& m : methods) {
    std::erase_if(m.options, [&](const auto& option) {
      return form == FamilyName::WithoutRate &&
             option.second.find(placeholder) != std::string::npos;
    });
    if (form == FamilyName::Whole) continue;
    for (auto& [key, value] : m.options) {
      value = std::filesystem::path(value).filename().string();
    }
  }
  return to_string(methods);
}

const Checkpoint& checkpoint_of(const QualityMethod& method, const Checkpoint& base) {
  return method.types.checkpoint == nullptr ? base : *method.types.checkpoint;
}

SessionOptions session_options(const QualityMethod& method, const Checkpoint& base) {
  SessionOptions o;
  o.methods = parse_methods(method.method);
  o.weights = execute::stored_weight_types(checkpoint_of(method, base));
  o.arithmetic = method.types.arithmetic;
  o.cache = method.types.cache;
  return o;
}

std::string file_name(const Checkpoint& checkpoint) {
  return checkpoint.path().filename().string();
}

struct Distribution {
  std::size_t likeliest = 0;
  double log_sum = 0;  ///< of the exponentials of the logits
};

Distribution distribution_of(std::span<const float> logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const double peak = *largest;
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - peak);
  return {static_cast<std::size_t>(largest - logits.begin()), peak + std::log(sum)};
}

/// A session that reads samples' prompts and then their continuations, token by token.
class Reader {
 public:
  Reader(const Checkpoint& base, const QualityMethod& method, const QualityOptions& options)
      : options_(options), session_(checkpoint_of(method, base), session_options(method, base)) {}

  std::uint64_t weight_bytes() const { return session_.weight_bytes(); }

  /// A warm-up run, which allocates memory.
  void warm_up(const QualitySample& sample) {
    Request request = request_of(sample);
    request.output_len = 1;
    request.continuation.clear();
    session_.run(request);
  }

  /// `logits`: [positions of the continuation · vocab_size]
  Generation read(const QualitySample& sample, std::vector<float>& logits) {
    Request request = request_of(sample);
    logits.clear();
    request.on_logits = [&](const execute::Output& out) {
      const float* const end = out.data.get() + out.shape.elements();
      logits.insert(logits.end(), end - out.shape.back(), end);
    };
    return session_.run(request);
  }

 private:
  Request request_of(const QualitySample& sample) const {
    Request request;
    request.tokens = {sample.prompt};
    request.output_len = sample.continuation.size();
    request.continuation = {{sample.continuation.begin(), sample.continuation.end() - 1}};
    request.stop_tokens = options_.stop_tokens;
    request.on_pass = [this](std::uint64_t, std::uint64_t) { options_.check_stop(); };
    return request;
  }

  const QualityOptions& options_;
  Session session_;
};

/// Throws Error when the base model's logits of all samples would fill the memory.
void check_memory(const Checkpoint& checkpoint, std::span<const QualitySample> samples) {
  double numbers = 0;
  for (const QualitySample& s : samples) {
    numbers += static_cast<double>(s.continuation.size()) *
               static_cast<double>(checkpoint.architecture().vocab_size);
  }
  if (numbers * sizeof(float) < execute::machine_memory_bytes() / 2) return;
  throw Error("samples", fmt::format("{:.3g} GB of logits to compare with", numbers * 4e-9),
              "at most half of this machine's memory: fewer samples or shorter continuations");
}

/// `memory_bytes`: of weights and cache.
std::string row_text(const QualityMethod& m, const std::string& weights, const QualitySample& s,
                     const NextTokens& base, const NextTokens& ours, const Generation& g,
                     std::uint64_t memory_bytes) {
  const auto n = static_cast<double>(ours.positions);
  CsvText csv;
  csv.cell(s.task).cell(s.name).cell(m.label(m.method)).cell(m.label(m.family)).cell(m.keep);
  csv.cell(weights).cell(execute::name(m.types.arithmetic)).cell(name(m.types.cache));
  csv.cell(s.prompt.size());
  g.kept.empty() ? csv.missing_cell() : csv.cell(g.kept[0].size());
  csv.cell(ours.positions).cell(static_cast<double>(ours.agreeing) / n);
  csv.cell(static_cast<double>(ours.correct) / n).cell(ours.kl_nats / n);
  csv.cell(ours.cross_entropy_nats / n).cell(base.cross_entropy_nats / n);
  csv.cell(ours.all_correct() ? 1 : 0).cell(g.ttft_s);
  g.decode_steps > 0 ? csv.cell(g.tpot_s) : csv.missing_cell();
  csv.cell(memory_bytes);
  csv.end_row();
  return csv.text();
}

/// The rows in their order: method by method, each with all samples.
class Rows {
 public:
  Rows(const Checkpoint& checkpoint, std::span<const QualityMethod> methods,
       std::span<const QualitySample> samples, const QualityOptions& options)
      : checkpoint_(checkpoint),
        methods_(methods),
        samples_(samples),
        options_(options),
        base_logits_(samples.size()) {}

  std::string row(std::size_t index) {
    const std::size_t at = index % samples_.size();
    const QualitySample& sample = samples_[at];
    read_with(index / samples_.size(), sample);
    const bool plain = method_ == 0;
    if (!plain) base_logits(at);  // not during the method's run, whose time is taken
    std::vector<float> own;
    const Generation g = reader_->read(sample, plain ? base_logits_[at] : own);
    const std::span<const float> expected = base_logits(at);
    const std::span<const float> found = plain ? expected : std::span<const float>(own);
    const std::size_t vocab = expected.size() / sample.continuation.size();
    NextTokens base;
    NextTokens ours;
    for (std::size_t p = 0; p < sample.continuation.size(); ++p) {
      const auto row = expected.subspan(p * vocab, vocab);
      add_position(base, row, row, sample.continuation[p]);
      add_position(ours, row, found.subspan(p * vocab, vocab), sample.continuation[p]);
    }
    const QualityMethod& m = methods_[method_];
    return row_text(m, file_name(checkpoint_of(m, checkpoint_)), sample, base, ours, g,
                    reader_->weight_bytes() + g.kv_cache_bytes);
  }

 private:
  void read_with(std::size_t method, const QualitySample& sample) {
    if (reader_ && method_ == method) return;
    reader_.reset();  // its memory first
    reader_ = std::make_unique<Reader>(checkpoint_, methods_[method], options_);
    reader_->warm_up(sample);
    method_ = method;
  }

  /// Computed at first use, since a resumed run may begin after the rows of plain.
  const std::vector<float>& base_logits(std::size_t sample) {
    if (base_logits_[sample].empty()) {
      if (!base_) base_ = std::make_unique<Reader>(checkpoint_, methods_[0], options_);
      base_->read(samples_[sample], base_logits_[sample]);
    }
    return base_logits_[sample];
  }

  const Checkpoint& checkpoint_;
  std::span<const QualityMethod> methods_;
  std::span<const QualitySample> samples_;
  const QualityOptions& options_;
  std::vector<std::vector<float>> base_logits_;  ///< by sample
  std::unique_ptr<Reader> base_;
  std::unique_ptr<Reader> reader_;
  std::size_t method_ = 0;
};

std::string fingerprint_of(const Checkpoint& checkpoint, std::span<const QualityMethod> methods,
                           std::span<const QualitySample> samples) {
  FnvHash hash;
  const auto add = [&](const std::string& text) { hash.add(text.c_str(), text.size() + 1); };
  add(file_fingerprint(checkpoint.path()));
  for (const QualityMethod& m : methods) {
    add(m.label(m.method));
    add(file_fingerprint(checkpoint_of(m, checkpoint).path()));
    // Speculators, auxiliary models, predictors.
    for (const MethodSpec& spec : parse_methods(m.method)) {
      for (const auto& [key, value] : spec.options) {
        if (std::filesystem::exists(value)) add(file_fingerprint(value));
      }
    }
  }
  for (const QualitySample& s : samples) {
    add(s.name);
    for (const auto* ids : {&s.prompt, &s.continuation}) {
      for (const execute::TokenId id : *ids) add(std::to_string(id));
    }
  }
  return hash.text();
}

}  // namespace

void add_position(NextTokens& sums, std::span<const float> base, std::span<const float> method,
                  execute::TokenId next) {
  KVCAST_ASSERT(base.size() == method.size() && next < base.size());
  const Distribution p = distribution_of(base);
  const Distribution q = distribution_of(method);
  double kl = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double log_p = base[i] - p.log_sum;
    kl += std::exp(log_p) * (log_p - (method[i] - q.log_sum));
  }
  ++sums.positions;
  sums.agreeing += p.likeliest == q.likeliest ? 1 : 0;
  sums.correct += q.likeliest == next ? 1 : 0;
  sums.kl_nats += std::max(kl, 0.0);  // rounding may leave less than nothing
  sums.cross_entropy_nats += q.log_sum - method[next];
}

std::vector<QualityMethod> quality_methods(std::span<const std::string> methods,
                                           std::span<const std::string> rates) {
  for (const std::string& rate : rates) check_rate(rate);
  std::vector<QualityMethod> all{{"plain", "plain", ""}};
  std::vector<std::string> words;
  for (const std::string& given : methods) words.push_back(with_share(given));
  for (const std::string& word : words) {
    std::string family;  // the shortest name that no other has
    for (const auto form : {FamilyName::WithoutRate, FamilyName::LastNames, FamilyName::Whole}) {
      family = family_of(word, form);
      const bool clashes = std::any_of(words.begin(), words.end(), [&](const std::string& other) {
        return other != word && family_of(other, form) == family;
      });
      if (!clashes) break;
    }
    const auto add = [&](const std::string& rate) {
      const std::string method = to_string(parse_methods(filled(word, rate)));
      const bool known = std::any_of(all.begin(), all.end(),
                                     [&](const QualityMethod& m) { return m.method == method; });
      if (!known) all.push_back({method, family, rate});
    };
    if (word.find(placeholder) == std::string::npos) {
      add("");
    } else {
      for (const std::string& rate : rates) add(rate);
    }
  }
  return all;
}

std::string QualityMethod::label(const std::string& of) const {
  std::string differing;
  const auto add = [&](std::string_view type) {
    differing += (differing.empty() ? " [" : " ") + std::string(type);
  };
  if (types.checkpoint != nullptr) add(file_name(*types.checkpoint));
  if (types.arithmetic != execute::Arithmetic::FP32) add(execute::name(types.arithmetic));
  if (types.cache != DType::FP32) add("cache " + std::string(name(types.cache)));
  return of + differing + (differing.empty() ? "" : "]");
}

std::vector<QualityMethod> with_types(std::span<const QualityMethod> methods,
                                      std::span<const NumberTypes> types) {
  std::vector<QualityMethod> all(methods.begin(), methods.end());
  for (const NumberTypes& t : types) {
    if (t.checkpoint == nullptr && t.arithmetic == execute::Arithmetic::FP32 &&
        t.cache == DType::FP32) {
      continue;
    }
    for (QualityMethod m : methods) {
      m.types = t;
      all.push_back(std::move(m));
    }
  }
  return all;
}

MeasuredRows measure_quality(const Checkpoint& checkpoint, std::span<const QualityMethod> methods,
                             std::span<const QualitySample> samples,
                             const QualityOptions& options) {
  if (checkpoint.architecture().encoder_decoder) {
    throw Error(checkpoint.path().string(), "an encoder-decoder model", "a decoder-only model");
  }
  if (samples.empty()) throw Error("samples", "none", "a text or needles");
  KVCAST_ASSERT(!methods.empty() && methods[0].label(methods[0].method) == "plain");
  std::set<std::string> labels;
  for (const QualityMethod& m : methods) {
    if (!labels.insert(m.label(m.method)).second) {
      throw Error(m.label(m.method), "two of them", "methods, files and types of other names");
    }
  }
  std::set<std::uint64_t> prompt_lens;
  for (const QualitySample& s : samples) prompt_lens.insert(s.prompt.size());
  for (const QualityMethod& m : methods) {
    const Checkpoint& own = checkpoint_of(m, checkpoint);
    if (own.architecture().vocab_size != checkpoint.architecture().vocab_size) {
      throw Error(own.path().string(),
                  fmt::format("{} tokens in the vocabulary", own.architecture().vocab_size),
                  fmt::format("the {} of {}", checkpoint.architecture().vocab_size,
                              checkpoint.path().string()));
    }
    execute::check_checkpoint(own, session_options(m, checkpoint), prompt_lens);
  }
  check_memory(checkpoint, samples);
  Rows rows(checkpoint, methods, samples, options);
  return measure_rows(options, quality_header, fingerprint_of(checkpoint, methods, samples),
                      methods.size() * samples.size(),
                      [&](std::uint64_t i) { return rows.row(i); });
}

}  // namespace kvcast::measure
