#include "model/base/read_file.h"

#include <array>
#include <fstream>

#include "model/base/error.h"

namespace kvcast {

std::string read_file(const std::filesystem::path& path, std::string_view kind,
                      std::uint64_t most) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) throw Error(path.string(), "a folder", kind);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + ": cannot be opened; expected " + std::string(kind));
  // Piece by piece: a pipe or a device has no size to ask for.
  std::string bytes;
  std::array<char, 1 << 16> piece{};
  while (file.read(piece.data(), piece.size()) || file.gcount() > 0) {
    bytes.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (bytes.size() <= most) continue;
    const std::string mebibytes = std::to_string(most >> 20) + " MiB";
    throw Error(path.string(), "more than " + mebibytes,
                std::string(kind) + " of at most " + mebibytes);
  }
  if (file.bad()) throw Error(path.string() + ": cannot be read", Fault::Run);
  return bytes;
}

}  // namespace kvcast
