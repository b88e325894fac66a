#include "th/transfer/ibverbs/loopback_verbs.h"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "testing/fake_cuda/fake_cuda.h"

namespace th::ibverbs {
namespace {

// Each begins with what the library shows of it: the two are cast into each other.
struct Region {
  ibv_mr shown{};
  uint64_t begin = 0;
  uint64_t bytes = 0;
  std::byte* alias = nullptr;  // where the bytes lie for this process
};
struct Queue {
  ibv_cq shown{};
  std::deque<ibv_wc> completed;
  bool armed = false;
};
struct Channel {
  ibv_comp_channel shown{};  // its descriptor is an eventfd
  Queue* queue = nullptr;
};
// A READ that is posted: its pieces are the caller's only until then.
struct PostedRead {
  ibv_send_wr request{};
  std::vector<ibv_sge> pieces;
};
struct Pair {
  ibv_qp shown{};
  uint32_t peer = 0;
  LoopbackPair asked;
  std::deque<PostedRead> unanswered;  // the first ones of a silent device
};

// The functions of a library have no room for whose they are.
struct Fabric {
  // The functions of the fake.
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  const char* (*name_of)(ibv_device* device) = nullptr;
  testing::FakeCuda cuda;
  absl::Mutex mu;
  std::map<uint32_t, Region*> regions ABSL_GUARDED_BY(mu);  // by key
  std::map<uint32_t, Pair*> pairs ABSL_GUARDED_BY(mu);      // by number
  bool broken ABSL_GUARDED_BY(mu) = false;
  std::set<std::string> silent ABSL_GUARDED_BY(mu);  // devices
  // By the addresses of the devices that are of other processes.
  std::map<Gid, pid_t> other_processes ABSL_GUARDED_BY(mu);
  size_t queues ABSL_GUARDED_BY(mu) = 0;
  size_t channels ABSL_GUARDED_BY(mu) = 0;
  uint32_t last_key ABSL_GUARDED_BY(mu) = 0;
  uint32_t last_pair ABSL_GUARDED_BY(mu) = 0;
};
Fabric& TheFabric() {
  static auto* const fabric = new Fabric;
  return *fabric;
}

// ---- memory

ibv_mr* Register(ibv_pd* domain, uint64_t begin, uint64_t bytes, std::byte* alias) {
  auto* const region = new Region{.begin = begin, .bytes = bytes, .alias = alias};
  region->shown.pd = domain;
  const absl::MutexLock lock(&TheFabric().mu);
  region->shown.lkey = region->shown.rkey = ++TheFabric().last_key;
  TheFabric().regions[region->shown.rkey] = region;
  return &region->shown;
}

ibv_mr* RegisterHost(ibv_pd* domain, void* address, size_t bytes, int /*access*/) {
  return Register(domain, reinterpret_cast<uint64_t>(address), bytes,
                  static_cast<std::byte*>(address));
}

ibv_mr* RegisterDmaBuf(ibv_pd* domain, uint64_t /*offset*/, size_t bytes, uint64_t remote_address,
                       int /*file_descriptor*/, int /*access*/) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the fake driver's.
  void* const address = reinterpret_cast<void*>(remote_address);
  return Register(domain, remote_address, bytes, TheFabric().cuda.AliasOf(address));
}

int Deregister(ibv_mr* shown) {
  const absl::MutexLock lock(&TheFabric().mu);
  TheFabric().regions.erase(shown->rkey);
  delete reinterpret_cast<Region*>(shown);
  return 0;
}

// Null: these bytes are not all registered under that key.
std::byte* Reach(const std::map<uint32_t, Region*>& regions, uint32_t key, uint64_t address,
                 uint64_t bytes) {
  const auto found = regions.find(key);
  if (found == regions.end()) return nullptr;
  const Region& region = *found->second;
  if (address < region.begin || address - region.begin > region.bytes ||
      bytes > region.bytes - (address - region.begin)) {
    return nullptr;
  }
  return region.alias + (address - region.begin);
}

// ---- completions

ibv_comp_channel* CreateChannel(ibv_context* context) {
  auto* const channel = new Channel;
  const absl::MutexLock lock(&TheFabric().mu);
  ++TheFabric().channels;
  channel->shown.context = context;
  channel->shown.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return &channel->shown;
}

int DestroyChannel(ibv_comp_channel* shown) {
  const absl::MutexLock lock(&TheFabric().mu);
  --TheFabric().channels;
  close(shown->fd);
  delete reinterpret_cast<Channel*>(shown);
  return 0;
}

ibv_cq* CreateQueue(ibv_context* context, int entries, void* /*user*/, ibv_comp_channel* channel,
                    int /*vector*/) {
  ibv_device_attr limits{};
  if (TheFabric().query_device(context, &limits) != 0 || entries < 1 || entries > limits.max_cqe) {
    errno = EINVAL;
    return nullptr;
  }
  auto* const queue = new Queue;
  const absl::MutexLock lock(&TheFabric().mu);
  ++TheFabric().queues;
  queue->shown.context = context;
  queue->shown.channel = channel;
  queue->shown.cqe = entries;
  if (channel != nullptr) reinterpret_cast<Channel*>(channel)->queue = queue;
  return &queue->shown;
}

int DestroyQueue(ibv_cq* shown) {
  const absl::MutexLock lock(&TheFabric().mu);
  --TheFabric().queues;
  delete reinterpret_cast<Queue*>(shown);
  return 0;
}

int GetEvent(ibv_comp_channel* shown, ibv_cq** queue, void** user) {
  uint64_t count = 0;
  if (read(shown->fd, &count, sizeof(count)) < 0) return -1;
  *queue = &reinterpret_cast<Channel*>(shown)->queue->shown;
  *user = nullptr;
  return 0;
}

void AcknowledgeEvents(ibv_cq* /*queue*/, unsigned /*count*/) {}

int Arm(ibv_cq* shown, int /*solicited_only*/) {
  const absl::MutexLock lock(&TheFabric().mu);
  reinterpret_cast<Queue*>(shown)->armed = true;
  return 0;
}

int TakeCompleted(ibv_cq* shown, int count, ibv_wc* taken) {
  const absl::MutexLock lock(&TheFabric().mu);
  auto& completed = reinterpret_cast<Queue*>(shown)->completed;
  const int here = std::min<int>(count, static_cast<int>(completed.size()));
  std::copy_n(completed.begin(), here, taken);
  completed.erase(completed.begin(), completed.begin() + here);
  return here;
}

void Complete(const Pair& pair, const ibv_send_wr& request, ibv_wc_status status) {
  auto& queue = *reinterpret_cast<Queue*>(pair.shown.send_cq);
  ibv_wc completion{};
  completion.wr_id = request.wr_id;
  completion.status = status;
  queue.completed.push_back(completion);
  if (!std::exchange(queue.armed, false)) return;
  const uint64_t one = 1;
  if (write(queue.shown.channel->fd, &one, sizeof(one)) < 0) queue.armed = true;
}

// ---- queue pairs

ibv_qp* CreatePair(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  auto* const pair = new Pair;
  pair->shown.context = domain->context;
  pair->shown.pd = domain;
  pair->shown.send_cq = wanted->send_cq;
  pair->shown.recv_cq = wanted->recv_cq;
  pair->asked = {.device = TheFabric().name_of(domain->context->device),
                 .capacity = wanted->cap,
                 .completions = wanted->send_cq->cqe};
  const absl::MutexLock lock(&TheFabric().mu);
  pair->shown.qp_num = ++TheFabric().last_pair;
  TheFabric().pairs[pair->shown.qp_num] = pair;
  return &pair->shown;
}

// Keeps what `mask` says of `attributes`.
void NoteAttributes(const ibv_qp_attr& attributes, int mask, LoopbackPair* asked) {
  ibv_qp_attr& kept = asked->attributes;
  if ((mask & IBV_QP_STATE) != 0) kept.qp_state = attributes.qp_state;
  if ((mask & IBV_QP_PORT) != 0) kept.port_num = attributes.port_num;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) asked->access = attributes.qp_access_flags;
  if ((mask & IBV_QP_AV) != 0) kept.ah_attr = attributes.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) kept.path_mtu = attributes.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) kept.dest_qp_num = attributes.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) kept.rq_psn = attributes.rq_psn;
  if ((mask & IBV_QP_SQ_PSN) != 0) kept.sq_psn = attributes.sq_psn;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
    kept.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  }
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) kept.max_rd_atomic = attributes.max_rd_atomic;
  if ((mask & IBV_QP_TIMEOUT) != 0) kept.timeout = attributes.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) kept.retry_cnt = attributes.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) kept.rnr_retry = attributes.rnr_retry;
}

