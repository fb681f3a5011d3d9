# `cpack -G DEB` in a build folder, or `./run package`: the program with its data, manual page and
# completion scripts. Dependencies are those of the libraries that it is linked with (shlibdeps).
set(CPACK_PACKAGE_NAME kvcast)
set(CPACK_PACKAGE_VENDOR "The kvcast project")
set(CPACK_PACKAGE_CONTACT "The kvcast project")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# Plots are drawn by gnuplot, ranks started by mpirun; both only where they are asked for.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "gnuplot-nox | gnuplot, openmpi-bin")
# The libraries and headers that `cmake --install` adds are for builds against kvcast.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME kvcast)
set(CPACK_DEBIAN_PROGRAM_FILE_NAME DEB-DEFAULT)
include(CPack)
