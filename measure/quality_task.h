/// What a method's quality is measured on: prompts and what follows them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/execute/generate.h"
#include "model/io/text/tokenizer.h"

namespace kvcast::measure {

struct QualitySample {
  std::string task;  ///< "text" or "needle"
  std::string name;  ///< "emma.txt@2048", "depth 0.25"
  std::vector<execute::TokenId> prompt;
  std::vector<execute::TokenId> continuation;  ///< of the text, or the answer
};

struct QualityLengths {
  std::uint64_t prompt_len = 512;
  std::uint64_t continuation_len = 64;  ///< of texts
};

/// `count` windows of a text, evenly spread from its begin to its end, none over another; `prefix`,
/// what the tokenizer puts before every text, stands before each prompt and counts in its length.
/// Throws Error starting with `name` when the text is too short.
std::vector<QualitySample> text_samples(std::span<const execute::TokenId> text,
                                        std::span<const execute::TokenId> prefix,
                                        const std::string& name, const QualityLengths& lengths,
                                        std::uint64_t count);

/// A needle in a haystack: one sentence gives a city's number of five digits, sentences without
/// numbers stand around it, and the prompt ends with the question for it; the number continues it.
/// The needles lie at evenly spread depths, (i + 0.5) / count of the haystack; everything else is
/// drawn from the seed. The task is Kamradt's (github.com/gkamradt/LLMTest_NeedleInAHaystack, 2023)
/// with sentences of our own. Throws Error when prompts are too short for it.
std::vector<QualitySample> needle_samples(const text::Tokenizer& tokenizer,
                                          std::uint64_t prompt_len, std::uint64_t count,
                                          std::uint64_t seed);

}  // namespace kvcast::measure