int ModifyPair(ibv_qp* shown, ibv_qp_attr* attributes, int mask) {
  const absl::MutexLock lock(&TheFabric().mu);
  Pair& pair = *reinterpret_cast<Pair*>(shown);
  if ((mask & IBV_QP_DEST_QPN) != 0) pair.peer = attributes->dest_qp_num;
  NoteAttributes(*attributes, mask, &pair.asked);
  return 0;
}

int DestroyPair(ibv_qp* shown) {
  const absl::MutexLock lock(&TheFabric().mu);
  TheFabric().pairs.erase(shown->qp_num);
  delete reinterpret_cast<Pair*>(shown);
  return 0;
}

// False: the process is dead, or has not mapped that.
bool CopyAcross(pid_t process, uint64_t from, std::byte* into, size_t bytes) {
  while (bytes > 0) {
    const iovec local{.iov_base = into, .iov_len = bytes};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the other process.
    const iovec remote{.iov_base = reinterpret_cast<void*>(from), .iov_len = bytes};
    const ssize_t copied = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (copied <= 0) return false;
    from += static_cast<uint64_t>(copied);
    into += copied;
    bytes -= static_cast<size_t>(copied);
  }
  return true;
}

// nullopt: nobody answers.
std::optional<ibv_wc_status> Read(const Fabric& fabric, const Pair& pair, const PostedRead& read)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(fabric.mu) {
  if (fabric.silent.count(pair.asked.device) > 0) return std::nullopt;
  Gid peer;
  std::copy_n(pair.asked.attributes.ah_attr.grh.dgid.raw, peer.size(), peer.begin());
  const auto other_process = fabric.other_processes.find(peer);
  const bool here = other_process == fabric.other_processes.end();  // numbers are of a process
  if (fabric.broken || (here && fabric.pairs.count(pair.peer) == 0)) return IBV_WC_RETRY_EXC_ERR;
  uint64_t from = read.request.wr.rdma.remote_addr;
  for (const ibv_sge& piece : read.pieces) {
    std::byte* const into = Reach(fabric.regions, piece.lkey, piece.addr, piece.length);
    if (into == nullptr) return IBV_WC_LOC_PROT_ERR;
    if (here) {
      const std::byte* const source =
          Reach(fabric.regions, read.request.wr.rdma.rkey, from, piece.length);
      if (source == nullptr) return IBV_WC_REM_ACCESS_ERR;
      std::memcpy(into, source, piece.length);
    } else if (!CopyAcross(other_process->second, from, into, piece.length)) {
      return std::nullopt;
    }
    from += piece.length;
  }
  return IBV_WC_SUCCESS;
}

