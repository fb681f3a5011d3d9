// Any tokenizer.json: it loads or is refused with an Error, and what loads encodes, decodes and
// streams a fixed text without anything but an Error.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/base/error.h"
#include "model/io/text/tokenizer.h"

namespace {

constexpr std::string_view sample =
    "Hello,  world!\n\n  It's 1234 o'clock: \u00E9\u00E9 e\u0301 \u65E5\u672C\u8A9E <s>a b</s> "
    "\U0001F600   \u2581x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcast;
  try {
    const auto tokenizer =
        text::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz.json");
    const std::vector<text::TokenId> ids = tokenizer.encode(sample);
    static_cast<void>(tokenizer.decode(ids));
    text::StreamDecoder stream(tokenizer, text::SpecialTokens::Keep);
    for (const text::TokenId id : ids) static_cast<void>(stream.push(id));
    static_cast<void>(stream.finish());
  } catch (const Error&) {
    // Bad files are refused so.
  }
  return 0;
}
