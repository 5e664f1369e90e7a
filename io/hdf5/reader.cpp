#include "io/hdf5/reader.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#include "io/files/file_system.h"
#include "io/hdf5/heaps.h"
#include "io/hdf5/objects.h"
#include "src/core/error.h"

namespace espalier::io::hdf5 {
namespace {

/// Bytes of all elements, which may be more than an integer holds.
double bytes_of(const Object& object) {
  return object.count * static_cast<double>(object.datatype.bytes);
}

}  // namespace

struct Reader::State {
  std::mutex lock;
  std::string label;
  BoundedFile file;
  uint64_t root = 0;
  /// The objects read last: a path of parameters goes through the same groups again and again.
  std::deque<std::pair<uint64_t, Object>> recent{};

  /// Runs an action; a fault of the file becomes a Failure that names both.
  template <class Action>
  auto guarded(const std::string& what, const Action& action) {
    const std::lock_guard one_at_a_time(lock);
    file.restart();
    try {
      return action();
    } catch (const FormatError& fault) {
      fail("{}: cannot {}: {}; the file is truncated, damaged or not HDF5, use another file", label,
           what, fault.what());
    } catch (const Unreadable& unreadable) {
      throw ReadFailure(fmt::format("{}: cannot {}: {}", label, what, cause_of(unreadable.error)),
                        unreadable.error);
    }
  }

  const Object& object(uint64_t address) {
    constexpr size_t kMax = 64;
    const auto found = std::ranges::find(recent, address, &std::pair<uint64_t, Object>::first);
    if (found != recent.end()) {
      return found->second;
    }
    recent.emplace_front(address, object_at(file, address));
    if (recent.size() > kMax) {
      recent.pop_back();
    }
    return recent.front().second;
  }

  /// The address of the object at `path`; none if there is no such object.
  std::optional<uint64_t> address_of(const std::string& path) {
    uint64_t at = root;
    for (size_t begin = 1; begin < path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const Link* link = object(at).link(std::string_view(path).substr(begin, end - begin));
      if (link == nullptr) {
        return std::nullopt;
      }
      check(link->object.has_value(),
            "{}: {} is a soft or external link, which may lead to another file; store the object "
            "itself there",
            label, path.substr(0, end));
      at = *link->object;
      begin = end + 1;
    }
    return at;
  }

  const Object& object(const std::string& path) {
    const auto address = address_of(path);
    expect(address.has_value(), "there is no such object");
    return object(*address);
  }

  const Attribute& attribute(const std::string& path, const std::string& name) {
    const Object& at = object(path);
    const auto found = std::ranges::find(at.attributes, name, &Attribute::name);
    expect(found != at.attributes.end(), "there is no such attribute");
    return *found;
  }

  /// The dataset at `path`, whose data are one piece of the file and within it.
  const Object& dataset(const std::string& path) {
    const Object& found = object(path);
    expect(found.dataset, "it is no dataset");
    check(found.layout.plain,
          "{}: dataset {} is compressed, in chunks, or stored in another file; only data that are "
          "one piece of the file are read: h5repack -l CONTI -f NONE OLD.h5 NEW.h5 writes such a "
          "file",
          label, path);
    // Nothing is allocated for more than the file can hold.
    check(bytes_of(found) <= static_cast<double>(file.size()),
          "{}: dataset {} claims {:.0f} bytes, more than the file has; the file is damaged or the "
          "dataset was never written, use another file",
          label, path, bytes_of(found));
    return found;
  }

  /// Bytes [first, first + out.size()) of a dataset's elements, as they are in the file.
  void copy(const Object& found, std::span<std::byte> out, uint64_t first = 0) {
    const Layout& layout = found.layout;
    const auto inside = [&](uint64_t bytes) {
      return first <= bytes && out.size() <= bytes - first;
    };
    if (layout.is_compact) {
      expect(inside(layout.compact.size()), "its data are shorter than its extents");
      std::memcpy(out.data(), layout.compact.data() + first, out.size());
      return;
    }
    expect(layout.address != kNowhere, "it was never written");
    expect(inside(layout.bytes), "its data are shorter than its extents");
    file.copy(layout.address + first, out);
  }

