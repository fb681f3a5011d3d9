/// The grid that a sweep's axes span: every combination, numbered in a fixed order.
///
/// The order is that of the columns, the last one fastest: model, hardware, engine, method,
/// attention, elementwise, dtypes, mode, devices, set, batch, prompt_len, output_len. All sizes of
/// a configuration thus lie together, and each configuration is recorded once.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measure/validation_store.h"
#include "model/io/weights/catalog.h"
#include "reports/sweep/sweep_spec.h"
#include "roofline/estimator.h"

namespace kvcast::reports {

inline constexpr std::uint64_t max_sweep_points = 1'000'000'000;

/// The columns that name a row's configuration and size.
inline constexpr std::string_view sweep_input_columns =
    "model,hardware,engine,method,attention,elementwise,weight_dtype,activation_dtype,cache_dtype,"
    "mode,tp,pp,ep,dp,sequence_parallel,micro_batches,platform,set,batch,prompt_len,output_len";

/// Of these, the columns that SweepGrid::cells fills: those before the sizes.
inline constexpr std::string_view configuration_columns =
    sweep_input_columns.substr(0, sweep_input_columns.find(",batch,prompt_len,output_len"));

/// A CSV cell, in quotes where it holds a comma, a quote or a line end.
std::string csv_cell(std::string_view text);

using RegimeBounds = std::array<measure::BoundOrReason, measure::all_regimes.size()>;

class SweepGrid {
 public:
  /// Throws Error for everything that no row could be about: an unknown model, device, method or
  /// value of an axis, a `set` key that no model has, an axis without effect, more than
  /// max_sweep_points. Combinations that do not fit each other are found when they are evaluated.
  SweepGrid(const SweepSpec& spec, const Catalog& catalog);

  std::uint64_t num_points() const { return num_configurations_ * num_sizes_; }
  std::uint64_t num_configurations() const { return num_configurations_; }
  /// Points of each configuration.
  std::uint64_t num_sizes() const { return num_sizes_; }
  /// Changes with the axes and with the contents of the model, hardware and engine files.
  const std::string& fingerprint() const { return fingerprint_; }

  /// Reads the model. Throws Error when it cannot have the `set` entries of this configuration.
  roofline::Configuration configuration(std::uint64_t index) const;
  /// Of a batch, where they are given.
  std::optional<std::uint64_t> micro_batches(std::uint64_t index) const;
  /// What stored validations say of its calibrated estimates, by regime.
  const RegimeBounds& error_bounds(std::uint64_t index) const;
  /// Of its sizes.
  std::set<measure::Regime> regimes() const;
  /// "llama-7b,a100-80gb,plain,...": its cells of the CSV, up to `set`.
  std::string cells(std::uint64_t index) const;
  /// Those cells one by one, as they are without quotes.
  std::vector<std::string> cell_words(std::uint64_t index) const;
  /// "llama-7b, h100-sxm": the model and what tells it from the grid's other configurations.
  std::string label(std::uint64_t index) const;
  /// Sizes from the `first` on; those of a model whose prompt length is not given have its own.
  void sizes(std::uint64_t first, std::uint64_t own_prompt_len,
             std::span<roofline::DesignPoint> points) const;
  /// The axes with their defaults.
  const SweepSpec& spec() const { return spec_; }

 private:
  /// Which value of each axis a configuration has; one entry for each in `radix_`.
  using Digits = std::vector<std::size_t>;
  Digits digits(std::uint64_t configuration) const;
  /// The word of a fixed axis; empty where an axis follows another one.
  const std::string& word(const Digits& d, std::size_t axis) const { return words_[axis][d[axis]]; }
  Lowering lowering(const Digits& d) const;
  Parallelism parallelism(const Digits& d) const;
  std::vector<ConfigOverride> overrides(const Digits& d) const;
  /// The cells before they are quoted.
  std::vector<std::string> cell_words(const Digits& d) const;
  void check_set() const;
  void count_points();
  void look_up_error_bounds();
  /// What stored error bounds depend on.
  std::string bounds_key(const Digits& d) const;
  std::string make_fingerprint() const;

  Catalog catalog_;
  SweepSpec spec_;  ///< with its defaults filled in
  std::vector<roofline::Hardware> hardware_;
  std::vector<roofline::Engine> engines_;
  struct ModelTypes {
    std::optional<WeightTypes> stored_weights;
    DType all;  ///< without --dtype
    std::optional<DType> stored_operands;
  };
  std::vector<ModelTypes> model_types_;
  /// By axis of `word_axes`, each value in one spelling.
  std::vector<std::vector<std::string>> words_;
  std::map<std::string, RegimeBounds> error_bounds_;  ///< by bounds_key
  RegimeBounds speed_of_light_bounds_;
  std::vector<std::size_t> radix_;  ///< the lengths of the configuration axes
  std::uint64_t num_configurations_ = 0;
  std::uint64_t num_sizes_ = 0;
  std::string fingerprint_;
};

}  // namespace kvcast::reports
