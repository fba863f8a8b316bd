// `deltatune plan cfg.yaml [--nproc N] [--nodes M] [--device CARD] [--sweep key=a,b,c] [--scaling]`: 0 fits,
// 4 does not.
#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "cli/verbs.h"
#include "train/plan.h"

namespace deltatune::cli {
namespace {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// The numbers of "max_tokens=8192,16384".
std::pair<std::string, std::vector<int64_t>> parse_sweep(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  std::vector<int64_t> values;
  for (size_t at = equals + 1; equals != std::string::npos && at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    char* end = nullptr;
    const std::string word = text.substr(at, comma - at);
    values.push_back(std::strtoll(word.c_str(), &end, 10));
    if (*end != '\0' || values.back() < 1) values.clear();
    at = comma + 1;
  }
  if (values.empty() ||
      (key != "max_tokens" && key != "nproc" && key != "nodes" && key != "gradient_accumulation_steps")) {
    throw Error(
        ErrorKind::usage, format("cannot sweep \"{}\"", text), "--sweep",
        "write --sweep max_tokens=8192,16384 (or nproc=..., nodes=..., gradient_accumulation_steps=...)");
  }
  return {key, values};
}

int sweep(const Config& config, const ModelSource& source, const std::optional<DeviceCard>& card) {
  const auto [key, values] = parse_sweep(config.sweep);
  json::Array list;
  bool fits = true;
  if (!config.json) {
    print(format("{:>28} {:>12} {:>10} {:>12} {:>14}  {}\n", key, "GiB", "recompute", "roofline ms",
                 "tok/s/device", ""));
  }
  for (const int64_t value : values) {
    Config changed = config;
    if (key == "max_tokens") changed.max_tokens = value;
    if (key == "nproc") changed.nproc = value;
    if (key == "nodes") changed.nodes = value;
    if (key == "gradient_accumulation_steps") changed.gradient_accumulation_steps = value;
    const PlanReport report = make_plan(changed, source, card);
    fits = fits && report.fits();
    list.push_back(report.to_json());
    if (config.json) continue;
    const double seconds = report.seconds() + report.links.exposed_seconds;
    print(format("{:>28} {:>12.3f} {:>10} {:>12} {:>14}  {}\n", value,
                 static_cast<double>(report.memory.total()) / double(1 << 30), report.recompute,
                 card ? format("{:.1f}", seconds * 1e3) : "-",
                 card ? format("{:.0f}", report.tokens_per_second()) : "-",
                 report.fits() ? "fits" : "does not fit"));
  }
  if (config.json) print(json::dump(std::move(list), 2) + "\n");
  return fits ? 0 : 4;
}

}  // namespace

int verb_plan(const Invocation& call) {
  const Config& config = call.config();
  // A folder with weights plans as it is; one with only config.json as a model that starts from the
  // initialiser.
  const fs::path folder = config.model_name_or_path;
  const bool bare =
      !folder.empty() && fs::exists(folder / "config.json") && !HfCheckpoint(folder).has_weights();
  const ModelSource source = open_model(config.model_name_or_path, bare ? "random" : config.init);
  std::optional<DeviceCard> card;
  if (!config.device_card.empty()) card = device_card(config.device_card);
  if (!config.sweep.empty()) return sweep(config, source, card);
  if (config.scaling) {
    if (!card) {
      throw Error(ErrorKind::usage, "a plan of many devices needs a device card", "--scaling",
                  "add --device h200");
    }
    print(scaling_table(config, source, *card, config.nproc > 1 ? static_cast<int>(config.nproc) : 8));
    return 0;
  }
  const PlanReport report = make_plan(config, source, card);
  print(config.json ? json::dump(report.to_json(), 2) + "\n" : report.to_text());
  return report.fits() ? 0 : 4;
}

}  // namespace deltatune::cli
