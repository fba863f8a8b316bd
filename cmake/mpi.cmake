# The MPI plug-in: one module, opened by the binary at run time. Without MPI it is not built, and the CPU trains on one
# rank.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  message(STATUS "MPI plug-in: not built, no MPI here (Debian: libopenmpi-dev)")
  return()
endif()
message(STATUS "MPI plug-in: ${MPI_CXX_LIBRARY_VERSION_STRING} ${MPI_CXX_VERSION}")

file(GLOB mpi_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/mpi_plugin/*.cpp)
add_library(deltatune_mpi MODULE ${mpi_sources})
# No static library of ours: what the plug-in uses of the core is the binary's, so that there is one copy of it.
target_compile_definitions(deltatune_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
target_include_directories(deltatune_mpi SYSTEM PRIVATE ${MPI_CXX_INCLUDE_DIRS})
target_link_libraries(deltatune_mpi PRIVATE -Wl,--as-needed ${MPI_CXX_LIBRARIES} ${CMAKE_DL_LIBS})
set_target_properties(deltatune_mpi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
  POSITION_INDEPENDENT_CODE ON)
