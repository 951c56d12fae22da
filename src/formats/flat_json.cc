// SPDX-License-Identifier: Apache-2.0
#include "formats/flat_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <utility>

namespace lode {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxDepth = 32;

class Flattener {
 public:
  explicit Flattener(const std::string& origin) { flat_.values = Metadata(origin); }

  Status AddObject(const std::string& prefix, simdjson::dom::object object) {
    for (const auto [key, value] : object) {
      LODE_RETURN_IF_ERROR(AddValue(prefix + std::string(key), value));
    }
    return OkStatus();
  }
  FlatJson Take() { return std::move(flat_); }

 private:
  using Element = simdjson::dom::element;
  using Type = simdjson::dom::element_type;

  Status AddValue(const std::string& key, Element value) {
    switch (value.type()) {
      case Type::OBJECT:
        return AddObject(key + ".", value.get_object().value_unsafe());
      case Type::ARRAY:
        return AddArray(key, value.get_array().value_unsafe());
      case Type::NULL_VALUE:
        flat_.nulls.insert(key);
        return OkStatus();
      case Type::BOOL:
        return flat_.values.Add(key, value.get_bool().value_unsafe());
      case Type::INT64:
        return flat_.values.Add(key, value.get_int64().value_unsafe());
      case Type::UINT64:
        return flat_.values.Add(key, value.get_uint64().value_unsafe());
      case Type::DOUBLE:
        return flat_.values.Add(key, value.get_double().value_unsafe());
      case Type::STRING:
        return flat_.values.Add(key, Own(value.get_string().value_unsafe()));
    }
    return OkStatus();
  }

  Status AddArray(const std::string& key, simdjson::dom::array array) {
    std::vector<int64_t> integers;
    std::vector<double> floats;
    std::vector<std::string_view> strings;
    size_t count = 0;
    for (const Element element : array) {
      ++count;
      if (element.is_bool()) {
        integers.push_back(element.get_bool().value_unsafe() ? 1 : 0);
      } else if (element.is_int64()) {
        integers.push_back(element.get_int64().value_unsafe());
      }
      if (element.is_number()) floats.push_back(element.get_double().value_unsafe());
      if (element.is_string()) strings.push_back(Own(element.get_string().value_unsafe()));
    }
    if (integers.size() == count) return flat_.values.Add(key, std::move(integers));
    if (floats.size() == count) return flat_.values.Add(key, std::move(floats));
    if (strings.size() == count) return flat_.values.Add(key, std::move(strings));
    return OkStatus();
  }

  std::string_view Own(std::string_view text) {
    flat_.strings.push_back(std::make_unique<std::string>(text));
    return *flat_.strings.back();
  }

  FlatJson flat_;
};

}  // namespace

bool FlatJson::HasObject(std::string_view name) const {
  const std::string prefix = std::string(name) + ".";
  const auto it = values.values().lower_bound(prefix);
  return it != values.values().end() && it->first.starts_with(prefix);
}

Result<FlatJson> ParseFlatJson(std::string_view text, const std::string& origin) {
  if (text.size() > kMaxBytes) {
    return CorruptionError(fmt::format("{}: expected at most {} bytes of configuration, found {}",
                                       origin, kMaxBytes, text.size()));
  }
  simdjson::dom::parser parser(kMaxBytes);
  simdjson::error_code error = parser.allocate(text.size(), kMaxDepth);
  simdjson::dom::element root;
  if (!error) error = parser.parse(text.data(), text.size()).get(root);
  if (error) {
    return CorruptionError(fmt::format("{}: expected JSON nested at most {} deep, found: {}",
                                       origin, kMaxDepth, simdjson::error_message(error)));
  }
  simdjson::dom::object object;
  if (root.get(object)) return CorruptionError(origin + ": expected a JSON object");
  Flattener flattener(origin);
  LODE_RETURN_IF_ERROR(flattener.AddObject("", object));
  return flattener.Take();
}

}  // namespace lode
