# generated/build_info.h: what `deltatune --version` prints, fixed when the build is configured.
set(commit "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${head})
  endif()
endif()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/build_info.h CONTENT
"// Written by CMake.
#pragma once

namespace deltatune::build_info {
inline constexpr const char* version = \"${PROJECT_VERSION}\";
inline constexpr const char* commit = \"${commit}\";
inline constexpr const char* compiler = \"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\";
inline constexpr const char* cuda_archs = \"none\";
}  // namespace deltatune::build_info
")
