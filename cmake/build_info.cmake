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
# Instruction sets that src/cpu is compiled for, as /proc/cpuinfo spells them.
set(cpu_needs "\"\"")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT DELTATUNE_CPU_FLAGS AND NOT DELTATUNE_SANITIZE)
  set(cpu_needs "\"avx2\", \"fma\", \"f16c\"")
endif()
pkg_check_modules(dep_nlohmann nlohmann_json)
pkg_check_modules(dep_spdlog_version spdlog)
pkg_check_modules(dep_fmt fmt)
# Debian's utf8proc.pc lags behind the library; its header does not.
file(STRINGS ${dep_utf8proc_INCLUDEDIR}/utf8proc.h rows REGEX "#define UTF8PROC_VERSION_(MAJOR|MINOR|PATCH) ")
if(rows MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
  set(dep_utf8proc_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
endif()
set(library_rows "")
foreach(row "OpenBLAS:dep_openblas" "yaml-cpp:dep_yaml" "nlohmann-json:dep_nlohmann" "spdlog:dep_spdlog_version" "fmt:dep_fmt"
            "utf8proc:dep_utf8proc" "PCRE2:dep_pcre2" "zlib:dep_zlib" "zstd:dep_zstd")
  string(REPLACE ":" ";" row ${row})
  list(GET row 0 name)
  list(GET row 1 module)
  string(APPEND library_rows "    {\"${name}\", \"${${module}_VERSION}\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/build_info.h CONTENT
"// Written by CMake.
#pragma once

namespace deltatune::build_info {
inline constexpr const char* version = \"${PROJECT_VERSION}\";
inline constexpr const char* commit = \"${commit}\";
inline constexpr const char* compiler = \"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\";
inline constexpr const char* cuda_archs = \"none\";
inline constexpr const char* cpu_needs[] = {${cpu_needs}};
struct Library {
  const char* name;
  const char* version;
};
inline constexpr Library libraries[] = {
${library_rows}};
}  // namespace deltatune::build_info
")
