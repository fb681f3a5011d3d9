# The language, the flags of everything we build, and the warnings of our own targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

# Without contraction a multiply-add rounds twice on every machine, so results do not depend on
# whether the instruction set has a fused one.
add_compile_options(-ffp-contract=off)

if(KVCAST_SANITIZE)
  set(kvcast_sanitize_flags -fsanitize=${KVCAST_SANITIZE} -fno-sanitize-recover=all
                            -fno-omit-frame-pointer)
  add_compile_options(${kvcast_sanitize_flags})
  add_link_options(${kvcast_sanitize_flags})
  # GCC 12 takes instrumented standard containers for uninitialised; the other presets still look.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

# Errors only where the warnings are known: the next compiler has new ones.
set(kvcast_werror $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Werror>)

# Private to our targets: a consumer of the installed library never sees these.
add_library(kvcast_warnings INTERFACE)
# Files that are compiled as one see each other's globals; the presets dev and asan have no such files.
set(shadow -Wshadow)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(shadow -Wshadow=local)
endif()
target_compile_options(
  kvcast_warnings INTERFACE -Wall -Wextra -Wpedantic ${shadow} -Wconversion -Wsign-conversion
                            $<$<BOOL:${KVCAST_DEVELOPER_MODE}>:${kvcast_werror}>)

# Of code that no run waits for (recording, files, reports): optimising it costs a third of its compile
# time. And of code that runs once (commands, tests): another quarter.
set(kvcast_quick_build $<$<CONFIG:Release>:-O1>)
set(kvcast_quickest_build $<$<CONFIG:Release>:-Og>)
# GCC's own collector of garbage, started late: saves a tenth of the compile time.
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1000000 --param ggc-min-expand=400>")

if(KVCAST_DEVELOPER_MODE)
  set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON) # headers without a source must compile alone
endif()
if(CMAKE_BUILD_TYPE STREQUAL Debug)
  add_compile_definitions(_GLIBCXX_ASSERTIONS) # 5 to 10 % of a sweep's or a simulation's time
endif()
