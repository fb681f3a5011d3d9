/// The table of flags: each that more than one command takes, with its words told once.
#pragma once

#include <cstddef>
#include <string>

namespace kvcast::cli {

/// What the flag's value names.
enum class Writes { Nothing, File, Picture };

struct FlagWords {
  std::string names;  ///< "--prompt-len,-p"
  std::string value;  ///< "TOKENS"; empty: none, or what the parser makes of its type
  std::string help;
  std::string heading = {};  ///< in --help; empty: the parser's own
  Writes writes = Writes::Nothing;
};

/// The words of a flag as Command::add takes it: "--prompt-len", "--output,-o FILE.json". The table
/// adds what `flag` and `help` leave out.
FlagWords flag_words(const std::string& flag, const std::string& help);

/// The first heading of --help, where flags stand that a command cannot do without.
inline constexpr const char* request_heading = "Request";

/// Where --help shows a heading and, below it, a flag: the most used first. Flags and headings that
/// the table does not know come behind in the order in which a command adds them.
std::size_t heading_rank(const std::string& heading);
std::size_t flag_rank(const std::string& name);
inline constexpr std::size_t unlisted_rank = 1000;
inline constexpr std::size_t last_rank = 1001;

}  // namespace kvcast::cli
