/// Finds the catalog's engine that measurements name, in the spelling of their source.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "model/io/weights/catalog.h"

namespace kvcast::measure {

class EngineMatch {
 public:
  explicit EngineMatch(const Catalog& catalog);

  /// What roofline::load_engine takes: "vllm:0.7.3" of "vLLM 0.7.3", or of "vLLM" and "0.7.3";
  /// "llama.cpp:2824" of "4426e298 (2824)", a commit and its build. Where no version can be told
  /// from the words, the month ("2024-06") stands for it, if there is one; "ideal" for engines that
  /// the catalog does not have. Versions of an alias are not the engine's.
  std::string find(std::string_view engine, std::string_view version,
                   std::string_view month = {}) const;

 private:
  std::map<std::string, std::string> names_;  ///< by names and aliases
};

}  // namespace kvcast::measure
