#include "simulate/serving/request_files.h"

#include <fstream>
#include <utility>

#include "model/base/error.h"
#include "simulate/serving/request_lines.h"

namespace kvcast::simulate {

std::unique_ptr<RequestSource> open_requests(const std::filesystem::path& path,
                                             const RequestFileOptions& options) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    throw Error(path.string(), "a folder", "a file of requests");
  }
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!*file) throw Error(path.string() + ": cannot be opened; expected a file of requests");
  return open_requests(std::move(file), path.string(), options);
}

std::unique_ptr<RequestSource> open_requests(std::unique_ptr<std::istream> stream, std::string name,
                                             const RequestFileOptions& options) {
  LineReader lines(std::move(stream), std::move(name));
  std::string_view line;
  if (!lines.next(line)) throw Error(lines.name(), "an empty file", known_request_files);
  lines.repeat();
  const std::size_t first = line.find_first_not_of(" \t");
  const bool json = first != std::string_view::npos && (line[first] == '{' || line[first] == '[');
  return json ? open_json_requests(std::move(lines), options)
              : open_csv_requests(std::move(lines), options);
}

}  // namespace kvcast::simulate
