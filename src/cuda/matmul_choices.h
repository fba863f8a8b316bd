// The file of tuned matmul algorithms: one per GPU model and cuBLASLt version, so that later runs take the
// same algorithm - and give the same bits - without measuring again.
//
// JSON: {"format": 1, "gpu": "NVIDIA H200", "cublaslt": 130100, "shapes": {"nt bf16 ...": {"algorithm": 128
// hexadecimal digits, "us": chosen, "first_us": the library's first suggestion, "hash": of the algorithm and
// the name}}}. cuBLASLt documents its algorithm descriptor as trivially serialisable for one version.
// Invariants: replaced by rename, so readers never see half a file and the last of several writers wins with
// everything that was there when it read; what cannot be read is a warning, never an error.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cuda/matmul_plan.h"

namespace deltatune::cuda {

struct MatmulChoice {
  MatmulAlgorithm algorithm;  ///< its workspace is not stored: the library is asked again
  double us = 0;
  double first_us = 0;
};
/// By to_string(key).
using MatmulChoices = std::map<std::string, MatmulChoice>;

/// `folder`/matmul-GPU-cublaslt-VERSION.json.
std::filesystem::path choices_path(const std::filesystem::path& folder, const std::string& gpu,
                                   size_t version);
/// What the file holds for this GPU and version; a missing file holds nothing. Damage goes to `warnings`.
MatmulChoices read_choices(const std::filesystem::path& path, const std::string& gpu, size_t version,
                           std::vector<std::string>& warnings);
/// Adds `choices` to those of the file. Failures go to `warnings`.
void write_choices(const std::filesystem::path& path, const std::string& gpu, size_t version,
                   const MatmulChoices& choices, std::vector<std::string>& warnings);

}  // namespace deltatune::cuda
