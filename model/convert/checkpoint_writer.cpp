#include "model/convert/checkpoint_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/base/units.h"

namespace kvcast {
namespace fs = std::filesystem;
namespace {

constexpr mode_t new_file_mode = 0666;  // less the process's umask
constexpr std::size_t most_written = std::size_t{1} << 14;

/// What tokenizers of Hugging Face folders are made of.
constexpr std::array tokenizer_files{"tokenizer.json",
                                     "tokenizer.model",
                                     "spiece.model",
                                     "tokenizer_config.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "added_tokens.json",
                                     "special_tokens_map.json",
                                     "generation_config.json"};

/// The folder's absolute name. Throws Error unless it can be made.
fs::path check_folder(const fs::path& given) {
  if (given.empty()) throw Error("output folder", "an empty name", "a path");
  std::error_code ec;
  fs::path folder = fs::weakly_canonical(fs::absolute(given), ec);
  if (ec) throw Error(given.string() + ": " + ec.message());
  if (!folder.has_filename()) folder = folder.parent_path();
  if (folder.extension() == ".gguf") {
    throw Error(given.string(), "the name of a file, for a checkpoint in a folder",
                "a name without .gguf");
  }
  if (fs::exists(folder, ec)) {
    const bool empty = fs::is_directory(folder, ec) && fs::is_empty(folder, ec);
    if (!empty || ec) {
      throw Error(given.string(), fs::is_directory(folder) ? "a folder with files in it" : "a file",
                  "a new folder, or an empty one");
    }
  }
  if (!fs::is_directory(folder.parent_path(), ec)) {
    throw Error(given.string() + ": the folder " + folder.parent_path().string() +
                " does not exist");
  }
  return folder;
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path folder, const nlohmann::json& config,
                                   std::vector<TensorToWrite> tensors)
    : folder_(check_folder(folder)),
      config_(json_text(config, 2) + "\n"),
      tensors_(std::move(tensors)) {
  const std::string header = safetensors_header(tensors_);
#ifdef O_TMPFILE
  // A file without a name goes when the process does. Without /proc it could never get one.
  if (::access("/proc/self/fd", X_OK) == 0) {
    descriptor_ =
        ::open(folder_.parent_path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, new_file_mode);
  }
  unnamed_ = descriptor_ >= 0;
#endif
  if (!unnamed_) {
    make_temporary();
    const fs::path file = temporary_ / "model.safetensors";
    descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, new_file_mode);
    if (descriptor_ < 0) {
      const int error = errno;
      std::error_code ec;
      fs::remove_all(temporary_, ec);
      fail(error);
    }
  }
  write_bytes(header.data(), header.size());
}

CheckpointWriter::~CheckpointWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  std::error_code ec;
  if (!temporary_.empty()) fs::remove_all(temporary_, ec);
}

void CheckpointWriter::make_temporary() {
  const fs::path name = folder_.parent_path() /
                        fmt::format(".{}.{}.partial", folder_.filename().string(), ::getpid());
  if (::mkdir(name.c_str(), 0777) != 0) fail(errno);
  temporary_ = name;
}

void CheckpointWriter::write_bytes(const void* bytes, std::size_t count) {
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(descriptor_, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    at += written;
    count -= static_cast<std::size_t>(written);
  }
}

void CheckpointWriter::write(std::span<const double> numbers) {
  while (!numbers.empty()) {
    KVCAST_ASSERT(tensor_ < tensors_.size());
    TensorToWrite& tensor = tensors_[tensor_];
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements = checked_multiply(elements, extent);
    const std::size_t n =
        std::min({most_written, numbers.size(), static_cast<std::size_t>(elements - element_)});
    tensor.data = numbers.first(n);
    const std::string bytes = safetensors_data(tensor, element_);
    write_bytes(bytes.data(), bytes.size());
    numbers = numbers.subspan(n);
    element_ += n;
    if (element_ < elements) continue;
    element_ = 0;
    ++tensor_;
  }
}

std::vector<std::string> CheckpointWriter::copy_tokenizer(const fs::path& from) {
  tokenizer_ = from;
  for (const char* file : tokenizer_files) {
    std::error_code ec;
    if (fs::is_regular_file(from / file, ec)) copied_.emplace_back(file);
  }
  return copied_;
}

void CheckpointWriter::commit(const std::function<void(const fs::path& here)>& beside) {
  KVCAST_ASSERT(tensor_ == tensors_.size());
  if (::fsync(descriptor_) != 0) fail(errno);
  if (temporary_.empty()) make_temporary();
  if (unnamed_) {
    const std::string file = "/proc/self/fd/" + std::to_string(descriptor_);
    const fs::path target = temporary_ / "model.safetensors";
    if (::linkat(AT_FDCWD, file.c_str(), AT_FDCWD, target.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      fail(errno);
    }
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  std::ofstream config(temporary_ / "config.json", std::ios::binary);
  if (!(config << config_).flush()) fail(EIO);
  for (const std::string& file : copied_) {
    std::error_code ec;
    if (!fs::copy_file(tokenizer_ / file, temporary_ / file, ec)) fail(ec.value());
  }
  if (beside) beside(temporary_);
  // Takes the place of an empty folder; anything else that has come there in between stays.
  if (::rename(temporary_.c_str(), folder_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void CheckpointWriter::fail(int error_number) const {
  throw Error(folder_.string() + ": cannot be written: " + std::strerror(error_number), Fault::Run);
}

}  // namespace kvcast
