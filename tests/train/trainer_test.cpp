#include "model/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/base/interrupt.h"
#include "model/convert/conversion_source.h"
#include "model/convert/kvp_fit.h"
#include "model/convert/kvp_objective.h"
#include "model/execute/generate.h"
#include "model/execute/machine_probe.h"
#include "model/execute/messenger.h"
#include "model/families/config_reader.h"
#include "tests/test_folder.h"

using namespace kvcast;
using namespace kvcast::train;
namespace fs = std::filesystem;

namespace {

nlohmann::json tiny_config() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 61},
          {"hidden_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 96},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true}};
}

Checkpoint tiny_model() { return Checkpoint(read_config(tiny_config(), "tiny", "tiny.json"), 7); }

TokenWindows text_of(std::size_t tokens, std::size_t seq_len) {
  std::vector<TokenId> ids(tokens);
  std::uint32_t x = 12345;
  for (TokenId& id : ids) {
    x = x * 1664525 + 1013904223;
    id = (x >> 16) % 61;
  }
  return TokenWindows(std::move(ids), seq_len, 3);
}

TrainSettings short_run(std::uint64_t steps) {
  TrainSettings s;
  s.batch = 4;
  s.rate = {.peak = 1e-2, .last = 1e-3, .warmup_steps = 2, .steps = steps};
  return s;
}

std::vector<double> losses_of(Trainer& trainer, TokenWindows& text, std::uint64_t steps) {
  std::vector<double> losses;
  for (std::uint64_t i = 0; i < steps; ++i) losses.push_back(trainer.step(text).loss.sum);
  return losses;
}

}  // namespace

TEST_CASE("learning rate: up in a line, down in half a cosine") {
  const LearningRate rate{.peak = 1, .last = 0.1, .warmup_steps = 4, .steps = 13};
  CHECK(rate.at(0) == 0.25);
  CHECK(rate.at(3) == 1);
  CHECK(rate.at(4) == 1);
  CHECK(rate.at(8) == doctest::Approx(0.55));  // half way
  CHECK(rate.at(12) == doctest::Approx(0.1));
}

TEST_CASE("windows: every epoch reads each once, in an order of its own that repeats") {
  TokenWindows text = text_of(101, 10);
  CHECK(text.size() == 10);
  TokenWindows again = text_of(101, 10);
  std::vector<const TokenId*> first;
  std::vector<const TokenId*> second;
  for (std::uint64_t n = 0; n < 20; ++n) {
    const auto window = text.drawn(n);
    CHECK(window.size() == 11);
    (n < 10 ? first : second).push_back(window.data());
    CHECK(std::equal(window.begin(), window.end(), again.drawn(n).begin()));
  }
  CHECK(std::set(first.begin(), first.end()).size() == 10);
  CHECK(std::set(second.begin(), second.end()).size() == 10);
  CHECK(first != second);
  CHECK(text_of(102, 10).size() == 10);  // the rest is no window
  CHECK_THROWS_AS(text_of(10, 10), Error);
}

TEST_CASE("trainer: one batch is learned by heart") {
  const Checkpoint model = tiny_model();
  TokenWindows text = text_of(65, 16);
  Trainer trainer(model, {}, short_run(200));
  const double before = trainer.loss_of(text).sum;
  CHECK(std::abs(before - std::log(61)) < 1);  // knows nothing
  const std::vector<double> losses = losses_of(trainer, text, 200);
  CHECK(losses.back() < 0.05);
  CHECK(trainer.loss_of(text).sum < 0.05);
}

TEST_CASE("trainer: an epoch reads every window once") {
  const Checkpoint model = tiny_model();
  TokenWindows text = text_of(24 * 16 + 1, 16);
  TrainSettings s = short_run(6);
  s.rate = {.peak = 1e-30, .last = 1e-30, .steps = 6};  // nothing is learned in between
  s.weight_decay = 0;
  Trainer trainer(model, {}, s);
  double sum = 0;
  for (const double loss : losses_of(trainer, text, 6)) sum += loss;
  CHECK(sum / 6 == doctest::Approx(trainer.loss_of(text).sum).epsilon(1e-6));
}

