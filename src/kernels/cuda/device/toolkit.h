#pragma once
// Locations of CUDA toolkit libraries that core/shared_library.h loads on first use.
#include <cstdlib>
#include <string>
#include <vector>

namespace espalier::kernels::ESPALIER_GPU {

/// Returns names to try, in order of preference: in the folder that environment variable `variable`
/// names, in the system loader's path (LD_LIBRARY_PATH, ldconfig), in the toolkit's own folders.
inline std::vector<std::string> toolkit_names(const std::string& file, const char* variable) {
  std::vector<std::string> names;
  if (const char* folder = std::getenv(variable); folder != nullptr && *folder != '\0') {
    names.push_back(std::string(folder) + "/" + file);
  }
  names.push_back(file);
  for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) {
    names.push_back(folder + file);
  }
  return names;
}

}  // namespace espalier::kernels::ESPALIER_GPU
