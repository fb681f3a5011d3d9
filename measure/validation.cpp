#include "measure/validation.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "measure/model_match.h"
#include "model/base/error.h"
#include "model/io/files/csv_writer.h"
#include "roofline/forecast.h"
#include "search/placed_estimator.h"

namespace kvcast::measure {
namespace {

using roofline::Hardware;

/// What a row's forecast is made of: one of the two.
struct Subject {
  std::shared_ptr<const Recording> recording;
  std::shared_ptr<const roofline::Configuration> placed;
};

/// That read a prompt.
std::uint64_t num_devices(const std::vector<MethodSpec>& methods) {
  const std::optional<Placement> placement = find_placement(methods);
  return placement ? placement->ranks : 1;
}

/// Throws Error when a row ran on more or fewer devices than its method places a prompt on.
void check_devices(const MeasuredRow& row, std::uint64_t placed) {
  if (row.num_devices == 0 || row.num_devices == placed) return;
  throw Error(fmt::format("it ran on {} devices, and {} on {}", row.num_devices, row.method,
                          placed == 1 ? "one" : std::to_string(placed)));
}

/// Models, subjects and devices of the rows seen so far.
class Matcher {
 public:
  Matcher(const Catalog& catalog, const DeviceChoice& choice)
      : catalog_(catalog), choice_(choice), hardware_(catalog.names("hardware")), models_(catalog) {
    if (!choice.placed_hardware.empty()) {
      chosen_placed_ = roofline::load_hardware(catalog, choice.placed_hardware);
    }
    if (choice.hardware.empty()) return;
    chosen_ = roofline::load_hardware(catalog, choice.hardware);
    if (choice_.name.empty()) choice_.name = chosen_->name;
    if (chosen_placed_ && chosen_placed_->name == chosen_->name) {
      throw Error(choice.placed_hardware,
                  "the name '" + chosen_->name + "', which " + choice.hardware + " has too",
                  "names that differ");
    }
  }

  Devices devices;

  /// Names the row's model and device as kvcast does. Throws Error.
  Subject match(MeasuredRow& row) {
    if (!row.unusable.empty()) throw Error(row.unusable);
    const std::vector<MethodSpec> methods = parse_methods(row.method);
    const bool placed = num_devices(methods) > 1;
    row.hardware = placed && chosen_placed_ ? placed_device(row.hardware) : device(row.hardware);
    row.model = models_.find(row.model, row.parameters);
    row.method = to_string(methods);
    const Lowering& l = row.lowering;
    const std::string key =
        fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", row.model, row.method, static_cast<int>(l.attention),
                    static_cast<int>(l.elementwise), kvcast::name(l.weights),
                    kvcast::name(l.activations), kvcast::name(l.cache), name(row.logits));
    Subject& subject = subjects_[key];
    check_devices(row, num_devices(methods));
    if (subject.recording != nullptr || subject.placed != nullptr) return subject;
    // A copy: forecasts are made again when the catalog's user may be gone.
    const auto find = [c = catalog_](const std::string& name) { return load_model(c, name); };
    if (placed) {
      subject.placed = std::make_shared<const roofline::Configuration>(
          roofline::Configuration{.architecture = load_model(catalog_, row.model),
                                  .methods = methods,
                                  .lowering = l,
                                  .logits = row.logits,
                                  .hardware = {},
                                  .find_model = find});
    } else {
      subject.recording = std::make_shared<const Recording>(record(
          load_model(catalog_, row.model), methods, l, {.logits = row.logits, .find_model = find}));
    }
    return subject;
  }

 private:
  std::string device(const std::string& name) {
    if (chosen_) {
      if (!name.empty() && name != choice_.name && name != chosen_->name) {
        throw Error("it ran on " + name + ", not on " + choice_.name);
      }
      devices.emplace(chosen_->name, *chosen_);
      return chosen_->name;
    }
    if (name.empty()) throw Error("its file names no hardware; expected --hardware");
    if (!devices.contains(name)) {
      if (std::find(hardware_.begin(), hardware_.end(), name) == hardware_.end()) {
        throw Error(not_in_catalog("hardware", name, hardware_));
      }
      devices.emplace(name, roofline::load_hardware(catalog_, name));
    }
    return name;
  }

  std::string placed_device(const std::string& name) {
    if (!name.empty() && name != chosen_placed_->name) {
      throw Error("it ran on " + name + ", not on " + chosen_placed_->name);
    }
    devices.emplace(chosen_placed_->name, *chosen_placed_);
    return chosen_placed_->name;
  }

  const Catalog& catalog_;
  DeviceChoice choice_;
  std::vector<std::string> hardware_;  ///< the catalog's
  std::optional<roofline::Hardware> chosen_;
  std::optional<roofline::Hardware> chosen_placed_;
  ModelMatch models_;
  std::map<std::string, Subject> subjects_;
};

double time_of(Metric metric, const roofline::DesignPoint& size, const roofline::Forecast& f) {
  switch (metric) {
    case Metric::Ttft: return f.ttft_s;
    case Metric::Tpot: return f.tpot_s;
    case Metric::Request: return f.ttft_s + static_cast<double>(size.output_len - 1) * f.tpot_s;
  }
  KVCAST_ASSERT(false);
  return 0;
}

/// Forecasts that differ in sizes alone share what is costly to make.
class Predictor {
 public:
  /// `devices` must outlive it, and may grow.
  explicit Predictor(const Devices& devices) : devices_(devices) {}

