// Bytes as a dataset: lines, a JSON array, chat rows, tokenised rows. Whatever is accepted is packed, and
// every batch has to hold what it promises.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "data/batch_stream.h"

using namespace deltatune;

namespace {

constexpr int64_t max_tokens = 32;

MarkedTokens encode_bytes(const Conversation& conversation) {
  MarkedTokens out;
  for (const json::Value& message : conversation.messages.as_array()) {
    const bool answer = message.at("role").as_string() == "assistant";
    for (const char c : message.at("content").as_string()) {
      out.ids.push_back(static_cast<unsigned char>(c));
      out.supervised.push_back(answer ? 1 : 0);
    }
    const json::Value* calls = message.find("tool_calls");
    if (!calls) continue;
    for (const json::Value& call : calls->as_array()) {
      const json::Value* function = call.find("function");
      static_cast<void>((function ? *function : call).at("arguments").as_object().size());
    }
  }
  return out;
}

void use(TokenizedSet set) {
  StreamOptions options;
  options.max_tokens = max_tokens;
  options.world_size = 2;
  BatchStream stream(set, options);
  int64_t left = stream.steps_per_epoch();
  for (; stream.cursor().epoch == 0; --left) {
    const Batch batch = stream.next();
    DELTATUNE_ASSERT(batch.cu_seqlens.back() == max_tokens);
    DELTATUNE_ASSERT(batch.tokens.size() == max_tokens && batch.targets.size() == max_tokens);
    DELTATUNE_ASSERT(batch.num_targets <= batch.real_tokens);
  }
  DELTATUNE_ASSERT(left == 0);
}

template <class Add>
void read(const DatasetOptions& options, Add add) {
  try {
    TokenizedSetBuilder builder(options, encode_bytes);
    add(builder);
    use(builder.finish());
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::internal) throw;  // an assertion: a finding
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  log::set_level(log::Level::error);
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  DatasetOptions options;
  options.max_length = 24;
  options.max_tokens = max_tokens;
  options.vocab_size = 256;
  options.on_bad_row = data[0] & 1 ? OnBadRow::skip : OnBadRow::error;
  options.overflow = static_cast<Overflow>((data[0] >> 1) % 3);
  options.keep_all_masked = (data[0] & 8) != 0;
  read(options, [&](TokenizedSetBuilder& builder) { builder.add_lines(text, "fuzz.jsonl"); });
  read(options,
       [&](TokenizedSetBuilder& builder) { builder.add_rows(json::parse(text, "fuzz.json"), "fuzz.json"); });
  return 0;
}
