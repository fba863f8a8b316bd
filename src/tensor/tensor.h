// Tensor and CTensor: writable and read-only views.
//
// Invariants: contiguous, row-major, rank at most 4; a view never owns; the element type is checked on
// as<T>(); Tensor converts to CTensor, never back; a view with data == nullptr is "empty" and, given as an
// op's output, means "not wanted". No strides, no broadcasting. Host-only code and .cu files both include
// this header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "tensor/dtype.h"

namespace deltatune {

struct Shape {
  std::array<int64_t, 4> d{1, 1, 1, 1};
  int rank = 0;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> sizes) : rank(static_cast<int>(sizes.size())) {
    size_t i = 0;
    for (const int64_t size : sizes) d[i++] = size;
  }
  constexpr int64_t count() const { return d[0] * d[1] * d[2] * d[3]; }
  constexpr int64_t operator[](int i) const { return d[static_cast<size_t>(i)]; }
  constexpr bool operator==(const Shape&) const = default;
};

/// "[8192, 5120]".
std::string to_string(const Shape& shape);

template <class Byte>
struct View {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  Shape shape{0};

  bool empty() const { return data == nullptr; }
  int64_t count() const { return shape.count(); }
  size_t bytes() const { return empty() ? 0 : static_cast<size_t>(count()) * size_of(dtype); }
  int64_t dim(int i) const { return shape[i]; }

  /// The elements as T*; asserts that T is the view's dtype.
  template <class T>
  auto* as() const {
    DELTATUNE_ASSERT(dtype == dtype_of<T>);
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data);
  }

  /// Rows [begin, begin + rows) of the first dimension.
  View slice(int64_t begin, int64_t rows) const {
    DELTATUNE_ASSERT(shape.rank >= 1 && begin >= 0 && rows >= 0 && begin + rows <= shape[0]);
    View out = *this;
    out.shape.d[0] = rows;
    if (data)
      out.data =
          data + static_cast<size_t>(begin * (shape.count() / (shape[0] ? shape[0] : 1))) * size_of(dtype);
    return out;
  }
  /// The same elements under another shape of the same count.
  View reshaped(Shape other) const {
    DELTATUNE_ASSERT(other.count() == shape.count());
    View out = *this;
    out.shape = other;
    return out;
  }
  operator View<const std::byte>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<Byte>) {
    return {data, dtype, shape};
  }
};

using Tensor = View<std::byte>;
using CTensor = View<const std::byte>;

/// Calls f with a value of the C++ type behind a storage dtype (float, bf16 or double).
template <class F>
decltype(auto) by_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f64:
      return f(double{});
    default:
      break;
  }
  throw Error(ErrorKind::internal, std::string("no kernel for dtype ") + name_of(dtype));
}

}  // namespace deltatune
