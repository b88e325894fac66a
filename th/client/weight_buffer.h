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

  // Freezes the buffer and offers it as version `label`; returns within a millisecond (with a
  // snapshot: when that is made; the buffer is free then). The group's result is in AwaitPublished;
  // an error of it also comes out of the next verb. FAILED_PRECONDITION when the buffer is
  // published, being filled or undefined.
  absl::Status Publish(int64_t step, PublishOptions options = {});
  absl::Status Publish(absl::string_view label, PublishOptions options = {});
  // The result of the last Publish: all ranks have published, the version is there for readers.
  absl::StatusOr<PublishResult> AwaitPublished();
  // The sums of the last Publish are done and their root is sent to the server. Asked again later
  // it says whether what was published still is: with the code word PUBLICATION_LOST why it could
  // not stay (UNAVAILABLE: a rank of the group is gone or was replaced, and all ranks may publish
  // again), once its readers have ended and the buffer may be written. DEADLINE_EXCEEDED:
  // not yet, or the server is away. FAILED_PRECONDITION when the buffer is not published any more.
  absl::Status AwaitSealed(absl::Duration timeout);

  // Takes the buffer back: OK means that it may be written. DEADLINE_EXCEEDED names a missing rank;
  // this rank's buffer is writable then too.
  absl::Status Unpublish(UnpublishOptions options = {});

  // Moves the buffer (on all ranks) to a version. An answer "not available" is no error. Where
  // staging_limit_bytes is set the version is staged first: a transfer that fails leaves the buffer
  // as it was. After an error see undefined(). DEADLINE_EXCEEDED naming the rank or source that was
  // waited for, or the GPU that hangs; UNAVAILABLE: no source was left; ABORTED: the version was
  // withdrawn, a rank of the group replaced; FAILED_PRECONDITION: another verb is under way, or no
  // room to keep what is retained; CANCELLED: this client has left.
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
  // Moves what is staged into the buffer, on all ranks or on none: no buffer is touched before all
  // ranks have called it. It takes the drain and a copy within the host. FAILED_PRECONDITION when
  // nothing is staged, ABORTED when it was withdrawn since; after an error see undefined(). What is
  // staged is freed by a good Apply, and kept by a failed one.
  absl::StatusOr<UpdateResult> Apply(ApplyOptions options = {});
  // Ends a Stage under way with CANCELLED, frees what is staged once its readers have let go.
  void DiscardStaged();
  // The version that is staged; an empty sequence: none.
  VersionInfo staged() const;
  // Stage, Apply, Update and Unpublish without blocking; `done` runs once, on a TensorHub thread.
  void StageAsync(VersionSelector version, StageOptions options, ResultCallback<UpdateResult> done);
  void ApplyAsync(ApplyOptions options, ResultCallback<UpdateResult> done);
  void UpdateAsync(VersionSelector version, UpdateOptions options,
                   ResultCallback<UpdateResult> done);
  void UnpublishAsync(UnpublishOptions options, std::function<void(absl::Status)> done);

  // Other addresses for the same tensors (the allocator moved them). Only while writable, or
  // asleep: then it wakes the buffer. An undefined buffer is to be Reset first, with which the
  // caller answers for what it holds. INVALID_ARGUMENT naming the tensor that is another;
  // FAILED_PRECONDITION; DEADLINE_EXCEEDED names a GPU that still uses the memory where it lies
  // now, and nothing has changed: call again. After OK that memory may be freed.
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
  // Sleep takes the buffer back, as Unpublish does with these options, where it is published or
  // holds a version, and withdraws its memory from all transports. OK means that the memory may be
  // freed, unmapped or become something else; after an error it may not. It stays registered with
  // the server, and Publish, Update, Stage, Apply and Unpublish are FAILED_PRECONDITION until it
  // wakes. What Unpublish returns; FAILED_PRECONDITION while another verb is under way, or where
  // the buffer is undefined: Reset it first. DEADLINE_EXCEEDED names the GPU that still reads the
  // memory: call Sleep again, which waits for it again. Sleep of a buffer that is asleep does
  // nothing else.
  absl::Status Sleep(UnpublishOptions options = {});
  // The tensors lie where they lay when it fell asleep (else Rebind, which wakes it too), and are
  // registered anew. The buffer is writable, whatever its bytes are now; it holds no version.
  // FAILED_PRECONDITION: it is not asleep, or names the tensor that was GPU memory and is none now,
  // or another thread's Sleep, Wake or Rebind is under way. What Register returns for memory. Also
  // after a Sleep that ran out of time, for memory that was not given back: the next Sleep or
  // Rebind waits for what still uses it.
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
