#include "model/io/text/gguf_vocabulary.h"

#include <limits>
#include <string>

#include "model/io/tensors/mapped_file.h"

namespace kvcast::text {
namespace {

class Keys {
 public:
  explicit Keys(const GgufMetadata& metadata) : metadata_(metadata) {}

  static std::string key(std::string_view name) { return "tokenizer.ggml." + std::string(name); }
  bool has(std::string_view name) const { return metadata_.has(key(name)); }

  std::optional<TokenId> id(std::string_view name) const {
    if (!has(name)) return {};
    const std::uint64_t value = metadata_.whole(key(name));
    if (value > std::numeric_limits<TokenId>::max()) {
      metadata_.fail(key(name), std::to_string(value), "a token id");
    }
    return static_cast<TokenId>(value);
  }
  std::optional<bool> flag(std::string_view name) const {
    if (!has(name)) return {};
    return metadata_.flag(key(name));
  }
  std::vector<std::string> texts(std::string_view name) const {
    if (!has(name)) return {};
    const std::vector<std::string_view> views = metadata_.texts(key(name));
    return {views.begin(), views.end()};
  }

 private:
  const GgufMetadata& metadata_;
};

}  // namespace

GgufVocabulary gguf_vocabulary(const GgufFile& file) {
  const GgufMetadata& m = file.metadata;
  const Keys keys(m);
  GgufVocabulary v;
  v.place = file.file->path();
  v.model = m.text(Keys::key("model"));
  v.pre = m.text_or(Keys::key("pre"), "");
  v.tokens = keys.texts("tokens");
  v.merges = keys.texts("merges");
  if (keys.has("scores")) {
    v.scores = m.numbers(Keys::key("scores"));
  }
  if (keys.has("token_type")) {
    for (const std::int64_t type : m.integers(Keys::key("token_type"))) {
      v.types.push_back(static_cast<std::int32_t>(type));
    }
  }
  v.bos = keys.id("bos_token_id");
  v.eos = keys.id("eos_token_id");
  v.eot = keys.id("eot_token_id");
  v.unknown = keys.id("unknown_token_id");
  v.add_bos = keys.flag("add_bos_token");
  v.add_eos = keys.flag("add_eos_token");
  v.add_space_prefix = keys.flag("add_space_prefix");
  return v;
}

}  // namespace kvcast::text
