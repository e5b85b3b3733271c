# The JSON library's own dump() throws on text that is not UTF-8 and its parse() builds values of any
# depth, so both stand in base alone (base/json.h); toml::parse likewise (base/toml.h). Searches the
# sources, and a folder with one violation of each kind, which must be found.
# Run with -DSOURCE=<repository> -DBINARY=<scratch folder>.
function(find_violations folder result)
  file(GLOB_RECURSE files ${folder}/*.cc ${folder}/*.h)
  set(found "")
  foreach(file IN LISTS files)
    # Tests read what was written with the library itself: it is their twin.
    if(file MATCHES "(_test\\.cc$|/testing/)"
       OR file MATCHES "/base/(json\\.cc|json\\.h|toml\\.h)$")
      continue()
    endif()
    file(STRINGS ${file} lines REGEX "(\\.|->)dump\\(|[Jj]son::parse\\(|toml::parse(_file)?\\(")
    foreach(line IN LISTS lines)
      string(APPEND found "${file}: ${line}\n")
    endforeach()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

find_violations(${SOURCE}/src found)
if(found)
  message(FATAL_ERROR "use dump_json, parse_json (ductile/base/json.h) and parse_toml (ductile/base/toml.h):\n${found}")
endif()

foreach(line "out << value.dump()" "say(at->dump(2))" "nlohmann::json::parse(text)"
    "json::parse(text, nullptr, false)" "Json::parse(text)" "toml::parse(text)")
  file(WRITE ${BINARY}/probe.cc "int probe() { ${line}; }\n")
  find_violations(${BINARY} found)
  if(NOT found)
    message(FATAL_ERROR "not found: ${line}")
  endif()
endforeach()
