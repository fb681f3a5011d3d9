#include "model/record/step_recording.h"

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/graph/work.h"
#include "model/io/weights/catalog.h"
#include "tests/model/message_of.h"

using namespace kvcast;

namespace {

Architecture model(const std::string& name) {
  static const Catalog catalog(std::string(KVCAST_SOURCE_DIR) + "/data");
  return load_model(catalog, name);
}

struct Step {
  explicit Step(const std::string& name, const std::vector<MethodSpec>& methods = {},
                const Lowering& lowering = {})
      : recording(record(model(name), methods, lowering, {.chunked = true})),
        sums(add_step(recording)),
        work(total_work(recording.pass(step_name).graph)) {}

  std::uint64_t flops(const std::vector<StepSequence>& s) const {
    return work.flops.at(step_sizes(recording, sums, s));
  }
  std::uint64_t bytes(const std::vector<StepSequence>& s) const {
    return work.bytes().at(step_sizes(recording, sums, s));
  }

  Recording recording;
  StepSums sums;
  Work work;
};

}  // namespace

// Windows (Mistral, Gemma 2), grouped and shared heads, rotary parts, parallel residuals, latents.
TEST_CASE("step: sequences of one length cost what a prefill in chunks does, to the last unit") {
  for (const char* name : {"llama-3.2-1b", "mistral-7b", "gemma2-2b", "pythia-160m", "falcon-7b",
                           "deepseek-v2-lite"}) {
    CAPTURE(name);
    const Step step(name);
    const Work prefill = total_work(step.recording.prefill());
    for (const StepSequence s : {StepSequence{5, 0}, {7, 4093}, {1, 5000}}) {
      const std::vector<StepSequence> all(3, s);
      const auto sizes = step.recording.symbols.resolve({3, s.tokens, s.cached + s.tokens});
      CHECK(step.flops(all) == prefill.flops.at(sizes));
      CHECK(step.bytes(all) == prefill.bytes().at(sizes));
      // Where nothing is said of the sums, they are those of one length.
      CHECK(step.work.flops.at(sizes) == prefill.flops.at(sizes));
      CHECK(step.work.bytes().at(sizes) == prefill.bytes().at(sizes));
    }
  }
}

TEST_CASE("step: unequal sequences cost the sum of each alone, but read the weights once") {
  const Step step("mistral-7b", {{"mlkv", {{"layers", "8"}, {"heads", "4"}}}});
  const std::vector<StepSequence> parts{{512, 0}, {300, 4000}, {1, 977}, {1, 6000}};
  std::uint64_t flops = 0;
  std::uint64_t bytes = 0;
  for (const StepSequence& s : parts) {
    flops += step.flops({s});
    bytes += step.bytes({s});
  }
  const auto one = step_sizes(step.recording, step.sums, std::vector{parts[2]});
  const auto& read = step.work.read[static_cast<std::size_t>(Storage::Weights)];
  // A step reads each row of the embedding that its tokens name: those are no shared reads.
  const std::uint64_t embedding = 4096 * 2;
  const std::uint64_t weights = read.at(one) - embedding;
  CHECK(step.flops(parts) == flops);
  CHECK(step.bytes(parts) == bytes - 3 * weights);
}

TEST_CASE("step: attention's pairs by hand") {
  const Step step("mistral-7b");
  REQUIRE(step.sums.visible.size() == 1);
  const auto& [range, visible] = *step.sums.visible.begin();
  CHECK(range == VisibleRange{4096, 0});
  // 2 tokens after 3 see 4 and 5 keys, of 5; 1 after 9999 sees the last 4096.
  const auto sizes =
      step_sizes(step.recording, step.sums, std::vector<StepSequence>{{2, 3}, {1, 9999}});
  CHECK(sizes[visible.pairs.id] == 4 + 5 + 4096);
  CHECK(sizes[visible.keys.id] == 5 + 4096);
  CHECK(sizes[step.sums.tokens.id] == 3);
  CHECK(sizes[step.sums.cached.id] == 10002);
}

// Llama 4's chunks of 8192: a token may see more keys than a later one.
TEST_CASE("step: sequences before and after a chunk's border are summed") {
  const Step step("llama-4-scout-17b-16e");
  const auto sizes =
      step_sizes(step.recording, step.sums, std::vector<StepSequence>{{1, 8191}, {1, 8192}});
  const auto& visible = step.sums.visible.at({0, 8192});
  CHECK(sizes[visible.pairs.id] == 8192 + 1);
  CHECK(sizes[visible.keys.id] == 8192 + 1);
}

TEST_CASE("step: each token reads a row of a position table") {
  const Step step("gpt2");
  const Graph& graph = step.recording.pass(step_name).graph;
  const auto sizes =
      step_sizes(step.recording, step.sums, std::vector<StepSequence>{{5, 0}, {1, 7}, {1, 3}});
  for (const Node& node : graph.nodes()) {
    if (node.label != "positions") continue;
    CHECK(graph.tensor(node.output()).elements().at(sizes) == (5 + 1 + 1) * 768);
    return;
  }
  FAIL("no positions");
}

TEST_CASE("step: what is not row by row is refused with the operator's name") {
  Lowering eager;
  eager.attention = Kernels::Eager;
  CHECK(message_of([&] { Step("llama-3.2-1b", {}, eager); }).find("attention") !=
        std::string::npos);
  CHECK(message_of([&] { Step("falcon-rw-1b"); }) != "");
}
