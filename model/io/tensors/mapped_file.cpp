#include "model/io/tensors/mapped_file.h"

#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

/// Closed at the end: a mapping outlives the descriptor that made it.
class Descriptor {
 public:
  explicit Descriptor(const char* path) : fd_(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(std::string path, std::vector<std::byte> owned)
    : path_(std::move(path)), owned_(std::move(owned)), bytes_(owned_) {}

MappedFile::MappedFile(std::string path, std::span<const std::byte> mapped)
    : path_(std::move(path)), bytes_(mapped), mapped_(!mapped.empty()) {}

MappedFile::~MappedFile() {
  // munmap takes what mmap gave, which was never const.
  if (mapped_) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor descriptor(path.c_str());
  struct stat status {};
  if (descriptor.get() < 0 || ::fstat(descriptor.get(), &status) != 0) {
    throw Error(path.string() + ": cannot be opened; expected a readable file");
  }
  // A pipe or a device has no size to map.
  if (S_ISDIR(status.st_mode)) throw Error(path.string(), "a folder", "a file");
  if (!S_ISREG(status.st_mode)) throw Error(path.string(), "no regular file", "a file");
  const auto size = static_cast<std::size_t>(status.st_size);
  std::span<const std::byte> mapped;
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
    if (address == MAP_FAILED) {
      throw Error(path.string() + ": " + std::to_string(size) + " bytes cannot be mapped",
                  Fault::Run);
    }
    mapped = {static_cast<const std::byte*>(address), size};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path.string(), mapped));
}

std::shared_ptr<const MappedFile> MappedFile::from_bytes(std::string name,
                                                         std::vector<std::byte> bytes) {
  return std::shared_ptr<const MappedFile>(new MappedFile(std::move(name), std::move(bytes)));
}

void MappedFile::advise(int advice) const {
  // Only advice: when it fails, the pages stay.
  if (mapped_) ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), advice);
}

void MappedFile::forget() const { advise(MADV_DONTNEED); }

void MappedFile::expect_look_ups() const { advise(MADV_RANDOM); }

}  // namespace kvcast
