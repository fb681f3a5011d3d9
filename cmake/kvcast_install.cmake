# Makes find_package(kvcast) work after `cmake --install`. Libraries and headers install themselves.

include(CMakePackageConfigHelpers)
set(kvcast_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvcast)
set(kvcast_data_dir ${CMAKE_INSTALL_DATADIR}/kvcast/data)

install(DIRECTORY data/ DESTINATION ${kvcast_data_dir} COMPONENT program)
install(EXPORT kvcast_targets NAMESPACE kvcast:: DESTINATION ${kvcast_package_dir}
        FILE kvcast-targets.cmake)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/kvcast-config.cmake.in ${PROJECT_BINARY_DIR}/kvcast-config.cmake
  INSTALL_DESTINATION ${kvcast_package_dir} PATH_VARS kvcast_data_dir)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvcast-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvcast-config.cmake
              ${PROJECT_BINARY_DIR}/kvcast-config-version.cmake
              cmake/FindoneDNN.cmake DESTINATION ${kvcast_package_dir})
