// Reading by std::FILE, in pieces and within bounds.
#include "cli/input_text.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace deltatune::cli {
namespace {

constexpr size_t piece = size_t{1} << 16;

Error unreadable(const std::string& path) {
  return Error(ErrorKind::data, format("cannot be read: {}", std::strerror(errno)), input_name(path),
               "check the path and its permissions");
}

}  // namespace

std::string input_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string read_input(const std::string& path, size_t most) {
  const auto close = [](std::FILE* file) {
    if (file != stdin) std::fclose(file);
  };
  const std::unique_ptr<std::FILE, decltype(close)> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"),
                                                         close);
  if (file == nullptr) throw unreadable(path);
  std::string text;
  std::vector<char> buffer(piece);
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), count);
    if (text.size() > most) {
      throw Error(ErrorKind::data, format("more than {} bytes", most), input_name(path),
                  "give it in several parts");
    }
  }
  if (std::ferror(file.get()) != 0) throw unreadable(path);
  return text;
}

void visit_input_lines(size_t most, const std::function<void(const std::string&, int64_t)>& line) {
  std::string pending;
  int64_t number = 1;
  std::vector<char> buffer(piece);
  const auto add = [&](std::string_view text) {
    pending += text;
    if (pending.size() <= most) return;
    throw Error(ErrorKind::data, format("the line has more than {} bytes", most),
                format("{}, line {}", input_name("-"), number), "cut it in pieces");
  };
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), stdin)) {
    std::string_view rest(buffer.data(), count);
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      add(rest.substr(0, end));
      line(pending, number++);
      pending.clear();
      rest.remove_prefix(end + 1);
    }
    add(rest);
  }
  if (std::ferror(stdin) != 0) throw unreadable("-");
  if (!pending.empty()) line(pending, number);
}

}  // namespace deltatune::cli
