// Opening the Arrow plug-in.
#include "data/arrow_plugin.h"

#include <cstdlib>

#include "base/error.h"
#include "base/plugin.h"

namespace deltatune {
namespace {

struct Opened {
  const ArrowPlugin* plugin = nullptr;
  std::string why;
};

Opened open_once() {
  Opened out;
  const auto open = [&] {
    out.plugin = static_cast<const ArrowPlugin*>(
        open_plugin("libdeltatune_arrow.so", arrow_plugin_symbol, arrow_plugin_abi, out.why));
    return out.plugin != nullptr;
  };
  // libarrow first: the others need it.
  static const std::vector<std::string> libraries = {"libarrow.so", "libparquet.so", "libarrow_s3.so"};
  if (const char* folder = std::getenv("DELTATUNE_ARROW_LIB_PATH")) preload_libraries(folder, libraries);
  if (open()) return out;
  for (const fs::path& folder : python_package_folders("pyarrow")) {
    if (preload_libraries(folder, libraries) && open()) return out;
  }
  return out;
}

}  // namespace

const ArrowPlugin* arrow_plugin(std::string& why) {
  static const Opened opened = open_once();
  why = opened.why;
  return opened.plugin;
}

void visit_parquet(RandomAccess& file, const std::string& name, const VisitRows& visit, BlockSize block) {
  std::string why;
  const ArrowPlugin* plugin = arrow_plugin(why);
  if (!plugin) {
    throw Error(ErrorKind::resource, "Parquet needs the Arrow plug-in: " + why, name,
                "`./dev build` builds it where pip can install pyarrow; or write the rows as JSON Lines");
  }
  plugin->visit_parquet(file, name, visit, block);
}

}  // namespace deltatune
