# Third-party libraries, as SYSTEM interface targets. Static where Debian has a static library, so that the
# binary can be copied to another machine.
find_package(PkgConfig REQUIRED)

# deltatune_library(target pkg-config-name static-file): static if the file is there, else whatever pkg-config says.
function(deltatune_library target module archive)
  pkg_check_modules(${target} REQUIRED ${module})
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE_DIRS})
  find_library(${target}_archive NAMES ${archive} PATHS ${${target}_LIBRARY_DIRS} ${${target}_LIBDIR})
  if(${target}_archive)
    target_link_libraries(${target} INTERFACE ${${target}_archive} ${ARGN})
  else()
    target_link_directories(${target} INTERFACE ${${target}_LIBRARY_DIRS})
    target_link_libraries(${target} INTERFACE ${${target}_LIBRARIES})
  endif()
endfunction()

deltatune_library(dep_yaml yaml-cpp libyaml-cpp.a)
deltatune_library(dep_utf8proc libutf8proc libutf8proc.a)
target_compile_definitions(dep_utf8proc INTERFACE UTF8PROC_STATIC)
deltatune_library(dep_pcre2 libpcre2-8 libpcre2-8.a)
deltatune_library(dep_zlib zlib libz.a)
deltatune_library(dep_zstd libzstd libzstd.a)
# Debian's OpenBLAS archive carries LAPACK in Fortran.
deltatune_library(dep_openblas openblas libopenblas.a gfortran quadmath pthread m)

# Headers only.
add_library(dep_spdlog INTERFACE)
find_path(SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
