#include "measure/benchmark_servers.h"

namespace kvcast::measure {
namespace {

bool is_gpt_oss(const std::string& model) { return model.starts_with("gpt-oss"); }

}  // namespace

std::map<std::string, std::string> inference_x_scheduler(const std::string& engine,
                                                         const std::string& model,
                                                         std::uint64_t prompt_len,
                                                         std::uint64_t output_len,
                                                         std::uint64_t tp) {
  const bool llama = model.starts_with("llama");
  if (engine == "vllm" && llama) return {{"schedules_ahead", "true"}};
  if (engine != "tensorrt-llm") return {};
  if (is_gpt_oss(model)) return {{"max_num_batched_tokens", "20000"}};
  if (!llama) return {};
  const bool waits = prompt_len == 1024 && output_len == 1024 && tp < 8;
  if (!waits) return {{"max_num_batched_tokens", "16384"}};
  return {{"max_num_batched_tokens", "16384"},
          {"batch_wait_max_tokens_ratio", "0.9"},
          {"batch_wait_timeout_iters", "20"}};
}

bool inference_x_uses_marlin(const std::string& engine, const std::string& model) {
  return engine == "vllm" && is_gpt_oss(model);
}

bool is_in_aiconfigurators_list(const std::string& source) {
  return source.find("silicon_sample") != std::string::npos;
}

std::map<std::string, std::string> aiconfigurator_scheduler(const std::string& engine,
                                                            std::uint64_t clients,
                                                            std::uint64_t prompt_len) {
  constexpr std::uint64_t room = 1500;  // tokens
  if (engine == "sglang") {
    return {{"max_num_batched_tokens", std::to_string(prompt_len + room)}, {"mixed_chunk", "true"}};
  }
  if (engine != "vllm" && engine != "tensorrt-llm") return {};
  return {{"max_num_batched_tokens", std::to_string(clients + prompt_len + room)}};
}

}  // namespace kvcast::measure
