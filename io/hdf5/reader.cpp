#include "io/hdf5/reader.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <set>

#include "io/files/file_system.h"
#include "io/hdf5/chunks.h"
#include "io/hdf5/heaps.h"
#include "io/hdf5/objects.h"

namespace espalier::io::hdf5 {
namespace {

/// Bytes of all elements, which may be more than an integer holds.
double bytes_of(const Object& object) {
  return object.count * static_cast<double>(object.datatype.bytes);
}

/// One element as a number of the type Out.
template <class Out>
void convert(const Datatype& datatype, const uint8_t* from, size_t count, std::byte* out) {
  const bool integer = datatype.of == Datatype::Class::integer;
  for (size_t i = 0; i < count; ++i, from += datatype.bytes, out += sizeof(Out)) {
    const Out value = integer ? static_cast<Out>(datatype.integer(from))
                              : static_cast<Out>(datatype.number(from));
    std::memcpy(out, &value, sizeof(Out));
  }
}

}  // namespace

bool is_float(Type type) {
  return type == Type::fp16 || type == Type::bf16 || type == Type::fp32 || type == Type::fp64 ||
         type == Type::other_float;
}

bool is_integer(Type type) {
  return type == Type::int32 || type == Type::int64 || type == Type::uint8 ||
         type == Type::other_integer;
}

struct Reader::State {
  std::mutex lock;
  std::string label;
  BoundedFile file;
  uint64_t root = 0;
  /// The objects read last: a path of parameters goes through the same groups again and again.
  std::list<std::pair<uint64_t, Object>> recent{};

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

  Object& object(uint64_t address) {
    constexpr size_t kMax = 64;
    const auto found = std::ranges::find(recent, address, &std::pair<uint64_t, Object>::first);
    if (found != recent.end()) {
      recent.splice(recent.begin(), recent, found);
      return found->second;
    }
    recent.emplace_front(address, object_at(file, address));
    if (recent.size() > kMax) {
      recent.pop_back();
    }
    return recent.front().second;
  }

  /// The address of the object at `path` below `group`; none if there is no such object.
  std::optional<uint64_t> address_of(std::string_view path, std::optional<uint64_t> group = {},
                                     int soft_links = 0) {
    uint64_t at = group.value_or(root);
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string_view word = path.substr(begin, end - begin);
      begin = end + 1;
      if (word.empty() || word == ".") {
        continue;
      }
      const Link* link = object(at).link(word);
      if (link == nullptr) {
        return std::nullopt;
      }
      const auto next = object_of(*link, at, soft_links, path.substr(0, end));
      if (!next) {
        return std::nullopt;
      }
      at = *next;
    }
    return at;
  }

  /// The object that a link of `group` leads to; none if a soft link leads nowhere.
  std::optional<uint64_t> object_of(const Link& link, uint64_t group, int soft_links,
                                    std::string_view path) {
    constexpr int kMostSoftLinks = 16;
    if (link.object) {
      return link.object;
    }
    check(!link.target.empty(),
          "{}: {} is an external link, which leads to another file; store the object itself there",
          label, path);
    if (soft_links >= kMostSoftLinks) {  // they lead in circles
      return std::nullopt;
    }
    const std::string target = link.target;  // the group may leave `recent`
    return address_of(target, target.front() == '/' ? root : group, soft_links + 1);
  }

