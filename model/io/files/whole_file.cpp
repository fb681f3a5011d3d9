#include "model/io/files/whole_file.h"

#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "model/base/error.h"

namespace kvcast {

std::string read_whole_file(const std::filesystem::path& path, const std::string& place,
                            std::string_view expected) {
  constexpr std::size_t most_bytes = std::size_t{64} << 20;
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) throw Error(place, "a folder", expected);
  std::ifstream file(path, std::ios::binary);
  // Read in parts, since pipes and devices do not know their size.
  std::string bytes;
  std::vector<char> part(std::size_t{1} << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    bytes.append(part.data(), static_cast<std::size_t>(file.gcount()));
    if (bytes.size() > most_bytes) throw Error(place, "more than 64 MiB", "at most 64 MiB");
  }
  if (!file.eof()) throw Error(fmt::format("{}: cannot be read; expected {}", place, expected));
  return bytes;
}

}  // namespace kvcast
