#include <algorithm>

#include "model/families/family.h"

// One line for each family, which a function of that name in *_families.cpp describes.
#define KVCAST_FAMILIES(FAMILY) \
  FAMILY(llama)                 \
  FAMILY(mistral)               \
  FAMILY(ministral3)            \
  FAMILY(cwm)                   \
  FAMILY(apertus)               \
  FAMILY(qwen2)                 \
  FAMILY(internlm3)             \
  FAMILY(exaone)                \
  FAMILY(olmo)                  \
  FAMILY(phi3)                  \
  FAMILY(gemma)                 \
  FAMILY(gemma2)                \
  FAMILY(vaultgemma)            \
  FAMILY(gemma3_text)           \
  FAMILY(gemma3n_text)          \
  FAMILY(qwen3)                 \
  FAMILY(olmo2)                 \
  FAMILY(olmo3)                 \
  FAMILY(exaone4)               \
  FAMILY(smollm3)               \
  FAMILY(granite)               \
  FAMILY(granite_swa)           \
  FAMILY(cohere)                \
  FAMILY(cohere2)               \
  FAMILY(starcoder2)            \
  FAMILY(nemotron)              \
  FAMILY(jais2)                 \
  FAMILY(stablelm)              \
  FAMILY(phi)                   \
  FAMILY(glm)                   \
  FAMILY(glm4)                  \
  FAMILY(seed_oss)              \
  FAMILY(ernie4_5)              \
  FAMILY(arcee)                 \
  FAMILY(helium)                \
  FAMILY(mixtral)               \
  FAMILY(qwen2_moe)             \
  FAMILY(qwen3_moe)             \
  FAMILY(qwen3_vl_moe_text)     \
  FAMILY(olmoe)                 \
  FAMILY(flex_olmo)             \
  FAMILY(granitemoe)            \
  FAMILY(granitemoeshared)      \
  FAMILY(granitemoe_swa)        \
  FAMILY(gpt_oss)               \
  FAMILY(llama4_text)           \
  FAMILY(glm4_moe)              \
  FAMILY(minimax_m2)            \
  FAMILY(dots1)                 \
  FAMILY(exaone_moe)            \
  FAMILY(solar_open)            \
  FAMILY(afmoe)                 \
  FAMILY(hy_v3)                 \
  FAMILY(sarvam_moe)            \
  FAMILY(ernie4_5_moe)          \
  FAMILY(hunyuan_v1_dense)      \
  FAMILY(hunyuan_v1_moe)        \
  FAMILY(phimoe)                \
  FAMILY(deepseek_v2)           \
  FAMILY(deepseek_v3)           \
  FAMILY(deepseek_v32)          \
  FAMILY(glm4_moe_lite)         \
  FAMILY(glm_moe_dsa)           \
  FAMILY(mistral4)              \
  FAMILY(sarvam_mla)            \
  FAMILY(minicpm3)              \
  FAMILY(granitemoehybrid)      \
  FAMILY(falcon_h1)             \
  FAMILY(qwen3_next)            \
  FAMILY(qwen3_5_text)          \
  FAMILY(qwen3_5_moe_text)      \
  FAMILY(nemotron_h)            \
  FAMILY(jamba)                 \
  FAMILY(lfm2)                  \
  FAMILY(lfm2_moe)              \
  FAMILY(gpt_neox)              \
  FAMILY(openelm)               \
  FAMILY(falcon)                \
  FAMILY(gpt2)                  \
  FAMILY(opt)                   \
  FAMILY(t5)                    \
  FAMILY(whisper)

namespace kvcast {
namespace families {

#define KVCAST_DECLARE_FAMILY(function) Family function();
KVCAST_FAMILIES(KVCAST_DECLARE_FAMILY)

}  // namespace families

const std::vector<Family>& all_families() {
#define KVCAST_CALL_FAMILY(function) families::function(),
  static const std::vector<Family> all{KVCAST_FAMILIES(KVCAST_CALL_FAMILY)};
  return all;
}

const Family* find_family(std::string_view model_type) {
  for (const Family& family : all_families()) {
    const auto& types = family.model_types;
    if (std::find(types.begin(), types.end(), model_type) != types.end()) return &family;
  }
  return nullptr;
}

TensorNames with(TensorNames names, const TensorNames& changes) {
  for (const auto& [part, stored] : changes) names[part] = stored;
  return names;
}

}  // namespace kvcast
