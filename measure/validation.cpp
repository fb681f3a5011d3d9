#include "measure/validation.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "measure/closed_loop.h"
#include "measure/engine_match.h"
#include "measure/model_match.h"
#include "model/base/error.h"
#include "model/record/recording.h"
#include "roofline/interconnect.h"
#include "search/placed_estimator.h"

namespace kvcast::measure {
namespace {

using roofline::Hardware;

/// Throws Error when a row ran on more or fewer devices than its method places a prompt on, each of
/// them as many as its parallelism says.
void check_devices(const MeasuredRow& row, std::uint64_t ranks) {
  const std::uint64_t placed = ranks * row.parallelism.devices();
  if (row.num_devices == 0 || row.num_devices == placed) return;
  throw Error(fmt::format("it ran on {} devices, and {} on {}", row.num_devices, row.method,
                          placed == 1 ? "one" : std::to_string(placed)));
}

/// All that tells one loop's forecasts from another's.
std::string words_of(const LoopRequests& loop) {
  std::string words =
      fmt::format("{} {} {} {}", loop.shortest, loop.rounds, loop.says_cache, loop.marlin_mxfp4);
  for (const auto& [key, value] : loop.scheduler) words += fmt::format(" {}={}", key, value);
  return words;
}

/// A prompt on one device is recorded once; on several, and in a closed loop, each hardware is
/// simulated anew.
ForecastOn forecast_on(roofline::Configuration c, const Catalog& catalog, const MeasuredRow& row,
                       const std::optional<LoopRequests>& loop) {
  const bool placed = num_devices(row.method) > 1;
  if (loop || placed || row.training || !c.parallelism.is_one()) {
    return [c = std::move(c), catalog, loop, platform = row.platform,
            training = row.training](const Hardware& hardware) -> ForecastAt {
      roofline::Configuration on_device = c;
      on_device.hardware = hardware;
      if (!c.parallelism.is_one()) {
        on_device.interconnect =
            roofline::find_interconnect(catalog, platform, hardware, c.parallelism.devices());
      }
      if (training) return training_forecast(on_device, *training);
      if (loop) return closed_loop_forecast(on_device, *loop);
      const auto estimator = std::make_shared<const search::PlacedEstimator>(on_device);
      return [estimator](const roofline::DesignPoint& size) { return estimator->at(size); };
    };
  }
  const auto recordings = std::make_shared<const roofline::Recordings>(roofline::record_for(c));
  return [recordings, lowering = c.lowering,
          engine = c.engine](const Hardware& hardware) -> ForecastAt {
    const auto rates = roofline::make_rates(hardware, lowering, roofline::Mode::Calibrated, engine);
    const auto forecaster = std::make_shared<const roofline::Forecaster>(
        recordings->whole, lowering, rates, recordings->chunk_or_null());
    return [forecaster](const roofline::DesignPoint& size) { return forecaster->at(size); };
  };
}

/// Models, forecasts and devices of the rows seen so far.
class Matcher {
 public:
  Matcher(const Catalog& catalog, const DeviceChoice& choice)
      : catalog_(catalog),
        choice_(choice),
        hardware_(catalog.names("hardware")),
        models_(catalog),
        engine_match_(catalog) {
    if (!choice.engine.empty()) {
      engines_.emplace(choice.engine, roofline::load_engine(catalog, choice.engine));
    }
    if (!choice.placed_hardware.empty()) {
      chosen_placed_ = roofline::load_hardware(catalog, choice.placed_hardware);
    }
    if (choice.hardware.empty()) return;
    chosen_ = roofline::load_hardware(catalog, choice.hardware);
    if (choice_.name.empty()) choice_.name = chosen_->name;
    if (chosen_placed_ && chosen_placed_->name == chosen_->name) {
      throw Error("--rank-hardware", "the same device name '" + chosen_->name + "' as --hardware",
                  "another");
    }
  }

  Devices devices;

