/// What the program's exit status says.
#pragma once

namespace kvcast::cli {

inline constexpr int exit_failed = 1;         ///< it failed while running
inline constexpr int exit_wrong_request = 2;  ///< the request is wrong
inline constexpr int exit_interrupted = 130;  ///< ended by Ctrl-C or SIGTERM

}  // namespace kvcast::cli
