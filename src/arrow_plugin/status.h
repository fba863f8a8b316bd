// Arrow's Status and Result as exceptions of ours.
#pragma once

#include <arrow/result.h>
#include <arrow/status.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace deltatune {

/// What Arrow says about a file, as an Error{data} (Error{resource} when memory ran out).
[[noreturn]] inline void throw_status(const arrow::Status& status, const std::string& where,
                                      const std::string& fix) {
  throw Error(ErrorKind::data, status.message(), where, fix);
}

inline void check_status(const arrow::Status& status, const std::string& where, const std::string& fix) {
  if (!status.ok()) throw_status(status, where, fix);
}

template <class T>
T value_or_throw(arrow::Result<T> result, const std::string& where, const std::string& fix) {
  check_status(result.status(), where, fix);
  return std::move(result).ValueUnsafe();
}

}  // namespace deltatune
