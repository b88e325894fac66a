// A rank's registered tensors, and the verbs that offer them to others or move them to what others
// hold.
//
//   TH_ASSIGN_OR_RETURN(th::WeightBuffer weights, hub->Register(tensors));
//   TH_RETURN_IF_ERROR(weights.Publish(step));    // frozen from here on, others may read
//   TH_RETURN_IF_ERROR(weights.Unpublish());      // the caller may write again
#ifndef TH_CLIENT_WEIGHT_BUFFER_H_
#define TH_CLIENT_WEIGHT_BUFFER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/client/results.h"
#include "th/client/tensor.h"
#include "th/client/verb_options.h"
#include "th/weights/digest.h"
#include "th/weights/version.h"

namespace th {

class Client;

// A registered set of tensors: one shard of this rank. A movable handle; copies are not made. The
// destructor withdraws it: readers end the segment under way, the server is told.
class WeightBuffer {
 public:
  WeightBuffer();
  ~WeightBuffer();
  WeightBuffer(WeightBuffer&&) noexcept;
  WeightBuffer& operator=(WeightBuffer&&) noexcept;

  // Freezes the buffer and offers it as version `label`. Does not wait for the group: returns
  // within a millisecond, or once options.after_cuda_event has happened, or once the snapshot is
  // made, after which the tensors may be written. AwaitPublished returns the group's result; if
  // that is an error, the next verb returns it too. FAILED_PRECONDITION: the buffer is published,
  // being filled, undefined or asleep. INVALID_ARGUMENT: the label, or an event without GPU
  // tensors. DEADLINE_EXCEEDED: the event did not happen in time. RESOURCE_EXHAUSTED: no room for
  // the snapshot.
  absl::Status Publish(int64_t step, PublishOptions options = {});
  absl::Status Publish(absl::string_view label, PublishOptions options = {});
  // Waits until all ranks have published and readers can find the version. Returns the result of
  // the last Publish.
  absl::StatusOr<PublishResult> AwaitPublished();
  // Waits until the server knows the checksums of the last Publish. Called again later it says
  // whether the publication still stands.
  //   DEADLINE_EXCEEDED    the checksums are not done, or the server is away
  //   PUBLICATION_LOST     the code word of the reason why it could not stay, returned once its
  //                        readers have ended and the buffer may be written. UNAVAILABLE: a rank of
  //                        the group is gone or was replaced, and all ranks may publish again
  //   FAILED_PRECONDITION  the buffer is not published any more, or holds what another replica has
  //                        published
  absl::Status AwaitSealed(absl::Duration timeout);

  // Takes the buffer back: OK means that it may be written. DEADLINE_EXCEEDED names a missing rank;
  // this rank's buffer is writable then too.
  absl::Status Unpublish(UnpublishOptions options = {});

  // Moves the buffer to a version, on all ranks of the group. "Not available" is a result, not an
  // error. Where staging_limit_bytes is set the version is staged first, and a transfer that fails
  // leaves the buffer as it was. After an error see undefined().
  //   DEADLINE_EXCEEDED    names the rank, source or GPU that was waited for
  //   UNAVAILABLE          no source was left
  //   ABORTED              the version was withdrawn, or a rank of the group was replaced
  //   FAILED_PRECONDITION  another verb is under way, the buffer is published from a snapshot, or
  //                        there is no room to keep what is retained
  //   CANCELLED            the caller cancelled it, the client left, or the buffer was unregistered
  //   UNIMPLEMENTED        options.form is not the buffer's
  absl::StatusOr<UpdateResult> Update(VersionSelector version, UpdateOptions options = {});
  // Receives a version into spare host memory while the buffer stays as it is, in use and served:
  // on all ranks, as an operation of the group. moved(): it is staged, until it is applied,
  // discarded or staged anew. already_there(): the buffer holds it. An error leaves the buffer as
  // it was and nothing staged. RESOURCE_EXHAUSTED naming the rank without room under
  // staging_limit_bytes.
  //
  //   TH_ASSIGN_OR_RETURN(th::UpdateResult staged, weights.Stage(th::Latest()));  // serving on
  //   if (staged.moved()) { Pause(); status = weights.Apply().status(); Resume(); }
  absl::StatusOr<UpdateResult> Stage(VersionSelector version, StageOptions options = {});
  // Moves the staged version into the buffer, on all ranks or on none: no buffer is touched before
  // every rank has called it. Lasts as long as the drain and one copy within the host. Frees what
  // is staged where it succeeds, and keeps it where it fails. FAILED_PRECONDITION: nothing is
  // staged. ABORTED: the staged version was withdrawn. After any error see undefined().
  absl::StatusOr<UpdateResult> Apply(ApplyOptions options = {});
  // Cancels a Stage that is under way (CANCELLED), and frees what is staged once its readers have
  // ended.
  void DiscardStaged();
  // The version that is staged; an empty sequence: none.
  VersionInfo staged() const;
  // Stage, Apply, Update and Unpublish without blocking. `done` runs exactly once, on th-callback;
  // an empty buffer and a forked child have no such thread, and it runs before the call returns.
  // Unpublish waits first for the checksums that its readers need (drain_timeout at most), and
  // UnpublishAsync does not: call AwaitSealed before it where readers are to finish.
  void StageAsync(VersionSelector version, StageOptions options, ResultCallback<UpdateResult> done);
  void ApplyAsync(ApplyOptions options, ResultCallback<UpdateResult> done);
  void UpdateAsync(VersionSelector version, UpdateOptions options,
                   ResultCallback<UpdateResult> done);
  void UnpublishAsync(UnpublishOptions options, std::function<void(absl::Status)> done);

