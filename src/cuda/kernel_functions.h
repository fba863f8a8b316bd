// The function of each kernel in ops/kernel_list.h, by name.
#pragma once

#include <span>

#include "ops/kernels.h"

namespace deltatune::cuda {

/// A name of the list, and what puts its function into a table.
struct KernelFunction {
  const char* name;
  void (*put)(Kernels& table);
};

/// Those of the whole cuda target; the same names as the list's, which a test checks.
std::span<const KernelFunction> kernel_functions();

/// The table of a choice: the plain function of every op, and over it what the choice names. Throws
/// Error{internal} for a name without function.
Kernels table_of(const KernelChoice& choice);

}  // namespace deltatune::cuda
