// Reading lengths line by line.
#include "data/lengths_file.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deltatune {
namespace {

constexpr size_t longest_line = 200;
constexpr size_t most_lengths = size_t{1} << 27;
constexpr int64_t most_lines = int64_t{1} << 28;  // comments and blank lines included

std::string_view trimmed(std::string_view line) {
  line = line.substr(0, line.find('#'));
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
  return line;
}

// Takes lines as they come.
class LengthLines {
 public:
  LengthLines(const fs::path& path, int64_t max_tokens) : path_(path), max_tokens_(max_tokens) {}

  void take(std::string_view line) {
    if (++number_ > most_lines) fail("the file has more than 2^28 lines", "give a part of it");
    if (number_ == 1 && line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);  // byte order mark
    const std::string_view text = trimmed(line);
    if (text.empty()) return;
    int64_t length = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const bool whole = rest == text.data() + text.size();
    if (error == std::errc::result_out_of_range && whole) length = INT64_MAX;
    if ((error != std::errc() && error != std::errc::result_out_of_range) || !whole) {
      fail(format("{} is no length", json::quote(text.substr(0, 40))), "write one whole number a line");
    }
    if (length < 1) fail(format("length {} is below 1", length), "leave empty conversations out");
    if (length > max_tokens_) {
      fail(format("a conversation of {} tokens does not fit max_tokens {}", text.substr(0, 40), max_tokens_),
           "raise max_tokens, or cut the lengths as max_length would");
    }
    if (lengths_.size() == most_lengths) fail("the file has more than 2^27 lengths", "give a part of it");
    lengths_.push_back(static_cast<int32_t>(length));
  }
  void too_long() {
    ++number_;
    fail(format("the line has more than {} bytes", longest_line), "write one whole number a line");
  }
  std::vector<int32_t> finish() {
    if (lengths_.empty()) {
      throw Error(ErrorKind::data, "no length in the file", path_.string(), "write one whole number a line");
    }
    return std::move(lengths_);
  }

 private:
  [[noreturn]] void fail(std::string what, std::string fix) const {
    throw Error(ErrorKind::data, std::move(what), format("{}, line {}", path_.string(), number_),
                std::move(fix));
  }
  const fs::path& path_;
  int64_t max_tokens_;
  int64_t number_ = 0;
  std::vector<int32_t> lengths_;
};

}  // namespace

std::vector<int32_t> read_lengths(const fs::path& path, int64_t max_tokens) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  const auto unreadable = [&] {
    return Error(ErrorKind::data, format("cannot be read: {}", std::strerror(errno)), path.string(),
                 "give a file of lengths, one a line");
  };
  if (file == nullptr) throw unreadable();
  LengthLines lines(path, max_tokens);
  std::string pending;
  std::vector<char> buffer(size_t{1} << 16);
  for (;;) {
    const size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get());
    if (count == 0) {
      if (std::ferror(file.get()) != 0) throw unreadable();
      break;
    }
    std::string_view rest(buffer.data(), count);
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      pending += rest.substr(0, end);
      if (pending.size() > longest_line) lines.too_long();
      lines.take(pending);
      pending.clear();
      rest.remove_prefix(end + 1);
    }
    pending += rest;
    if (pending.size() > longest_line) lines.too_long();
  }
  if (!pending.empty()) lines.take(pending);
  return lines.finish();
}

}  // namespace deltatune
