// The safetensors header: untrusted bytes in, a checked table out.
#include "io/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deltatune {
namespace {

constexpr uint64_t max_header_bytes = 100'000'000;  // the limit of the safetensors library
// A header within the byte limit could still hold 50 million one-digit numbers, 40 bytes of memory each.
constexpr int64_t max_header_values = 4'000'000;
constexpr size_t max_name_bytes = 4096;

struct DTypeRow {
  std::string_view name;
  int bits;
};
constexpr std::array<DTypeRow, 22> dtype_rows{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

[[noreturn]] void malformed(
    std::string what, std::string_view where,
    std::string fix = "the file is damaged or was written by a faulty program: fetch it again") {
  throw Error(ErrorKind::model, std::move(what), std::string(where), std::move(fix));
}

uint64_t read_u64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The JSON part of the file, after the checks that need no parsing.
std::string_view header_text(std::string_view file, std::string_view where) {
  if (file.starts_with("version https://git-lfs")) {
    malformed("this is a Git LFS pointer, not the weights", where, "run `git lfs pull` in the model folder");
  }
  if (file.size() < 8) {
    malformed(format("safetensors header too small: the file has {} bytes, the header's length alone takes 8",
                     file.size()),
              where, "incomplete download? Fetch the file again");
  }
  const uint64_t length = read_u64(file);
  if (length > max_header_bytes) {
    malformed(format("safetensors header too large: it claims {} bytes, the limit is {} (the file has {})",
                     length, max_header_bytes, file.size()),
              where, "this is no safetensors file, or it is damaged");
  }
  if (length > file.size() - 8) {
    malformed(
        format("safetensors header too large: it claims {} bytes, the file has {}", length, file.size()),
        where, "incomplete download? Fetch the file again");
  }
  const std::string_view text = file.substr(8, length);
  if (text.empty() || text[0] != '{') malformed("the safetensors header does not start with '{'", where);
  int64_t values = 0;
  for (const char c : text) values += c == ',' || c == '[' || c == '{' || c == ':';
  if (values > max_header_values) {
    malformed(format("the safetensors header holds more than {} values", max_header_values), where);
  }
  // The JSON lexer takes NUL for the end of its input.
  if (text.find('\0') != std::string_view::npos)
    malformed("the safetensors header contains a NUL byte", where);
  return text;
}

void check_name(const std::string& name, std::string_view where) {
  if (name.empty()) malformed("a tensor of the header has an empty name", where);
  if (name.size() > max_name_bytes) {
    malformed(format("tensor name of {} bytes, the limit is {}", name.size(), max_name_bytes), where);
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      malformed("tensor name with a control character: " + shown(name), where);
    }
  }
}

size_t offset_of(const json::Value& value) {
  const int64_t offset = value.as_integer();
  if (offset < 0) throw Error(ErrorKind::data, format("negative offset {}", offset));
  return static_cast<size_t>(offset);
}

StoredTensor parse_tensor(const std::string& name, const json::Value& value) {
  StoredTensor out;
  out.name = name;
  for (const auto& [key, item] : value.as_object()) {
    if (key == "dtype") {
      out.dtype = item.as_string();
    } else if (key == "shape") {
      for (const json::Value& size : item.as_array()) out.shape.push_back(size.as_integer());
    } else if (key == "data_offsets") {
      const json::Array& pair = item.as_array();
      if (pair.size() != 2)
        throw Error(ErrorKind::data, format("data_offsets has {} entries, not 2", pair.size()));
      out.begin = offset_of(pair[0]);
      const size_t end = offset_of(pair[1]);
      if (end < out.begin)
        throw Error(ErrorKind::data, format("data_offsets [{}, {}] run backwards", out.begin, end));
      out.size = end - out.begin;
    } else {
      throw Error(ErrorKind::data, "unknown key " + shown(key));
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) static_cast<void>(value.at(key));
  if (dtype_bits(out.dtype) == 0) throw Error(ErrorKind::data, "unknown dtype " + shown(out.dtype));
  const std::optional<size_t> bytes = stored_bytes(out.dtype, out.shape);
  if (!bytes) {
    throw Error(ErrorKind::data,
                format("shape {} of {} has no representable size", shown(out.shape), out.dtype));
  }
  if (*bytes != out.size) {
    throw Error(ErrorKind::data,
                format("shape {} of {} takes {} bytes, data_offsets [{}, {}] span {}", shown(out.shape),
                       out.dtype, *bytes, out.begin, out.begin + out.size, out.size));
  }
  return out;
}

// The format requires the tensors to cover the data section: no gap, no overlap, no bytes after the last.
void check_coverage(std::span<const StoredTensor> tensors, size_t data_size, std::string_view where) {
  size_t covered = 0;
  const StoredTensor* previous = nullptr;
  for (const StoredTensor* tensor : in_data_order(tensors)) {
    if (tensor->begin != covered) {
      malformed(format("tensor {} starts at byte {} of the data, {} the end of {} at {}", shown(tensor->name),
                       tensor->begin, tensor->begin > covered ? "leaving a gap after" : "overlapping",
                       previous ? shown(previous->name) : "the header", covered),
                where);
    }
    covered += tensor->size;  // cannot overflow: begin + size was an int64_t
    previous = tensor;
  }
  if (covered > data_size) {
    malformed(
        format("safetensors metadata incomplete: the header describes {} bytes of data, the file has {}",
               covered, data_size),
        where, "incomplete download? Fetch the file again");
  }
  if (covered < data_size) {
    malformed(format("{} bytes after the last tensor: the header describes {} bytes of data, the file has {}",
                     data_size - covered, covered, data_size),
              where);
  }
}

// Errors of the JSON layer become errors of this file, cut to a printable length.
[[noreturn]] void rethrow_as_model(const Error& e, std::string_view what, std::string_view where) {
  std::string text(e.what());
  if (text.size() > 400) text = text.substr(0, 400) + "...";
  malformed(std::string(what) + ": " + text, where);
}

}  // namespace

std::string shown(std::string_view name) {
  constexpr size_t limit = 200;
  if (name.size() <= limit) return json::quote(name);
  size_t cut = limit;
  while (cut > 0 && (static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80)
    --cut;  // not inside a UTF-8 sequence
  return json::quote(name.substr(0, cut)) + "...";
}

std::string shown(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size() && i < 16; ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + (shape.size() > 16 ? ", ...]" : "]");
}

int dtype_bits(std::string_view dtype) {
  for (const DTypeRow& row : dtype_rows) {
    if (row.name == dtype) return row.bits;
  }
  return 0;
}

std::optional<DType> dtype_from_safetensors(std::string_view dtype) {
  for (const DType d : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8}) {
    if (dtype == safetensors_name(d)) return d;
  }
  return std::nullopt;
}

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f64:
      return "F64";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  return "?";
}

