// Whatever the bytes are, reading them as a config.json gives a model that can be recorded, or an
// Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/families/config_reader.h"
#include "model/record/recording.h"

using namespace kvcast;

namespace {

constexpr std::size_t max_bytes = 16384;
/// Recording takes time by the layer; each is recorded like the others.
constexpr std::size_t max_recorded_layers = 8;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > max_bytes) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Architecture a = read_config(parse_json(text, "fuzz.json"), "fuzz", "fuzz.json");
    if (a.decoder.layers.size() + a.encoder.layers.size() <= max_recorded_layers) {
      record(a, {}, {});
    }
  } catch (const Error&) {
  }
  return 0;
}
