#include "cli/frame/arguments.h"

#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/frame/flags.h"
#include "model/base/quantity.h"
#include "model/io/files/number_text.h"

namespace kvcast::cli {

namespace {

/// The parser takes hexadecimal, nan and a minus before a count as well. Empty when all is well.
template <typename Value>
std::string is_number(const std::string& text) {
  Value number{};
  bool good = kvcast::parse_number(text, number);
  std::string expected = "a whole number";
  if constexpr (std::is_floating_point_v<Value>) {
    good = good && (number == 0 || is_computable(std::abs(number)));
    expected = computable_range;
  }
  if (good) return {};
  return "got '" + text + "', expected " + expected;
}

}  // namespace

Flag& Flag::required(bool is_required) {
  option_->required(is_required);
  return *this;
}

Flag& Flag::range(int least, int most) {
  const auto check = [least, most](const std::string& text) {
    int number = 0;
    const bool good = kvcast::parse_number(text, number) && number >= least && number <= most;
    if (good) return std::string();
    return fmt::format("got '{}', expected a whole number from {} to {}", text, least, most);
  };
  // transform() puts the check first: it says more than that of the number's type.
  option_->transform(CLI::Validator(check, fmt::format("{}..{}", least, most)));
  return *this;
}

Flag& Flag::positive() {
  option_->check([](const std::string& text) {
    double number = 0;
    const bool good = kvcast::parse_number(text, number) && number > 0;
    return good ? std::string() : "got '" + text + "', expected a number above 0";
  });
  return *this;
}

Flag& Flag::between(double least, double most) {
  option_->check([least, most](const std::string& text) {
    double number = 0;
    const bool good = kvcast::parse_number(text, number) && number >= least && number <= most;
    if (good) return std::string();
    return fmt::format("got '{}', expected a number from {:g} to {:g}", text, least, most);
  });
  return *this;
}

Flag& Flag::group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

Flag& Flag::expected(int least, int most) {
  option_->expected(least, most);
  return *this;
}

Flag& Flag::allow_extra_args(bool allowed) {
  option_->allow_extra_args(allowed);
  return *this;
}

Flag& Flag::writes() {
  rules_of(option_).writes = [](const std::filesystem::path& file) { return std::vector{file}; };
  return *this;
}

Flag& Flag::draws(FilesOf all) {
  rules_of(option_).writes = [all = std::move(all)](const std::filesystem::path& picture) {
    return drawn(all(picture));
  };
  return *this;
}

Flag& Flag::has_keys() {
  rules_of(option_).has_keys = true;
  return *this;
}

Flag& Flag::is_free_text() {
  rules_of(option_).is_free_text = true;
  return *this;
}

bool Flag::is_given() const { return option_->count() > 0; }
std::string Flag::name() const { return option_->get_name(); }
std::string Flag::type_name() const { return option_->get_type_name(); }
std::string Flag::text() const { return option_->as<std::string>(); }

Command Command::add_subcommand(const std::string& name, const std::string& description) {
  return Command(app_->add_subcommand(name, description));
}

template <typename Value>
Flag Command::add(const std::string& flag, Value& value, const std::string& help) {
  const FlagWords words = flag_words(flag, help);
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<Value, bool>) {
    option = app_->add_flag(words.names, value, words.help);
  } else {
    option = app_->add_option(words.names, value, words.help);
    if (!words.value.empty()) option->type_name(words.value);
    if constexpr (std::is_same_v<Value, std::string> || std::is_arithmetic_v<Value>) {
      if (value != Value{}) option->capture_default_str();
    }
    if constexpr (std::is_arithmetic_v<Value>) option->check(is_number<Value>);
    if constexpr (std::is_same_v<Value, std::optional<double>>) option->check(is_number<double>);
  }
  if (!words.heading.empty()) option->group(words.heading);
  Flag added(option);
  if (words.writes == Writes::File) added.writes();
  if (words.writes == Writes::Picture) added.draws();
  return added;
}
template Flag Command::add(const std::string&, bool&, const std::string&);
template Flag Command::add(const std::string&, std::string&, const std::string&);
template Flag Command::add(const std::string&, std::vector<std::string>&, const std::string&);
template Flag Command::add(const std::string&, std::optional<std::string>&, const std::string&);
template Flag Command::add(const std::string&, std::optional<double>&, const std::string&);
template Flag Command::add(const std::string&, int&, const std::string&);
template Flag Command::add(const std::string&, unsigned&, const std::string&);
template Flag Command::add(const std::string&, double&, const std::string&);
template Flag Command::add(const std::string&, std::uint64_t&, const std::string&);

Flag Command::flag(const std::string& name) const { return Flag(app_->get_option(name)); }

void Command::need(const std::vector<std::string>& flags, const std::vector<std::string>& one_of) {
  for (const std::string& flag : flags) rules_of(app_->get_option(flag)).needs = one_of;
}

void Command::exclude(const std::string& flag, const std::vector<std::string>& others,
                      const std::string& why) {
  auto& excludes = rules_of(app_->get_option(flag)).excludes;
  for (const std::string& other : others) excludes.emplace_back(other, why);
}

void Command::footer(const std::string& text) { app_->footer(text); }
void Command::footer(std::function<std::string()> text) {
  // CLI11 puts a line end and the plain footer after it: that is the text's last line.
  app_->footer([app = app_, text = std::move(text)] {
    const std::string all = text();
    const std::size_t last = all.rfind('\n');
    app->footer(last == std::string::npos ? "" : all.substr(last + 1));
    return all.substr(0, last);
  });
}
void Command::callback(std::function<void()> work) {
  app_->callback([app = app_, work = std::move(work)] {
    check_texts(*app);
    check_files(*app);
    work();
  });
}
void Command::require_subcommand(std::size_t least) { app_->require_subcommand(least, 1); }
bool Command::has_subcommand() const { return !app_->get_subcommands().empty(); }

}  // namespace kvcast::cli
