// Printing shapes.
#include "tensor/tensor.h"

namespace deltatune {

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank; ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace deltatune
