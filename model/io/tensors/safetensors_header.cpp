#include "model/io/tensors/safetensors_header.h"

#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/io/tensors/stored_tensor.h"

namespace kvcast {
namespace {

using nlohmann::json;

/// Receives the parser's events. Every event is checked against where it stands, so no depth limit
/// is needed: the fourth level of brackets is an error.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& place) : place_(place) {}

  std::vector<SafetensorsEntry> entries;

  bool start_object(std::size_t) override {
    if (where_ == Where::Document) {
      where_ = Where::Header;
    } else if (where_ == Where::Header) {
      where_ = entry_.name == "__metadata__" ? Where::Metadata : Where::Tensor;
    } else {
      fail("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (where_ == Where::Header) {
      if (!names_.insert(text).second) {
        throw Error(place_, "two entries named " + shortened(text), "each name once");
      }
      entry_ = {};
      entry_.name = text;
      has_ = {};
    } else if (where_ == Where::Metadata) {
      if (!metadata_.insert(text).second) fail("the key " + shortened(text) + " twice");
      key_ = text;
    } else {
      start_field(text);
    }
    return true;
  }

  bool string(std::string& text) override {
    if (where_ == Where::Tensor && key_ == "dtype") {
      entry_.dtype = text;
    } else if (where_ != Where::Metadata) {
      fail("\"" + shortened(text) + "\"");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::Tensor || key_ == "dtype") fail("a list");
    where_ = Where::Numbers;
    num_numbers_ = 0;
    return true;
  }

  bool number_unsigned(json::number_unsigned_t value) override {
    if (where_ != Where::Numbers) fail(std::to_string(value));
    if (key_ == "shape") {
      entry_.shape.push_back(value);
    } else {
      if (num_numbers_ == 2) fail("more than two numbers");
      entry_.data_offsets[num_numbers_] = value;
    }
    ++num_numbers_;
    return true;
  }

  bool end_array() override {
    if (key_ == "data_offsets" && num_numbers_ != 2) fail("one number or none");
    where_ = Where::Tensor;
    return true;
  }

  bool end_object() override {
    if (where_ == Where::Tensor) {
      if (!has_[0] || !has_[1] || !has_[2]) {
        throw Error(place_ + ": tensor " + shortened(entry_.name), "an entry without all of them",
                    "dtype, shape and data_offsets");
      }
      entries.push_back(std::move(entry_));
    }
    where_ = where_ == Where::Header ? Where::Document : Where::Header;
    return true;
  }

  bool null() override { fail("null"); }
  bool boolean(bool value) override { fail(value ? "true" : "false"); }
  bool number_integer(json::number_integer_t value) override { fail(std::to_string(value)); }
  bool number_float(json::number_float_t, const json::string_t& text) override {
    fail(shortened(text));
  }
  bool binary(json::binary_t&) override { fail("bytes"); }  // no JSON has any

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw Error(place_ + ": the header is not valid JSON at its byte " + std::to_string(position));
  }

 private:
  enum class Where { Document, Header, Metadata, Tensor, Numbers };

  void start_field(const std::string& text) {
    static constexpr std::array names{"dtype", "shape", "data_offsets"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (text != names[i]) continue;
      if (has_[i]) fail(text + " twice");
      has_[i] = true;
      key_ = text;
      return;
    }
    throw Error(place_ + ": tensor " + shortened(entry_.name), "the entry " + shortened(text),
                "dtype, shape and data_offsets only");
  }

  [[noreturn]] void fail(const std::string& found) const {
    switch (where_) {
      case Where::Document: throw Error(place_, "a header that is " + found, "a JSON object");
      case Where::Header:
        throw Error(place_ + ": tensor " + shortened(entry_.name), found, "an object");
      case Where::Metadata:
        throw Error(place_ + ": __metadata__", found, "strings by distinct keys");
      case Where::Tensor:
      case Where::Numbers: break;
    }
    throw Error(place_ + ": tensor " + shortened(entry_.name) + ": " + key_, found, expected());
  }

  const char* expected() const {
    if (key_ == "dtype") return "a string";
    if (key_ == "shape") return "a list of whole numbers";
    if (key_ == "data_offsets") return "a list of two whole numbers";
    return "dtype, shape and data_offsets, each once";
  }

  const std::string& place_;
  Where where_ = Where::Document;
  std::string key_;  ///< of the innermost object
  SafetensorsEntry entry_;
  std::array<bool, 3> has_{};
  std::size_t num_numbers_ = 0;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_;
};

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> header,
                                                       const std::string& place) {
  HeaderReader reader(place);
  const auto* text = reinterpret_cast<const char*>(header.data());
  json::sax_parse(text, text + header.size(), &reader);
  return std::move(reader.entries);
}

}  // namespace kvcast
