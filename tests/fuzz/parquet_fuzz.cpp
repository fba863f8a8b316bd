// Bytes as a Parquet file: footer, pages and nested values. Arrow itself is not instrumented; what it does
// wrong shows as a crash, a hang or as memory above the cap of a file. Without the plug-in there is nothing
// to run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "data/arrow_plugin.h"

using namespace deltatune;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  std::string why;
  if (!arrow_plugin(why)) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
    std::exit(0);
  }
  log::set_level(log::Level::error);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  BlockSize block;
  block.rows = 1 + data[0] % 32;
  MemoryBytes file({reinterpret_cast<const char*>(data) + 1, size - 1});
  int64_t before = 0;
  try {
    visit_parquet(
        file, "fuzz.parquet",
        [&](const std::vector<RawRow>& rows) {
          DELTATUNE_ASSERT(!rows.empty() && rows.size() <= block.rows);
          for (const RawRow& row : rows) {
            DELTATUNE_ASSERT(row.number == ++before);
            try {
              DELTATUNE_ASSERT(row.parse().is_object());
            } catch (const Error& e) {
              if (e.kind() != ErrorKind::data) throw;
            }
          }
          return before < 2000;
        },
        block);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::data) throw;  // an assertion, or the plug-in went away: a finding
    DELTATUNE_ASSERT(!e.where().empty() && !e.fix().empty());
  }
  return 0;
}
