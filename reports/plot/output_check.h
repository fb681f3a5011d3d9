/// Whether results can be written, asked before the work that makes them.
#pragma once

#include <filesystem>
#include <string_view>

namespace kvcast::reports {

/// Throws Error as AtomicFile does when the file cannot be written. Pipes and other special files
/// are believed: opening one would show at its other end.
void check_writable(const std::filesystem::path& path);

/// The same for the files that write_plot writes; throws Error as plot_files does, too.
void check_plot_writable(const std::filesystem::path& picture);

/// A picture's points go to a CSV of its stem: throws Error when that is `file`, which `flag`
/// names, and as plot_files does.
void check_plot_spares(const std::filesystem::path& picture, const std::filesystem::path& file,
                       std::string_view flag);

/// Throws Error when `file`, which `flag` names, is the file that `read_by` reads.
void check_spares_input(const std::filesystem::path& file, const std::filesystem::path& input,
                        std::string_view flag, std::string_view read_by);

/// Throws Error when `file`, which `flag` names, is the folder that a command is about to make.
void check_spares_folder(const std::filesystem::path& file, const std::filesystem::path& folder,
                         std::string_view flag);

}  // namespace kvcast::reports
