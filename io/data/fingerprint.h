#pragma once
// Identity of the content of files, whatever their names.
#include <sys/stat.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier::io {

/// "12000 bytes, xxHash64 0123456789abcdef": the size of all files, and a hash of their content in
/// the given order (docs/formats.md). Up to 64 MiB every byte counts; of more, the sizes of the
/// files and 64 evenly spaced blocks of 64 KiB, so that the time does not grow with the size. Empty
/// without files. Throws Failure, which begins with `what`, if a file cannot be read.
std::string fingerprint(std::span<const std::string> files, std::string_view what = "data file");
/// The same of one file with this content, of at most 64 MiB.
std::string fingerprint_of(std::string_view content);

/// Notices that files are written while they are read.
class FileStamps {
 public:
  FileStamps() = default;
  /// Files that do not exist are left out.
  explicit FileStamps(const std::vector<std::string>& files);
  /// A file with another size or modification time than then; empty: none. One that another file
  /// has replaced under its name is none: who has mapped it reads the old content on.
  std::string changed() const;

 private:
  std::vector<std::pair<std::string, struct ::stat>> found_;
};

}  // namespace espalier::io