TEST_CASE("trainer: the same for any number of threads") {
  std::vector<std::vector<double>> runs;
  for (const int threads : {1, 2}) {
    execute::use_threads(threads);
    const Checkpoint model = tiny_model();
    TokenWindows text = text_of(400, 16);
    Trainer trainer(model, {}, short_run(6));
    runs.push_back(losses_of(trainer, text, 6));
  }
  CHECK(runs[0] == runs[1]);
}

TEST_CASE("trainer: recomputation changes nothing, micro-batches and chunks but rounding") {
  const auto run = [](Recompute recompute, std::uint64_t micro_batches,
                      std::uint64_t loss_chunks = 1) {
    TrainSettings s = short_run(5);
    s.loss_chunks = loss_chunks;
    s.recompute = recompute;
    s.micro_batches = micro_batches;
    const Checkpoint model = tiny_model();
    TokenWindows text = text_of(400, 16);
    Trainer trainer(model, {}, s);
    return losses_of(trainer, text, 5);
  };
  const std::vector<double> plain = run(Recompute::None, 1);
  CHECK(run(Recompute::Full, 1) == plain);
  const std::vector<double> four = run(Recompute::None, 4);
  const std::vector<double> chunks = run(Recompute::None, 1, 5);
  CHECK(chunks != plain);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(four[i] == doctest::Approx(plain[i]).epsilon(1e-4));
    CHECK(chunks[i] == doctest::Approx(plain[i]).epsilon(1e-4));
  }
}

TEST_CASE("trainer: resumed training goes on bit for bit, from a checkpoint that others read") {
  const TestFolder folder;
  const Checkpoint model = tiny_model();
  TokenWindows text = text_of(400, 16);
  Trainer whole(model, {}, short_run(8));
  const std::vector<double> expected = losses_of(whole, text, 8);

  TokenWindows again = text_of(400, 16);
  {
    Trainer first(model, {}, short_run(8));
    losses_of(first, again, 3);
    first.save(folder / "saved", tiny_config(), {}, {{"settings", nlohmann::json::object()}});
  }
  CHECK(read_progress(folder / "saved").at("steps") == 3);
  const Checkpoint saved(folder / "saved");
  Trainer second(saved, {}, short_run(8));
  second.restore(folder / "saved");
  CHECK(second.steps_done() == 3);
  const std::vector<double> rest = losses_of(second, again, 5);
  CHECK(rest == std::vector<double>(expected.begin() + 3, expected.end()));

  // The folder is an ordinary checkpoint: its logits give the loss that the trainer has.
  Trainer third(saved, {}, short_run(8));
  const double loss = third.loss_of(text).sum;
  const execute::Session session(saved, {.logits = Logits::All});
  double sum = 0;
  for (std::size_t w = 0; w < text.size(); ++w) {
    const auto window = text.window(w);
    execute::Request request;
    request.tokens = {{window.begin(), window.end() - 1}};
    const execute::Generation g = session.run(request);
    for (std::size_t t = 0; t < 16; ++t) {
      const std::span<const float> row = std::span(g.logits).subspan(t * 61, 61);
      const double peak = *std::max_element(row.begin(), row.end());
      double exponentials = 0;
      for (const float x : row) exponentials += std::exp(x - peak);
      sum += peak + std::log(exponentials) - row[window[t + 1]];
    }
  }
  CHECK(loss == doctest::Approx(sum / static_cast<double>(16 * text.size())).epsilon(1e-5));
}

