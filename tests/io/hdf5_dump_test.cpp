// For scripts/hdf5_random_test.py: with ESPALIER_HDF5_FILES=FOLDER writes FILE.dump for each
// FILE.h5 of the folder, with all datasets as the reader reads them. A dataset is a line "PATH
// float|int|? EXTENTS…" (tabs between words) or "PATH refused REASON", then its elements as fp32
// or int64.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "io/hdf5/reader.h"

namespace espalier::io::hdf5::hdf5_dump_test {
namespace {

namespace fs = std::filesystem;

template <class Number>
void write_elements(const Reader& reader, const std::string& path, Type type, int64_t count,
                    std::ostream& out) {
  std::vector<Number> values(static_cast<size_t>(count));
  reader.read(path, type, std::as_writable_bytes(std::span(values)));
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(Number)));
}

void dump(const fs::path& file) {
  std::ofstream out(file.string() + ".dump", std::ios::binary);
  try {
    const Reader reader(file);
    for (const std::string& path : reader.datasets()) {
      std::ostringstream row;
      try {
        const Dataset found = reader.describe(path);
        row << path << '\t'
            << (is_float(found.type)     ? "float"
                : is_integer(found.type) ? "int"
                                         : "?");
        for (const int64_t extent : found.extents) {
          row << '\t' << extent;
        }
        row << '\n';
        if (is_float(found.type)) {
          write_elements<float>(reader, path, Type::fp32, found.count, row);
        } else if (is_integer(found.type)) {
          write_elements<int64_t>(reader, path, Type::int64, found.count, row);
        }
        out << row.str();
      } catch (const Failure& failure) {
        out << path << "\trefused\t" << failure.what() << '\n';
      }
    }
  } catch (const Failure& failure) {
    out << "/\trefused\t" << failure.what() << '\n';
  }
}

TEST(Hdf5Dump, OfFilesOfH5py) {
  const char* folder = std::getenv("ESPALIER_HDF5_FILES");
  if (folder == nullptr) {
    GTEST_SKIP() << "ESPALIER_HDF5_FILES names no folder";
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".h5") {
      dump(entry.path());
    }
  }
}

}  // namespace
}  // namespace espalier::io::hdf5::hdf5_dump_test
