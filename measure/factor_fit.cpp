#include "measure/factor_fit.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include <Eigen/Dense>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "roofline/hardware_fields.h"
#include "roofline/hardware_writer.h"

namespace kvcast::measure {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using roofline::FactorAt;
using roofline::Hardware;
using roofline::Source;
using roofline::Sourced;

/// The start value of a latency that is 0 in the file.
constexpr double first_latency_s = 1e-6;
constexpr double smallest = 1e-9;
constexpr double longest_latency_s = 1;

/// One number of a device that is fitted.
struct Parameter {
  const roofline::Field* field = nullptr;
  DType dtype = DType::FP32;  ///< of a rate
  double limit = 1;

  std::string name() const {
    if (!field->per_dtype()) return field->name();
    return fmt::format("{}.{}", field->name(), kvcast::name(dtype));
  }

  /// Factors by length keep their proportions, none above 1.
  void set(Hardware& hw, double value) const {
    Sourced s{value, Source::Fitted, "fit", ""};
    if (const Sourced* before = field->find(hw, dtype)) {
      s.by_length = before->by_length;
      for (FactorAt& at : s.by_length) at.value = std::min(1.0, at.value * value / before->value);
    }
    field->set(hw, dtype, std::move(s));
  }
};

double first_value(const Parameter& p, const Hardware& hw) {
  const roofline::Field& field = *p.field;
  const Sourced* own = field.find(hw, p.dtype);
  if (field.unit == roofline::Unit::Seconds) {
    return own == nullptr ? first_latency_s : std::max(own->value, first_latency_s);
  }
  if (own != nullptr) return own->value;
  // The same fallbacks as in estimates: the rate of large products, or of streaming.
  if (field.peak == roofline::Peak::Matrix) {
    const auto large = hw.matrix_rate.find(p.dtype);
    return large == hw.matrix_rate.end() ? 1 : large->second.value;
  }
  const bool streams = field.peak == roofline::Peak::Memory && hw.memory_bandwidth_factor;
  return streams ? hw.memory_bandwidth_factor->value : 1;
}

/// Null: not a factor that can be fitted.
const roofline::Field* fitted_field(std::string_view name) {
  for (const roofline::Field& field : roofline::hardware_fields()) {
    if (field.fitted && field.name() == name) return &field;
  }
  return nullptr;
}

/// The dtypes in which the cases multiply: weights, or the cache in attention.
std::set<DType> dtypes_of(std::span<const ValidationCase> cases, const roofline::Hardware& hw,
                          bool attention) {
  std::set<DType> dtypes;
  for (const ValidationCase& c : cases) {
    const Lowering& l = c.row.lowering;
    dtypes.insert(
        hw.supported(product_dtype(l.operand_dtype(), attention ? l.cache : l.weights.main)));
  }
  return dtypes;
}

std::vector<Parameter> parameters_of(std::span<const std::string> names,
                                     std::span<const ValidationCase> cases,
                                     const roofline::Hardware& hw) {
  std::vector<Parameter> list;
  for (const std::string& full : names) {
    const std::string name = full.substr(0, full.find('.'));
    const roofline::Field* field = fitted_field(name);
    if (field == nullptr || (!field->per_dtype() && name != full)) {
      throw Error("--fit", unknown_name("factor", full, factor_names()));
    }
    if (!field->per_dtype()) {
      const bool latency = field->unit == roofline::Unit::Seconds;
      list.push_back({.field = field, .limit = latency ? longest_latency_s : 1});
      continue;
    }
    std::set<DType> dtypes = dtypes_of(cases, hw, name != "matrix_rate");
    if (name != full) dtypes = {parse_dtype(full.substr(name.size() + 1))};
    for (const DType dtype : dtypes) list.push_back({.field = field, .dtype = dtype});
  }
  std::set<std::string> seen;
  for (const Parameter& p : list) {
    if (seen.insert(p.name()).second) continue;
    throw Error("--fit: " + p.name() + " is named twice; expected each factor once");
  }
  return list;
}

class Fitter {
 public:
  Fitter(std::vector<ValidationCase>& cases, const roofline::Hardware& hw,
         const std::vector<Parameter>& parameters)
      : cases_(cases), start_(hw), parameters_(parameters), limits_(parameters.size()) {
    for (Eigen::Index i = 0; i < limits_.size(); ++i) limits_[i] = std::log(parameter(i).limit);
  }