  // Moves the registration to other addresses of the same tensors (the allocator moved them), and
  // wakes a sleeping buffer. After OK the old memory may be freed. FAILED_PRECONDITION: the buffer
  // is neither writable nor asleep; an undefined one is Reset first, with which the caller answers
  // for what it holds. INVALID_ARGUMENT names a tensor that differs from the registered one.
  // DEADLINE_EXCEEDED names a GPU that still uses the old memory; nothing has changed: call again.
  absl::Status Rebind(const std::vector<Tensor>& tensors);

  // For an engine that gives the memory of its tensors back for a while:
  //
  //     TH_RETURN_IF_ERROR(weights.Sleep());   // on all ranks, like Unpublish
  //     engine.Sleep();                        // frees or unmaps the memory
  //     ...
  //     engine.WakeUp();                       // maps it again, at the same addresses
  //     TH_RETURN_IF_ERROR(weights.Wake());
  //     TH_RETURN_IF_ERROR(weights.Update(Latest()).status());
  //
  // Sleep unpublishes the buffer with these options if it is published or holds a version, and
  // withdraws its memory from all transports. After OK the memory may be freed, unmapped or reused;
  // after an error it may not. The buffer stays registered with the server; Publish, Update, Stage,
  // Apply and Unpublish are FAILED_PRECONDITION until it wakes. Called while it sleeps it waits for
  // what still uses the memory. Errors are those of Unpublish, and FAILED_PRECONDITION: another
  // verb is under way, or the buffer is undefined (Reset it first); DEADLINE_EXCEEDED names the GPU
  // that still reads the memory (call Sleep again).
  absl::Status Sleep(UnpublishOptions options = {});
  // Registers the memory again at the addresses where it lay; where it has moved, call Rebind. The
  // buffer is writable then and holds no version. May be called too after a Sleep that ran out of
  // time, if the memory was not given back: the next Sleep or Rebind waits for what still uses it.
  // Errors are those of Register for memory, and FAILED_PRECONDITION: the buffer is not asleep, a
  // tensor that was GPU memory is none now (named), or another thread's Sleep, Wake or Rebind is
  // under way.
  absl::Status Wake();
  // True from the Sleep that has withdrawn the memory until Wake or Rebind. Only OK of Sleep says
  // that the memory may be freed: a GPU may still read that of a buffer that is asleep.
  bool asleep() const;
  // An update failed after its first write: what the buffer holds is a mixture. Left by a good
  // Update, or by Reset, with which the caller answers for the content.
  bool undefined() const;
  // Waits for GPUs that the update has given up. DEADLINE_EXCEEDED names one that has not ended
  // what it writes or reads: call again, which waits again; while one writes, the buffer stays
  // undefined. FAILED_PRECONDITION: it is published, or another verb is under way.
  absl::Status Reset();

  // The version held or published; an empty sequence: none.
  VersionInfo version() const;
  uint64_t bytes() const;  // of the distinct storages
  Digest layout_digest() const;
  // The bytes of host memory from which the buffer is published; 0: it is in place, or not
  // published.
  uint64_t snapshot_bytes() const;
  // How its GPU memory is registered with transports, or why it is staged, for logs: "ibverbs:
  // memory of GPU 0000:3b:00.0 registered by DMA-BUF with mlx5_0". Empty: nothing to say.
  std::vector<std::string> gpu_registrations() const;
  // Bytes that this buffer has sent to readers since its registration.
  uint64_t bytes_sent() const;

 private:
  friend class Client;
  struct Impl;
  explicit WeightBuffer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace th

#endif  // TH_CLIENT_WEIGHT_BUFFER_H_
