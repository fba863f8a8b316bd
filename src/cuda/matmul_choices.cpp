// Reading and replacing the file of choices.
#include "cuda/matmul_choices.h"

#include <unistd.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace deltatune::cuda {
namespace {

constexpr int64_t file_format = 1;

std::string hex_of(const cublasLtMatmulAlgo_t& algo) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t word : algo.data) {
    for (int shift = 60; shift >= 0; shift -= 4) out += digits[word >> shift & 15];
  }
  return out;
}

bool parse_hex(const std::string& text, cublasLtMatmulAlgo_t& algo) {
  constexpr size_t width = 16;
  if (text.size() != std::size(algo.data) * width) return false;
  for (size_t i = 0; i < std::size(algo.data); ++i) {
    const char* begin = text.data() + i * width;
    const auto [end, error] = std::from_chars(begin, begin + width, algo.data[i], 16);
    if (error != std::errc() || end != begin + width) return false;
  }
  return true;
}

std::string hash_of(const std::string& name, const std::string& algorithm) {
  return hash_hex(name + " " + algorithm);
}

/// One entry, or false where it is damaged.
bool read_choice(const std::string& name, const json::Value& value, MatmulChoice& out) {
  try {
    const std::string& algorithm = value.at("algorithm").as_string();
    out.us = value.at("us").as_number();
    out.first_us = value.at("first_us").as_number();
    return value.at("hash").as_string() == hash_of(name, algorithm) &&
           parse_hex(algorithm, out.algorithm.algo);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::filesystem::path choices_path(const std::filesystem::path& folder, const std::string& gpu,
                                   size_t version) {
  std::string slug;
  for (const char c : gpu) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    slug += plain ? c : '-';
  }
  return folder / ("matmul-" + slug + "-cublaslt-" + std::to_string(version) + ".json");
}

MatmulChoices read_choices(const std::filesystem::path& path, const std::string& gpu, size_t version,
                           std::vector<std::string>& warnings) {
  MatmulChoices out;
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return out;
  const auto damaged = [&](const std::string& what) {
    warnings.push_back(path.string() + ": " + what + "; what it lacks is tuned again");
  };
  try {
    const json::Value root = json::parse(read_file(path), path.string());
    if (root.at("format").as_integer() != file_format || root.at("gpu").as_string() != gpu ||
        root.at("cublaslt").as_integer() != static_cast<int64_t>(version)) {
      damaged("is of another GPU, cuBLASLt or deltatune");
      return out;
    }
    for (const auto& [name, value] : root.at("shapes").as_object()) {
      MatmulChoice choice;
      if (read_choice(name, value, choice)) {
        out[name] = choice;
      } else {
        damaged("the entry of " + name + " is damaged");
      }
    }
  } catch (const Error& error) {
    damaged(error.what());
  }
  return out;
}

void write_choices(const std::filesystem::path& path, const std::string& gpu, size_t version,
                   const MatmulChoices& choices, std::vector<std::string>& warnings) {
  try {
    std::vector<std::string> known;  // warnings about the same file were given when it was read
    MatmulChoices all = read_choices(path, gpu, version, known);
    for (const auto& [name, choice] : choices) all[name] = choice;
    json::Value shapes{json::Object{}};
    for (const auto& [name, choice] : all) {
      const std::string algorithm = hex_of(choice.algorithm.algo);
      json::Value value;
      value.set("algorithm", algorithm);
      value.set("us", choice.us);
      value.set("first_us", choice.first_us);
      value.set("hash", hash_of(name, algorithm));
      shapes.set(name, std::move(value));
    }
    json::Value root;
    root.set("format", file_format);
    root.set("gpu", gpu);
    root.set("cublaslt", static_cast<int64_t>(version));
    root.set("shapes", std::move(shapes));
    std::filesystem::create_directories(path.parent_path());
    // A name of this process's own: several may write at once.
    const std::filesystem::path mine = path.string() + "." + std::to_string(::getpid());
    write_file_atomic(mine, json::dump(root, 1) + "\n");
    std::filesystem::rename(mine, path);
  } catch (const std::exception& error) {
    warnings.push_back(path.string() + " was not written: " + error.what());
  }
}

}  // namespace deltatune::cuda
