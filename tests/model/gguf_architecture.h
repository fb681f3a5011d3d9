/// The architectures of files that tests write, and why others are refused.
#pragma once

#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/families/config_reader.h"
#include "model/families/gguf_config.h"
#include "model/io/tensors/gguf.h"
#include "tests/model/checkpoint_files.h"
#include "tests/model/message_of.h"

namespace kvcast {

/// Of a decoder_file(), which has no key that nobody knows.
inline Architecture architecture_of(const GgufWriter& w) {
  const Architecture a =
      read_config(gguf_config(read_gguf(in_memory(w.bytes(), "m.gguf"))), "test", "m.gguf");
  for (const std::string& key : a.unknown_keys) FAIL_CHECK(key);
  CHECK(a.decoder.norm_eps == 1e-3);
  return a;
}

/// The message of the error that reading it throws.
inline std::string refusal(const GgufWriter& w) {
  return message_of([&] { architecture_of(w); });
}

}  // namespace kvcast
