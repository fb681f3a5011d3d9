/// Keys of config.json that change no forward pass.
#pragma once

#include <string_view>

namespace kvcast {

/// True for keys of training, of sampling, of the library that wrote the file, and of parts that a
/// forecast or a run leaves out. A reader that asks for such a key still gets it.
/// Source: transformers 5.23, configuration_utils.py and the configuration classes of the families;
/// tests/oracle/config_classes.json has them all.
bool is_inert_key(std::string_view key);

/// True for keys of rope_parameters and rope_scaling that some rule of rotations has, or that are
/// for images. Source: transformers 5.23, modeling_rope_utils.py.
bool is_rope_key(std::string_view key);

}  // namespace kvcast