// Makes the READs of `pair` up to the first that nobody answers.
void Answer(const Fabric& fabric, Pair* pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(fabric.mu) {
  while (!pair->unanswered.empty()) {
    const PostedRead& read = pair->unanswered.front();
    const std::optional<ibv_wc_status> status = Read(fabric, *pair, read);
    if (!status.has_value()) return;
    const bool reported = (read.request.send_flags & IBV_SEND_SIGNALED) != 0;
    if (reported || *status != IBV_WC_SUCCESS) Complete(*pair, read.request, *status);
    pair->unanswered.pop_front();
  }
}

int PostSend(ibv_qp* shown, ibv_send_wr* first, ibv_send_wr** /*refused*/) {
  Fabric& fabric = TheFabric();
  const absl::MutexLock lock(&fabric.mu);
  Pair& pair = *reinterpret_cast<Pair*>(shown);
  for (const ibv_send_wr* request = first; request != nullptr; request = request->next) {
    pair.unanswered.push_back(
        {.request = *request, .pieces = {request->sg_list, request->sg_list + request->num_sge}});
  }
  Answer(fabric, &pair);
  return 0;
}

const char* StatusText(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR ? "remote access error" : "error";
}

ibv_context* OpenDevice(ibv_device* device) {
  ibv_context* const context = TheFabric().open_device(device);
  if (context == nullptr) return nullptr;
  context->ops.poll_cq = &TakeCompleted;
  context->ops.req_notify_cq = &Arm;
  context->ops.post_send = &PostSend;
  return context;
}

}  // namespace

