/// The servers that the public benchmark InferenceX measures.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace kvcast::measure {

/// What its scripts ask of a server beyond the engine's defaults: options of `--scheduler`, by the
/// run's nominal lengths and devices.
/// Source: repository SemiAnalysisAI/InferenceX, benchmarks/: 70b_fp8_h100_slurm.sh,
/// 70b_fp8_h200_slurm.sh and 70b_fp8_h200_trt_slurm.sh of commit 9596d23d7 (October 2025),
/// single_node/gptoss_fp4_h200_trt.sh of 20073bafd (April 2026).
std::map<std::string, std::string> inference_x_scheduler(const std::string& engine,
                                                         const std::string& model,
                                                         std::uint64_t prompt_len,
                                                         std::uint64_t output_len,
                                                         std::uint64_t tp);
/// Whether experts in mxfp4 multiply in Marlin's kernels, which are taken to be as fast as with
/// int4. Source: VLLM_MXFP4_USE_MARLIN=1 in single_node/gptoss_fp4_h100.sh and gptoss_fp4_h200.sh.
bool inference_x_uses_marlin(const std::string& engine, const std::string& model);

}  // namespace kvcast::measure
