#include "measure/factor_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "roofline/hardware_fields.h"
#include "roofline/hardware_writer.h"

namespace kvcast::measure {
namespace {

using roofline::FactorAt;
using roofline::Hardware;
using roofline::Source;
using roofline::Sourced;

/// Where a search for a latency begins that the file gives as 0.
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
  if (field.unit == roofline::Unit::Seconds) return std::max(own->value, first_latency_s);
  if (own != nullptr) return own->value;
  // As estimates do: attention's products stand on the large ones' rate, the rest on streaming's.
  if (field.peak == roofline::Peak::Matrix) {
    const auto large = hw.matrix_rate.find(p.dtype);
    return large == hw.matrix_rate.end() ? 1 : large->second.value;
  }
  const bool streams = field.peak == roofline::Peak::Memory && hw.memory_bandwidth_factor;
  return streams ? hw.memory_bandwidth_factor->value : 1;
}

/// Null: no factor that is fitted.
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
    dtypes.insert(hw.supported(product_dtype(l.activations, attention ? l.cache : l.weights)));
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
      throw Error("--fit: " + std::string(unknown_name("factor", full, factor_names()).what()));
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
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (list[i].name() == list[j].name()) {
        throw Error("--fit: " + list[i].name() + " is named twice; expected each factor once");
      }
    }
  }
  return list;
}

using Vector = std::vector<double>;

/// Solves the positive definite system a x = b by Gaussian elimination.
Vector solve(std::vector<Vector> a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (std::size_t column = i; column < n; ++column) a[row][column] -= factor * a[i][column];
      b[row] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t column = i + 1; column < n; ++column) b[i] -= a[i][column] * b[column];
    b[i] /= a[i][i];
  }
  return b;
}

double squares(const Vector& residuals) {
  return std::inner_product(residuals.begin(), residuals.end(), residuals.begin(), 0.0);
}

class Fitter {
 public:
  Fitter(std::vector<ValidationCase>& cases, const roofline::Hardware& hw,
         std::vector<Parameter> parameters)
      : cases_(cases), start_(hw), parameters_(std::move(parameters)) {}

  /// The logarithms of the best values.
  Vector fit(Vector x) {
    Vector residuals = residuals_at(x);
    double damping = 1e-3;
    for (int round = 0; round < max_rounds; ++round) {
      const std::vector<Vector> columns = slopes(x, residuals);
      const Vector gradient = times(columns, residuals);
      bool improved = false;
      while (!improved && damping < 1e12) {
        const Vector next = clamped(x, step(columns, gradient, x, damping));
        const Vector next_residuals = residuals_at(next);
        improved = squares(next_residuals) < squares(residuals) * (1 - 1e-12);
        damping *= improved ? 0.3 : 4;
        if (!improved) continue;
        const double moved = distance(x, next);
        x = next;
        residuals = next_residuals;
        if (moved < 1e-8) return x;
      }
      if (!improved) break;
    }
    return x;
  }

  roofline::Hardware device_at(const Vector& x) const {
    roofline::Hardware hw = start_;
    for (std::size_t i = 0; i < x.size(); ++i) parameters_[i].set(hw, std::exp(x[i]));
    return hw;
  }

  /// Throws Error naming a factor that changes no forecast.
  void check_all_matter(const Vector& x) {
    const std::vector<Vector> columns = slopes(x, residuals_at(x));
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (squares(columns[i]) > 0) continue;
      throw Error("--fit: no chosen row depends on " + parameters_[i].name() +
                  "; expected rows that do");
    }
  }

 private:
  static constexpr int max_rounds = 200;
  static constexpr double slope_step = 1e-4;

  Vector residuals_at(const Vector& x) {
    predict(cases_, {{start_.name, device_at(x)}});
    Vector residuals;
    for (const ValidationCase& c : cases_) residuals.push_back(std::log(c.predicted / c.measured));
    return residuals;
  }

  /// A column for each parameter; towards smaller values, which no limit forbids.
  std::vector<Vector> slopes(const Vector& x, const Vector& residuals) {
    std::vector<Vector> columns;
    for (std::size_t i = 0; i < x.size(); ++i) {
      Vector moved = x;
      moved[i] -= slope_step;
      Vector column = residuals_at(moved);
      for (std::size_t r = 0; r < column.size(); ++r) {
        column[r] = (residuals[r] - column[r]) / slope_step;
      }
      columns.push_back(std::move(column));
    }
    return columns;
  }

  static Vector times(const std::vector<Vector>& columns, const Vector& residuals) {
    Vector product;
    for (const Vector& column : columns) {
      product.push_back(std::inner_product(column.begin(), column.end(), residuals.begin(), 0.0));
    }
    return product;
  }

  /// A parameter at its limit that wants beyond it stays there, and the others move without it.
  Vector step(const std::vector<Vector>& columns, const Vector& gradient, const Vector& x,
              double damping) const {
    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool at_limit = x[i] >= std::log(parameters_[i].limit);
      if (!at_limit || gradient[i] > 0) free.push_back(i);
    }
    std::vector<Vector> a(free.size(), Vector(free.size()));
    Vector b(free.size());
    for (std::size_t i = 0; i < free.size(); ++i) {
      b[i] = -gradient[free[i]];
      for (std::size_t j = 0; j < free.size(); ++j) {
        const Vector& left = columns[free[i]];
        a[i][j] = std::inner_product(left.begin(), left.end(), columns[free[j]].begin(), 0.0);
      }
      a[i][i] += damping * (a[i][i] + 1e-9);
    }
    const Vector moves = solve(std::move(a), std::move(b));
    Vector all(x.size(), 0.0);
    for (std::size_t i = 0; i < free.size(); ++i) all[free[i]] = moves[i];
    return all;
  }

  Vector clamped(const Vector& x, const Vector& move) const {
    Vector next(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      // At most a factor of e a step: slopes say little farther away.
      next[i] = x[i] + std::clamp(move[i], -1.0, 1.0);
      next[i] = std::clamp(next[i], std::log(smallest), std::log(parameters_[i].limit));
    }
    return next;
  }

  static double distance(const Vector& x, const Vector& y) {
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
    return largest;
  }

  std::vector<ValidationCase>& cases_;
  const roofline::Hardware& start_;
  std::vector<Parameter> parameters_;
};

ErrorSummary errors_of(std::span<const ValidationCase> cases) {
  std::vector<double> errors;
  for (const ValidationCase& c : cases) errors.push_back(c.relative_error());
  return summarize(errors);
}

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
  fit.before = errors_of(cases);
  Vector x;
  for (const Parameter& p : parameters) {
    x.push_back(std::log(std::min(first_value(p, start), p.limit)));
  }
  Fitter fitter(cases, start, parameters);
  fitter.check_all_matter(x);
  const Vector best = fitter.fit(x);
  fit.hardware = fitter.device_at(best);
  predict(cases, {{device, fit.hardware}});
  fit.after = errors_of(cases);
  for (std::size_t i = 0; i < best.size(); ++i) {
    const Parameter& p = parameters[i];
    fit.factors.push_back(
        {p.name(), std::exp(x[i]), std::exp(best[i]), best[i] >= std::log(p.limit) - 1e-9});
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
