#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <doctest/doctest.h>

#include "model/execute/generate.h"
#include "model/graph/work.h"

namespace kvcast::execute {
namespace {

TEST_CASE("readme: a graph, its cost and its run agree") {
  const Checkpoint checkpoint(KVCAST_SOURCE_DIR "/tests/oracle/llama_mha");
  Session session(checkpoint, {.loops = Loops::Counting});

  // 1. A graph: every operator with its operands, shapes in symbols.
  const Graph& decode = session.recording().decode();

  // 2. A cost: exact polynomials, here at batch 1 and 20 tokens in the cache ...
  const Work formula = total_work(decode);
  const auto sizes = session.recording().symbols.resolve({1, 19, 20});
  // ... which a device's rates turn into seconds (roofline/estimator.h).

  // 3. A run: prompt of 19 tokens, one decode step, counted in plain loops.
  Request request;
  request.tokens = {std::vector<TokenId>(19, 7)};
  request.output_len = 2;
  CountedWork counted;
  request.on_node = [&](const Graph& graph, const NodeRun& node, std::span<const std::uint64_t>) {
    if (&graph == &decode) counted += *node.counted;
  };
  session.run(request);

  CHECK(counted.flops == formula.flops.at(sizes));
  CHECK(counted.bytes() == formula.bytes().at(sizes));
}

std::string read_text(const std::string& name) {
  std::ifstream file(KVCAST_SOURCE_DIR "/" + name);
  REQUIRE_MESSAGE(file.good(), name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The code blocks of a document.
std::vector<std::string> code_blocks(const std::string& document) {
  const std::string open = "```cpp\n";
  std::vector<std::string> blocks;
  for (std::size_t at = document.find(open); at != std::string::npos;
       at = document.find(open, at)) {
    at += open.size();
    blocks.push_back(document.substr(at, document.find("```", at) - at));
  }
  return blocks;
}

/// Sources by the ends of their paths: "model/graph/op.h", "graph/op.h", "op.h".
std::set<std::string> source_names() {
  namespace fs = std::filesystem;
  const fs::path root = KVCAST_SOURCE_DIR;
  std::set<std::string> names;
  for (const char* folder : {"cli", "measure", "model", "roofline", "search", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      std::string name = entry.path().lexically_relative(root).string();
      for (std::size_t slash = 0; slash != std::string::npos; slash = name.find('/')) {
        if (slash > 0) name.erase(0, slash + 1);
        names.insert(name);
      }
    }
  }
  return names;
}

TEST_CASE("readme: every source file that model/README.md names is there") {
  const std::string document = read_text("model/README.md");
  const std::set<std::string> sources = source_names();
  const std::regex source(R"([\w/*]+\.(cpp|h)\b)");
  std::size_t named = 0;
  for (std::sregex_iterator at(document.begin(), document.end(), source), end; at != end; ++at) {
    const std::string name = at->str();
    if (name.find('*') != std::string::npos) continue;
    CHECK_MESSAGE(sources.count(name) == 1, name);
    ++named;
  }
  CHECK(named > 30);
}

TEST_CASE("readme: every code block of model/README.md stands in a source file") {
  const std::vector<std::string> sources{
      read_text("model/forward/attention_site.cpp"), read_text("model/families/dense_families.cpp"),
      read_text("model/methods/streaming.cpp"), read_text("tests/execute/readme_test.cpp")};
  const auto blocks = code_blocks(read_text("model/README.md"));
  CHECK(blocks.size() == 4);
  for (const std::string& block : blocks) {
    CAPTURE(block);
    CHECK(std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
      return source.find(block) != std::string::npos;
    }));
  }
}

}  // namespace
}  // namespace kvcast::execute
