// The plug-in's table and its one exported function.
#include "arrow_plugin/plugin.h"

#include <arrow/config.h>
#include <arrow/type.h>
#include <dlfcn.h>

#include "base/format.h"

namespace deltatune {
namespace {

std::string versions() {
  Dl_info info{};
  const auto function = reinterpret_cast<const void*>(&arrow::GetBuildInfo);
  const bool known = ::dladdr(const_cast<void*>(function), &info) != 0 && info.dli_fname;
  return format("Arrow {} {}", arrow::GetBuildInfo().version_string, known ? info.dli_fname : "");
}

}  // namespace
}  // namespace deltatune

extern "C" __attribute__((visibility("default"))) const void* deltatune_arrow_plugin(int abi) {
  static const deltatune::ArrowPlugin plugin = {&deltatune::arrow_visit_parquet, &deltatune::arrow_open,
                                                &deltatune::arrow_is_file,       &deltatune::arrow_list,
                                                &deltatune::arrow_close,         &deltatune::versions};
  return abi == deltatune::arrow_plugin_abi ? &plugin : nullptr;
}
