#include "model/io/files/atomic_file.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/io/files/csv_writer.h"
#include "tests/test_folder.h"

namespace kvcast {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What the action throws; fails the test when it throws nothing.
template <typename Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  }
  FAIL("no error");
  return Error("");
}

}  // namespace

TEST_CASE("atomic file: an existing file stays as it was until commit") {
  const TestFolder folder;
  write_file(folder / "a.csv", "old");
  AtomicFile file(folder / "a.csv");
  file.write("new, ");
  file.write("and longer");
  CHECK(content(folder / "a.csv") == "old");
  file.sync();
  CHECK(content(folder / "a.csv") == "old");
  file.commit();
  CHECK(content(folder / "a.csv") == "new, and longer");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("atomic file: a file that is dropped before commit leaves nothing behind") {
  const TestFolder folder;
  {
    AtomicFile file(folder / "a.csv");
    file.write("half");
  }
  CHECK(folder.num_files() == 0);
  {
    AtomicFile file(folder / "a.csv");
    file.write("half");
    file.sync();
  }
  CHECK(folder.num_files() == 0);
}

TEST_CASE("atomic file: a full disk is an error of the run, in one line with path and reason") {
  const Error e = error_of([] { write_file("/dev/full", "x"); });
  CHECK(e.fault() == Fault::Run);
  CHECK(std::string(e.what()) == "/dev/full: cannot be written: No space left on device");
}

TEST_CASE("atomic file: special files are written directly") {
  CHECK_NOTHROW(write_file("/dev/null", "gone"));
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("atomic file: a redirected stream is written after what it already holds") {
  // As `kvcast ... --csv /dev/stdout > out.csv`: a rename over out.csv would lose "before".
  const TestFolder folder;
  const int descriptor = ::open((folder / "out.csv").c_str(), O_WRONLY | O_CREAT, 0600);
  REQUIRE(descriptor >= 0);
  REQUIRE(::write(descriptor, "before\n", 7) == 7);
  write_file("/dev/fd/" + std::to_string(descriptor), "after\n");
  REQUIRE(::write(descriptor, "end\n", 4) == 4);
  ::close(descriptor);
  CHECK(content(folder / "out.csv") == "before\nafter\nend\n");
}

TEST_CASE("atomic file: a name that cannot be a file's is an error of the request") {
  const TestFolder folder;
  const fs::path missing = folder / "missing";
  const Error no_folder = error_of([&] { write_file(missing / "a.csv", "x"); });
  CHECK(no_folder.fault() == Fault::Request);
  CHECK(std::string(no_folder.what()) == (missing / "a.csv").string() +
                                             ": cannot be written: the folder " + missing.string() +
                                             " does not exist");
  CHECK(error_of([&] { write_file(folder / ".", "x"); }).fault() == Fault::Request);
  CHECK(error_of([&] { write_file(folder / "", "x"); }).fault() == Fault::Request);
  CHECK(error_of([&] { write_file("", "x"); }).fault() == Fault::Request);
}

TEST_CASE("atomic file: a folder without write permission is an error of the run") {
  const TestFolder folder;
  fs::create_directory(folder / "locked");
  fs::permissions(folder / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  if (::geteuid() == 0) {
    MESSAGE("skipped: root may write everywhere");
  } else {
    CHECK(error_of([&] { write_file(folder / "locked" / "a.csv", "x"); }).fault() == Fault::Run);
  }
}

TEST_CASE("atomic file: a symbolic link stays and its file is replaced") {
  const TestFolder folder;
  fs::create_directory(folder / "data");
  write_file(folder / "data" / "a.csv", "old");
  fs::create_symlink("data/a.csv", folder / "link.csv");
  write_file(folder / "link.csv", "new");
  CHECK(fs::is_symlink(folder / "link.csv"));
  CHECK(content(folder / "data" / "a.csv") == "new");

  fs::create_symlink("link.csv", folder / "self.csv");
  fs::remove(folder / "link.csv");
  fs::create_symlink("self.csv", folder / "link.csv");
  CHECK(error_of([&] { write_file(folder / "self.csv", "x"); }).fault() == Fault::Request);
}

TEST_CASE("atomic file: a replaced file keeps its permissions, a new one has the usual ones") {
  const TestFolder folder;
  const mode_t mask = ::umask(027);
  write_file(folder / "a.csv", "x");
  CHECK(fs::status(folder / "a.csv").permissions() == fs::perms(0640));
  fs::permissions(folder / "a.csv", fs::perms(0600));
  write_file(folder / "a.csv", "y");
  CHECK(fs::status(folder / "a.csv").permissions() == fs::perms(0600));
  ::umask(mask);
}

TEST_CASE("csv writer: cells are quoted where RFC 4180 asks for it, and only there") {
  CsvText csv;
  csv.cell("a b").cell("a,b").cell("say \"x\"").cell("two\nlines").cell("").end_row();
  CHECK(csv.text() == "a b,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\n");
}

TEST_CASE("csv writer: numbers are the shortest that read back the same") {
  CsvText csv;
  csv.cell(0.1).cell(1.0 / 3).cell(100000.0).cell(1e15).cell(-2.5e-9).cell(7).cell(true).end_row();
  CHECK(csv.text() == "0.1,0.3333333333333333,100000,1e+15,-2.5e-09,7,true\n");
  csv.clear();
  csv.cell(std::numeric_limits<std::uint64_t>::max())
      .cell(std::numeric_limits<std::int64_t>::min())
      .cell(std::numeric_limits<double>::quiet_NaN())
      .cell(std::numeric_limits<double>::infinity())
      .cell(std::numeric_limits<double>::max())
      .missing_cell()
      .cell(-0.0)
      .end_row();
  CHECK(csv.text() ==
        "18446744073709551615,-9223372036854775808,,inf,1.7976931348623157e+308,,0\n");
}

TEST_CASE("csv writer: the file appears with header and rows at commit") {
  const TestFolder folder;
  CsvWriter csv(folder / "a.csv", {"model", "ttft_s"});
  for (int i = 0; i < 50000; ++i) {
    csv.cell("llama-7b").cell(0.5 + i);
    csv.end_row();
  }
  CHECK_FALSE(fs::exists(folder / "a.csv"));
  csv.commit();
  const std::string text = content(folder / "a.csv");
  CHECK(text.starts_with("model,ttft_s\nllama-7b,0.5\nllama-7b,1.5\n"));
  CHECK(text.ends_with("llama-7b,49999.5\n"));
}

TEST_CASE("csv writer: a full disk is an error") {
  CsvWriter csv("/dev/full", {"a"});
  csv.cell(1);
  csv.end_row();
  CHECK(error_of([&] { csv.commit(); }).fault() == Fault::Run);
}

}  // namespace kvcast
