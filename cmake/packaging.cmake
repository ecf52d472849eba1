# What `cmake --install` puts on a system: headers, one static library made of all layers' objects,
# the package files for find_package(kvart) and pkg-config, and the command-line tool where it is
# built.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(kvart_object_owners GLOBAL PROPERTY kvart_object_owners)
set(kvart_objects "")
foreach(owner ${kvart_object_owners})
  list(APPEND kvart_objects $<TARGET_OBJECTS:${owner}>)
endforeach()
add_library(kvart_package STATIC ${kvart_objects})
set_target_properties(kvart_package PROPERTIES
  OUTPUT_NAME kvart EXPORT_NAME kvart LINKER_LANGUAGE CXX)
target_compile_features(kvart_package INTERFACE cxx_std_20)
target_include_directories(kvart_package INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(kvart_package INTERFACE
  Threads::Threads fmt::fmt PkgConfig::pcre2 PkgConfig::utf8proc PkgConfig::xxhash)
if(kvart_with_cuda)
  target_link_libraries(kvart_package INTERFACE CUDA::cudart_static)
  set(kvart_pc_cuda "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
add_library(kvart::kvart ALIAS kvart_package)

set(kvart_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/kvart)
install(TARGETS kvart_package EXPORT kvart_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvart DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT kvart_targets NAMESPACE kvart:: FILE kvartTargets.cmake
  DESTINATION ${kvart_package_folder})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvartConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/kvartConfig.cmake INSTALL_DESTINATION ${kvart_package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/kvartConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH kvart_pc_to_prefix
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/kvart.pc.in ${PROJECT_BINARY_DIR}/package/kvart.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/kvartConfig.cmake
  ${PROJECT_BINARY_DIR}/package/kvartConfigVersion.cmake DESTINATION ${kvart_package_folder})
install(FILES ${PROJECT_BINARY_DIR}/package/kvart.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET kvart)
  install(TARGETS kvart RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
