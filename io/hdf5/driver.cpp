#include "io/hdf5/driver.h"

// The driver's class moved to its own header in HDF5 1.14.
#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>
#endif

#include <type_traits>

namespace espalier::io::hdf5 {
namespace {

/// HDF5's handle of an open file; HDF5 fills `base`, which must be the first member.
struct Open {
  H5FD_t base{};
  std::shared_ptr<RawFile> file;
  haddr_t end_of_allocation = 0;
};
static_assert(std::is_standard_layout_v<Open>);

Open& self(H5FD_t* file) { return *reinterpret_cast<Open*>(file); }
const Open& self(const H5FD_t* file) { return *reinterpret_cast<const Open*>(file); }

/// The property list carries the address of the caller's pointer; it is followed only while the
/// file is being opened.
struct Info {
  const std::shared_ptr<RawFile>* file;
};

H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
  const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
  if (info == nullptr) {
    return nullptr;
  }
  auto* out = new (std::nothrow) Open;  // no exception may pass through HDF5
  if (out == nullptr) {
    (*info->file)->note(ENOMEM);
    return nullptr;
  }
  out->file = *info->file;
  return &out->base;
}

herr_t close(H5FD_t* file) {
  delete &self(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t) { return self(file).end_of_allocation; }

herr_t set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  self(file).end_of_allocation = address;
  return 0;
}

haddr_t get_eof(const H5FD_t* file, H5FD_mem_t) { return self(file).file->size(); }

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* out) {
  Open& open = self(file);
  const bool inside =
      address <= open.end_of_allocation && bytes <= open.end_of_allocation - address;
  return inside && open.file->read(address, bytes, out) ? 0 : -1;
}

herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, const void* data) {
  self(file).file->write(address, bytes, data);
  return 0;
}

herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
  if (self(file).file->size() != self(file).end_of_allocation) {
    self(file).file->resize(self(file).end_of_allocation);
  }
  return 0;
}

/// Generic so that the fields that only newer HDF5 has are set where they exist.
template <class Class>
Class describe() {
  Class out{};
  if constexpr (requires { out.version; }) {
    out.version = 1;
    out.value = 500;  // from the range for drivers that are not registered with The HDF Group
  }
  out.name = "espalier";
  out.maxaddr = (haddr_t{1} << 62) - 1;
  out.fc_degree = H5F_CLOSE_STRONG;
  out.fapl_size = sizeof(Info);
  out.open = open;
  out.close = close;
  out.query = query;
  out.get_eoa = get_eoa;
  out.set_eoa = set_eoa;
  out.get_eof = get_eof;
  out.read = read;
  out.write = write;
  out.truncate = truncate;
  // As in HDF5's own drivers: metadata and raw data each have their free list.
  for (auto& kind : out.fl_map) {
    kind = H5FD_MEM_SUPER;
  }
  out.fl_map[H5FD_MEM_DEFAULT] = H5FD_MEM_DEFAULT;
  out.fl_map[H5FD_MEM_DRAW] = H5FD_MEM_DRAW;
  out.fl_map[H5FD_MEM_GHEAP] = H5FD_MEM_DRAW;
  return out;
}

/// All of a checkpoint's metadata stay in memory until the file is closed (some kB a parameter):
/// data lost by a failed write are then never read back.
bool keep_metadata(hid_t list) {
  H5AC_cache_config_t config{};
  config.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  if (H5Pget_mdc_config(list, &config) < 0) {
    return false;
  }
  config.evictions_enabled = false;
  config.incr_mode = H5C_incr__off;
  config.flash_incr_mode = H5C_flash_incr__off;
  config.decr_mode = H5C_decr__off;
  return H5Pset_mdc_config(list, &config) >= 0;
}

}  // namespace

hid_t access_through(const std::shared_ptr<RawFile>& file) {
  static const H5FD_class_t kClass = describe<H5FD_class_t>();
  // Registered until HDF5 itself ends: H5FD_close of 1.10 releases a file's reference to its driver
  // first and then still calls it, so the last file must not hold the last reference.
  static hid_t driver = -1;
  if (driver < 0) {
    driver = H5FDregister(&kClass);
  }
  const hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  const Info info{&file};
  const bool ok = driver >= 0 && list >= 0 && H5Pset_driver(list, driver, &info) >= 0 &&
                  H5Pset_fclose_degree(list, H5F_CLOSE_STRONG) >= 0 &&
                  H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
                  keep_metadata(list);
  if (!ok && list >= 0) {
    H5Pclose(list);
  }
  return ok ? list : -1;
}

}  // namespace espalier::io::hdf5
