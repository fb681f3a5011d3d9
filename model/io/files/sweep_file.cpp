#include "model/io/files/sweep_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/base/json_file.h"
#include "model/io/files/atomic_file.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;

fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }

void sync_folder_of(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // the data are safe; only the name could be lost in a power cut
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

void SweepFile::fail(const std::string& what) const {
  throw Error(what + ": " + std::strerror(errno), Fault::Run);
}

SweepFile::SweepFile(int descriptor, std::string name, const SweepIdentity& identity)
    : identity_(identity),
      name_(std::move(name)),
      descriptor_(descriptor),
      owns_descriptor_(false) {
  append(identity_.header);
}

SweepFile::SweepFile(const fs::path& file, const SweepIdentity& identity, bool restart)
    : file_(file), identity_(identity), name_(file.string()) {
  std::error_code ec;
  if (fs::is_directory(file_, ec)) throw Error(name_, "a folder", "a file to write");
  const bool direct = fs::exists(file_, ec) && !fs::is_regular_file(file_, ec);
  try {
    if (direct) {
      descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CLOEXEC);
      if (descriptor_ < 0) fail(name_);
      append(identity_.header);
      return;
    }
    // A link stays a link: the file that it points to is replaced.
    if (fs::is_symlink(file_, ec)) file_ = fs::weakly_canonical(file_, ec);
    partial_ = with_suffix(file_, ".partial");
    journal_ = with_suffix(file_, ".partial.json");
    name_ = partial_.string();
    open_partial();
    keep_or_discard(restart);
    find_rows();
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

void SweepFile::keep_or_discard(bool restart) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail(name_);
  if (status.st_size > 0 && !restart) {
    if (journal_matches()) return;
    throw Error(name_ +
                ": holds rows of a sweep with another grid, shard or other model and "
                "hardware files; finish that one, or pass --restart to discard them");
  }
  if (::ftruncate(descriptor_, 0) != 0) fail(name_);
  try {
    write_journal();
  } catch (...) {
    discard();
    throw;
  }
}

SweepFile::~SweepFile() {
  if (owns_descriptor_ && descriptor_ >= 0) ::close(descriptor_);
}

/// Opened and locked. Between the two another process may have finished and renamed the file, which
/// must not be touched then.
void SweepFile::open_partial() {
  for (;;) {
    descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(name_);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail(name_);
      throw Error(name_ + ": another kvcast is writing it", Fault::Run);
    }
    struct stat opened {};
    struct stat named {};
    if (::fstat(descriptor_, &opened) == 0 && ::stat(partial_.c_str(), &named) == 0 &&
        opened.st_dev == named.st_dev && opened.st_ino == named.st_ino) {
      return;
    }
    ::close(descriptor_);
  }
}

bool SweepFile::journal_matches() const {
  try {
    const nlohmann::json document = read_json_file(journal_);
    const JsonObject journal(document, journal_.string());
    return journal.text("grid") == identity_.grid &&
           journal.whole("first_point", 0) == identity_.first_point &&
           journal.whole("num_points", 0) == identity_.num_points;
  } catch (const Error&) {
    return false;
  }
}

/// Whole before the first row is: a journal without rows is harmless, rows without one are not.
void SweepFile::write_journal() const {
  const nlohmann::ordered_json journal = {{"what", "rows of an unfinished kvcast sweep"},
                                          {"grid", identity_.grid},
                                          {"first_point", identity_.first_point},
                                          {"num_points", identity_.num_points}};
  AtomicFile file(journal_);
  file.write(json_text(journal) + "\n");
  file.sync();
  file.commit();
  sync_folder_of(journal_);
}

/// Counts the complete lines and cuts what follows them.
void SweepFile::find_rows() {
  std::ifstream file(partial_, std::ios::binary);
  if (!file) fail(name_);
  std::uint64_t lines = 0;
  off_t complete = 0;  ///< bytes up to the last line end
  std::string line;
  // What getline finds at the end of the file has no line end: it is empty or a torn row.
  for (; std::getline(file, line) && !file.eof(); ++lines) {
    line += '\n';
    complete += static_cast<off_t>(line.size());
    if (lines == 0 && line != identity_.header) {
      throw Error(name_ +
                  ": its first line is not that of this sweep; pass --restart to discard it");
    }
    if (lines == 0) continue;
    if (!line.ends_with(",\n")) ++errors_found_;  // a row without an error ends in an empty cell
    std::swap(line, last_row_found_);
  }
  if (file.bad() || ::ftruncate(descriptor_, complete) != 0 ||
      ::lseek(descriptor_, complete, SEEK_SET) < 0) {
    fail(name_);
  }
  if (lines == 0) return append(identity_.header);
  rows_found_ = lines - 1;
  has_rows_ = rows_found_ > 0;
  if (rows_found_ > identity_.num_points) {
    throw Error(name_ + ": holds more rows than this sweep has; pass --restart to discard them");
  }
}

void SweepFile::append(std::string_view lines) {
  if (write_all(descriptor_, lines)) {
    has_rows_ = has_rows_ || lines != identity_.header;
    return;
  }
  const std::string reason = std::strerror(errno);
  if (!can_resume()) throw Error(name_ + ": " + reason, Fault::Run);
  if (!has_rows_) {
    discard();
    throw Error(file_.string() + ": " + reason + "; nothing is left behind", Fault::Run);
  }
  throw Error(name_ + ": " + reason + "; it keeps the rows so far, and the same command goes on",
              Fault::Run);
}

void SweepFile::sync() {
  // Pipes and terminals have nothing to sync.
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP) {
    fail(name_);
  }
}

void SweepFile::finish() {
  sync();
  if (!can_resume()) return;
  if (::rename(partial_.c_str(), file_.c_str()) != 0) fail(file_.string());
  ::unlink(journal_.c_str());
  sync_folder_of(file_);
}

void SweepFile::discard() {
  if (!can_resume()) return;
  ::unlink(partial_.c_str());
  ::unlink(journal_.c_str());
}

}  // namespace kvcast
