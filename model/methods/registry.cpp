#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "model/base/error.h"
#include "model/methods/method.h"

// One line for each file of this folder, which defines a function of that name.
#define KVCAST_METHODS(METHOD) \
  METHOD(plain)                \
  METHOD(kvp)                  \
  METHOD(kvr)                  \
  METHOD(lazyllm)              \
  METHOD(mlkv)                 \
  METHOD(random_prune)         \
  METHOD(slim)                 \
  METHOD(specprefill)          \
  METHOD(static_prune)         \
  METHOD(streaming)            \
  METHOD(tsp)

namespace kvcast {

#define KVCAST_DECLARE_METHOD(function) Method function();
KVCAST_METHODS(KVCAST_DECLARE_METHOD)

const std::vector<Method>& methods() {
#define KVCAST_CALL_METHOD(function) function(),
  static const std::vector<Method> all{KVCAST_METHODS(KVCAST_CALL_METHOD)};
  return all;
}

namespace {

struct KindTraits {
  MethodKind kind;
  std::string_view decides;  ///< why there is at most one method of it
};
constexpr KindTraits kinds[] = {
    {MethodKind::Cache, "what the KV cache stores"},
    {MethodKind::Prompt, "which prompt tokens the base model reads"},
    {MethodKind::Source, "where the prompt's cache comes from"},
    {MethodKind::Placement, "which rank reads which tokens"},
};

const KindTraits& traits_of(MethodKind kind) { return kinds[static_cast<std::size_t>(kind)]; }

}  // namespace

const Method& find_method(std::string_view name) {
  std::vector<std::string> known;
  for (const Method& method : methods()) {
    if (method.name == name) return method;
    known.emplace_back(method.name);
  }
  throw unknown_name("method", name, known);
}

namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

MethodSpec parse_method(std::string_view text) {
  const std::size_t colon = text.find(':');
  MethodSpec spec{std::string(text.substr(0, colon)), {}};
  if (spec.name.empty()) {
    throw Error("--method", "an empty method name", "NAME[:KEY=VALUE,...][+NAME...]");
  }
  const Method& method = find_method(spec.name);
  if (colon == std::string_view::npos) return spec;
  for (const std::string_view option : split(text.substr(colon + 1), ',')) {
    const std::size_t equals = option.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == option.size()) {
      throw Error("method " + spec.name, "option '" + std::string(option) + "'", "KEY=VALUE");
    }
    const std::string key(option.substr(0, equals));
    if (std::find(method.options.begin(), method.options.end(), key) == method.options.end()) {
      const std::vector<std::string> known(method.options.begin(), method.options.end());
      if (known.empty())
        throw Error("method " + spec.name + " takes no options; got '" + key + "'");
      throw Error("method " + spec.name, unknown_name("option", key, known));
    }
    for (const auto& [other, value] : spec.options) {
      if (other == key) throw Error("method " + spec.name + ": option '" + key + "' given twice");
    }
    spec.options.emplace_back(key, option.substr(equals + 1));
  }
  return spec;
}

}  // namespace

std::vector<MethodSpec> parse_methods(std::string_view text) {
  std::vector<MethodSpec> specs;
  std::map<MethodKind, std::string> by_kind;
  for (const std::string_view part : split(text, '+')) {
    MethodSpec spec = parse_method(part);
    const MethodKind kind = find_method(spec.name).kind;
    const auto [other, fresh] = by_kind.emplace(kind, spec.name);
    if (!fresh) {
      throw Error(fmt::format(
          "methods '{}' and '{}' cannot be combined: both decide {}; expected one of them",
          other->second, spec.name, traits_of(kind).decides));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::string to_string(const std::vector<MethodSpec>& methods) {
  std::string text;
  for (const MethodSpec& spec : methods) {
    text += (text.empty() ? "" : "+") + spec.name;
    char separator = ':';
    for (const auto& [key, value] : spec.options) {
      text += separator + key + "=" + value;
      separator = ',';
    }
  }
  return text;
}

namespace {

constexpr std::uint64_t max_tokens_option = std::uint64_t{1} << 40;

const std::string* find_option(const MethodSpec& spec, std::string_view key) {
  for (const auto& [name, value] : spec.options) {
    if (name == key) return &value;
  }
  return nullptr;
}

/// The option as a number for which `fits` holds. `form` shows one where it is missing, `expected`
/// says what would fit.
template <typename Number, typename Fits>
Number number_option(const MethodSpec& spec, std::string_view key, std::optional<Number> fallback,
                     const char* form, Fits fits, const std::string& expected) {
  const std::string* text = find_option(spec, key);
  if (text == nullptr && fallback) return *fallback;
  if (text == nullptr) {
    throw Error(fmt::format("method {0}: option '{1}' is missing; expected {0}:{1}={2}", spec.name,
                            key, form));
  }
  Number number{};
  const char* end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || rest != end || !fits(number)) {
    throw Error(fmt::format("method {}: option {}", spec.name, key), "'" + *text + "'", expected);
  }
  return number;
}

}  // namespace

std::string text_option(const MethodSpec& spec, std::string_view key, std::string fallback) {
  const std::string* text = find_option(spec, key);
  return text == nullptr ? fallback : *text;
}

std::string word_option(const MethodSpec& spec, std::string_view key,
                        const std::vector<std::string>& words) {
  const std::string word = text_option(spec, key, words.front());
  if (std::find(words.begin(), words.end(), word) != words.end()) return word;
  throw Error("method " + spec.name, unknown_name(key, word, words));
}

double fraction_option(const MethodSpec& spec, std::string_view key,
                       std::optional<double> fallback) {
  return number_option(
      spec, key, fallback, "F", [](double f) { return f > 0 && f <= 1; },
      "a fraction above 0 and at most 1");
}

double share_option(const MethodSpec& spec, std::string_view key, double fallback) {
  return number_option(
      spec, key, std::optional(fallback), "F", [](double f) { return f >= 0 && f <= 1; },
      "a fraction from 0 to 1");
}

std::uint64_t whole_option(const MethodSpec& spec, std::string_view key, std::uint64_t minimum,
                           std::optional<std::uint64_t> fallback) {
  return number_option(
      spec, key, fallback, "N",
      [&](std::uint64_t n) { return n >= minimum && n <= max_tokens_option; },
      fmt::format("a whole number from {} to {}", minimum, max_tokens_option));
}

}  // namespace kvcast
