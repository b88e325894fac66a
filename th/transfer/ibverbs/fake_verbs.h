// A libibverbs for tests of what is decided without an adapter: devices as a test describes them,
// registrations that are only counted. Nothing can be read over it.
//
//   FakeVerbs fake;
//   fake.devices = {{.name = "fake0"}};
//   auto devices = OpenRdmaDevices(fake.library(), {});
//
// One at a time: the functions of a library have no room for whose they are. Not thread-safe.
#ifndef TH_TRANSFER_IBVERBS_FAKE_VERBS_H_
#define TH_TRANSFER_IBVERBS_FAKE_VERBS_H_

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "th/transfer/ibverbs/host_registrations.h"
#include "th/transfer/ibverbs/rdma_device.h"
#include "th/transfer/ibverbs/verbs_library.h"

namespace th::ibverbs {

struct FakeRdmaDevice {
  std::string name;
  int open_error = 0;
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  ibv_port_state port = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  std::vector<GidEntry> gids;
  std::vector<uint32_t> bad_gids;  // indices that no address handle can be made with
  ibv_mtu mtu = IBV_MTU_1024;
  int max_queue_depth = 1024;
  int max_completions = 4096;
  int max_reads_started = 16;
  int max_reads_answered = 16;
};

class FakeVerbs {
 public:
  FakeVerbs();
  ~FakeVerbs();
  FakeVerbs(const FakeVerbs&) = delete;
  FakeVerbs& operator=(const FakeVerbs&) = delete;

  std::shared_ptr<const VerbsLibrary> library() const { return library_; }

  std::vector<FakeRdmaDevice> devices;
  // The next registrations with write access fail with this errno.
  int write_registration_error = 0;
  // All do, from the one of this number on.
  int registration_error = 0;
  size_t registrations_before_error = 0;

  // Those by DMA-BUF fail with this errno.
  int dma_buf_registration_error = 0;
  // As of a library before version 28: registrations know no optional flags.
  void LeaveOutOptionalFlags() { library_->reg_mr_iova2 = nullptr; }
  // As of a library before version 34.
  void LeaveOutDmaBuf() { library_->reg_dmabuf_mr = nullptr; }

  std::vector<MemoryRange> registered;  // alive, in the order of registration
  std::vector<unsigned> access;         // of every registration, also those that have ended
  size_t registrations = 0;             // ever
  size_t dma_buf_registrations = 0;     // of these
  size_t open_contexts = 0;
  size_t open_domains = 0;

 private:
  const std::shared_ptr<VerbsLibrary> library_;
};

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_FAKE_VERBS_H_
