#pragma once
// Objects of an HDF5 file: groups and datasets with their headers, links and attributes. Formats:
// HDF5 File Format Specification 3.0, sections II (superblock) and IV (object headers). Private to
// this folder.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/hdf5/bounded_file.h"
#include "io/hdf5/hdf5.h"

namespace espalier::io::hdf5 {

/// A type of elements.
struct Datatype {
  enum class Class : uint8_t { integer, floating, text, texts, other };
  Class of = Class::other;  ///< text: of fixed length; texts: of variable length
  uint64_t bytes = 0;
  bool big_endian = false, is_signed = false;
  // Of floating numbers, in bits:
  unsigned sign = 0, exponent_at = 0, exponent_bits = 0, mantissa_at = 0, mantissa_bits = 0;
  uint64_t bias = 0;
  bool ordinary = false;  ///< a floating type with a hidden leading one and all bits used

  Type type() const;
  /// One element as a double (which holds floats of up to 64 bits exactly), or an integer.
  double number(const uint8_t* element) const;
  int64_t integer(const uint8_t* element) const;
};

struct Link {
  std::string name;
  uint64_t order = 0;
  std::optional<uint64_t> object{};  ///< address; none: a soft or external link
};

struct Attribute {
  std::string name;
  Datatype datatype{};
  uint64_t count = 0;
  std::vector<uint8_t> data{};
};

/// Where the data of a dataset are.
struct Layout {
  bool plain = false;  ///< one piece of this file, without filters
  uint64_t address = kNowhere;
  uint64_t bytes = 0;
  std::vector<uint8_t> compact{};  ///< in the header itself
  bool is_compact = false;
};

struct Object {
  bool group = false, dataset = false;
  // Of a dataset:
  Datatype datatype{};
  std::vector<int64_t> extents{};
  double count = 1;  ///< of elements, more than an integer may hold
  Layout layout{};
  // Of a group or dataset:
  std::vector<Link>
      links{};  ///< by order of creation, if the file keeps an index of it, else by name
  std::vector<size_t> by_name{};        ///< numbers of `links`
  std::vector<Attribute> attributes{};  ///< by name

  const Link* link(std::string_view name) const;  ///< null if there is none
};

/// The address of the root group. Throws FormatError unless the file is HDF5 and not truncated.
uint64_t root_of(BoundedFile& file);
Object object_at(BoundedFile& file, uint64_t address);

}  // namespace espalier::io::hdf5