TEST_CASE("trainer: a loss or a gradient that is not finite ends the training") {
  const auto message = [](double rate, double z_loss, execute::Messenger* messenger = nullptr) {
    const Checkpoint model = tiny_model();
    TokenWindows text = text_of(400, 16);
    TrainSettings s = short_run(30);
    s.rate.peak = rate;
    s.z_loss = z_loss;
    s.clip = z_loss > 0 ? 1 : 0;
    Trainer trainer(model, {}, s, messenger);
    try {
      losses_of(trainer, text, 30);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string hint = "; expected finite numbers, such as ";
  // Of weights of about 1e18 come queries and keys of about 1e19, whose products are beyond fp32.
  CHECK(message(1e18, 0) ==
        "step 2: the loss is not finite; the first such result is that of layer 0, attention" +
            hint + "with a lower learning rate");
  // The first step has not moved the weights. 1e38 times the square of about ln 61.
  const std::string of_loss =
      "step 1: the loss is not finite; the first such result is that of loss" + hint +
      "of other weights";
  const std::string of_z_loss = of_loss + ", or of a smaller --z-loss";
  CHECK(message(1e-3, 1e38) == of_z_loss);
  // Of two ranks the first one's own loss is finite.
  execute::Mailboxes mailboxes(2, 60);
  std::array<std::string, 2> of_ranks;
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back(
        [&, r] { of_ranks[r] = message(1e-3, r == 0 ? 0 : 1e38, mailboxes.messenger(r).get()); });
  }
  threads.clear();
  CHECK(of_ranks[0] == of_loss);
  CHECK(of_ranks[1] == of_z_loss);
  // A loss of about 1e36, whose gradient's squares are beyond fp32.
  const std::string gradient = message(1e-3, 1e35);
  CHECK(gradient.find("step 1: the gradient of ") == 0);
}

TEST_CASE("trainer: ranks train as one process does, alike to the last bit") {
  const Checkpoint model = tiny_model();
  TokenWindows text = text_of(400, 16);
  TrainSettings settings = short_run(5);
  settings.micro_batches = 2;
  Trainer alone(model, {}, short_run(5));
  const std::vector<double> expected = losses_of(alone, text, 5);
  const double validation = alone.loss_of(text).sum;
  for (const std::size_t ranks : {std::size_t{2}, std::size_t{1}}) {
    execute::Mailboxes mailboxes(ranks, 60);
    std::vector<std::vector<double>> losses(ranks);
    std::vector<double> validations(ranks);
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        const auto messenger = mailboxes.messenger(r);
        TokenWindows own = text_of(400, 16);
        Trainer trainer(model, {}, settings, messenger.get());
        losses[r] = losses_of(trainer, own, 5);
        validations[r] = trainer.loss_of(own).sum;
      });
    }
    threads.clear();
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(losses[0][i] == doctest::Approx(expected[i]).epsilon(1e-4));
    }
    CHECK(losses.front() == losses.back());
    CHECK(validations.front() == validations.back());
    CHECK(validations[0] == doctest::Approx(validation).epsilon(1e-4));
  }
}

TEST_CASE(
    "trainer: a step that one rank stops is none on all, and the next ones go on from there") {
  const Checkpoint model = tiny_model();
  for (const std::size_t ranks : {1U, 3U}) {
    CAPTURE(ranks);
    std::vector<std::vector<double>> losses(2 * ranks);
    std::vector<int> stopped(ranks, 0);
    for (const bool stops : {false, true}) {
      execute::Mailboxes mailboxes(ranks, 60);
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < ranks; ++r) {
        threads.emplace_back([&, r, stops] {
          const auto messenger = mailboxes.messenger(r);
          TokenWindows own = text_of(400, 16);
          Trainer trainer(model, {}, short_run(4), messenger.get());
          std::vector<double>& own_losses = losses[r + (stops ? ranks : 0)];
          own_losses = losses_of(trainer, own, 2);
          // In the middle of the way back; one rank alone says so, and another one in a validation.
          const auto stop = [&](std::size_t rank, std::size_t operators, const auto& work) {
            trainer.stop_when(
                [=, count = std::size_t{0}]() mutable { return r == rank && ++count > operators; });
            try {
              work();
            } catch (const Interrupted&) {
              ++stopped[r];
            }
            trainer.stop_when(nullptr);
          };
          if (stops) {
            stop(ranks - 1, 60, [&] { trainer.step(own); });
            stop(0, 5, [&] { trainer.loss_of(own); });
          }
          if (trainer.steps_done() != 2) stopped[r] = -1;
          for (const double loss : losses_of(trainer, own, 2)) own_losses.push_back(loss);
        });
      }
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      CHECK(stopped[r] == 2);
      CHECK(losses[r] == losses[r + ranks]);
    }
  }
}

