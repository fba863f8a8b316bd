// Segments: where the documents of one packed row lie. Every op that looks at more than one token takes it.
//
// A row has exactly T slots; the documents cover it in order, the last one may be filler. Chunks are 64
// tokens or fewer and never cross a document: the unit of the chunked delta rule.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace deltatune {

inline constexpr int64_t gdn_chunk = 64;

struct Segments {
  /// i32 [S_max + 1] on the device: start of each document, then T repeated.
  CTensor cu_seqlens;
  /// i32 [T] on the device: position inside the document, from 0.
  CTensor positions_T;
  /// i32 [C_max, 4] on the device: document, first token, length (1..64), number inside the document; unused
  /// entries have length 0. In order of tokens.
  CTensor chunks;
  /// Host copies without padding: documents + 1 starts; number of chunks in use.
  std::span<const int32_t> host_cu_seqlens;
  int64_t num_chunks = 0;

  /// S_max: what kernels may size a grid with.
  int64_t max_documents() const { return cu_seqlens.dim(0) - 1; }
  int64_t documents() const { return static_cast<int64_t>(host_cu_seqlens.size()) - 1; }
};

/// Upper bound of chunks of a row: T tokens in at most `max_documents` documents.
constexpr int64_t max_chunks(int64_t tokens, int64_t max_documents) {
  return tokens / gdn_chunk + (max_documents < tokens ? max_documents : tokens);
}

}  // namespace deltatune
