# Writes OUTPUT, a header with the commit of SOURCE_DIR, only where it changed: cmake -D SOURCE_DIR=...
# -D OUTPUT=... -P kvcast_commit.cmake. Runs with every build, since a commit changes no source file.
set(commit "unknown")
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE described RESULT_VARIABLE status ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0 AND described)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define KVCAST_COMMIT \"${commit}\"\n")