std::optional<size_t> stored_bytes(std::string_view dtype, std::span<const int64_t> shape) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(dtype));
  if (bits == 0) return std::nullopt;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::vector<const StoredTensor*> in_data_order(std::span<const StoredTensor> tensors) {
  std::vector<const StoredTensor*> out;
  out.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) out.push_back(&tensor);
  // Empty tensors share their offset with the next one and come before it.
  std::stable_sort(out.begin(), out.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->begin, a->size) < std::pair(b->begin, b->size);
  });
  return out;
}

SafetensorsHeader parse_safetensors(std::string_view file, std::string_view where) {
  const std::string_view text = header_text(file, where);
  json::Value root;
  try {
    root = json::parse(text, where);
  } catch (const Error& e) {
    rethrow_as_model(e, "safetensors header", where);
  }
  SafetensorsHeader out;
  out.data_begin = 8 + text.size();
  for (const auto& [name, value] : root.as_object()) {
    try {
      if (name == "__metadata__") {
        for (const auto& [key, item] : value.as_object()) out.metadata.emplace_back(key, item.as_string());
        continue;
      }
      check_name(name, where);
      out.tensors.push_back(parse_tensor(name, value));
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::model) throw;
      rethrow_as_model(e, (name == "__metadata__" ? "__metadata__" : "tensor " + shown(name)), where);
    }
  }
  check_coverage(out.tensors, file.size() - out.data_begin, where);
  return out;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) {
  auto contents = std::make_shared<Contents>();
  try {
    // Opening a pipe would block; MappedFile takes regular files only, but has to open them to know.
    if (std::error_code ignored; fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) {
      throw Error(ErrorKind::model, "not a regular file: " + path.string(), path.string());
    }
    contents->map = MappedFile(path);
  } catch (const Error& e) {
    throw Error(ErrorKind::model, e.what(), e.where(), e.fix());
  }
  contents->header = parse_safetensors(contents->map.text(), path.string());
  for (size_t i = 0; i < contents->header.tensors.size(); ++i) {
    contents->by_name.emplace(contents->header.tensors[i].name, i);
  }
  contents_ = std::move(contents);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = contents_->by_name.find(name);
  return found == contents_->by_name.end() ? nullptr : &tensors()[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return all().subspan(header().data_begin + tensor.begin, tensor.size);
}

void SafetensorsFile::drop(std::span<const std::byte> part) const {
  // Only whole pages inside the part: its neighbours may be in use.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // advice: may fail
}

}  // namespace deltatune
