// Any bytes are requests in order of arrival or an Error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "model/base/error.h"
#include "simulate/serving/request_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvcast::simulate::max_request_tokens;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto requests =
        kvcast::simulate::open_requests(std::make_unique<std::istringstream>(bytes), "input");
    double last_s = 0;
    while (const auto request = requests->next()) {
      const bool right = std::isfinite(request->arrival_s) && request->arrival_s >= last_s &&
                         request->prompt_tokens - 1 < max_request_tokens &&
                         request->output_tokens - 1 < max_request_tokens;
      if (!right) std::abort();
      last_s = request->arrival_s;
    }
  } catch (const kvcast::Error&) {
  }
  return 0;
}
