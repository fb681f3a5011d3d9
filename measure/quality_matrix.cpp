#include "measure/quality_matrix.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include "measure/next_tokens.h"
#include "model/base/error.h"
#include "model/io/files/csv_writer.h"
#include "model/methods/method.h"

namespace kvcast::measure {
namespace {

using execute::Generation;
using execute::Request;
using execute::Session;
using execute::SessionOptions;

constexpr std::string_view header =
    "task,sample,method,family,keep,prompt_len,kept_tokens,positions,agreement,correct,kl_nats,"
    "cross_entropy_nats,base_cross_entropy_nats,answered,ttft_s\n";
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
  const char* const end = rate.data() + rate.size();
  const auto [rest, error] = std::from_chars(rate.data(), end, value);
  if (error == std::errc() && rest == end && value > 0 && value <= 1) return;
  throw Error("--keep", "'" + rate + "'", "a fraction above 0 and at most 1");
}

std::string filled(std::string word, const std::string& rate) {
  for (std::size_t at = 0; (at = word.find(placeholder, at)) != std::string::npos;) {
    word.replace(at, placeholder.size(), rate);
    at += rate.size();
  }
  return word;
}

/// Without the options that change with the rate, folders by their last name.
std::string family_of(const std::string& word) {
  std::vector<MethodSpec> methods = parse_methods(word);
  for (MethodSpec& m : methods) {
    std::erase_if(m.options, [](const auto& option) {
      return option.second.find(placeholder) != std::string::npos;
    });
    for (auto& [key, value] : m.options) {
      value = std::filesystem::path(value).filename().string();
    }
  }
  return to_string(methods);
}

SessionOptions session_options(const QualityMethod& method) {
  SessionOptions o;
  o.methods = parse_methods(method.method);
  return o;
}

using OnPosition = std::function<void(std::size_t position, std::span<const float> logits)>;

/// A session, and the logits of each position of a sample's continuation.
class Reader {
 public:
  Reader(const Checkpoint& checkpoint, const QualityMethod& method, const QualityOptions& options)
      : options_(options), session_(checkpoint, session_options(method)) {}

  /// The first run asks for memory.
  void warm_up(const QualitySample& sample) {
    Request request = request_of(sample);
    request.output_len = 1;
    request.continuation.clear();
    session_.run(request);
  }