  Object& object(const std::string& path) {
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

  /// Bytes that the elements of a dataset may have in all.
  double most_bytes(const Layout& layout) const {
    const auto all = static_cast<double>(file.size());
    return layout.form == Layout::Form::chunked
               ? static_cast<double>(kMostExpansion) * all + static_cast<double>(kFillSlack)
           : layout.form == Layout::Form::contiguous && layout.address == kNowhere
               ? all + static_cast<double>(kFillSlack)
               : all;
  }

  /// The dataset at `path`, whose data are in this file; its chunks are found.
  const Object& dataset(const std::string& path) {
    Object& found = object(path);
    const Layout& layout = found.layout;
    expect(found.dataset, "it is no dataset");
    check(layout.form != Layout::Form::elsewhere,
          "{}: dataset {} is stored in another file (external or virtual); write its elements into "
          "this one",
          label, path);
    const std::string filter = unsupported(layout.filters);
    check(filter.empty() || layout.form != Layout::Form::chunked,
          "{}: dataset {} has the filter {}, and deflate (gzip), shuffle, fletcher32 and lzf are "
          "supported: h5repack -f NONE OLD.h5 NEW.h5 writes it without filters",
          label, path, filter);
    // Nothing is allocated for more than the file can hold.
    check(bytes_of(found) <= most_bytes(layout),
          "{}: dataset {} claims {:.0f} bytes, more than the file has; the file is damaged or the "
          "dataset was never written, use another file",
          label, path, bytes_of(found));
    if (layout.form == Layout::Form::chunked && found.chunks == nullptr) {
      found.chunks = std::make_shared<const std::vector<Chunk>>(
          found.count > 0 && found.datatype.bytes > 0 ? chunks_of(file, found)
                                                      : std::vector<Chunk>());
    }
    return found;
  }

  /// Bytes [first, first + out.size()) of a dataset's elements, as they are in the file.
  void copy(const Object& found, std::span<std::byte> out, uint64_t first = 0) {
    const Layout& layout = found.layout;
    const auto inside = [&](uint64_t bytes) {
      return first <= bytes && out.size() <= bytes - first;
    };
    if (layout.form == Layout::Form::compact) {
      expect(inside(layout.compact.size()), "its data are shorter than its extents");
      std::memcpy(out.data(), layout.compact.data() + first, out.size());
    } else if (layout.form == Layout::Form::chunked) {
      read_chunks(file, found, first, out);
    } else if (layout.address == kNowhere) {
      write_fill(found, first, out);
    } else {
      expect(inside(layout.bytes), "its data are shorter than its extents");
      file.copy(layout.address + first, out);
    }
  }

  /// The text of one element.
  std::string text_in(const Datatype& datatype, std::vector<uint8_t> bytes) {
    if (datatype.of == Datatype::Class::texts) {
      const std::vector<uint8_t> reference = std::move(bytes);
      Cursor in(reference);
      const uint64_t length = in.number(4);
      const uint64_t heap = in.address();
      const uint64_t index = in.number(4);
      bytes = length == 0 ? std::vector<uint8_t>() : global_object(file, heap, index);
      expect(length <= bytes.size(), "a text is shorter than its length");
      bytes.resize(length);
    }
    return std::string(bytes.begin(), std::ranges::find(bytes, uint8_t{0}));  // up to the padding
  }

  struct Walk {
    uint64_t paths = 0;
    double bytes = 0;                ///< of all datasets; of chunks before they expand
    double fill = 0;                 ///< of datasets that were never written
    double again = 0;                ///< of further names of datasets, expanded
    std::set<uint64_t> addresses{};  ///< of datasets
    std::vector<std::string> datasets{};
    std::vector<DeadLink> dead{};
    std::vector<uint64_t> groups{};  ///< from the root to the current one
  };
  void walk(uint64_t group, const std::string& at, Walk& seen) {
    const std::vector<Link> links = object(group).links;
    seen.groups.push_back(group);
    for (const Link& link : links) {
      const std::string path = at + "/" + link.name;
      // Hard links may lead to a group by countless paths. A link takes more than 8 bytes; a few
      // paths more are ordinary.
      check(seen.groups.size() <= 64 && ++seen.paths < 1000 + file.size() / 8,
            "{}: more than 64 levels, or more paths than a file of this size has links (at {}); "
            "the file is damaged or has circular links, use another file",
            label, path);
      std::optional<uint64_t> address;
      try {
        address = object_of(link, group, 0, path);
      } catch (const Failure&) {
        seen.dead.push_back({.path = path, .other_file = true});
        continue;
      }
      if (!address) {
        seen.dead.push_back({.path = path});
        continue;
      }
      if (std::ranges::find(seen.groups, *address) != seen.groups.end()) {
        continue;  // to a group around it
      }
      const Object& found = object(*address);
      if (found.dataset) {
        // Layers may share a dataset by links; very many would make its bytes be read as many
        // times. Those that claim more than they can have are refused where they are read.
        const double bytes = bytes_of(found);
        const Layout& layout = found.layout;
        const bool unwritten =
            layout.form == Layout::Form::contiguous && layout.address == kNowhere;
        const auto expansion = static_cast<double>(kMostExpansion);
        const bool first = seen.addresses.insert(*address).second;
        double& sum = !first ? seen.again : unwritten ? seen.fill : seen.bytes;
        if (bytes <= most_bytes(layout)) {
          sum += first && layout.form == Layout::Form::chunked ? bytes / expansion : bytes;
        }
        const auto all = static_cast<double>(file.size());
        check(
            seen.bytes <= 16 * all && seen.fill <= 16 * (all + static_cast<double>(kFillSlack)),
            "{}: the datasets claim more than 16 times the bytes of the file (at {}); the file is "
            "damaged, use another file",
            label, path);
        check(seen.again <= expansion * all,
              "{}: the names of its datasets stand for more than {} times the bytes of the file "
              "(at {}); store shared arrays once, or use another file",
              label, kMostExpansion, path);
        seen.datasets.push_back(path);
      } else if (found.group) {
        walk(*address, path, seen);
      }
    }
    seen.groups.pop_back();
  }
  Walk walk() {
    Walk seen;
    walk(root, "", seen);
    return seen;
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
  return state_->guarded("list its datasets", [&] { return state_->walk().datasets; });
}

std::vector<DeadLink> Reader::dead_links() const {
  return state_->guarded("list its links", [&] { return state_->walk().dead; });
}

Dataset Reader::describe(const std::string& path) const {
  return state_->guarded("open dataset " + path, [&] {
    const uint64_t address = state_->address_of(path).value_or(0);
    const Object& found = state_->dataset(path);
    Datatype number = found.datatype;
    number.big_endian = false;
    return Dataset{.type = found.datatype.type(),
                   .number = number.type(),
                   .extents = found.extents,
                   .count = static_cast<int64_t>(found.count),
                   .fault = found.extents.empty() ? "" : found.datatype.fault(),
                   .content = found.datatype.text(),
                   .address = address};
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
    const Datatype& datatype = object.datatype;
    const bool integers = datatype.of == Datatype::Class::integer;
    expect(datatype.is_number() && (type == Type::fp32 || (type == Type::int64 && integers)),
           "its elements cannot be converted");
    const size_t width = size_of(type);
    const size_t count = out.size() / width;
    const bool pieces = object.layout.form != Layout::Form::chunked;
    const size_t most = pieces ? size_t{1} << 16 : count;  // elements
    std::vector<std::byte> raw(std::min(most, count) * datatype.bytes);
    for (size_t done = 0; done < count; done += most) {
      const size_t part = std::min(most, count - done);
      state_->copy(object, std::span(raw).first(part * datatype.bytes), done * datatype.bytes);
      const auto* from = reinterpret_cast<const uint8_t*>(raw.data());
      std::byte* to = out.data() + done * width;
      type == Type::fp32 ? convert<float>(datatype, from, part, to)
                         : convert<int64_t>(datatype, from, part, to);
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
    return state_->text_in(found.datatype, found.data);
  });
}

std::string Reader::text_of(const std::string& path) const {
  return state_->guarded("read dataset " + path, [&] {
    const Object& found = state_->dataset(path);
    const Datatype& datatype = found.datatype;
    check((datatype.of == Datatype::Class::texts || datatype.of == Datatype::Class::text) &&
              found.count == 1 && datatype.bytes <= 4096,
          "{}: dataset {} is not a single short string", state_->label, path);
    std::vector<uint8_t> bytes(static_cast<size_t>(datatype.bytes));
    state_->copy(found, std::as_writable_bytes(std::span(bytes)));
    return state_->text_in(datatype, std::move(bytes));
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
