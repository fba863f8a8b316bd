// What the Arrow plug-in offers, before it goes into its table (data/arrow_plugin.h says what each does).
#pragma once

#include <string>

#include "data/arrow_plugin.h"

namespace deltatune {

void arrow_visit_parquet(RandomAccess& file, const std::string& name, const VisitRows& visit,
                         BlockSize block);

}  // namespace deltatune
