/// The servers that public benchmarks measure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace kvcast::measure {

/// What InferenceX's scripts ask of a server beyond the engine's defaults: options of
/// `--scheduler`, by the run's nominal lengths and devices. Source: repository
/// SemiAnalysisAI/InferenceX, benchmarks/: 70b_fp8_h100_slurm.sh, 70b_fp8_h200_slurm.sh and
/// 70b_fp8_h200_trt_slurm.sh of commit 9596d23d7 (October 2025), single_node/gptoss_fp4_h200_trt.sh
/// of 20073bafd (April 2026).
std::map<std::string, std::string> inference_x_scheduler(const std::string& engine,
                                                         const std::string& model,
                                                         std::uint64_t prompt_len,
                                                         std::uint64_t output_len,
                                                         std::uint64_t tp);
/// Whether experts in mxfp4 multiply in Marlin's kernels, which are taken to be as fast as with
/// int4. Source: VLLM_MXFP4_USE_MARLIN=1 in single_node/gptoss_fp4_h100.sh and gptoss_fp4_h200.sh.
bool inference_x_uses_marlin(const std::string& engine, const std::string& model);

/// Rows of ai-dynamo/aiconfigurator's silicon_sample.csv: InferenceX's runs and NVIDIA's own, which
/// tables tell apart in other columns.
bool is_in_aiconfigurators_list(const std::string& source);

/// What aiconfigurator writes into the configuration of its servers: options of `--scheduler`, for
/// so many clients and prompts of one length.
/// Source: repository ai-dynamo/aiconfigurator: src/aiconfigurator/cli/backends/trtllm.py of commit
/// 96102834 (August 2025): max_num_tokens; src/aiconfigurator/generator/rule_plugin/ of 07a37792
/// (January 2026): the same of vLLM, max_prefill_tokens and enable_mixed_chunk of SGLang.
std::map<std::string, std::string> aiconfigurator_scheduler(const std::string& engine,
                                                            std::uint64_t clients,
                                                            std::uint64_t prompt_len);

}  // namespace kvcast::measure