  /// Names the row's model and device as kvcast does. `engine` instead of the row's and the chosen
  /// one, unless it is empty. Throws Error.
  std::shared_ptr<const ForecastOn> match(MeasuredRow& row, const std::string& engine_name = {}) {
    if (!row.unusable.empty()) throw Error(row.unusable);
    const std::vector<MethodSpec> methods = parse_methods(row.method);
    const std::uint64_t ranks = num_devices(row.method);
    if (ranks > 1 && chosen_placed_) {
      row.hardware = chosen_device(*chosen_placed_, row.hardware, chosen_placed_->name);
    } else if (chosen_) {
      row.hardware = chosen_device(*chosen_, row.hardware, choice_.name);
    } else {
      row.hardware = catalog_device(row.hardware);
    }
    if (row.kernel) return std::make_shared<const ForecastOn>(kernel_forecast(*row.kernel));
    const auto [name_of_model, overrides] = split_overrides(row.model);
    const std::string found = models_.find(name_of_model, row.parameters);
    row.model = found + row.model.substr(name_of_model.size());
    row.method = to_string(methods);
    const roofline::Engine& engine = engine_of(row, engine_name);
    roofline::apply(engine, !row.says_attention, !row.says_elementwise, row.lowering);
    row.engine = engine.name;
    row.engine_version = engine.version;
    const Lowering& l = row.lowering;
    // One client waits for nobody.
    const auto loop = row.size.batch > 1 ? row.closed_loop : std::nullopt;
    const std::string key = fmt::format(
        "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", to_string(row.parallelism), row.platform,
        row.training ? to_string(*row.training) : "", row.model, row.method, engine.name,
        engine.version, static_cast<int>(l.attention), static_cast<int>(l.elementwise),
        l.weights.text, kvcast::name(l.operand_dtype()), kvcast::name(l.cache),
        l.products ? kvcast::name(*l.products) : "", name(row.logits), loop ? words_of(*loop) : "");
    check_devices(row, ranks);
    std::shared_ptr<const ForecastOn>& forecast = forecasts_[key];
    if (forecast != nullptr) return forecast;
    Architecture architecture = load_model(catalog_, found, overrides);
    Lowering lowering = l;
    // kvcast's own runs, whose row has the type of most weights.
    if (l.operand_dtype() == DType::FP32 && l.weights.is_uniform()) {
      lowering.weights = weight_types_of(architecture, l.weights.main);
    }
    forecast =
        std::make_shared<const ForecastOn>(forecast_on({.architecture = std::move(architecture),
                                                        .methods = methods,
                                                        .lowering = std::move(lowering),
                                                        .logits = row.logits,
                                                        .hardware = {},
                                                        .find_model = find_model_in(catalog_),
                                                        .engine = engine,
                                                        .parallelism = row.parallelism},
                                                       catalog_, row, loop));
    return forecast;
  }

 private:
  /// The one that was chosen for all rows, or the row's own; ideal if the catalog does not have it.
  const roofline::Engine& engine_of(const MeasuredRow& row, const std::string& engine_name) {
    std::string name = engine_name.empty() ? choice_.engine : engine_name;
    if (name.empty()) name = engine_match_.find(row.engine, row.engine_version, row.date);
    const auto found = engines_.find(name);
    if (found != engines_.end()) return found->second;
    return engines_.emplace(name, roofline::load_engine(catalog_, name)).first->second;
  }

  /// `own_name`: another name of the device that rows may have.
  std::string chosen_device(const Hardware& chosen, const std::string& name,
                            const std::string& own_name) {
    if (!name.empty() && name != own_name && name != chosen.name) {
      throw Error("it ran on " + name + ", not on " + own_name);
    }
    devices.emplace(chosen.name, chosen);
    return chosen.name;
  }

  std::string catalog_device(const std::string& name) {
    if (name.empty()) throw Error("its file names no hardware; expected --hardware");
    if (devices.contains(name)) return name;
    if (std::find(hardware_.begin(), hardware_.end(), name) == hardware_.end()) {
      throw Error(not_in_catalog("hardware", name, hardware_));
    }
    devices.emplace(name, roofline::load_hardware(catalog_, name));
    return name;
  }

  const Catalog& catalog_;
  DeviceChoice choice_;
  std::vector<std::string> hardware_;  ///< the catalog's
  std::optional<roofline::Hardware> chosen_;
  std::optional<roofline::Hardware> chosen_placed_;
  ModelMatch models_;
  EngineMatch engine_match_;
  std::map<std::string, roofline::Engine> engines_;
  std::map<std::string, std::shared_ptr<const ForecastOn>> forecasts_;
};

/// Seconds of a forecast, and how many of them are its TTFT's.
struct ForecastTime {
  double seconds = 0;
  double ttft_s = 0;
};

ForecastTime forecast_time(Metric metric, double outputs, const roofline::Forecast& f) {
  switch (metric) {
    case Metric::Ttft:
    case Metric::TrainingStep:
    case Metric::Product:
    case Metric::PrefillAttention:
    case Metric::DecodeAttention: return {f.ttft_s, f.ttft_s};
    case Metric::Tpot: return {f.tpot_s, 0};
    case Metric::Request: return {f.ttft_s + (outputs - 1) * f.tpot_s, f.ttft_s};
  }
  KVCAST_ASSERT(false);
  return {};
}

/// Keeps one forecaster for all cases that differ in sizes alone.
class Predictor {
 public:
  /// `devices` must outlive it, and may grow.
  explicit Predictor(const Devices& devices) : devices_(devices) {}