  double seconds(const ValidationCase& c) {
    const roofline::Hardware& hardware = devices_.at(c.row.hardware);
    if (c.placed != nullptr) {
      return time_of(c.metric, c.row.size, estimator(c, hardware).at(c.row.size));
    }
    return time_of(c.metric, c.row.size, forecaster(c, hardware).at(c.row.size));
  }

 private:
  using Key = std::pair<const void*, std::string>;

  const roofline::Forecaster& forecaster(const ValidationCase& c,
                                         const roofline::Hardware& hardware) {
    const Key key(c.recording.get(), hardware.name);
    auto found = forecasters_.find(key);
    if (found == forecasters_.end()) {
      const Lowering& l = c.row.lowering;
      const auto rates = roofline::make_rates(hardware, l, roofline::Mode::Calibrated);
      found = forecasters_.try_emplace(key, *c.recording, l, rates).first;
    }
    return found->second;
  }

  const search::PlacedEstimator& estimator(const ValidationCase& c,
                                           const roofline::Hardware& hardware) {
    const Key key(c.placed.get(), hardware.name);
    auto found = estimators_.find(key);
    if (found == estimators_.end()) {
      roofline::Configuration configuration = *c.placed;
      configuration.hardware = hardware;
      found = estimators_.try_emplace(key, configuration).first;
    }
    return found->second;
  }

  const Devices& devices_;
  std::map<Key, roofline::Forecaster> forecasters_;
  std::map<Key, search::PlacedEstimator> estimators_;
};

}  // namespace

DeviceChoice parse_device_choice(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {"", std::string(text)};
  return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

Validation validate(const Measurements& measurements, const Catalog& catalog,
                    const DeviceChoice& choice) {
  Validation v;
  Matcher matcher(catalog, choice);
  Predictor predictor(matcher.devices);
  for (MeasuredRow row : measurements.rows) {
    try {
      std::vector<ValidationCase> cases;
      const Subject subject = matcher.match(row);
      for (const MeasuredTime& time : row.times) {
        cases.push_back({row, time.metric, time.seconds, 0, subject.recording, subject.placed});
      }
      // Throws for dtypes that the device does not have.
      for (ValidationCase& c : cases) c.predicted = predictor.seconds(c);
      std::move(cases.begin(), cases.end(), std::back_inserter(v.cases));
    } catch (const Error& e) {
      if (e.fault() == Fault::Run) throw;
      v.unmatched.push_back({row.place, row.id, e.what()});
    }
  }
  v.devices = std::move(matcher.devices);
  return v;
}

void predict(std::span<ValidationCase> cases, const Devices& devices) {
  Predictor predictor(devices);
  for (ValidationCase& c : cases) c.predicted = predictor.seconds(c);
}

std::string method_names(std::string_view methods) {
  std::vector<std::string> names;
  for (const MethodSpec& m : parse_methods(methods)) names.push_back(m.name);
  return names.empty() ? "plain" : fmt::format("{}", fmt::join(names, "+"));
}

double error_bound(std::span<const double> relative_errors) {
  std::vector<double> sizes;
  for (const double e : relative_errors) sizes.push_back(std::abs(e));
  if (sizes.empty()) return 0;
  std::sort(sizes.begin(), sizes.end());
  // Nearest rank: the smallest value that nine tenths of the rows do not exceed.
  const std::size_t rank = (sizes.size() * 9 + 9) / 10;
  return sizes[rank - 1];
}

ErrorSummary summarize(std::span<const double> relative_errors) {
  ErrorSummary s;
  s.rows = relative_errors.size();
  if (s.rows == 0) return s;
  for (const double e : relative_errors) {
    s.mape += std::abs(e);
    s.bias += e;
    s.worst = std::max(s.worst, std::abs(e));
  }
  s.mape /= static_cast<double>(s.rows);
  s.bias /= static_cast<double>(s.rows);
  s.bound = error_bound(relative_errors);
  return s;
}

std::map<std::string, ErrorSummary> summarize_by(
    std::span<const ValidationCase> cases,
    const std::function<std::string(const ValidationCase&)>& key) {
  std::map<std::string, std::vector<double>> errors;
  for (const ValidationCase& c : cases) errors[key(c)].push_back(c.relative_error());
  std::map<std::string, ErrorSummary> summaries;
  for (const auto& [name, list] : errors) summaries.emplace(name, summarize(list));
  return summaries;
}

void write_validation_csv(std::span<const ValidationCase> cases,
                          const std::filesystem::path& path) {
  CsvWriter csv(path,
                {"id", "model", "hardware", "method", "attention", "elementwise", "weight_dtype",
                 "activation_dtype", "cache_dtype", "logits", "batch", "prompt_len", "output_len",
                 "metric", "predicted_s", "measured_s", "relative_error", "place"});
  for (const ValidationCase& c : cases) {
    const MeasuredRow& r = c.row;
    const Lowering& l = r.lowering;
    csv.cell(r.id).cell(r.model).cell(r.hardware).cell(r.method);
    csv.cell(attention_name(l.attention));
    csv.cell(elementwise_name(l.elementwise));
    csv.cell(kvcast::name(l.weights)).cell(kvcast::name(l.activations)).cell(kvcast::name(l.cache));
    csv.cell(name(r.logits)).cell(r.size.batch).cell(r.size.prompt_len).cell(r.size.output_len);
    csv.cell(name(c.metric)).cell(c.predicted).cell(c.measured).cell(c.relative_error());
    csv.cell(r.place);
    csv.end_row();
  }
  csv.commit();
}

}  // namespace kvcast::measure
