# The Arrow plug-in: one module, opened by the binary at run time. Headers and libraries are those inside the PyPI
# wheel pyarrow, or any installed Arrow of the same layout; without them the plug-in is not built, and Parquet and
# remote files are not read.
file(GLOB arrow_hints ${CMAKE_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/pyarrow)
if(NOT ARROW_FOLDER)
  find_path(ARROW_FOLDER include/parquet/arrow/reader.h HINTS ${DELTATUNE_ARROW_FOLDER} ${arrow_hints} NO_CACHE)
endif()
if(NOT ARROW_FOLDER)
  message(STATUS "Arrow plug-in: not built, no pyarrow in .deps/venv (DELTATUNE_ARROW_FOLDER names another folder)")
  return()
endif()
file(GLOB arrow_libraries ${ARROW_FOLDER}/libarrow.so.* ${ARROW_FOLDER}/libparquet.so.*
  ${ARROW_FOLDER}/libarrow_s3.so.*)
list(LENGTH arrow_libraries count)

# A wheel of the old C++ ABI has std::string of another name: it would not link.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${ARROW_FOLDER}/include)
set(CMAKE_REQUIRED_LIBRARIES ${arrow_libraries})
set(CMAKE_REQUIRED_FLAGS -std=c++20)
check_cxx_source_compiles("#include <arrow/status.h>
#include <parquet/exception.h>
int main() { return static_cast<int>(arrow::Status::Invalid(\"x\").ToString().size()); }" ARROW_LINKS)
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT ARROW_LINKS OR NOT count EQUAL 3)
  message(STATUS "Arrow plug-in: not built, ${ARROW_FOLDER} does not link here (old C++ ABI, or incomplete)")
  return()
endif()
message(STATUS "Arrow plug-in: ${ARROW_FOLDER}")

file(GLOB arrow_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/arrow_plugin/*.cpp)
add_library(deltatune_arrow MODULE ${arrow_sources})
# No static library of ours: what the plug-in uses of the core is the binary's, so that there is one copy of it.
target_include_directories(deltatune_arrow SYSTEM PRIVATE ${ARROW_FOLDER}/include)
target_link_libraries(deltatune_arrow PRIVATE ${arrow_libraries} ${CMAKE_DL_LIBS})
set_target_properties(deltatune_arrow PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
  POSITION_INDEPENDENT_CODE ON BUILD_RPATH ${ARROW_FOLDER})
