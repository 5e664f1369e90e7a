# cmake -D FILES=a;b -D OUTPUT=FILE -P embed.cmake
# Writes a C++ file that defines espalier::report::page_part(name), the text of each file.
set(entries "")
foreach(file IN LISTS FILES)
  file(READ ${file} text)
  get_filename_component(name ${file} NAME)
  string(FIND "${text}" ")PAGEPART\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "${file} contains the delimiter that embed.cmake uses")
  endif()
  string(APPEND entries "    {\"${name}\", R\"PAGEPART(${text})PAGEPART\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by embed.cmake from the files beside it.
#include \"src/report/page_parts.h\"

#include \"src/core/error.h\"

namespace espalier::report {
namespace {
struct Part {
  std::string_view name;
  std::string_view text;
};
constexpr Part kParts[] = {
${entries}};
}  // namespace

std::string_view page_part(std::string_view name) {
  for (const Part& part : kParts) {
    if (part.name == name) {
      return part.text;
    }
  }
  throw_bug(\"the part must be in page_parts of src/report/CMakeLists.txt\", std::string(name));
}

}  // namespace espalier::report
")