  /// The logarithms of the values that estimates use now.
  VectorXd first() const {
    VectorXd x(limits_.size());
    for (Eigen::Index i = 0; i < x.size(); ++i) x[i] = std::log(first_value(parameter(i), start_));
    return x.cwiseMin(limits_);
  }

  /// The logarithms of the best values.
  VectorXd fit(VectorXd x) {
    VectorXd residuals = residuals_at(x);
    double damping = 1e-3;
    for (int round = 0; round < max_rounds; ++round) {
      const MatrixXd jacobian = slopes(x, residuals);
      bool improved = false;
      while (!improved && damping < 1e12) {
        const VectorXd next = moved(x, step(jacobian, residuals, x, damping));
        const VectorXd next_residuals = residuals_at(next);
        improved = next_residuals.squaredNorm() < residuals.squaredNorm() * (1 - 1e-12);
        damping *= improved ? 0.3 : 4;
        if (!improved) continue;
        const double distance = (next - x).cwiseAbs().maxCoeff();
        x = next;
        residuals = next_residuals;
        if (distance < 1e-8) return x;
      }
      if (!improved) break;
    }
    return x;
  }

  roofline::Hardware device_at(const VectorXd& x) const {
    roofline::Hardware hw = start_;
    for (Eigen::Index i = 0; i < x.size(); ++i) parameter(i).set(hw, std::exp(x[i]));
    return hw;
  }

  bool is_at_limit(const VectorXd& x, std::size_t i) const {
    const auto index = static_cast<Eigen::Index>(i);
    return x[index] >= limits_[index] - 1e-9;
  }

  /// Throws Error naming a factor that changes no forecast.
  void check_all_matter(const VectorXd& x) {
    const MatrixXd jacobian = slopes(x, residuals_at(x));
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      if (jacobian.col(i).squaredNorm() > 0) continue;
      throw Error("--fit: no chosen row depends on " + parameter(i).name() +
                  "; expected rows that do");
    }
  }

 private:
  static constexpr int max_rounds = 200;
  static constexpr double slope_step = 1e-4;

  const Parameter& parameter(Eigen::Index i) const {
    return parameters_[static_cast<std::size_t>(i)];
  }

  VectorXd residuals_at(const VectorXd& x) {
    predict(cases_, {{start_.name, device_at(x)}});
    VectorXd residuals(static_cast<Eigen::Index>(cases_.size()));
    Eigen::Index row = 0;
    for (const ValidationCase& c : cases_) residuals[row++] = std::log(c.predicted / c.measured);
    return residuals;
  }

  /// A column for each parameter, by a step towards smaller values, which are below every limit.
  MatrixXd slopes(const VectorXd& x, const VectorXd& residuals) {
    MatrixXd jacobian(residuals.size(), x.size());
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      VectorXd lower = x;
      lower[i] -= slope_step;
      jacobian.col(i) = (residuals - residuals_at(lower)) / slope_step;
    }
    return jacobian;
  }

  /// Parameters at their limit that would move beyond it are held, and the others move.
  VectorXd step(const MatrixXd& jacobian, const VectorXd& residuals, const VectorXd& x,
                double damping) const {
    MatrixXd normal = jacobian.transpose() * jacobian;
    VectorXd gradient = jacobian.transpose() * residuals;
    normal.diagonal() += damping * (normal.diagonal().array() + 1e-9).matrix();
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      if (x[i] < limits_[i] || gradient[i] > 0) continue;
      normal.row(i).setZero();
      normal.col(i).setZero();
      normal(i, i) = 1;
      gradient[i] = 0;
    }
    return normal.ldlt().solve(-gradient);
  }

  /// By at most a factor of e: farther away the slopes do not hold.
  VectorXd moved(const VectorXd& x, const VectorXd& step) const {
    const VectorXd next = x + step.cwiseMax(-1.0).cwiseMin(1.0);
    return next.cwiseMax(std::log(smallest)).cwiseMin(limits_);
  }

  std::vector<ValidationCase>& cases_;
  const roofline::Hardware& start_;
  const std::vector<Parameter>& parameters_;
  VectorXd limits_;  ///< logarithms
};

}  // namespace

