# Build helpers. One static library per folder of src/, so that the linker agrees with LAYERS.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
if(LODE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# The tree must not be built with -ffast-math or -Ofast: NaN checks and the order of sums are part of the product.
if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE}" MATCHES "-Ofast|-ffast-math")
  message(FATAL_ERROR "lodestone cannot be built with -Ofast or -ffast-math: NaN checks would be compiled away")
endif()

add_library(lode_options INTERFACE)
target_compile_options(lode_options INTERFACE -Wall -Wextra -Werror -fno-math-errno)
target_include_directories(lode_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(lode_options INTERFACE Threads::Threads)
if(LODE_SANITIZE)
  target_compile_options(lode_options INTERFACE -fsanitize=${LODE_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(lode_options INTERFACE -fsanitize=${LODE_SANITIZE})
endif()

# lode_library(FOLDER SOURCES a.cc ... DEPS folder ... [LIBS external ...])
function(lode_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(lode_${folder} STATIC ${ARG_SOURCES})
  target_link_libraries(lode_${folder} PUBLIC lode_options)
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(lode_${folder} PUBLIC lode_${dep})
  endforeach()
  target_link_libraries(lode_${folder} PRIVATE ${ARG_LIBS})
endfunction()

# The longest that a test may take. Sanitizers make some ten times as slow.
set(LODE_TEST_SECONDS 300)
if(LODE_SANITIZE)
  set(LODE_TEST_SECONDS 1200)
endif()

# lode_test(NAME SOURCES x_test.cc ... DEPS folder ... [LIBS ...] [LABELS slow]): one ctest entry per binary.
# Tests run in the source folder's root so that tests/data/... is found.
function(lode_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  if(NOT LODE_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${name} PRIVATE lode_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE lode_options ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${LODE_TEST_SECONDS})
endfunction()
