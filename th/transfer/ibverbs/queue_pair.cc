#include "th/transfer/ibverbs/queue_pair.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "th/status/status_macros.h"
#include "th/transfer/stream/socket.h"

namespace th::ibverbs {
namespace {

using stream::ErrnoText;

// A packet that is not acknowledged within 4.096 us * 2^16 = 268 ms is sent again. Less, and a busy
// peer is asked again for what it is sending: a quarter of it lost live peers in an emulated
// machine that ten processes held up.
constexpr uint8_t kAckTimeout = 16;
// Never 7: some devices take that for "for ever".
constexpr uint8_t kRetries = 6;
constexpr uint8_t kReceiverNotReadyTimer =
    12;  // 0.64 ms; READs need no receive, so it hardly counts
constexpr uint8_t kHopLimit = 64;
constexpr uint32_t kPacketNumberMask = 0xffffff;
// READs handed to the device in one call.
constexpr size_t kReadsPerCall = 32;
// Completions taken off the queue in one call.
constexpr int kCompletionsPerCall = 32;
// Pieces of one READ, whatever the device offers: a chain's work requests lie on the stack.
constexpr uint32_t kMaxPiecesPerRead = 32;
// Events that are acknowledged together: each acknowledgement takes a lock.
constexpr uint64_t kEventsPerAcknowledgement = 64;

uint32_t RandomPacketNumber() {
  uint32_t number = 0;
  // Cannot fail for so few bytes once the system has booted; 0 is as good then.
  if (getrandom(&number, sizeof(number), 0) < 0) number = 0;
  return number & kPacketNumberMask;
}

absl::string_view LinkName(LinkLayer link) {
  return link == LinkLayer::kInfiniBand ? "InfiniBand" : "Ethernet (RoCE)";
}

}  // namespace

QueuePair::QueuePair(std::shared_ptr<const RdmaDevice> device, const Options& options)
    : device_(std::move(device)),
      options_(options),
      depth_(std::clamp(
          options.depth, 1U,
          std::min(device_->limits().max_queue_depth, device_->limits().max_completions))),
      limits_{.max_pieces = std::min(device_->limits().max_scatter_pieces, kMaxPiecesPerRead),
              .max_bytes = std::min(options.max_read_bytes, device_->limits().max_read_bytes),
              .max_gap_bytes = std::min(options.max_gap_bytes, kMaxGapBytes),
              .bytes_per_gap_byte = kBytesPerGapByte},
      signals_(depth_) {}

// ---- set-up

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(
    std::shared_ptr<const RdmaDevice> device, const Options& options) {
  std::unique_ptr<QueuePair> pair(new QueuePair(std::move(device), options));
  TH_RETURN_IF_ERROR(pair->Prepare());
  return pair;
}

absl::Status QueuePair::Prepare() {
  const VerbsLibrary& verbs = device_->verbs();
  const auto no_room = [this](const char* what) {
    return absl::ResourceExhaustedError(
        absl::StrCat(device_->name(), " gives no ", what, ": ", ErrnoText(errno),
                     errno == ENOMEM ? absl::StrCat("; ", MemlockAdvice(0)) : ""));
  };
  const bool reads = options_.role == Role::kReader;
  if (reads) {
    TH_ASSIGN_OR_RETURN(discard_, RegisteredBuffer::Make(device_, kMaxGapBytes));
    channel_ = verbs.create_comp_channel(device_->context());
    if (channel_ == nullptr) return no_room("completion channel");
    const int flags = fcntl(channel_->fd, F_GETFL);
    if (fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return no_room("such channel");
  }
  // READs that are not signalled complete too once the pair has failed: room for all of them.
  const int entries = reads ? static_cast<int>(depth_) : 1;
  completions_ = verbs.create_cq(device_->context(), entries, nullptr, channel_, 0);
  if (completions_ == nullptr) return no_room("completion queue");
  if (reads && ibv_req_notify_cq(completions_, 0) != 0) return no_room("completion event");

  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = reads ? depth_ : 1;
  wanted.cap.max_send_sge = reads ? limits_.max_pieces : 1;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_recv_sge = 1;
  pair_ = verbs.create_qp(device_->domain(), &wanted);
  if (pair_ == nullptr) return no_room("queue pair");

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_->port();
  attributes.qp_access_flags = reads ? 0 : IBV_ACCESS_REMOTE_READ;
  TH_RETURN_IF_ERROR(Modify(
      &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT"));
  address_ = {.gid = device_->gid().gid,
              .number = pair_->qp_num,
              .first_packet = RandomPacketNumber(),
              .lid = device_->lid(),
              .link = device_->link(),
              .mtu = static_cast<uint8_t>(device_->mtu()),
              .max_reads_started = device_->limits().max_reads_started,
              .max_reads_answered = device_->limits().max_reads_answered};
  return absl::OkStatus();
}

absl::Status QueuePair::Modify(ibv_qp_attr* attributes, int mask, const char* into) {
  const int error = device_->verbs().modify_qp(pair_, attributes, mask);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the queue pair of ", device_->ToString(),
                                             " does not become ", into, ": ", ErrnoText(error)));
}

absl::Status QueuePair::CheckPeer(const QueuePairAddress& peer) const {
  if (peer.link != device_->link()) {
    return absl::UnavailableError(absl::StrCat("the peer's port is of ", LinkName(peer.link), ", ",
                                               device_->name(), " of ", LinkName(device_->link())));
  }
  if (peer.mtu < IBV_MTU_256 || peer.mtu > IBV_MTU_4096) {
    return absl::InvalidArgumentError(absl::StrCat("the peer names MTU ", int{peer.mtu}));
  }
  if (peer.number > kPacketNumberMask || peer.first_packet > kPacketNumberMask) {
    return absl::InvalidArgumentError("the peer names a queue pair or packet of over 24 bits");
  }
  if (peer.max_reads_started == 0 || peer.max_reads_answered == 0) {
    return absl::InvalidArgumentError("the peer allows no READ");
  }
  return absl::OkStatus();
}

absl::Status QueuePair::Connect(const QueuePairAddress& peer) {
  if (connected_) return absl::FailedPreconditionError("the queue pair is connected already");
  TH_RETURN_IF_ERROR(CheckPeer(peer));
  peer_ = peer.gid;
  TH_RETURN_IF_ERROR(ReadyToReceive(peer));
  TH_RETURN_IF_ERROR(ReadyToSend(peer));
  connected_ = true;
  return absl::OkStatus();
}

absl::Status QueuePair::ReadyToReceive(const QueuePairAddress& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min<uint8_t>(peer.mtu, address_.mtu));
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.first_packet;
  attributes.max_dest_rd_atomic = std::min(peer.max_reads_started, address_.max_reads_answered);
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  ibv_ah_attr& path = attributes.ah_attr;
  path.port_num = device_->port();
  path.dlid = peer.lid;
  // Within one InfiniBand subnet the LID is the whole address.
  path.is_global = device_->link() == LinkLayer::kEthernet ||
                   std::memcmp(peer.gid.data(), address_.gid.data(), 8) != 0;
  std::memcpy(path.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  path.grh.sgid_index = static_cast<uint8_t>(device_->gid().index);
  path.grh.hop_limit = kHopLimit;
  const int error = device_->verbs().modify_qp(
      pair_, &attributes,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "no route from ", device_->ToString(), " to ", GidText(peer.gid), ": ", ErrnoText(error),
      "; check that both are in one fabric and that the interface of ", device_->name(),
      " reaches that address"));
}

absl::Status QueuePair::ReadyToSend(const QueuePairAddress& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = kAckTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRetries;
  attributes.sq_psn = address_.first_packet;
  attributes.max_rd_atomic = std::min(address_.max_reads_started, peer.max_reads_answered);
  return Modify(&attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

// ---- reading

absl::Status QueuePair::Post(uint64_t tag, absl::Span<const KeyedRange> from,
                             absl::Span<const KeyedRange> into, absl::Time now) {
  TH_RETURN_IF_ERROR(failed_);
  if (!connected_) return absl::FailedPreconditionError("the queue pair is not connected");
  if (discard_ == nullptr) return absl::FailedPreconditionError("a source's end reads nothing");
  waiting_.push_back({.tag = tag,
                      .plan = PlanReads(from, into, limits_, discard_->Range(0, kMaxGapBytes)),
                      .next = 0});
  if (waiting_.back().plan.reads.empty()) {
    waiting_.pop_back();
    return absl::InvalidArgumentError("a READ of no bytes");
  }
  counters_.gap_bytes += waiting_.back().plan.gap_bytes;
  return PostWaiting(now);
}

absl::Status QueuePair::PostWaiting(absl::Time now) {
  while (!waiting_.empty() && send_queue_.size() < depth_) {
    std::array<ibv_send_wr, kReadsPerCall> chain;
    std::array<ibv_sge, kReadsPerCall * kMaxPiecesPerRead> pieces;
    size_t count = 0, piece_count = 0;
    if (send_queue_.empty()) last_progress_ = now;
    while (!waiting_.empty() && send_queue_.size() < depth_ && count < chain.size()) {
      Batch& batch = waiting_.front();
      const PlannedRead& read = batch.plan.reads[batch.next];
      const bool last = ++batch.next == batch.plan.reads.size();
      const bool signalled = signals_.Next(last);
      ibv_send_wr& request = chain[count];
      request = {};
      request.wr_id = first_number_ + send_queue_.size();
      request.opcode = IBV_WR_RDMA_READ;
      request.send_flags = signalled ? IBV_SEND_SIGNALED : 0;
      request.wr.rdma.remote_addr = read.from.address;
      request.wr.rdma.rkey = read.from.key;
      request.sg_list = pieces.data() + piece_count;
      request.num_sge = static_cast<int>(read.piece_count);
      for (uint32_t i = 0; i < read.piece_count; ++i) {
        const KeyedRange& piece = batch.plan.pieces[read.first_piece + i];
        pieces[piece_count++] = {piece.address, static_cast<uint32_t>(piece.bytes), piece.key};
      }
      if (count > 0) chain[count - 1].next = &request;
      ++count;
      counters_.reads_signalled += signalled ? 1 : 0;
      send_queue_.push_back({.from = read.from, .tag = std::nullopt});
      if (last) {
        send_queue_.back().tag = batch.tag;
        waiting_.pop_front();
      }
    }
    counters_.reads_posted += count;
    counters_.most_outstanding =
        std::max(counters_.most_outstanding, static_cast<uint32_t>(send_queue_.size()));
    ibv_send_wr* refused = nullptr;
    if (const int error = ibv_post_send(pair_, chain.data(), &refused); error != 0) {
      return failed_ = absl::UnavailableError(
                 absl::StrCat(device_->name(), " takes no READ: ", ErrnoText(error)));
    }
  }
  return absl::OkStatus();
}

absl::Status QueuePair::Poll(absl::Time now, std::vector<uint64_t>* tags) {
  TH_RETURN_IF_ERROR(failed_);
  if (channel_ == nullptr) return absl::FailedPreconditionError("a source's end reads nothing");
  // The event is asked for before the queue is emptied: what completes after that makes another.
  TH_RETURN_IF_ERROR(Rearm());
  TH_RETURN_IF_ERROR(TakeCompletions(now, tags));
  return PostWaiting(now);
}

absl::Status QueuePair::Rearm() {
  const VerbsLibrary& verbs = device_->verbs();
  ibv_cq* queue = nullptr;
  void* user = nullptr;
  bool any = false;
  while (verbs.get_cq_event(channel_, &queue, &user) == 0) {
    any = true;
    if (++events_unacknowledged_ < kEventsPerAcknowledgement) continue;
    verbs.ack_cq_events(completions_,
                        static_cast<unsigned>(std::exchange(events_unacknowledged_, 0)));
  }
  if (!any) return absl::OkStatus();  // still armed
  if (const int error = ibv_req_notify_cq(completions_, 0); error != 0) {
    return failed_ = absl::UnavailableError(
               absl::StrCat(device_->name(), " tells no completions: ", ErrnoText(error)));
  }
  return absl::OkStatus();
}

absl::Status QueuePair::TakeCompletions(absl::Time now, std::vector<uint64_t>* tags) {
  std::array<ibv_wc, kCompletionsPerCall> taken;
  while (true) {
    const int count = ibv_poll_cq(completions_, kCompletionsPerCall, taken.data());
    if (count < 0) {
      return failed_ = absl::UnavailableError(
                 absl::StrCat("the completion queue of ", device_->name(), " is broken"));
    }
    for (int i = 0; i < count; ++i) {
      if (taken[i].status != IBV_WC_SUCCESS) return Fail(taken[i]);
      last_progress_ = now;
      // A READ that completes shows that those before it, signalled or not, have completed.
      while (!send_queue_.empty() && first_number_ <= taken[i].wr_id) {
        if (send_queue_.front().tag.has_value()) tags->push_back(*send_queue_.front().tag);
        send_queue_.pop_front();
        ++first_number_;
      }
    }
    if (count < kCompletionsPerCall) return absl::OkStatus();
  }
}

absl::Status QueuePair::Fail(const ibv_wc& completion) {
  const uint64_t place = completion.wr_id - first_number_;
  std::string what = "a READ";
  if (place < send_queue_.size()) {
    const KeyedRange& from = send_queue_[place].from;
    what = absl::StrCat("the READ of ", from.bytes, " bytes at 0x", absl::Hex(from.address),
                        " with key 0x", absl::Hex(from.key));
  }
  std::string why = device_->verbs().wc_status_str(completion.status);
  if (completion.status == IBV_WC_REM_ACCESS_ERR) {
    absl::StrAppend(&why, " (the peer has not registered that memory under that key)");
  } else if (completion.status == IBV_WC_RETRY_EXC_ERR) {
    absl::StrAppend(&why,
                    " (the peer does not answer: it has ended, closed the queue pair, or "
                    "cannot be reached)");
  }
  return failed_ = absl::UnavailableError(absl::StrCat(what, " from ", GidText(peer_), " over ",
                                                       device_->name(), " failed: ", why));
}

std::optional<absl::Time> QueuePair::waiting_since() const {
  if (send_queue_.empty() || !failed_.ok()) return std::nullopt;
  return last_progress_;
}

// ---- the end

void QueuePair::Destroy() {
  if (!device_->IsOurs()) return;
  const VerbsLibrary& verbs = device_->verbs();
  if (pair_ != nullptr) {
    // READs that are under way are flushed; the call after it returns once the device is done with
    // the pair.
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    verbs.modify_qp(pair_, &attributes, IBV_QP_STATE);
    verbs.destroy_qp(std::exchange(pair_, nullptr));
  }
  if (completions_ != nullptr) {
    if (events_unacknowledged_ > 0) {
      verbs.ack_cq_events(completions_,
                          static_cast<unsigned>(std::exchange(events_unacknowledged_, 0)));
    }
    verbs.destroy_cq(std::exchange(completions_, nullptr));
  }
  if (channel_ != nullptr) verbs.destroy_comp_channel(std::exchange(channel_, nullptr));
  waiting_.clear();
  send_queue_.clear();
  if (failed_.ok()) failed_ = absl::UnavailableError("the queue pair is destroyed");
}

}  // namespace th::ibverbs