std::vector<std::string> factor_names() {
  std::vector<std::string> names;
  for (const roofline::Field& field : roofline::hardware_fields()) {
    if (field.fitted) names.push_back(field.name());
  }
  return names;
}

FactorFit fit_factors(std::vector<ValidationCase> cases, const Devices& devices,
                      std::span<const std::string> names) {
  if (cases.empty()) throw Error("--fit", "no rows to fit to", "some");
  const std::string& device = cases.front().row.hardware;
  for (const ValidationCase& c : cases) {
    if (c.row.hardware != device) {
      throw Error("--fit", "rows of " + device + " and " + c.row.hardware,
                  "rows of one device: --hardware, or --fit-rows hardware=NAME");
    }
  }
  const roofline::Hardware& start = devices.at(device);
  const std::vector<Parameter> parameters = parameters_of(names, cases, start);
  if (cases.size() < parameters.size()) {
    throw Error("--fit", fmt::format("{} factors and {} rows", parameters.size(), cases.size()),
                "at least as many rows as factors");
  }
  FactorFit fit;
  predict(cases, devices);
  fit.before = summarize(cases);
  Fitter fitter(cases, start, parameters);
  const VectorXd first = fitter.first();
  fitter.check_all_matter(first);
  const VectorXd best = fitter.fit(first);
  fit.hardware = fitter.device_at(best);
  predict(cases, {{device, fit.hardware}});
  fit.after = summarize(cases);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto row = static_cast<Eigen::Index>(i);
    fit.factors.push_back({parameters[i].name(), std::exp(first[row]), std::exp(best[row]),
                           fitter.is_at_limit(best, i)});
  }
  return fit;
}

std::string fitted_hardware_json(const std::filesystem::path& file, const FactorFit& fit,
                                 std::string_view name, std::string_view rows) {
  using nlohmann::ordered_json;
  ordered_json j = ordered_json::parse(roofline::hardware_document(file));
  j["name"] = name;
  for (const FittedFactor& f : fit.factors) {
    ordered_json entry{
        {"value", f.after},
        {"source", "fitted"},
        {"reference", fmt::format("kvcast validate --fit, to {}", rows)},
        {"note", fmt::format("{:.4g} before the fit{}", f.before,
                             f.at_limit ? "; the rows want more than the peak" : "")}};
    const std::size_t dot = f.name.find('.');
    const roofline::Field& field = *fitted_field(f.name.substr(0, dot));
    if (field.unit == roofline::Unit::Seconds) {
      entry["value"] = fmt::format("{:.6g} us", f.after * 1e6);
    }
    const DType dtype = field.per_dtype() ? parse_dtype(f.name.substr(dot + 1)) : DType::FP32;
    if (const Sourced* fitted = field.find(fit.hardware, dtype); !fitted->by_length.empty()) {
      entry["by_length"] = roofline::by_length_json(fitted->by_length);
    }
    ordered_json& place = j[std::string(field.section)][std::string(field.key)];
    (field.per_dtype() ? place[f.name.substr(dot + 1)] : place) = entry;
  }
  return json_text(j, 2) + "\n";
}

}  // namespace kvcast::measure
