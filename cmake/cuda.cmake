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

# cuDNN's attention needs cudnn.h and the headers of cudnn-frontend (PyPI nvidia-cudnn-frontend; later ones than
# 1.16 want NVRTC and are not tried): in a Python environment, or wherever CMAKE_PREFIX_PATH says. Without them the
# plug-in has its own kernels only. cuDNN itself is opened at run time.
find_program(python NAMES python3 python)
if(python)
  execute_process(COMMAND ${python} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(GLOB venv_packages ${CMAKE_SOURCE_DIR}/.deps/*/lib/python3*/site-packages ${CMAKE_SOURCE_DIR}/.deps/cuda)
list(TRANSFORM venv_packages APPEND /include OUTPUT_VARIABLE frontend_hints)
list(TRANSFORM venv_packages APPEND /nvidia/cudnn/include OUTPUT_VARIABLE cudnn_hints)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend_version.h HINTS ${frontend_hints} ${site_packages}/include)
find_path(CUDNN_INCLUDE_DIR cudnn.h
  HINTS ${cudnn_hints} ${site_packages}/nvidia/cudnn/include ${CUDAToolkit_INCLUDE_DIRS})
set(cudnn_sources src/cuda/cudnn/absent.cpp)
if(CUDNN_FRONTEND_INCLUDE_DIR AND CUDNN_INCLUDE_DIR)
  file(STRINGS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h frontend_version
    REGEX "define CUDNN_FRONTEND_M(AJOR|INOR)_VERSION")
  string(REGEX REPLACE "[^;]*VERSION ([0-9]+)[^;]*" "\\1" frontend_version "${frontend_version}")
  string(REPLACE ";" "." frontend_version "${frontend_version}")
  if(frontend_version VERSION_GREATER_EQUAL 1.9 AND frontend_version VERSION_LESS_EQUAL 1.16)
    set(cudnn_sources src/cuda/cudnn/attention.cpp src/cuda/cudnn/library.cpp)
    # Half the compile time of -O2; what it does at run time is call cuDNN.
    set_source_files_properties(src/cuda/cudnn/attention.cpp PROPERTIES
      COMPILE_OPTIONS "-O1;-isystem${CUDNN_FRONTEND_INCLUDE_DIR};-isystem${CUDNN_INCLUDE_DIR}"
      COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB)
    set_source_files_properties(src/cuda/cudnn/library.cpp PROPERTIES
      COMPILE_OPTIONS "-isystem${CUDNN_INCLUDE_DIR}")
  endif()
  message(STATUS "cudnn-frontend ${frontend_version} in ${CUDNN_FRONTEND_INCLUDE_DIR}")
endif()
message(STATUS "attention by cuDNN: ${cudnn_sources}")

# CUPTI's headers: beside the toolkit's, in its extras, or in a wheel (PyPI nvidia-cuda-cupti). Without them, or with
# those of a toolkit before 13.0, the plug-in does not record device activity. The library is opened at run time.
list(TRANSFORM venv_packages APPEND /nvidia/cu13/include OUTPUT_VARIABLE cupti_hints)
find_path(CUPTI_INCLUDE_DIR cupti_activity.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
  ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include ${CUDAToolkit_TARGET_DIR}/extras/CUPTI/include ${cupti_hints}
  ${site_packages}/nvidia/cu13/include)
set(cupti_sources src/cuda/cupti/absent.cpp)
if(CUPTI_INCLUDE_DIR)
  foreach(header cupti_activity.h cupti_activity_deprecated.h)
    if(EXISTS ${CUPTI_INCLUDE_DIR}/${header})
      file(STRINGS ${CUPTI_INCLUDE_DIR}/${header} found REGEX "^} CUpti_ActivityKernel10;")
      if(found)
        set(cupti_sources src/cuda/cupti/activity.cpp src/cuda/cupti/graph_nodes.cpp
          src/cuda/cupti/library.cpp)
      endif()
    endif()
  endforeach()
  set_source_files_properties(src/cuda/cupti/activity.cpp src/cuda/cupti/graph_nodes.cpp
          src/cuda/cupti/library.cpp PROPERTIES
    COMPILE_OPTIONS "-isystem${CUPTI_INCLUDE_DIR}")
endif()
message(STATUS "device activity by CUPTI: ${cupti_sources}")

# NCCL's header: beside the toolkit's or in a wheel (PyPI nvidia-nccl-cu13). Without it there is no communication
# between GPUs of several hosts. The library is opened at run time.
list(TRANSFORM venv_packages APPEND /nvidia/nccl/include OUTPUT_VARIABLE nccl_hints)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_hints} ${CUDAToolkit_INCLUDE_DIRS}
  ${site_packages}/nvidia/nccl/include)
set(nccl_sources src/cuda/comm/nccl/absent.cpp)
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h found REGEX "define NCCL_VERSION_CODE +2(1[89]|[2-9][0-9])[0-9][0-9]$")
  if(found)  # 2.18: communicators that do not block
    set(nccl_sources src/cuda/comm/nccl/communicator.cpp src/cuda/comm/nccl/library.cpp)
    set_source_files_properties(${nccl_sources} PROPERTIES COMPILE_OPTIONS "-isystem${NCCL_INCLUDE_DIR}")
  endif()
endif()
message(STATUS "communication by NCCL: ${nccl_sources}")

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cpp src/cuda/*.cu src/cuda/kernels/*.cu
  src/cuda/comm/*.cpp src/cuda/comm/*.cu)
add_library(deltatune_cuda MODULE ${cuda_sources} ${cudnn_sources} ${cupti_sources} ${nccl_sources})
# No static library of ours: what the plug-in uses of the core is the binary's, so that there is one copy of it.
target_include_directories(deltatune_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# 554: nvcc overlooks that View's conversion to a read-only view is constrained to writable ones.
target_compile_options(deltatune_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=554>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow> $<$<COMPILE_LANGUAGE:CUDA>:--Wreorder>)
if(DELTATUNE_WERROR)
  target_compile_options(deltatune_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
# Element by element the same bits as the cpu row: no contraction to FMA where the bytes are the limit anyway.
set_source_files_properties(src/cuda/kernels/adamw_8bit.cu src/cuda/kernels/elementwise.cu
  src/cuda/kernels/optimizer.cu
  PROPERTIES COMPILE_OPTIONS --fmad=false)
target_link_libraries(deltatune_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt ${CMAKE_DL_LIBS})
set_target_properties(deltatune_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} POSITION_INDEPENDENT_CODE ON)
