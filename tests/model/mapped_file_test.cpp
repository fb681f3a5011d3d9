#include "model/io/tensors/mapped_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"
#include "tests/test_folder.h"

using namespace kvcast;

namespace {

std::string content_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

TEST_CASE("mapped_file: the bytes are the file's, and forgetting them does not change them") {
  const TestFolder folder;
  std::string content(50000, '\0');  // several pages and a part of one
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i % 251);
  std::ofstream(folder / "weights", std::ios::binary) << content;

  const auto file = MappedFile::open(folder / "weights");
  CHECK(file->path() == (folder / "weights").string());
  CHECK(content_of(*file) == content);
  file->forget();
  CHECK(content_of(*file) == content);
  file->expect_look_ups();
  file->forget();
  CHECK(content_of(*file) == content);
}

TEST_CASE("mapped_file: a mapping outlives the file's name") {
  const TestFolder folder;
  std::ofstream(folder / "weights") << "abc";
  const auto file = MappedFile::open(folder / "weights");
  std::filesystem::remove(folder / "weights");
  CHECK(content_of(*file) == "abc");
}

TEST_CASE("mapped_file: an empty file has no bytes") {
  const TestFolder folder;
  std::ofstream(folder / "empty").close();
  const auto file = MappedFile::open(folder / "empty");
  CHECK(file->bytes().empty());
  file->forget();
}

TEST_CASE("mapped_file: a missing file, a folder and a device are refused by name") {
  CHECK(message_of([] { MappedFile::open("/nonexistent/model.gguf"); }) ==
        "/nonexistent/model.gguf: cannot be opened; expected a readable file");
  const TestFolder folder;
  CHECK(message_of([&] { MappedFile::open(folder.path()); }) ==
        folder.path().string() + ": got a folder, expected a file");
  CHECK(message_of([] { MappedFile::open("/dev/null"); }) ==
        "/dev/null: got no regular file, expected a file");
}

TEST_CASE("mapped_file: bytes in memory stand for a file") {
  const auto file = in_memory("xyz", "name");
  CHECK(file->path() == "name");
  CHECK(content_of(*file) == "xyz");
  file->forget();
  CHECK(content_of(*file) == "xyz");
}
