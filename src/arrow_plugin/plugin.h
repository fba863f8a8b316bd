// What the Arrow plug-in offers, before it goes into its table (data/arrow_plugin.h says what each does).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/arrow_plugin.h"

namespace deltatune {

void arrow_visit_parquet(RandomAccess& file, const std::string& name, const VisitRows& visit,
                         BlockSize block);
std::shared_ptr<RemoteFile> arrow_open(const std::string& uri);
bool arrow_is_file(const std::string& uri);
std::vector<RemoteEntry> arrow_list(const std::string& uri);
void arrow_close();

}  // namespace deltatune
