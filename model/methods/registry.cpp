#include <algorithm>
#include <charconv>
#include <map>

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

std::string_view name(MethodKind kind) {
  switch (kind) {
    case MethodKind::Prompt: return "prompt";
    case MethodKind::Source: return "source";
    case MethodKind::Cache: return "cache";
    case MethodKind::Placement: return "placement";
  }
  KVCAST_ASSERT(false);
  return {};
}

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

/// What two methods of a kind would both decide.
std::string_view question(MethodKind kind) {
  switch (kind) {
    case MethodKind::Prompt: return "which of the whole prompt's tokens the base reads";
    case MethodKind::Source: return "where the prompt's cache comes from";
    case MethodKind::Cache: return "what is cached of a token";
    case MethodKind::Placement: return "which rank reads which tokens";
  }
  KVCAST_ASSERT(false);
  return {};
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
      throw Error("method " + spec.name + ": " + unknown_name("option", key, known).what());
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
      throw Error("methods '" + other->second + "' and '" + spec.name +
                  "' do not compose: both are of the kind '" + std::string(name(kind)) +
                  "' and say " + std::string(question(kind)) + "; expected at most one of a kind");
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

/// The option's text. Throws Error when it is missing; `form` shows one that would be right.
const std::string& option(const MethodSpec& spec, std::string_view key, std::string_view form) {
  for (const auto& [name, value] : spec.options) {
    if (name == key) return value;
  }
  throw Error("method " + spec.name + ": option '" + std::string(key) + "' is missing; expected " +
              spec.name + ":" + std::string(key) + "=" + std::string(form));
}

/// Parses all of `text`; false when it is no number of that type.
template <typename Number>
bool parse_number(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

double parse_fraction(const MethodSpec& spec, std::string_view key, const std::string& text,
                      bool may_be_zero) {
  double number = 0;
  if (!parse_number(text, number) || !(may_be_zero ? number >= 0 : number > 0) || number > 1) {
    throw Error("method " + spec.name + ": option " + std::string(key), "'" + text + "'",
                may_be_zero ? "a fraction from 0 to 1" : "a fraction above 0 and at most 1");
  }
  return number;
}

}  // namespace

std::string text_option(const MethodSpec& spec, std::string_view key, std::string fallback) {
  for (const auto& [name, value] : spec.options) {
    if (name == key) return value;
  }
  return fallback;
}

double fraction_option(const MethodSpec& spec, std::string_view key) {
  return parse_fraction(spec, key, option(spec, key, "F"), false);
}

std::uint64_t whole_option(const MethodSpec& spec, std::string_view key, std::uint64_t minimum) {
  const std::string& text = option(spec, key, "N");
  std::uint64_t number = 0;
  if (!parse_number(text, number) || number < minimum || number > max_tokens_option) {
    throw Error("method " + spec.name + ": option " + std::string(key), "'" + text + "'",
                "a whole number from " + std::to_string(minimum) + " to " +
                    std::to_string(max_tokens_option));
  }
  return number;
}

std::uint64_t whole_option(const MethodSpec& spec, std::string_view key, std::uint64_t minimum,
                           std::uint64_t fallback) {
  return text_option(spec, key, "").empty() ? fallback : whole_option(spec, key, minimum);
}

double share_option(const MethodSpec& spec, std::string_view key, double fallback) {
  const std::string text = text_option(spec, key, "");
  return text.empty() ? fallback : parse_fraction(spec, key, text, true);
}

double fraction_option(const MethodSpec& spec, std::string_view key, double fallback) {
  return text_option(spec, key, "").empty() ? fallback : fraction_option(spec, key);
}

}  // namespace kvcast
