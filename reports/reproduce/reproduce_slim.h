/// What the tables of the Slim attention paper share; reproduce_slim.cpp lists them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/reproduce/reproduce.h"
#include "reports/reproduce/slim_steps.h"

namespace kvcast::reports {

/// Elements that one token of one sequence adds to the cache and, in encoder-decoder models, one
/// encoder token to the cross-attention cache; all layers, as recorded.
struct CacheElements {
  std::uint64_t per_token = 0;
  std::uint64_t per_encoder_token = 0;
};
CacheElements count_cache(const Architecture& a);

/// OPs per byte: int8 peak over memory bandwidth of a chip of Table 3, "NVIDIA H200".
struct ChipFigures {
  double int8_tops = 0;
  double gb_per_s = 0;

  double intensity() const { return 1000 * int8_tops / gb_per_s; }
};
/// From the catalog's hardware. Throws Error with the nearest name.
ChipFigures chip_figures(const Catalog& catalog, const std::string& printed);

/// One way to run Whisper, in elements.
struct WhisperOption {
  double cache = 0;   ///< of one sequence at full context, all layers
  double params = 0;  ///< that one generated token reads

  /// Read for one token of one sequence, in batches of `batch` that share the parameters.
  double reads(double batch) const { return cache + params / batch; }
};

struct WhisperFigures {
  double parameters = 0;  ///< all of the model
  double encoder_cache = 0;
  double cross_cache = 0;
  double self_cache = 0;
  WhisperOption baseline;
  WhisperOption option_1;  ///< K-caches, V = K·W_KV
  WhisperOption option_2;  ///< E-cache on chip (not counted), K-cache of self-attention
};
/// Section 4's counting rules, on an encoder and a decoder context that are full.
WhisperFigures whisper_figures(const Architecture& a);

/// The table's five sizes and the catalog's models for them. Its "large" has large-v2's vocabulary:
/// section 4 counts 51,865 tokens, and large-v3 has one more.
struct WhisperSize {
  std::string printed;
  std::string model;
};
const std::vector<WhisperSize>& whisper_sizes();

std::vector<ReproducedRow> slim_whisper(const Catalog& catalog);     // reproduce_slim_whisper.cpp
std::vector<ReproducedRow> slim_table2(const Catalog& catalog);      // reproduce_slim_formulas.cpp
std::vector<ReproducedRow> slim_appendix_b(const Catalog& catalog);  // reproduce_slim_formulas.cpp
std::vector<ReproducedRow> slim_equations(const Catalog& catalog);   // reproduce_slim_formulas.cpp
std::vector<ReproducedRow> slim_prose(const Catalog& catalog);       // reproduce_slim_prose.cpp

}  // namespace kvcast::reports
