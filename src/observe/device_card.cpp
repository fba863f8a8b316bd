// Reading device cards.
#include "observe/device_card.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/suggest.h"
#include "embedded.h"

namespace deltatune {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

class CardReader {
 public:
  CardReader(const json::Value& object, std::string where) : object_(object), where_(std::move(where)) {}

  std::string text(const char* key) { return field(key).as_string(); }

  double number(const char* key) {
    const json::Value& entry = field(key);
    const double value = entry.at("value").as_number();
    if (!std::isfinite(value) || value <= 0) fail(format("{} must be above 0", key));
    const std::string& kind = entry.at("kind").as_string();
    if (kind != "measured" && kind != "datasheet" && kind != "estimate") {
      fail(format("{} is {}; it must be measured, datasheet or estimate", key, json::quote(kind)));
    }
    card.sources[key] = format("{}: {}", kind, entry.at("where").as_string());
    return value;
  }

  DeviceCard read() {
    card.name = text("name");
    where_ += ", card " + card.name;
    card.title = text("title");
    card.sm = text("sm");
    if (!card.sm.empty() && card.sm_number() == 0)
      fail(format("sm is {}; it must be like 9.0", json::quote(card.sm)));
    if (const json::Value* names = optional("products")) {
      for (const json::Value& name : names->as_array()) card.products.push_back(name.as_string());
    }
    const double memory = number("memory_bytes");
    if (memory > 1e18) fail("memory_bytes is no size of a memory");
    card.memory_bytes = static_cast<int64_t>(memory);
    card.peak_tflops_bf16_dense = number("peak_tflops_bf16_dense");
    card.gemm_tflops = number("gemm_tflops");
    card.copy_gb_s = number("copy_gb_s");
    card.host_link_gb_s = number("host_link_gb_s");
    card.gpu_link_gb_s = number("gpu_link_gb_s");
    card.node_link_gb_s = number("node_link_gb_s");
    card.launch_us = number("launch_us");
    for (const auto& [key, value] : object_.as_object()) {
      if (std::find(read_.begin(), read_.end(), key) == read_.end()) fail(format("unknown key {}", key));
    }
    return std::move(card);
  }

  DeviceCard card;

 private:
  [[noreturn]] void fail(std::string what) const {
    throw Error(ErrorKind::data, "device card: " + std::move(what), where_,
                "see src/observe/devices.json for the form");
  }
  const json::Value* optional(const char* key) {
    read_.emplace_back(key);
    return object_.find(key);
  }
  const json::Value& field(const char* key) {
    const json::Value* value = optional(key);
    if (value == nullptr) fail(format("{} is missing", key));
    return *value;
  }

  const json::Value& object_;
  std::string where_;
  std::vector<std::string> read_;
};

}  // namespace

int DeviceCard::sm_number() const {
  int major = 0;
  int minor = 0;
  char rest = 0;
  if (sm.empty() || sm[0] < '0' || sm[0] > '9') return 0;
  const int fields = std::sscanf(sm.c_str(), "%2d.%1d%c", &major, &minor, &rest);
  return fields == 2 ? major * 10 + minor : 0;
}

std::vector<DeviceCard> parse_device_cards(std::string_view text, std::string_view where) {
  const json::Value root = json::parse(text, where);
  std::vector<DeviceCard> cards;
  try {
    for (const json::Value& entry : root.at("devices").as_array()) {
      cards.push_back(CardReader(entry, std::string(where)).read());
    }
  } catch (const Error& error) {
    if (error.where().empty()) throw error.within(where);
    throw;
  }
  if (cards.empty()) throw Error(ErrorKind::data, "no device card in the file", std::string(where));
  return cards;
}

const std::vector<DeviceCard>& device_cards() {
  static const std::vector<DeviceCard> cards = parse_device_cards(embedded::devices_json(), "devices.json");
  return cards;
}

const DeviceCard* card_of_product(std::string_view product) {
  for (const DeviceCard& card : device_cards()) {
    if (std::find(card.products.begin(), card.products.end(), product) != card.products.end()) return &card;
  }
  return nullptr;
}

DeviceCard device_card(std::string_view name) {
  if (name.ends_with(".json")) return parse_device_cards(read_file(name), name).front();
  std::vector<std::string> names;
  std::string listed;
  for (const DeviceCard& card : device_cards()) {
    if (card.name == lower(name)) return card;
    names.push_back(card.name);
    listed += (listed.empty() ? "" : ", ") + card.name;
  }
  const std::string close = nearest(lower(name), names);
  throw Error(ErrorKind::usage, format("there is no device card {}", json::quote(name)),
              format("known: {}", listed),
              close.empty() ? "give one of these, or the path of a .json file with a card"
                            : format("did you mean {}?", close));
}

}  // namespace deltatune
