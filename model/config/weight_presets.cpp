#include <string>

#include "model/config/weight_types.h"

namespace kvcast {
namespace {

/// GGUF: of 8 experts, attention is small beside them and stays wider.
constexpr const char* wide_keys = ",key@8-experts=q8_0,value@8-experts=q8_0";
constexpr const char* wide_attention =
    ",key@8-experts=q8_0,value@8-experts=q8_0,output@8-experts=q5_k";

std::vector<WeightPreset> make_presets() {
  std::vector<WeightPreset> presets;
  // What llama-quantize makes of a model without an importance matrix. A tensor of queries, keys
  // and values together goes as values do. gpt-oss's experts, published in MXFP4, stay so. Falcon's
  // own rules are left out.
  const auto gguf = [&](const char* name, const char* types, const char* wider) {
    presets.push_back({name,
                       std::string(types) + wider +
                           ",norm=fp32,bias=fp32,router=fp32,other=fp32,experts@gpt-oss=mxfp4",
                       "ggml-org/llama.cpp 007dbbf, src/llama-quant.cpp; bits of Llama 3.1 8B in "
                       "tools/quantize/README.md"});
  };
  gguf("q2_k",
       "q2_k,head=q6_k,value=q3_k,value@groups-of-4=q4_k,value@70b=q5_k,down=q3_k,output=q3_k",
       wide_attention);
  gguf("q3_k_s", "q3_k,head=q6_k,value@70b=q5_k", wide_attention);
  gguf("q3_k_m",
       "q3_k,head=q6_k,value=q4_k,value@first-2=q5_k,value@70b=q5_k,down=q4_k,"
       "down@first-sixteenth=q5_k,output=q4_k",
       wide_attention);
  gguf("q3_k_l", "q3_k,head=q6_k,value=q5_k,down=q5_k,output=q5_k", wide_keys);
  gguf("q4_k_s", "q4_k,head=q6_k,value@first-4=q5_k,value@70b=q5_k,down@first-eighth=q5_k",
       wide_attention);
  gguf("q4_k_m",
       "q4_k,head=q6_k,value@70b=q5_k,value@more-bits=q6_k,query@fused@more-bits=q6_k,"
       "key@fused@more-bits=q6_k,down@more-bits=q6_k",
       wide_attention);
  gguf("q5_k_s", "q5_k,head=q6_k", wide_keys);
  gguf("q5_k_m",
       "q5_k,head=q6_k,value@more-bits=q6_k,query@fused@more-bits=q6_k,key@fused@more-bits=q6_k,"
       "down@more-bits=q6_k",
       wide_keys);
  gguf("q6_k", "q6_k", wide_keys);
  gguf("q8_0", "q8_0", "");
  gguf("iq4_xs", "iq4_xs,head=q6_k,value@groups-of-4=q5_k,down@first-eighth=q5_k", wide_attention);
  gguf("iq4_nl", "iq4_nl,head=q6_k,value@groups-of-4=q5_k,down@first-eighth=q5_k", wide_attention);

  // Checkpoints for GPUs keep some weights in 16 bits.
  const auto gpu = [&](const char* name, const char* types, const std::string& wide,
                       const char* source) {
    std::string all = types;
    for (const char* of : {"embedding", "head", "norm", "bias", "router", "other"}) {
      all += "," + std::string(of) + "=" + wide;
    }
    presets.push_back({name, all, source});
  };
  gpu("fp8-block", "fp8_b128", "bf16",
      "deepseek-ai/DeepSeek-V3, config.json (weight_block_size) and README_WEIGHTS.md");
  gpu("fp8-channel", "fp8", "bf16",
      "vllm-project/llm-compressor, examples/quantization_w8a8_fp8 (ignore lm_head); scales, a "
      "number for each row, are not counted");
  gpu("awq", "int4_g128", "fp16", "casper-hansen/AutoAWQ, groups of 128");
  gpu("gptq", "int4_g128", "fp16",
      "AutoGPTQ/AutoGPTQ, groups of 128; g_idx, 4 bytes for each column, is not counted");
  gpu("mxfp4", "mxfp4,attention=bf16,mlp=bf16,shared_expert=bf16", "bf16",
      "openai/gpt-oss-120b, config.json (modules_to_not_convert)");
  gpu("nvfp4", "nvfp4", "bf16", "NVIDIA/TensorRT-Model-Optimizer, NVFP4_DEFAULT_CFG");
  return presets;
}

}  // namespace

const std::vector<WeightPreset>& weight_presets() {
  static const std::vector<WeightPreset> presets = make_presets();
  return presets;
}

}  // namespace kvcast
