// The functions of libibverbs, found at run time, so that one binary runs on machines with and
// without RDMA.
//
//   TH_ASSIGN_OR_RETURN(std::shared_ptr<const VerbsLibrary> verbs, VerbsLibrary::Load());
//   int count = 0;
//   ibv_device** devices = verbs->get_device_list(&count);
//
// Only functions that the library exports are here. What <infiniband/verbs.h> defines inline over a
// context's operations (ibv_post_send, ibv_poll_cq, ibv_req_notify_cq) is called directly; every
// other ibv_ function of that header must not be, as nothing links the library.
//
// Does not change after Load; thread-safe as libibverbs is. Tests fill one with functions of
// theirs.
#ifndef TH_TRANSFER_IBVERBS_VERBS_LIBRARY_H_
#define TH_TRANSFER_IBVERBS_VERBS_LIBRARY_H_

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace th::ibverbs {

struct VerbsLibrary {
  // The library is never unloaded: its provider plug-ins leave threads and handlers behind.
  // UNAVAILABLE: it is not installed, or too old, with the reason and what to do.
  static absl::StatusOr<std::shared_ptr<const VerbsLibrary>> Load(
      const std::string& file = "libibverbs.so.1");

  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  // Fills less than a whole ibv_port_attr: clear it first.
  int (*query_port)(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = nullptr;
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, size_t max_entries,
                             uint32_t flags, size_t entry_size) = nullptr;
  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* domain) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* domain, void* address, size_t bytes, int access) = nullptr;
  // Registers as reg_mr does, with flags that the kernel may ignore. Null in a library before
  // version 28.
  ibv_mr* (*reg_mr_iova2)(ibv_pd* domain, void* address, size_t bytes, uint64_t remote_address,
                          unsigned int access) = nullptr;
  // Registers another device's memory; `offset` is in the DMA-BUF. Null in a library before version
  // 34.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t remote_address,
                           int file_descriptor, int access) = nullptr;
  int (*dereg_mr)(ibv_mr* region) = nullptr;
  ibv_ah* (*create_ah)(ibv_pd* domain, ibv_ah_attr* attributes) = nullptr;
  int (*destroy_ah)(ibv_ah* handle) = nullptr;
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                       int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* queue) = nullptr;
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** queue, void** user) = nullptr;
  void (*ack_cq_events)(ibv_cq* queue, unsigned int count) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* domain, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* pair) = nullptr;
  const char* (*wc_status_str)(ibv_wc_status status) = nullptr;
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_VERBS_LIBRARY_H_
