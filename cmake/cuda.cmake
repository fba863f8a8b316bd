# The CUDA plug-in: one module, opened by the binary at run time. Included only with DELTATUNE_CUDA=ON.
set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures, e.g. 80;90a;100a")
enable_language(CUDA)
# CMake 3.25 does not know nvcc's C++20 flag.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cpp src/cuda/*.cu src/cuda/kernels/*.cu)
add_library(deltatune_cuda MODULE ${cuda_sources})
# No static library of ours: what the plug-in uses of the core is the binary's, so that there is one copy of it.
target_include_directories(deltatune_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# 554: nvcc overlooks that View's conversion to a read-only view is constrained to writable ones.
target_compile_options(deltatune_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=554>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow> $<$<COMPILE_LANGUAGE:CUDA>:--Wreorder>)
if(DELTATUNE_WERROR)
  target_compile_options(deltatune_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
# Element by element the same bits as the cpu row: no contraction to FMA where the bytes are the limit anyway.
set_source_files_properties(src/cuda/kernels/elementwise.cu src/cuda/kernels/optimizer.cu
  PROPERTIES COMPILE_OPTIONS --fmad=false)
target_link_libraries(deltatune_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt)
set_target_properties(deltatune_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} POSITION_INDEPENDENT_CODE ON)
