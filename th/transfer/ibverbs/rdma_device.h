// The RDMA devices of this machine that can carry reliable connections, opened: for each a context,
// a protection domain, the port and the GID that peers reach it by.
//
//   TH_ASSIGN_OR_RETURN(auto verbs, VerbsLibrary::Load());
//   TH_ASSIGN_OR_RETURN(RdmaDevices devices, OpenRdmaDevices(verbs, {}));
//   devices.usable[0]->name();  // "mlx5_0"
//   devices.left_out;           // {"mlx5_1: port 1 is down; ..."}
//
// The GID is chosen by its type and prefix, never by its number: on RoCE those of version 2, first
// the ones that stand for an IPv4 address, then global IPv6; on InfiniBand the first of the port. A
// candidate that no address handle can be made with is passed over.
//
// An RdmaDevice does not change and is thread-safe. It is shared by what was made from it (queue
// pairs, registrations), so that it is closed last.
#ifndef TH_TRANSFER_IBVERBS_RDMA_DEVICE_H_
#define TH_TRANSFER_IBVERBS_RDMA_DEVICE_H_

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "th/transfer/ibverbs/verbs_library.h"

namespace th::ibverbs {

using Gid = std::array<uint8_t, 16>;
// "10.0.0.1" for an IPv4-mapped one, else as IPv6.
std::string GidText(const Gid& gid);

enum class LinkLayer : uint8_t { kInfiniBand, kEthernet };
enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
struct GidEntry {
  Gid gid{};
  uint32_t index = 0;
  GidType type = GidType::kInfiniBand;
};
// The entries that peers may reach a port by, the best first. Pure.
std::vector<GidEntry> UsableGids(LinkLayer link, absl::Span<const GidEntry> entries);

// The kernel's RDMA subsystem, as sysfs shows it.
struct RdmaSubsystem {
  bool device_in_kernel = false;  // /sys/class/infiniband has an entry
  bool verbs_module = false;      // ib_uverbs is loaded
  bool device_file = false;       // /dev/infiniband/uverbs*
  bool device_file_usable = false;
};
RdmaSubsystem LookAtRdmaSubsystem(const std::string& root = "");
// Says why no device was found, and what to do. Pure.
std::string WhyNoDevice(const RdmaSubsystem& seen);

// Says what this process may lock, that it was too little to register `bytes`, and what to do.
std::string MemlockAdvice(uint64_t bytes);

class RdmaDevice {
 public:
  struct Limits {
    uint32_t max_queue_depth = 0;     // work requests of a send queue
    uint32_t max_scatter_pieces = 0;  // of a READ
    uint32_t max_completions = 0;     // of a completion queue
    uint32_t max_read_bytes = 0;      // of a READ
    uint8_t max_reads_started = 0;    // outstanding at a queue pair that reads
    uint8_t max_reads_answered = 0;   // outstanding at one that is read from
    uint64_t max_registration_bytes = 0;
  };

  // Takes `context`. FAILED_PRECONDITION: it cannot be used, with the reason and what to do.
  static absl::StatusOr<std::shared_ptr<const RdmaDevice>> Of(
      std::shared_ptr<const VerbsLibrary> verbs, ibv_context* context, std::string name);
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;

  const VerbsLibrary& verbs() const { return *verbs_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const std::string& name() const { return name_; }
  uint8_t port() const { return port_; }
  LinkLayer link() const { return link_; }
  const GidEntry& gid() const { return gid_; }
  uint16_t lid() const { return lid_; }
  ibv_mtu mtu() const { return mtu_; }
  const Limits& limits() const { return limits_; }
  // False in a process that was forked from the one that has opened it: what it holds is the
  // parent's, and the child must leave it there.
  bool IsOurs() const { return getpid() == process_; }
  // True when its port carries traffic now; one call of the driver.
  bool IsPortActive() const;
  // "rxe0 port 1, RoCEv2 10.0.0.1, MTU 4096".
  std::string ToString() const;

 private:
  RdmaDevice(std::shared_ptr<const VerbsLibrary> verbs, ibv_context* context, std::string name)
      : verbs_(std::move(verbs)), context_(context), name_(std::move(name)) {}
  absl::Status Prepare();
  absl::Status TakeLimits(int* ports);
  absl::Status TakePort(int ports);
  absl::Status TakeGid();
  bool MakesHandle(const GidEntry& gid) const;

  const std::shared_ptr<const VerbsLibrary> verbs_;
  ibv_context* const context_;
  const std::string name_;
  const pid_t process_ = getpid();
  ibv_pd* domain_ = nullptr;
  uint8_t port_ = 0;
  LinkLayer link_ = LinkLayer::kInfiniBand;
  GidEntry gid_;
  uint16_t lid_ = 0;
  ibv_mtu mtu_ = IBV_MTU_256;
  Limits limits_;
};

struct RdmaDevices {
  std::vector<std::shared_ptr<const RdmaDevice>> usable;  // at least one, in the kernel's order
  std::vector<std::string> left_out;                      // "NAME: reason"; of none that was named
};
// Opens the devices of these names, or all if none is named. UNAVAILABLE: none can be used, with
// the reason of each. NOT_FOUND: a named one is not there, with the names of those that are.
// FAILED_PRECONDITION: a named one cannot be used, with the reason.
absl::StatusOr<RdmaDevices> OpenRdmaDevices(std::shared_ptr<const VerbsLibrary> verbs,
                                            absl::Span<const std::string> names);

}  // namespace th::ibverbs

#endif  // TH_TRANSFER_IBVERBS_RDMA_DEVICE_H_