  struct Walk {
    uint64_t paths = 0;
    double bytes = 0;  ///< of all datasets
    std::vector<std::string> datasets{};
  };
  void walk(uint64_t group, const std::string& at, int depth, Walk& seen) {
    const std::vector<Link> links = object(group).links;
    for (const Link& link : links) {
      const std::string path = at + "/" + link.name;
      // Hard links may form cycles, and lead to a group by countless paths. A link takes more than
      // 8 bytes; a few paths more are ordinary.
      check(depth < 64 && ++seen.paths < 1000 + file.size() / 8,
            "{}: more than 64 levels, or more paths than a file of this size has links (at {}); "
            "the file is damaged or has circular links, use another file",
            label, path);
      if (!link.object) {
        continue;
      }
      const Object& found = object(*link.object);
      if (found.dataset) {
        // Some links may lead to one dataset; many would make its bytes be read as many times.
        // Those that claim more are refused where they are read.
        const double bytes = bytes_of(found);
        const auto all = static_cast<double>(file.size());
        seen.bytes += found.layout.plain && bytes <= all ? bytes : 0;
        check(
            seen.bytes <= 16 * all,
            "{}: the datasets claim more than 16 times the bytes of the file (at {}); the file is "
            "damaged, use another file",
            label, path);
        seen.datasets.push_back(path);
      } else if (found.group) {
        walk(*link.object, path, depth + 1, seen);
      }
    }
  }
};

Reader::Reader(const std::filesystem::path& path)
    : state_(new State{.lock = {}, .label = path.string(), .file = BoundedFile(path)}) {
  state_->root = state_->guarded("open it as HDF5", [&] { return root_of(state_->file); });
  state_->guarded("open it as HDF5", [&] {
    expect(state_->object(state_->root).group, "its root is no group");
    return 0;
  });
}

Reader::Reader(Reader&&) noexcept = default;
Reader::~Reader() = default;

uint64_t Reader::size() const { return state_->file.size(); }

bool Reader::exists(const std::string& path) const {
  return state_->guarded("look up " + path, [&] {
    const size_t slash = path.rfind('/');
    const auto group = state_->address_of(path.substr(0, slash));
    return path == "/" || (group && state_->object(*group).link(
                                        std::string_view(path).substr(slash + 1)) != nullptr);
  });
}

std::vector<std::string> Reader::children(const std::string& group) const {
  return state_->guarded("list group " + group, [&] {
    const Object& found = state_->object(group);
    expect(found.group, "it is no group");
    std::vector<std::string> names;
    for (const Link& link : found.links) {
      names.push_back(link.name);
    }
    return names;
  });
}

std::vector<std::string> Reader::datasets() const {
  return state_->guarded("list its datasets", [&] {
    State::Walk seen;
    state_->walk(state_->root, "", 0, seen);
    return std::move(seen.datasets);
  });
}

Dataset Reader::describe(const std::string& path) const {
  return state_->guarded("open dataset " + path, [&] {
    const Object& found = state_->dataset(path);
    return Dataset{.type = found.datatype.type(),
                   .extents = found.extents,
                   .count = static_cast<int64_t>(found.count)};
  });
}

void Reader::read(const std::string& path, Type type, std::span<std::byte> out) const {
  const Dataset found = describe(path);
  require(static_cast<size_t>(found.count) * size_of(type) == out.size(),
          "the buffer holds all elements", found.count, size_of(type), out.size());
  if (out.empty()) {
    return;
  }
  state_->guarded("read dataset " + path, [&] {
    const Object& object = state_->dataset(path);
    if (found.type == type) {
      state_->copy(object, out);
      return 0;
    }
    expect(object.datatype.ordinary && type == Type::fp32, "its elements cannot be converted");
    std::vector<std::byte> raw(static_cast<size_t>(bytes_of(object)));
    state_->copy(object, raw);
    const auto* from = reinterpret_cast<const uint8_t*>(raw.data());
    for (size_t i = 0; i * sizeof(float) < out.size(); ++i, from += object.datatype.bytes) {
      const auto value = static_cast<float>(object.datatype.number(from));
      std::memcpy(out.data() + i * sizeof(float), &value, sizeof(float));
    }
    return 0;
  });
}

void Reader::read_part(const std::string& path, uint64_t first, std::span<std::byte> out) const {
  const Dataset found = describe(path);
  const uint64_t all = static_cast<uint64_t>(found.count) * size_of(found.type);
  require(first <= all && out.size() <= all - first, "the part is within the dataset", first,
          out.size(), all);
  if (!out.empty()) {
    state_->guarded("read dataset " + path, [&] {
      state_->copy(state_->dataset(path), out, first);
      return 0;
    });
  }
}

std::vector<std::string> Reader::attributes(const std::string& path) const {
  return state_->guarded("list the attributes of " + path, [&] {
    std::vector<std::string> names;
    for (const Attribute& attribute : state_->object(path).attributes) {
      names.push_back(attribute.name);
    }
    return names;
  });
}

std::string Reader::text(const std::string& path, const std::string& name) const {
  return state_->guarded(fmt::format("read attribute {} of {}", name, path), [&] {
    const Attribute& found = state_->attribute(path, name);
    const bool variable = found.datatype.of == Datatype::Class::texts;
    check((variable || found.datatype.of == Datatype::Class::text) && found.count == 1,
          "{}: attribute {} of {} is not a single string; the file is damaged, use another file",
          state_->label, name, path);
    std::vector<uint8_t> bytes = found.data;
    if (variable) {
      Cursor in(found.data);
      const uint64_t length = in.number(4);
      const uint64_t heap = in.address();
      const uint64_t index = in.number(4);
      bytes = length == 0 ? std::vector<uint8_t>() : global_object(state_->file, heap, index);
      expect(length <= bytes.size(), "a text is shorter than its length");
      bytes.resize(length);
    }
    return std::string(bytes.begin(), std::ranges::find(bytes, uint8_t{0}));  // up to the padding
  });
}

std::vector<int64_t> Reader::integers(const std::string& path, const std::string& name) const {
  return state_->guarded(fmt::format("read attribute {} of {}", name, path), [&] {
    const Attribute& found = state_->attribute(path, name);
    check(found.datatype.of == Datatype::Class::integer && found.datatype.bytes >= 1 &&
              found.datatype.bytes <= 8 && found.count <= 64,
          "{}: attribute {} of {} is not a short list of integers; the file is damaged, use "
          "another file",
          state_->label, name, path);
    std::vector<int64_t> values;
    for (uint64_t i = 0; i < found.count; ++i) {
      values.push_back(found.datatype.integer(found.data.data() + i * found.datatype.bytes));
    }
    return values;
  });
}

}  // namespace espalier::io::hdf5
