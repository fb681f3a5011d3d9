# One helper per kind of target, so that a folder's CMakeLists.txt is a list of its files.

# kvcast_library(roofline SOURCES cost.cpp HEADERS cost.h LINK PUBLIC kvcast::model PRIVATE fmt::fmt)
# Makes libkvcast_roofline.a, known as kvcast::roofline here and after find_package(kvcast). LINK takes
# what target_link_libraries takes. HEADERS are installed, and each must compile alone.
function(kvcast_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;HEADERS;LINK")
  set(target kvcast_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(kvcast::${name} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                  FILES ${arg_HEADERS})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} ${arg_LINK} PRIVATE $<BUILD_INTERFACE:kvcast_warnings>)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} ARCHIVE_OUTPUT_DIRECTORY
                                                                 ${PROJECT_BINARY_DIR}/lib)
  install(TARGETS ${target} EXPORT kvcast_targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvcast)
endfunction()

# kvcast_test(roofline SOURCES cost_test.cpp SLOW sweep_test.cpp LINK kvcast::roofline)
# Makes roofline_test from files in tests/roofline/, and one ctest per file, named roofline.cost_test,
# with the label fast (SOURCES) or slow (SLOW).
function(kvcast_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;SLOW;LINK")
  set(target ${name}_test)
  add_executable(${target})
  target_link_libraries(${target} PRIVATE kvcast_test_main ${arg_LINK})
  foreach(file IN LISTS arg_SOURCES arg_SLOW)
    target_sources(${target} PRIVATE ${name}/${file})
    cmake_path(GET file STEM stem)
    add_test(NAME ${name}.${stem} COMMAND ${target} "--source-file=*/${name}/${file}")
    set(label fast)
    if(file IN_LIST arg_SLOW)
      set(label slow)
    endif()
    # A file whose cases are not found must not pass quietly.
    set_tests_properties(${name}.${stem} PROPERTIES LABELS ${label} TIMEOUT 600
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
