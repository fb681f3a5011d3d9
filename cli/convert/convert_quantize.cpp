#include <memory>

#include <fmt/format.h>

#include "cli/convert/convert_options.h"
#include "cli/convert/convert_parts.h"
#include "cli/frame/request_options.h"
#include "model/convert/quantize_conversion.h"

namespace kvcast::cli {
namespace {

struct QuantizeOptions {
  ConvertOptions common;
  std::string type;
  bool requantizes = false;
};

ordered_json row_of(const RetypedTensors& t) {
  return {{"from", t.from},
          {"to", t.to},
          {"tensors", t.tensors},
          {"parameters", t.parameters},
          {"bytes_before", t.bytes_before},
          {"bytes_after", t.bytes_after},
          {"mean_squared_error", t.mean_squared_error()}};
}

ordered_json quantize_json(const QuantizeOptions& o, const QuantizeReport& r) {
  const RetypedTensors all = r.total();
  ordered_json j{{"model", o.common.in},
                 {"output", o.common.out},
                 {"type", o.type},
                 {"parameters", all.parameters},
                 {"bytes_before", all.bytes_before},
                 {"bytes_after", all.bytes_after},
                 {"types", ordered_json::array()},
                 {"copied_files", r.copied_files}};
  for (const RetypedTensors& t : r.types) j["types"].push_back(row_of(t));
  return j;
}

std::string quantize_text(const QuantizeReport& r) {
  ordered_json rows = ordered_json::array();
  for (const RetypedTensors& t : r.types) {
    ordered_json row = row_of(t);
    row["mean_squared_error"] = fmt::format("{:.3g}", t.mean_squared_error());
    rows.push_back(std::move(row));
  }
  const RetypedTensors all = r.total();
  return table_text({{"from", "from"},
                     {"to", "to"},
                     {"tensors", "tensors"},
                     {"parameters", "parameters"},
                     {"bytes before", "bytes_before"},
                     {"bytes after", "bytes_after"},
                     {"mean squared error", "mean_squared_error"}},
                    rows) +
         fmt::format("{} parameters: {} bytes become {}\n", all.parameters, all.bytes_before,
                     all.bytes_after);
}

void convert_quantize(const QuantizeOptions& o, const Globals& globals) {
  QuantizeConversion conversion;
  conversion.type = parse_flag("--type", o.type, parse_quantized_type);
  conversion.requantizes = o.requantizes;
  const QuantizeReport report = with_progress(globals, [&](auto progress) {
    return quantize_checkpoint(o.common.in, o.common.out, conversion, progress);
  });
  print_result(o.common.json, quantize_json(o, report), quantize_text(report));
}

}  // namespace

void add_convert_quantize(Command convert, const Globals& globals) {
  Command c = convert.add_subcommand(
      "quantize",
      "Write a checkpoint in another element type.\n\n"
      "Examples:\n"
      "  kvcast convert quantize weights/gemma-3-270m.gguf gemma-q8_0.gguf --type q8_0 "
      "--allow-requantize\n"
      "  kvcast convert quantize tests/oracle/llama_mha llama-bf16 --type bf16");
  c.footer(
      "Tensors of a GGUF file get the types that llama.cpp gives them, bit for bit as its\n"
      "reference quantises. llama.cpp's convert_hf_to_gguf.py makes a GGUF file of a folder.");
  const auto o = std::make_shared<QuantizeOptions>();
  c.add("IN", o->common.in, "a GGUF file, or a folder with config.json and safetensors").required();
  c.add("OUT", o->common.out,
        "the new GGUF file; of a folder a new folder: config.json, model.safetensors, the "
        "tokenizer's files")
      .required();
  c.add("--type TYPE", o->type,
        "q8_0, q4_0, q4_k_m (Q4_K, Q6_K and others by llama.cpp's rules), bf16 or fp16; of a "
        "folder bf16 or fp16")
      .required();
  c.add("--allow-requantize", o->requantizes,
        "also of a file that is quantised already: its numbers lose more");
  c.add("--json", o->common.json);
  c.callback([o, &globals] { convert_quantize(*o, globals); });
}

}  // namespace kvcast::cli
