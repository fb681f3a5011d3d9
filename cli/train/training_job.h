/// A training as it is asked for: what it reads before it begins, or goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "cli/run/run_ranks.h"
#include "model/train/trainer.h"

namespace kvcast::cli {

/// As the user typed them.
struct TrainOptions {
  std::string model;
  std::string random_weights;  ///< a seed
  std::vector<std::string> set;
  std::string method = "plain";
  std::string semantics;
  std::vector<std::string> text;
  std::vector<std::string> validation_text;
  std::string tokenizer;  ///< empty: the model's
  std::string seq_len = "512";
  std::string seed = "1";
  std::string steps = "100";
  std::string batch = "8";
  std::string micro_batches = "1";
  std::string learning_rate = "3e-4";
  std::string last_learning_rate;  ///< empty: a tenth
  std::string warmup;              ///< empty: a tenth of the steps
  std::string weight_decay = "0.1";
  std::string clip = "1";
  std::string z_loss = "0";
  std::string base_weight = "1";
  std::string auxiliary_weight = "1";
  std::string consistency_weight;  ///< empty: 1 over the layers
  std::string recompute = "none";
  std::string loss_chunks = "1";
  std::string output;
  std::string save_every;      ///< empty: at the end
  std::string validate_every;  ///< empty: at the end
  std::string plot;
  bool resume = false;
  bool count = false;
  int threads = 0;
  double wait_limit_s = 600;
  bool json = false;
};

/// What writes checkpoints that any other tool reads.
struct SavedForm {
  nlohmann::json config;
  std::filesystem::path tokenizer;  ///< a folder; empty: none
};

struct TrainingJob {
  Checkpoint base;  ///< whose weights are read, or trained
  train::TrainSettings settings;
  std::uint64_t seq_len = 0;
  std::uint64_t save_every = 0;
  std::uint64_t validate_every = 0;
  std::optional<std::filesystem::path> before;  ///< the checkpoint to go on from
  nlohmann::ordered_json common;  ///< what that one must have been trained with, as text or numbers
  std::string method;
  std::optional<train::TokenWindows> windows;
  std::optional<train::TokenWindows> validation;
  std::unique_ptr<train::Trainer> trainer;
  SavedForm form;
};

/// Reads weights and texts, and takes up a training that was stopped. `ranks`: null, or those that
/// train together. Throws Error.
std::unique_ptr<TrainingJob> prepare_training(const TrainOptions& o, const Globals& globals,
                                              RunRanks* ranks);

}  // namespace kvcast::cli