TEST_CASE("trainer: KV Prediction trains the auxiliary model and the maps, and resumes") {
  const TestFolder folder;
  const fs::path oracle = KVCAST_SOURCE_DIR "/tests/oracle";
  const Checkpoint base(oracle / "openelm");
  const Checkpoint auxiliary(oracle / "kvp" / "auxiliary");
  const auto kvp = [](const fs::path& model, const fs::path& predictor) {
    return std::vector<MethodSpec>{
        {"kvp", {{"auxiliary", model.string()}, {"predictor", predictor.string()}}}};
  };
  const auto given = kvp(oracle / "kvp" / "auxiliary", oracle / "kvp" / "predictor");
  TrainSettings settings = short_run(6);
  settings.consistency_loss = 0.25;
  settings.z_loss = 1e-4;
  TokenWindows text = text_of(400, 16);
  std::vector<TokenId> ids;
  for (std::size_t w = 0; w < text.size(); ++w) {
    ids.insert(ids.end(), text.window(w).begin(), text.window(w).end() - 1);
  }
  ids.push_back(text.window(text.size() - 1).back());

  Trainer whole(base, given, settings);
  // The objective, as the passes of inference compute it.
  const KvpObjective before =
      kvp_objective(base, auxiliary, given[0].options[0].second, given[0].options[1].second, ids,
                    16, {.consistency = 0.25, .z_loss = 0});
  const Loss start = whole.loss_of(text);
  CHECK(start.sum == doctest::Approx(before.total).epsilon(1e-6));
  using Names = std::vector<std::string>;
  REQUIRE(whole.loss_parts() ==
          Names{"auxiliary_loss", "base_loss", "key_consistency", "value_consistency"});
  CHECK(start.parts[0] == doctest::Approx(before.auxiliary.cross_entropy).epsilon(1e-6));
  CHECK(start.parts[1] == doctest::Approx(before.base.cross_entropy).epsilon(1e-6));
  CHECK(start.parts[2] + start.parts[3] == doctest::Approx(before.consistency).epsilon(1e-6));

  const std::vector<double> expected = losses_of(whole, text, 6);
  CHECK(whole.loss_of(text).sum < start.sum);
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    TrainSettings other = settings;
    other.recompute = recompute;
    TokenWindows same = text_of(400, 16);
    Trainer recomputing(base, given, other);
    CHECK(losses_of(recomputing, same, 6) == expected);
  }
  TrainSettings in_chunks = settings;
  in_chunks.loss_chunks = 3;
  TokenWindows same_text = text_of(400, 16);
  Trainer chunked(base, given, in_chunks);
  CHECK(chunked.loss_parts() == whole.loss_parts());
  const std::vector<double> losses = losses_of(chunked, same_text, 6);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  }
  TokenWindows again = text_of(400, 16);
  {
    Trainer first(base, given, settings);
    losses_of(first, again, 2);
    first.save(folder / "saved", source_config(first.trained(), DType::FP32), {}, {});
  }
  Trainer second(base, kvp(folder / "saved", folder / "saved" / predictor_folder), settings);
  second.restore(folder / "saved");
  CHECK(losses_of(second, again, 4) == std::vector<double>(expected.begin() + 2, expected.end()));
}

TEST_CASE("trainer: an auxiliary model that is the base, with maps that change nothing") {
  const TestFolder folder;
  const fs::path path = fs::path(KVCAST_SOURCE_DIR) / "tests/oracle/openelm";
  const Checkpoint base(path);
  write_identity_predictor(base, base, folder / "same", {.map = {0, 1, 2}});
  TokenWindows text = text_of(400, 16);
  Trainer trainer(base, {{"kvp", {{"auxiliary", path}, {"predictor", folder / "same"}}}},
                  short_run(1));
  const Loss loss = trainer.loss_of(text);
  Trainer plain(base, {}, short_run(1));
  CHECK(loss.parts[0] == doctest::Approx(plain.loss_of(text).sum).epsilon(1e-7));
  CHECK(loss.parts[1] == doctest::Approx(loss.parts[0]).epsilon(1e-7));
  CHECK(loss.parts[2] == 0);
  CHECK(loss.parts[3] == 0);
}
