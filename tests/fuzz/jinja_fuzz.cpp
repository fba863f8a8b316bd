// Any bytes are a template, and at most a hundred of its first bytes also the content of a message: compiling
// and rendering ends with a text or an Error, soon and in bounded memory, and the origins always fit the
// text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "text/jinja.h"

namespace {

using namespace deltatune;  // NOLINT(google-build-using-namespace)

json::Value conversation(const std::string& content) {
  const std::string shown = jinja::invalid_utf8_at(content) == std::string::npos ? content : "text";
  const auto message = [](const char* role, const std::string& text) {
    return json::Value(json::Object{{"role", json::Value(role)}, {"content", json::Value(text)}});
  };
  return json::Value(
      json::Array{message("system", "s"), message("user", shown), message("assistant", shown)});
}

void check(const jinja::Text& text) {
  if (text.flags.size() != text.bytes.size()) std::abort();
  if (jinja::invalid_utf8_at(text.bytes) != std::string::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string source(reinterpret_cast<const char*>(data), size);
  const json::Value messages = conversation(source.substr(0, 100));
  jinja::Limits limits;
  limits.steps = 2000000;
  limits.bytes = 4 << 20;
  try {
    const auto parsed = jinja::Template::compile(source, "fuzz");
    const json::Value tools =
        json::parse(R"([{"name": "f", "n": [1, 2.5, null, true, 99999999999999999999]}])", "t");
    const auto rendered =
        parsed.render(messages, {{"tools", tools, false}, {"eos_token", json::Value("</s>"), true}}, limits);
    check(rendered.text);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;  // an assertion: a finding
  }
  return 0;
}
