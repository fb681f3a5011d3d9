/// Writes a file completely or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvcast {

/// A file that appears under its name only when `commit` succeeds. Until then, and if it is dropped
/// first, a file that has the name stays as it was. The bytes go to the same folder, to an unnamed
/// file where the system has those, so that even a kill leaves no file.
///
/// Pipes, terminals and other special files (/dev/stdout, /dev/null) cannot be replaced: they are
/// written directly. So is a redirected /dev/stdout, after what the program already printed.
/// For a symbolic link the file that it points to is replaced. Permissions stay.
///
/// Errors are one line with the path and the reason: Fault::Request when the name cannot be a
/// file's (its folder does not exist, or it is a folder), Fault::Run for everything else (full
/// disk, ...).
class AtomicFile {
 public:
  /// Throws Error when the file cannot be written there.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// As the user spelled it.
  const std::filesystem::path& path() const { return path_; }
  /// Appends; unbuffered. Throws Error.
  void write(std::string_view bytes);
  /// Forces the bytes to the disk, so that a `commit` after it has nothing left to fail but its
  /// rename. Throws Error.
  void sync();
  /// Gives the file its name; nothing can be written after it. Throws Error.
  void commit();

 private:
  void open_temporary();
  void name_temporary();
  [[noreturn]] void fail(int error_number) const;

  std::filesystem::path path_;
  std::filesystem::path target_;     ///< of the last symbolic link
  std::filesystem::path temporary_;  ///< empty while the file has no name
  int descriptor_ = -1;
  bool direct_ = false;
};

/// Writes all bytes to an open descriptor; false with errno set when that fails.
bool write_all(int descriptor, std::string_view bytes);

/// All of `content`, or nothing. Throws Error as AtomicFile does.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Throws Error as AtomicFile does when the file cannot be written, before the work that makes it.
/// Pipes and other special files are not tried: opening one would show at its other end.
void check_writable(const std::filesystem::path& path);

}  // namespace kvcast