  Generation read(const QualitySample& sample, const OnPosition& on_position) {
    Request request = request_of(sample);
    std::size_t position = 0;
    request.on_logits = [&](const execute::Output& out) {
      const std::size_t vocab = out.shape.back();
      const std::size_t last = out.shape.elements() - vocab;
      on_position(position++, {out.data.get() + last, vocab});
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

/// What the base model says, by sample, computed once when it is asked for.
class Base {
 public:
  Base(const Checkpoint& checkpoint, std::span<const QualitySample> samples,
       const QualityOptions& options)
      : checkpoint_(checkpoint), samples_(samples), options_(options), logits_(samples.size()) {
    double numbers = 0;
    for (const QualitySample& s : samples) {
      numbers += static_cast<double>(s.continuation.size()) *
                 static_cast<double>(checkpoint.architecture().vocab_size);
    }
    const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<double>(::sysconf(_SC_PAGESIZE));
    if (numbers * sizeof(float) < memory / 2) return;
    throw Error("samples", fmt::format("{:.3g} GB of logits to compare with", numbers * 4e-9),
                "at most half of this machine's memory: fewer samples or shorter continuations");
  }

  /// [positions · vocab_size]
  const std::vector<float>& logits(std::size_t sample) {
    if (logits_[sample].empty()) {
      if (!reader_) {
        reader_ =
            std::make_unique<Reader>(checkpoint_, QualityMethod{"plain", "plain", ""}, options_);
      }
      reader_->read(samples_[sample], keep(sample));
    }
    return logits_[sample];
  }
  /// Where a run of the base model leaves them.
  OnPosition keep(std::size_t sample) {
    logits_[sample].clear();
    return [this, sample](std::size_t, std::span<const float> row) {
      logits_[sample].insert(logits_[sample].end(), row.begin(), row.end());
    };
  }

 private:
  const Checkpoint& checkpoint_;
  std::span<const QualitySample> samples_;
  const QualityOptions& options_;
  std::vector<std::vector<float>> logits_;
  std::unique_ptr<Reader> reader_;
};

std::string row_text(const QualityMethod& m, const QualitySample& s, const NextTokens& base,
                     const NextTokens& ours, const Generation& g) {
  const auto n = static_cast<double>(ours.positions);
  CsvText csv;
  csv.cell(s.task).cell(s.name).cell(m.method).cell(m.family);
  csv.cell(m.keep).cell(s.prompt.size());
  if (g.kept.empty()) {
    csv.missing_cell();
  } else {
    csv.cell(g.kept[0].size());
  }
  csv.cell(ours.positions).cell(static_cast<double>(ours.agreeing) / n);
  csv.cell(static_cast<double>(ours.correct) / n).cell(ours.kl_nats / n);
  csv.cell(ours.cross_entropy_nats / n).cell(base.cross_entropy_nats / n);
  csv.cell(ours.all_correct() ? 1 : 0).cell(g.ttft_s);
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
        base_(checkpoint, samples, options) {}

  std::string row(std::size_t index) {
    const std::size_t at = index % samples_.size();
    const QualitySample& sample = samples_[at];
    read_with(index / samples_.size(), sample);
    const bool plain = method_ == 0;
    if (!plain) base_.logits(at);  // not during the method's run, whose time is taken
    std::vector<float> said;
    const auto collect = [&](std::size_t, std::span<const float> row) {
      said.insert(said.end(), row.begin(), row.end());
    };
    const Generation g = reader_->read(sample, plain ? base_.keep(at) : OnPosition(collect));
    const std::span<const float> expected = base_.logits(at);
    const std::span<const float> found = plain ? expected : std::span<const float>(said);
    const std::size_t vocab = expected.size() / sample.continuation.size();
    NextTokens own;
    NextTokens ours;
    for (std::size_t p = 0; p < sample.continuation.size(); ++p) {
      const auto row = expected.subspan(p * vocab, vocab);
      add_position(own, row, row, sample.continuation[p]);
      add_position(ours, row, found.subspan(p * vocab, vocab), sample.continuation[p]);
    }
    return row_text(methods_[method_], sample, own, ours, g);
  }

 private:
  void read_with(std::size_t method, const QualitySample& sample) {
    if (reader_ && method_ == method) return;
    reader_.reset();  // its memory first
    reader_ = std::make_unique<Reader>(checkpoint_, methods_[method], options_);
    reader_->warm_up(sample);
    method_ = method;
  }

  const Checkpoint& checkpoint_;
  std::span<const QualityMethod> methods_;
  std::span<const QualitySample> samples_;
  const QualityOptions& options_;
  Base base_;
  std::unique_ptr<Reader> reader_;
  std::size_t method_ = 0;
};

std::string fingerprint_of(const Checkpoint& checkpoint, std::span<const QualityMethod> methods,
                           std::span<const QualitySample> samples) {
  std::uint64_t state = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    state *= 0x100000001b3u;
  };
  add(checkpoint.path().string());
  for (const QualityMethod& m : methods) add(m.method);
  for (const QualitySample& s : samples) {
    add(s.name);
    for (const auto* ids : {&s.prompt, &s.continuation}) {
      for (const execute::TokenId id : *ids) add(std::to_string(id));
    }
  }
  return fmt::format("{:016x}", state);
}

}  // namespace

std::vector<QualityMethod> quality_methods(std::span<const std::string> methods,
                                           std::span<const std::string> rates) {
  for (const std::string& rate : rates) check_rate(rate);
  std::vector<QualityMethod> all{{"plain", "plain", ""}};
  for (const std::string& given : methods) {
    const std::string word = with_share(given);
    const std::string family = family_of(word);
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

MeasuredRows measure_quality(const Checkpoint& checkpoint, std::span<const QualityMethod> methods,
                             std::span<const QualitySample> samples,
                             const QualityOptions& options) {
  if (checkpoint.architecture().encoder_decoder) {
    throw Error(checkpoint.path().string(), "an encoder-decoder model", "a decoder-only model");
  }
  if (samples.empty()) throw Error("samples", "none", "a text or needles");
  KVCAST_ASSERT(!methods.empty() && methods[0].method == "plain");
  std::set<std::uint64_t> prompt_lens;
  for (const QualitySample& s : samples) prompt_lens.insert(s.prompt.size());
  for (const QualityMethod& m : methods) {
    execute::check_checkpoint(checkpoint, session_options(m), prompt_lens);
  }
  Rows rows(checkpoint, methods, samples, options);
  return measure_rows(options, header, fingerprint_of(checkpoint, methods, samples),
                      methods.size() * samples.size(),
                      [&](std::uint64_t i) { return rows.row(i); });
}

}  // namespace kvcast::measure