  void predict(ValidationCase& c) {
    const ForecastTime time = time_of(c, c.forecast);
    c.predicted = time.seconds;
    c.ttft_share = time.ttft_s / time.seconds;
    c.ideal = c.ideal_forecast ? time_of(c, c.ideal_forecast).seconds : time.seconds;
  }

 private:
  ForecastTime time_of(const ValidationCase& c, const std::shared_ptr<const ForecastOn>& forecast) {
    ForecastAt& at = forecasts_[{forecast.get(), c.row.hardware}];
    if (!at) at = (*forecast)(devices_.at(c.row.hardware));
    return forecast_time(c.metric, c.row.mean_output(), at(c.row.size));
  }

  const Devices& devices_;
  std::map<std::pair<const ForecastOn*, std::string>, ForecastAt> forecasts_;
};

}  // namespace

ForecastOn kernel_forecast(const roofline::Kernel& kernel) {
  return [kernel](const Hardware& hardware) -> ForecastAt {
    roofline::Forecast forecast;
    forecast.ttft_s = roofline::seconds_of(kernel, hardware).value;
    return [forecast](const roofline::DesignPoint&) { return forecast; };
  };
}

DeviceChoice parse_device_choice(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {"", std::string(text)};
  return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

WeightTypes weight_types_of(const Architecture& a, DType main) {
  return a.stored_weights && a.stored_weights->main == main ? *a.stored_weights : WeightTypes(main);
}

Validation validate(const Measurements& measurements, const Catalog& catalog,
                    const DeviceChoice& choice) {
  Validation v;
  const std::string ideal_engine = roofline::Engine{}.name;
  Matcher matcher(catalog, choice);
  Predictor predictor(matcher.devices);
  for (MeasuredRow row : measurements.rows) {
    try {
      std::vector<ValidationCase> cases;
      MeasuredRow ideal = row;
      const auto forecast = matcher.match(row);
      const bool has_engine = !row.kernel && row.engine != ideal_engine;
      const auto ideal_forecast = has_engine ? matcher.match(ideal, ideal_engine) : nullptr;
      for (const MeasuredTime& time : row.times) {
        cases.push_back({.row = row,
                         .metric = time.metric,
                         .measured = time.seconds,
                         .forecast = forecast,
                         .ideal_forecast = ideal_forecast});
      }
      // Throws for dtypes that the device does not have.
      for (ValidationCase& c : cases) predictor.predict(c);
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
  for (ValidationCase& c : cases) predictor.predict(c);
}

std::string method_names(std::string_view methods) {
  std::vector<std::string> names;
  for (const MethodSpec& m : parse_methods(methods)) names.push_back(m.name);
  return names.empty() ? "plain" : fmt::format("{}", fmt::join(names, "+"));
}

std::uint64_t num_devices(std::string_view methods) {
  const std::optional<Placement> placement = find_placement(parse_methods(methods));
  return placement ? placement->ranks : 1;
}

std::string source_key(std::string_view source) {
  source = source.substr(0, source.find(' '));
  while (source.ends_with(',') || source.ends_with(':') || source.ends_with(';')) {
    source.remove_suffix(1);
  }
  return std::string(source);
}

nlohmann::ordered_json case_json(const ValidationCase& c) {
  const MeasuredRow& r = c.row;
  const Lowering& l = r.lowering;
  nlohmann::ordered_json j{{"id", r.id},
                           {"model", r.model},
                           {"hardware", r.hardware},
                           {"engine", r.engine},
                           {"engine_version", r.engine_version},
                           {"method", r.method},
                           {"attention", attention_name(l.attention)},
                           {"elementwise", elementwise_name(l.elementwise)},
                           {"weight_dtype", l.weights.text},
                           {"activation_dtype", kvcast::name(l.operand_dtype())}};
  if (l.products) j["arithmetic"] = kvcast::name(*l.products);
  if (r.training) {
    j["tp"] = r.parallelism.tp;
    if (r.parallelism.pp > 1) j["pp"] = r.parallelism.pp;
    j["dp"] = r.parallelism.dp;
    j["training"] = to_string(*r.training);
  }
  j.update({{"cache_dtype", kvcast::name(l.cache)},
            {"logits", name(r.logits)},
            {"batch", r.size.batch},
            {"prompt_len", r.size.prompt_len},
            {"output_len", r.size.output_len},
            {"metric", name(c.metric)},
            {"predicted", c.predicted},
            {"measured", c.measured},
            {"relative_error", c.relative_error()},
            {"source", source_key(r.source)},
            {"place", r.place}});
  return j;
}

double percentile_90(std::span<const double> relative_errors) {
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
  s.bound = percentile_90(relative_errors);
  return s;
}

ErrorSummary summarize(std::span<const ValidationCase> cases) {
  std::vector<double> errors;
  for (const ValidationCase& c : cases) errors.push_back(c.relative_error());
  return summarize(errors);
}

}  // namespace kvcast::measure