void BreakLoopback(bool broken) {
  const absl::MutexLock lock(&TheFabric().mu);
  TheFabric().broken = broken;
}

void SilenceLoopback(const std::string& device, bool silent) {
  Fabric& fabric = TheFabric();
  const absl::MutexLock lock(&fabric.mu);
  if (silent) {
    fabric.silent.insert(device);
    return;
  }
  fabric.silent.erase(device);
  for (auto& [number, pair] : fabric.pairs) Answer(fabric, pair);
}

void ReadLoopbackAcross(const Gid& peer, pid_t process) {
  Fabric& fabric = TheFabric();
  const absl::MutexLock lock(&fabric.mu);
  fabric.other_processes.erase(peer);
  if (process != 0) fabric.other_processes[peer] = process;
}

size_t LoopbackUnanswered() {
  Fabric& fabric = TheFabric();
  const absl::MutexLock lock(&fabric.mu);
  size_t unanswered = 0;
  for (const auto& [number, pair] : fabric.pairs) unanswered += pair->unanswered.size();
  return unanswered;
}

LoopbackObjects LoopbackAlive() {
  Fabric& fabric = TheFabric();
  const absl::MutexLock lock(&fabric.mu);
  return {.queue_pairs = fabric.pairs.size(),
          .completion_queues = fabric.queues,
          .completion_channels = fabric.channels,
          .registrations = fabric.regions.size()};
}

std::vector<LoopbackPair> LoopbackPairs() {
  const absl::MutexLock lock(&TheFabric().mu);
  std::vector<LoopbackPair> pairs;
  for (const auto& [number, pair] : TheFabric().pairs) pairs.push_back(pair->asked);
  return pairs;
}

std::shared_ptr<const VerbsLibrary> LoopbackVerbs(const FakeVerbs& fake) {
  TheFabric().open_device = fake.library()->open_device;
  TheFabric().query_device = fake.library()->query_device;
  TheFabric().name_of = fake.library()->get_device_name;
  auto verbs = std::make_shared<VerbsLibrary>(*fake.library());
  verbs->open_device = &OpenDevice;
  verbs->reg_mr = &RegisterHost;
  verbs->reg_mr_iova2 = nullptr;  // as of an old library
  verbs->reg_dmabuf_mr = &RegisterDmaBuf;
  verbs->dereg_mr = &Deregister;
  verbs->create_comp_channel = &CreateChannel;
  verbs->destroy_comp_channel = &DestroyChannel;
  verbs->create_cq = &CreateQueue;
  verbs->destroy_cq = &DestroyQueue;
  verbs->get_cq_event = &GetEvent;
  verbs->ack_cq_events = &AcknowledgeEvents;
  verbs->create_qp = &CreatePair;
  verbs->modify_qp = &ModifyPair;
  verbs->destroy_qp = &DestroyPair;
  verbs->wc_status_str = &StatusText;
  return verbs;
}

}  // namespace th::ibverbs
