# Where third-party code comes from: the system's packages, found as CMake packages.

# Like find_package(... REQUIRED), and the installed package finds it again for its users.
macro(kvcast_dependency)
  find_package(${ARGV} REQUIRED)
  string(REPLACE ";" " " kvcast_dependency_arguments "${ARGV}")
  string(APPEND KVCAST_FIND_DEPENDENCIES "find_dependency(${kvcast_dependency_arguments})\n")
endmacro()

# What the libraries use. A static library's private dependencies are its users' link dependencies.
kvcast_dependency(nlohmann_json 3.11)
kvcast_dependency(fmt 9.1)
kvcast_dependency(Boost 1.74 CONFIG)
kvcast_dependency(Eigen3 3.4 CONFIG)
kvcast_dependency(Threads)
if(NOT KVCAST_FUZZ) # what only the executor needs; Clang may have no OpenMP
  kvcast_dependency(OpenMP COMPONENTS CXX)
  if(NOT KVCAST_STATIC) # Debian has no static oneDNN
    kvcast_dependency(oneDNN 2.6)
  endif()
endif()
kvcast_dependency(PkgConfig)
# Like kvcast_dependency for libraries that come with a pkg-config file only.
macro(kvcast_pkg_config_dependency name module)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
  string(APPEND KVCAST_FIND_DEPENDENCIES
         "pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})\n")
endmacro()
kvcast_pkg_config_dependency(ONIGURUMA oniguruma>=6.9.8)
kvcast_pkg_config_dependency(SOXR soxr>=0.1.3)
kvcast_pkg_config_dependency(UTF8PROC libutf8proc>=2.6)
kvcast_pkg_config_dependency(SENTENCEPIECE sentencepiece>=0.1.96)
if(KVCAST_FUZZ)
  return()
endif()

set(KVCAST_HAS_MPI OFF)
if(KVCAST_MPI)
  set(MPI_CXX_SKIP_MPICXX ON) # the C++ bindings were removed from MPI; we use the C ones
  find_package(MPI COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(KVCAST_HAS_MPI ON)
    string(APPEND KVCAST_FIND_DEPENDENCIES
           "set(MPI_CXX_SKIP_MPICXX ON)\nfind_dependency(MPI COMPONENTS CXX)\n")
  endif()
endif()

# What only the program, the tests and the benchmarks use.
find_package(CLI11 2.1 REQUIRED)
if(KVCAST_DEVELOPER_MODE)
  find_package(doctest 2.4 REQUIRED)
endif()
if(KVCAST_BENCH)
  find_package(benchmark 1.7 REQUIRED)
endif()
