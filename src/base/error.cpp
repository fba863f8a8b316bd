// Error: kinds, exit codes and the three-line text.
#include "base/error.h"

#include <utility>

namespace deltatune {

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::data:
    case ErrorKind::model:
      return 3;
    case ErrorKind::resource:
      return 4;
    case ErrorKind::distributed:
      return 5;
    case ErrorKind::diverged:
      return 6;
    case ErrorKind::internal:
      return 1;
  }
  return 1;
}

namespace {

// Control characters of names and values as \\xNN: a line of the message stays one line and harmless.
std::string on_one_line(const std::string& text) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return out;
}

}  // namespace

Error::Error(ErrorKind kind, std::string what, std::string where, std::string fix)
    : kind_(kind), what_(std::move(what)), where_(std::move(where)), fix_(std::move(fix)) {}

std::string Error::text() const {
  std::string out = "error: " + on_one_line(what_);
  if (!where_.empty()) out += "\n  where: " + on_one_line(where_);
  if (!fix_.empty()) out += "\n  fix:   " + on_one_line(fix_);
  return out;
}

Error Error::within(std::string_view outer) const {
  std::string where(outer);
  if (!where_.empty()) where += ": " + where_;
  return Error(kind_, what_, std::move(where), fix_);
}

void assertion_failed(const char* condition, const char* file, int line) {
  std::string path(file);
  if (const size_t at = path.rfind("src/"); at != std::string::npos) path = path.substr(at);
  throw Error(ErrorKind::internal, std::string("internal check failed: ") + condition,
              path + ":" + std::to_string(line),
              "this is a bug in deltatune; please report it with the command line");
}

}  // namespace deltatune
