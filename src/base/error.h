// Errors as exceptions with a kind, a place and a way out.
//
// Everything a user, a file or a machine can cause is an Error; only a mistake of ours is an assertion.
// An Error prints as three lines: what happened, where, what to do. This header has no formatting library in
// it, so .cu files may include it.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace deltatune {

/// What went wrong, coarsely. Each kind has one process exit code (see exit_code()).
enum class ErrorKind { usage, data, model, resource, distributed, diverged, internal };

/// Process exit code of a kind: usage 2, data and model 3, resource 4, distributed 5, diverged 6, internal 1.
int exit_code(ErrorKind kind) noexcept;

/// The one exception type. `what()` is the first line only; `text()` has all three.
class Error : public std::exception {
 public:
  /// `what`: one sentence. `where`: file, line, tensor, key ... (may be empty). `fix`: what the user can do.
  Error(ErrorKind kind, std::string what, std::string where = {}, std::string fix = {});

  const char* what() const noexcept override { return what_.c_str(); }
  ErrorKind kind() const noexcept { return kind_; }
  const std::string& where() const noexcept { return where_; }
  const std::string& fix() const noexcept { return fix_; }

  /// "error: ...\n  where: ...\n  fix:   ...", lines without content left out, no trailing newline.
  std::string text() const;

  /// The same error seen from further out: `outer` is put before the present `where` ("file, line 3: ...").
  Error within(std::string_view outer) const;

 private:
  ErrorKind kind_;
  std::string what_;
  std::string where_;
  std::string fix_;
};

/// Throws Error{internal}; the target of DELTATUNE_ASSERT.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace deltatune

/// On in every build. For conditions that only a bug in deltatune can break.
#define DELTATUNE_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::deltatune::assertion_failed(#condition, __FILE__, __LINE__))
