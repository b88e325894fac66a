// Facts of a host as plain values: gathered by file_facts.h, system_facts.h, route_facts.h and
// peer_probe.h, judged by the *_checks.h. A fact that could not be had is absent or empty.
#ifndef TH_DOCTOR_FACTS_H_
#define TH_DOCTOR_FACTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "th/doctor/finding.h"

namespace th::doctor {

// One entry of a port's table of addresses; empty entries are left out.
struct Gid {
  uint32_t index = 0;
  std::string address;     // "0000:0000:0000:0000:0000:ffff:0a00:0001"
  std::string type;        // "RoCE v2", "IB/RoCE v1"
  std::string net_device;  // "eth0"; empty on InfiniBand
};

struct RdmaPort {
  uint32_t number = 0;
  std::string state;       // "ACTIVE", "DOWN", "INIT"
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string rate;        // "100 Gb/sec (4X EDR)"
  std::vector<Gid> gids;
};

// A device of the kernel's RDMA subsystem.
struct RdmaDevice {
  std::string name;                 // "mlx5_0"
  std::string node_type;            // "CA", "RNIC", "usNIC", "unspecified"
  std::string driver;               // "mlx5_core"; empty for a device without hardware
  std::string device_file;          // "/dev/infiniband/uverbs0"; empty if the kernel has made none
  bool device_file_usable = false;  // this process may read and write it
  std::vector<RdmaPort> ports;
};

struct RdmaFacts {
  std::vector<RdmaDevice> devices;
  // Fabrics that are no RDMA devices: "AWS EFA (its driver is not loaded)", "HPE Slingshot".
  std::vector<std::string> other_fabrics;
};

// A library that is opened at run time.
struct LibraryFacts {
  bool opened = false;
  std::string error;  // of opening it, in the dynamic linker's words
};

struct VerbsLibraryFacts {
  LibraryFacts library;
  std::vector<std::string> device_names;  // for which it has a provider
};

struct Gpu {
  std::string name;
  bool dma_buf = false;  // its memory can be handed to a NIC as a DMA-BUF
};

struct GpuFacts {
  uint32_t device_files = 0;        // /dev/nvidia0, ...
  std::string kernel_driver;        // "580.65.06"; empty: not loaded
  bool peer_memory_module = false;  // nvidia_peermem, or the older nv_peer_mem
  LibraryFacts library;             // libcuda.so.1
  int init_error = 0;               // of cuInit; 0: none
  int driver_version = 0;           // 13000: CUDA 13.0
  std::vector<Gpu> gpus;
};

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct Limit {
  uint64_t soft = 0, hard = 0;  // kUnlimited: none
};

struct ProcessFacts {
  std::optional<Limit> locked_memory_bytes;
  std::optional<Limit> open_files;
  // Effective capabilities of this process.
  bool may_lock_memory = false;   // CAP_IPC_LOCK: the limit does not count
  bool may_trace_others = false;  // CAP_SYS_PTRACE
  std::optional<int> yama_scope;  // kernel.yama.ptrace_scope; absent: the kernel has no Yama
  int read_memory_error = 0;      // errno of process_vm_readv on this process itself
};

struct FileSystemSize {
  uint64_t total_bytes = 0, free_bytes = 0;
};

struct MemoryFacts {
  std::optional<FileSystemSize> shared_memory;  // /dev/shm; absent: it is not there
  // "always", "madvise", "never"; of shared memory also "within_size", "advise", "deny", "force".
  std::string transparent_huge_pages;
  std::string shared_huge_pages;
};

struct TcpFacts {
  std::string congestion_control;  // "cubic"
  std::vector<std::string> available_controls;
  std::optional<uint64_t> max_receive_bytes;  // of net.ipv4.tcp_rmem
  std::optional<uint64_t> max_send_bytes;     // of net.ipv4.tcp_wmem
};

struct ClockFacts {
  std::string source;                   // "tsc"
  std::optional<bool> synchronised;     // by NTP or PTP, as the kernel knows it
  std::optional<int64_t> max_error_us;  // of the system's time
};

struct RouteFacts {
  enum class Outcome { kConnected, kUnknownHost, kRefused, kUnreachable, kTimedOut, kFailed };

  std::string target;  // as the user has named it
  Outcome outcome = Outcome::kFailed;
  std::string error;
  std::string peer_address;    // numeric
  std::string source_address;  // numeric
  std::string net_device;      // that has the source's address
  uint32_t path_mtu = 0;       // as far as the kernel knows; 0: unknown
  uint32_t round_trip_us = 0;  // 0: unknown
};

// How a reference server answered a question of this release.
struct ServerFacts {
  std::string server;  // as the user has named it
  std::string error;   // why there is no answer; empty: there is one
  uint64_t epoch = 0;
};

// One direction of the measurement of the rate, as its receiving end saw it.
struct RateFacts {
  uint64_t bytes = 0;
  int64_t microseconds = 0;  // from the first byte to the last
  int64_t waited_us = 0;     // until the first byte
  bool stalled = false;      // no byte came for the stall limit, while another connection answered
  std::string error;         // why there is no result; empty: there is one
};

// The peer's attempt to connect to this host.
struct WayBackFacts {
  std::string address;  // of this host: its connection to the peer leaves by it
  std::string seen_as;  // the same as the peer sees it; differs where addresses are translated
  uint16_t port = 0;    // this host listened there; 0: it could not listen
  bool connected = false;
  std::string error;
};

// Another host, as its `th doctor --listen` answers. Texts of the peer are made printable.
struct PeerFacts {
  enum class Outcome {
    kComplete,
    kNotReached,     // no connection; the check `connect` says more
    kNoDoctor,       // something else answers there
    kOtherProtocol,  // a doctor of a release that this one does not understand
    kRefused,        // it said why it does not answer
    kSilent,         // it did not answer in time
    kBrokeOff        // the connection broke
  };

  std::string target;  // as the user has named it
  Outcome outcome = Outcome::kNotReached;
  std::string error;
  std::string own_version;  // of this build

  bool greeted = false;  // the facts from here to `mtu` are known
  std::string host;
  std::string version;  // of its build
  std::string congestion_control;
  std::string net_device;  // by which its packets leave for this host
  uint32_t mtu = 0;        // of that device; 0: unknown

  std::optional<int64_t> clock_ahead_us;  // the peer's wall clock less this host's
  int64_t clock_error_us = 0;             // the most by which that is wrong
  std::optional<WayBackFacts> way_back;
  std::optional<RateFacts> rate_there, rate_back;
  std::optional<std::vector<Finding>> findings;  // of the peer about itself
};

struct HostFacts {
  RdmaFacts rdma;
  VerbsLibraryFacts verbs;
  GpuFacts gpu;
  ProcessFacts process;
  MemoryFacts memory;
  TcpFacts tcp;
  ClockFacts clock;
  std::map<std::string, uint32_t> net_device_mtu;
  std::optional<RouteFacts> route;    // with --to, --server and --peer
  std::optional<ServerFacts> server;  // with --server
  std::optional<PeerFacts> peer;      // with --peer
};

}  // namespace th::doctor

#endif  // TH_DOCTOR_FACTS_H_
