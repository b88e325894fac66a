#include "th/transfer/ibverbs/verbs_library.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace th::ibverbs {
namespace {

// Finds functions by name and version: the library exports some of them twice, and the older one
// takes other structures.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <typename Function>
  void Optional(const char* name, const char* version, Function** into) {
    *into = reinterpret_cast<Function*>(dlvsym(library_, name, version));
  }
  template <typename Function>
  void Required(const char* name, const char* version, Function** into) {
    Optional(name, version, into);
    if (*into == nullptr && missing_.empty()) missing_ = absl::StrCat(name, "@", version);
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

constexpr char kSince11[] = "IBVERBS_1.1";
constexpr char kSinceCreateChannel[] = "IBVERBS_1.0";

}  // namespace

absl::StatusOr<std::shared_ptr<const VerbsLibrary>> VerbsLibrary::Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::UnavailableError(
        absl::StrCat("libibverbs cannot be loaded: ", why == nullptr ? "no reason" : why,
                     "; for RDMA install it (Debian: libibverbs1 and ibverbs-providers)"));
  }
  auto verbs = std::make_shared<VerbsLibrary>();
  Finder find(library);
  find.Required("ibv_get_device_list", kSince11, &verbs->get_device_list);
  find.Required("ibv_free_device_list", kSince11, &verbs->free_device_list);
  find.Required("ibv_get_device_name", kSince11, &verbs->get_device_name);
  find.Required("ibv_open_device", kSince11, &verbs->open_device);
  find.Required("ibv_close_device", kSince11, &verbs->close_device);
  find.Required("ibv_query_device", kSince11, &verbs->query_device);
  find.Required("ibv_query_port", kSince11, &verbs->query_port);
  find.Required("_ibv_query_gid_table", "IBVERBS_1.11", &verbs->query_gid_table);
  find.Required("ibv_alloc_pd", kSince11, &verbs->alloc_pd);
  find.Required("ibv_dealloc_pd", kSince11, &verbs->dealloc_pd);
  find.Required("ibv_reg_mr", kSince11, &verbs->reg_mr);
  find.Optional("ibv_reg_mr_iova2", "IBVERBS_1.8", &verbs->reg_mr_iova2);
  find.Optional("ibv_reg_dmabuf_mr", "IBVERBS_1.12", &verbs->reg_dmabuf_mr);
  find.Required("ibv_dereg_mr", kSince11, &verbs->dereg_mr);
  find.Required("ibv_create_ah", kSince11, &verbs->create_ah);
  find.Required("ibv_destroy_ah", kSince11, &verbs->destroy_ah);
  find.Required("ibv_create_comp_channel", kSinceCreateChannel, &verbs->create_comp_channel);
  find.Required("ibv_destroy_comp_channel", kSinceCreateChannel, &verbs->destroy_comp_channel);
  find.Required("ibv_create_cq", kSince11, &verbs->create_cq);
  find.Required("ibv_destroy_cq", kSince11, &verbs->destroy_cq);
  find.Required("ibv_get_cq_event", kSince11, &verbs->get_cq_event);
  find.Required("ibv_ack_cq_events", kSince11, &verbs->ack_cq_events);
  find.Required("ibv_create_qp", kSince11, &verbs->create_qp);
  find.Required("ibv_modify_qp", kSince11, &verbs->modify_qp);
  find.Required("ibv_destroy_qp", kSince11, &verbs->destroy_qp);
  find.Required("ibv_wc_status_str", kSince11, &verbs->wc_status_str);
  if (!find.missing().empty()) {
    return absl::UnavailableError(
        absl::StrCat(file, " has no ", find.missing(), "; install rdma-core 32 or later"));
  }
  return verbs;
}

}  // namespace th::ibverbs
