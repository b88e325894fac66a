// The mutability contract of one buffer as a transition table (drawn in
// docs/protocol/contract.md). A call that has no row in a state is refused there.
//
//   state       event          next
//   writable    publish        published
//   writable    begin_update   filling, as there is nothing to drain
//   writable    reset          writable
//   published   unpublish      draining
//   published   begin_update   draining
//   draining    drained        writable after unpublish and reset, filling after begin_update
//   filling     filled         published
//   filling     fill_failed    undefined once it has written, else as before the update
//   undefined   begin_update   filling (+)
//   undefined   reset          writable (+)
//
// (+) through draining where readers are in flight, except for an update to
// the very version that they read: the segments that were checked stay as they are. A fill that
// failed before its first write leaves the buffer as it was before the update: published (under a
// new generation) if it held a version, else writable, or undefined.
//
// Readers are admitted while published, filling (segments that are checked) and undefined (segments
// that were checked); never while draining or writable. Draining ends when the last reader let go,
// or at the drain deadline: then the remaining ones are cut, and the drain ends when the driver
// reports that they are (it closes their connections; a reader silent for kSilentReader is cut at
// once). The generation rises before a drain ends and before a fill begins.
//
// Pure; not thread-safe: the owner serialises calls.
#ifndef TH_MUTABILITY_CONTRACT_MUTABILITY_CONTRACT_H_
#define TH_MUTABILITY_CONTRACT_MUTABILITY_CONTRACT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/mutability_contract/transitions.h"

namespace th {

// A draining holder cuts a reader that has taken no byte for this long, before the drain deadline.
inline constexpr absl::Duration kSilentReader = absl::Milliseconds(500);
// The most readers that one buffer serves at a time.
inline constexpr size_t kMaxReadersInFlight = 4096;

// One admitted transfer of one reader; numbered by the data plane, never reused.
using TransferId = StrongInt<struct TransferIdTag>;

class MutabilityContract {
 public:
  MutabilityContract() = default;

  BufferState state() const { return state_; }
  // The version that readers find here: the published one (zero until the server named it), or the
  // one that is (or was, when undefined) filled. Zero when writable.
  VersionSequence version() const { return version_; }
  BufferGeneration generation() const { return generation_; }
  // A text for errors: "published 2.17, generation 3, 2 readers".
  std::string Describe() const;

  // Verbs of the owner. FAILED_PRECONDITION naming state and verb when the table refuses.
  absl::Status Publish(VersionSequence version);  // zero: the sequence is set later,
  // once the server named it. FAILED_PRECONDITION unless published without a name (or by this one).
  absl::Status SetPublishedVersion(VersionSequence version);
  absl::Status Unpublish(absl::Time now, absl::Duration drain_timeout);
  absl::Status CanUnpublish() const;
  absl::Status BeginUpdate(VersionSequence version, absl::Time now, absl::Duration drain_timeout);
  // The first byte of the fill is about to be written.
  absl::Status FirstWrite();
  absl::Status FillComplete();
  absl::Status FillFailed();
  // Leaves undefined (and writable): the caller takes responsibility for the content. Cuts readers:
  // with some in flight the state is draining until the driver has let go of them.
  absl::Status Reset();
  // OK when the owner may change pointers: writable or undefined, and nobody reads.
  absl::Status CanRebind() const;

  // Readers. UNAVAILABLE when nothing is served now, ABORTED when `version` or `generation` is not
  // what is here, RESOURCE_EXHAUSTED at kMaxReadersInFlight, ALREADY_EXISTS for a reused transfer.
  absl::Status Admit(TransferId transfer, VersionSequence version, BufferGeneration generation,
                     absl::Time now);
  void ReaderTookBytes(TransferId transfer, absl::Time now);
  // The reader let go, or the driver has cut it. Unknown transfers are ignored.
  void Release(TransferId transfer);
  size_t readers_in_flight() const { return readers_.size(); }

  // Drains, and cuts readers whose version is not coming. Call at NextDeadline() or later, and
  // after each Release.
  struct DrainStep {
    bool drained = false;            // the drain ended just now; the state is what follows it
    uint32_t cut = 0;                // readers that were cut in this drain
    std::vector<TransferId> to_cut;  // close these and Release them
  };
  DrainStep Advance(absl::Time now);
  // InfinitePast: at once (a drain that nobody holds up). InfiniteFuture: only an event moves it
  // on.
  absl::Time NextDeadline() const;

 private:
  enum class AfterDrain : uint8_t { kWritable, kFill };
  struct Reader {
    VersionSequence version;
    absl::Time last_bytes;
    bool being_cut = false;
  };
  // The state to which a fill that wrote nothing goes back.
  struct BeforeFill {
    BufferState state = BufferState::kWritable;
    VersionSequence version;
  };
  absl::Status Refuse(BufferEvent event) const;
  void Enter(const BufferTransition& transition);
  void BeginDrain(absl::Time deadline, AfterDrain after);
  void BeginFill(VersionSequence version);
  // Reads what is not coming any more.
  bool IsOfAbandonedFill(const Reader& reader) const;
  bool CutsNow(const Reader& reader, absl::Time now) const;
  BufferCondition ReadersCondition() const;
  BufferCondition FillFailedCondition() const;

  BufferState state_ = BufferState::kWritable;
  VersionSequence version_;
  BufferGeneration generation_{1};
  std::map<TransferId, Reader> readers_;
  AfterDrain after_drain_ = AfterDrain::kWritable;
  VersionSequence next_version_;  // of the fill that follows the drain
  BeforeFill before_fill_;
  bool wrote_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  uint32_t cut_ = 0;
};

}  // namespace th

#endif  // TH_MUTABILITY_CONTRACT_MUTABILITY_CONTRACT_H_
