// Cursors as JSON.
#include "data/row_stream.h"

#include "base/error.h"
#include "base/format.h"

namespace deltatune {

json::Value Cursor::to_json() const {
  json::Value out = json::Object{{"epoch", epoch},
                                 {"row", row},
                                 {"micro_batch", micro_batch},
                                 {"step", step},
                                 {"fingerprint", fingerprint}};
  if (!window.empty()) {
    out.set("file", file);
    out.set("file_row", file_row);
    out.set("window", window);
  }
  return out;
}

Cursor Cursor::from_json(const json::Value& value) {
  constexpr int64_t most = int64_t{1} << 40;
  const auto integer = [&](const char* key) {
    const int64_t number = value.at(key).as_integer();
    if (number >= 0 && number <= most) return number;
    throw Error(ErrorKind::data, format("{} {} is out of range", key, number), "data cursor",
                "the checkpoint is damaged: resume from another one");
  };
  Cursor out;
  out.epoch = integer("epoch");
  out.row = integer("row");
  out.micro_batch = integer("micro_batch");
  out.step = integer("step");
  out.fingerprint = value.at("fingerprint").as_string();
  if (const json::Value* window = value.find("window")) {
    out.window = window->as_string();
    out.file = integer("file");
    out.file_row = integer("file_row");
  }
  return out;
}

}  // namespace deltatune
