/// A file mapped read-only into memory, or bytes that stand for one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvcast {

/// A checkpoint may be larger than memory: the system reads its pages when they are used and drops
/// them when it needs room. If another program cuts the file short while it is mapped, the process
/// ends with SIGBUS.
class MappedFile {
 public:
  /// An empty file gives no bytes. Throws Error naming the file: missing, unreadable, a folder.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  /// The same without a file; `name` stands for the path in errors.
  static std::shared_ptr<const MappedFile> from_bytes(std::string name,
                                                      std::vector<std::byte> bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Drops its pages from memory, once they have been converted. Using them again reads the file
  /// again.
  void forget() const;
  /// From here on few bytes are read here and there: their pages come without neighbours.
  void expect_look_ups() const;

 private:
  MappedFile(std::string path, std::vector<std::byte> owned);
  MappedFile(std::string path, std::span<const std::byte> mapped);
  void advise(int advice) const;

  std::string path_;
  std::vector<std::byte> owned_;
  std::span<const std::byte> bytes_;
  bool mapped_ = false;
};

}  // namespace kvcast
