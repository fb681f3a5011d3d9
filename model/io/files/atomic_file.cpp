#include "model/io/files/atomic_file.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;

constexpr mode_t new_file_mode = 0666;  // less the process's umask

/// Where a name leads: the path at the end of its symbolic links, or an open descriptor of this
/// process.
struct Destination {
  fs::path path;
  int descriptor = -1;
};

[[noreturn]] void fail_writing(const fs::path& path, const std::string& reason, Fault fault) {
  throw Error(path.string() + ": cannot be written: " + reason, fault);
}

[[noreturn]] void fail_request(const fs::path& path, const std::string& reason) {
  fail_writing(path, reason, Fault::Request);
}

/// Follows links one at a time. The last link of /dev/stdout must not be followed: replacing the
/// file that it leads to would lose what else is printed to stdout.
Destination follow(const fs::path& name) {
  constexpr int max_links = 40;  // as the kernel
  fs::path path = name;
  for (int i = 0; i < max_links; ++i) {
    std::error_code error;
    const fs::path given_folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const fs::path folder = fs::canonical(given_folder, error);
    if (error) {
      if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
        fail_request(name, "the folder " + given_folder.string() + " does not exist");
      }
      fail_writing(name, error.message(), Fault::Run);
    }
    path = folder / path.filename();
    if (folder == fs::canonical("/proc/self/fd", error)) {
      const std::string text = path.filename().string();
      int descriptor = -1;
      const auto [end, parse_error] =
          std::from_chars(text.data(), text.data() + text.size(), descriptor);
      if (parse_error == std::errc{} && end == text.data() + text.size()) return {path, descriptor};
    }
    if (!fs::is_symlink(path, error)) return {path};
    const fs::path link = fs::read_symlink(path, error);
    if (error) fail_writing(name, error.message(), Fault::Run);
    path = folder / link;  // `link` alone when it is absolute
  }
  fail_request(name, std::strerror(ELOOP));
}

fs::path temporary_name(const fs::path& target) {
  static std::atomic<unsigned> counter{0};
  return target.parent_path() / (".kvcast-" + std::to_string(::getpid()) + "-" +
                                 std::to_string(counter.fetch_add(1)) + ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  if (path_.empty()) throw Error("output file", "an empty name", "a path");
  if (!path_.has_filename()) fail_request(path_, "it names a folder");
  const Destination destination = follow(path_);
  target_ = destination.path;
  if (destination.descriptor >= 0) {
    direct_ = true;
    descriptor_ = ::fcntl(destination.descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0) fail(errno);
    return;
  }
  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) fail(errno);
  if (exists && S_ISDIR(status.st_mode)) fail_request(path_, "it is a folder");
  if (exists && !S_ISREG(status.st_mode)) {
    direct_ = true;
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail(errno);
    return;
  }
  // A rename would replace a file that its owner has protected against writing.
  if (exists && ::access(target_.c_str(), W_OK) != 0) fail(errno);
  open_temporary();
  if (exists && ::fchmod(descriptor_, status.st_mode & 07777) != 0) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    fail(error);
  }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  KVCAST_ASSERT(descriptor_ >= 0);
  if (!write_all(descriptor_, bytes)) fail(errno);
}

void AtomicFile::sync() {
  KVCAST_ASSERT(descriptor_ >= 0);
  if (direct_) return;
  if (::fsync(descriptor_) != 0) fail(errno);
  if (temporary_.empty()) name_temporary();
}

void AtomicFile::commit() {
  sync();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  if (direct_) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void AtomicFile::open_temporary() {
#ifdef O_TMPFILE
  // Without /proc an unnamed file could never be given a name.
  const bool can_be_named = ::access("/proc/self/fd", X_OK) == 0;
  if (can_be_named)
    descriptor_ =
        ::open(target_.parent_path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, new_file_mode);
  if (descriptor_ >= 0) return;
  const bool unsupported =
      !can_be_named || errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
  if (!unsupported) fail(errno);
#endif
  do {
    const fs::path name = temporary_name(target_);
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, new_file_mode);
    if (descriptor_ >= 0) temporary_ = name;
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail(errno);
}

void AtomicFile::name_temporary() {
  // A link cannot replace an existing file, so an unnamed file gets a name first and is then moved.
  const std::string unnamed = "/proc/self/fd/" + std::to_string(descriptor_);
  while (true) {
    const fs::path name = temporary_name(target_);
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_ = name;
      return;
    }
    if (errno != EEXIST) fail(errno);
  }
}

void AtomicFile::fail(int error_number) const {
  fail_writing(path_, std::strerror(error_number), Fault::Run);
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void check_writable(const fs::path& path) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  const bool special =
      fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
  if (!special) const AtomicFile file(path);
}

}  // namespace kvcast
