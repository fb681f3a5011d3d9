/// The names that each family's Hugging Face checkpoints give the weights of the forward pass.
#pragma once

#include <string>
#include <string_view>

#include "model/config/architecture.h"
#include "model/io/weights/weight_source.h"

namespace kvcast {

/// Where the weight that the recorder calls `name` ("layers.3.query.weight") lies in a Hugging Face
/// checkpoint of this architecture: fused query-key-value and gate-up tensors are taken apart by
/// rows. Sources: the modelling code of each family in transformers; OpenELM: apple/corenet.
WeightSource huggingface_weight(const Architecture& a, const std::string& name);

/// True for tensors that such checkpoints hold and no forward pass reads: masks, frequency buffers,
/// and copies of a tied weight.
bool is_unused_buffer(const Architecture& a, std::string_view stored_name);

}  // namespace kvcast
