# One helper per kind of target, so that a folder's CMakeLists.txt is a few lines.

# kvcast_library(roofline LINK PUBLIC kvcast::model PRIVATE fmt::fmt)
# Makes libkvcast_roofline.a from all .cpp of this folder, known as kvcast::roofline here and after
# find_package(kvcast). ROOMS names folders below to take instead of this one. LINK takes what
# target_link_libraries takes. Headers are installed; those without a source must compile alone (the
# others do: a source includes its own header first, which tests/house checks).
function(kvcast_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ROOMS;LINK")
  set(target kvcast_${name})
  add_library(${target} STATIC)
  add_library(kvcast::${name} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR})
  target_sources(${target} PUBLIC FILE_SET header_only TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR})
  if(NOT arg_ROOMS)
    set(arg_ROOMS .)
  endif()
  foreach(room IN LISTS arg_ROOMS)
    file(GLOB sources CONFIGURE_DEPENDS ${room}/*.cpp)
    file(GLOB headers CONFIGURE_DEPENDS ${room}/*.h)
    target_sources(${target} PRIVATE ${sources})
    foreach(header IN LISTS headers)
      cmake_path(REPLACE_EXTENSION header LAST_ONLY .cpp OUTPUT_VARIABLE source)
      set(set header_only)
      if(source IN_LIST sources)
        set(set HEADERS)
      endif()
      target_sources(${target} PUBLIC FILE_SET ${set} FILES ${header})
    endforeach()
  endforeach()
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} ${arg_LINK} PRIVATE $<BUILD_INTERFACE:kvcast_warnings>)
  set_target_properties(
    ${target} PROPERTIES EXPORT_NAME ${name} ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
                         INTERFACE_HEADER_SETS_TO_VERIFY header_only)
  install(TARGETS ${target} EXPORT kvcast_targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvcast
          FILE_SET header_only DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvcast)
endfunction()

# kvcast_test(roofline SLOW sweep_test LINK kvcast::roofline)
# Makes roofline_test from tests/roofline/*_test.cpp, and one ctest per file, named
# roofline.cost_test, with the label slow if it is one of SLOW, else fast.
function(kvcast_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SLOW;LINK")
  set(target ${name}_test)
  file(GLOB sources CONFIGURE_DEPENDS ${name}/*_test.cpp)
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE kvcast_test_main ${arg_LINK})
  foreach(file IN LISTS sources)
    cmake_path(GET file STEM stem)
    add_test(NAME ${name}.${stem} COMMAND ${target} "--source-file=*/${name}/${stem}.cpp")
    set(label fast)
    if(stem IN_LIST arg_SLOW)
      set(label slow)
    endif()
    # A file whose cases are not found must not pass quietly.
    set_tests_properties(${name}.${stem} PROPERTIES LABELS ${label}
                                                              FAIL_REGULAR_EXPRESSION "test cases: +0 ")
  endforeach()
endfunction()

# kvcast_bench(roofline SOURCES cost_bench.cpp LINK kvcast::roofline)
# Makes the Google Benchmark program <build>/bench/forecast_bench, which `./run bench` runs. It is told
# where the source tree (KVCAST_SOURCE_DIR) and the program (KVCAST_PROGRAM) are; SOURCES have its main.
function(kvcast_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  set(target ${name}_bench)
  add_executable(${target} ${arg_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${target} PRIVATE KVCAST_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                               KVCAST_PROGRAM="$<TARGET_FILE:kvcast_cli>")
  target_link_libraries(${target} PRIVATE kvcast_warnings benchmark::benchmark kvcast::model ${arg_LINK})
  add_dependencies(${target} kvcast_cli)
endfunction()
