/* TensorHub's C ABI: join, publish, update from any language. libtensorhub.so exports these
 * functions and nothing else.
 *
 *   th_join_options join = TH_JOIN_OPTIONS_INIT;
 *   join.server = "10.0.0.1:7077"; join.run = "r1"; join.model = "qwen3-8b";
 *   join.group = "rollout-3"; join.rank = 0; join.ranks = 8;
 *   th_client* hub = NULL;
 *   if (th_join(&join, &hub) != TH_OK) { fprintf(stderr, "%s\n", th_last_error()); ... }
 *   th_buffer* weights = NULL;
 *   th_register(hub, tensors, count, NULL, &weights);
 *   th_update_options update = TH_UPDATE_OPTIONS_INIT;
 *   th_outcome outcome;
 *   if (th_update(weights, "latest", &update, &outcome, NULL) == TH_OK && outcome == TH_MOVED) ...
 *   th_buffer_free(weights);
 *   th_client_free(hub);
 *
 * Versions. TH_ABI_VERSION rises when something here changes incompatibly; th_abi_version() tells
 * that of the library loaded. Within one ABI version functions are only added, and structs only
 * grow at their end: each begins with `struct_size`, which the _INIT macros set, and what a
 * caller's struct does not reach has its default. Zero and NULL in a field mean its default too.
 *
 * Errors. Every function that can fail returns a th_status; th_last_error() then has the text, and
 * th_last_error_fields() its parts. Nothing aborts, nothing is thrown. A NULL handle or a NULL
 * out-parameter that is needed is TH_INVALID_ARGUMENT.
 *
 * Strings are UTF-8 and NUL-terminated. Those returned through `char**` are JSON (th_metrics
 * alone gives other text), the caller's to free with th_string_free; where the parameter is NULL
 * none is made. Times are in seconds.
 *
 * Reading where it lies. On a holder's host th_attach maps a published version read-only, without a
 * copy, where the holder's memory is an arena of TensorHub (a snapshot, say):
 *
 *   th_attached* shard = NULL;
 *   th_attached_tensor w = TH_ATTACHED_TENSOR_INIT;
 *   if (th_attach(hub, "latest", NULL, &shard, NULL) == TH_OK && shard != NULL &&
 *       th_attached_find(shard, "embedding.weight", &w) == TH_OK) use(w.data, w.bytes);
 *   th_attached_free(shard);
 *
 * Without blocking. Every function that waits has a twin that ends in _start: it takes the same
 * arguments but for what the function gives, copies them, and begins the call on a thread of its
 * own. The th_operation that it gives is looked at, waited for and cancelled; its descriptor goes
 * into poll or an event loop. So a caller is never stuck in here, and answers Ctrl-C at once:
 *
 *   th_operation* operation = NULL;
 *   if (th_update_start(weights, "latest", NULL, &operation) != TH_OK) ...
 *   while (th_operation_wait(operation, 0.1) == TH_DEADLINE_EXCEEDED) {
 *     if (interrupted) th_operation_cancel(operation);  // it ends within milliseconds
 *   }
 *   if (th_operation_result(operation, &outcome, NULL) == TH_OK && outcome == TH_MOVED) ...
 *   th_operation_free(operation);
 *
 * What a cancelled call leaves behind. Each ends TH_CANCELLED, unless it has just ended otherwise.
 *
 * - th_update, th_apply: the buffer is as it was where nothing has been written into it, else see
 *   th_buffer_undefined; what was staged before th_apply stays. The other ranks' calls fail too.
 * - th_stage: nothing is staged. th_receive, th_attach: nothing is held. The other ranks' fail too.
 * - th_publish, of a snapshot or after a CUDA event: nothing is published.
 * - th_await_published, th_await_sealed, th_await_ended, and questions (th_wait_for, th_await_form,
 * th_list, th_wait_applied): only the wait ends.
 * - Commands (th_roll_back, th_retain, th_pin, th_release, th_forget): they may still take effect,
 * once.
 * - th_join, th_register, th_controller_connect: there is no handle.
 * - th_unpublish, th_buffer_sleep, th_buffer_wake, th_buffer_reset, th_rebind, th_attached_verify,
 *   th_leave: they are not cancelled, for the memory is theirs until they end. They end by
 *   themselves, within their times.
 *
 * Threads. All functions may be called on any thread. Handles are not counted: a handle must not be
 * used during or after its free. A client, buffer, controller or attached version that is freed
 * cancels the operations that were begun on it and waits for them; the th_operation handles stay
 * the caller's. Free buffers before their client, or after; calls on a buffer whose client is gone
 * return TH_CANCELLED. After a fork every call in the child returns TH_FAILED_PRECONDITION; what
 * was attached stays readable there, and keeps the holder's pages until the child ends too.
 * Functions without a _start wait for nobody, but for th_receive_next, th_operation_wait, and those
 * that free or close. For the others it is enough to release Python's GIL, as ctypes does.
 */
#ifndef TH_C_INTERFACE_TENSORHUB_H_
#define TH_C_INTERFACE_TENSORHUB_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "TensorHub runs on Linux"
#endif

/* A struct of this type whose size is set and all else zero: what the _INIT macros are. Either form
 * compiles without a warning (-Wmissing-field-initializers) in its language. */
#ifdef __cplusplus
template <typename Struct>
inline Struct th_sized() {  // NOLINT(readability-identifier-naming)
  Struct sized = Struct();
  sized.struct_size = sizeof(Struct);
  return sized;
}
#define TH_SIZED(type) th_sized<type>()
#else
#define TH_SIZED(type) \
  { .struct_size = sizeof(type) }
#endif

#define TH_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The names are C's. NOLINTBEGIN(readability-identifier-naming) */
#define TH_ABI_VERSION 1

/* The canonical codes, as gRPC numbers them. */
typedef enum th_status {
  TH_OK = 0,
  TH_CANCELLED = 1, /* the client has left, or somebody has cancelled the call */
  TH_UNKNOWN = 2,
  TH_INVALID_ARGUMENT = 3,
  TH_DEADLINE_EXCEEDED = 4,
  TH_NOT_FOUND = 5,
  TH_ALREADY_EXISTS = 6, /* another live worker holds the rank */
  TH_PERMISSION_DENIED = 7,
  TH_RESOURCE_EXHAUSTED = 8,  /* the text names the limit */
  TH_FAILED_PRECONDITION = 9, /* a verb in the wrong state; a forked child */
  TH_ABORTED = 10,            /* the rank was replaced, a version withdrawn */
  TH_OUT_OF_RANGE = 11,
  TH_UNIMPLEMENTED = 12,
  TH_INTERNAL = 13,
  TH_UNAVAILABLE = 14, /* no server */
  TH_DATA_LOSS = 15,   /* sums that disagree */
  TH_UNAUTHENTICATED = 16
} th_status;

typedef enum th_outcome {
  TH_NONE = 0,
  TH_MOVED = 1,         /* every rank of the group holds the version now */
  TH_ALREADY_THERE = 2, /* every rank held it before */
  TH_NOT_AVAILABLE = 3  /* the buffers are untouched; the JSON says why */
} th_outcome;

typedef struct th_client th_client;         /* one rank's membership of a group of a model */
typedef struct th_buffer th_buffer;         /* a registered set of tensors */
typedef struct th_attached th_attached;     /* a version's shard, mapped where its holder has it */
typedef struct th_controller th_controller; /* a client without a rank: looks, waits, commands */
typedef struct th_operation th_operation;   /* a call that was begun by a _start function */
typedef struct th_receive th_receive;       /* a version on its way to a caller that keeps it */

/* Parts of an error. The strings are "" where the error has none, as those of a server's answer. */
typedef struct th_error {
  size_t struct_size;
  th_status code;
  const char* text;  /* as th_last_error */
  const char* word;  /* "UPDATE_STALLED": docs/errors.md lists them */
  const char* rank;  /* that it is about: "rollout-3/1" */
  const char* event; /* the operation's name, as in `th events`: "7-1234" */
} th_error;
#define TH_ERROR_INIT \
  { sizeof(th_error) }

typedef struct th_join_options {
  size_t struct_size;
  const char* server; /* "host:port" of the reference server */
  const char* run;
  const char* model;
  const char* group;
  uint32_t rank;
  uint32_t ranks;       /* of the group; 0: 1 */
  const char* location; /* "site=a,rack=r1,host=n7,numa=0,device=..."; NULL: found out or unknown */
  int32_t spot;         /* nonzero: may vanish at short notice */
  double join_timeout;  /* 0: 10 */
  /* The data plane, shared by all clients that a process has of a server: the first one decides. */

  /* An address, an interface or a network of this machine, with a port or a range of them:
   * "10.0.0.7", "eth1:4711", "10.1.0.0/16:4711-4720". NULL: the address that leads to the server */
  const char* data_address;
  uint32_t data_threads;            /* 0: 2 */
  uint32_t connections_per_source;  /* 0: 2 */
  uint64_t uplink_bytes_per_second; /* 0: no cap */
  /* Host memory for copies of retained versions whose last replica would go with this rank. */
  uint64_t offload_limit_bytes;
  /* How bytes may move, the best first, with commas: "cuda_ipc,same_host,ibverbs,tcp"; NULL:
     all. */
  const char* transports;
  int32_t strict_transport; /* nonzero: never another than the first that leads to a source */
  /* Host memory for snapshots (th_publish_options), kept for the next ones; 0: none are made. */
  uint64_t snapshot_limit_bytes;
  /* Of the data plane: the RDMA devices that ibverbs uses, with commas: "mlx5_0,mlx5_1"; NULL: all
   * that can be used. If any is named th_join fails where ibverbs cannot begin with them. */
  const char* rdma_devices;
  /* Likewise: memory of the host and of GPUs that ibverbs registers with them, over all buffers of
   * the process; what is beyond it is served over the next transport. 0: 1 TiB. */
  uint64_t rdma_registered_limit_bytes;
  /* Host memory for versions that are received beside what the buffers hold (th_stage), until they
   * are applied; with it th_update stages too. All ranks of a group declare it, or none. 0: none.
   */
  uint64_t staging_limit_bytes;
  /* Of arenas that readers of this host may have attached or been left (th_attach). 0: a quarter of
   * the host's memory. */
  uint64_t attach_limit_bytes;
  int32_t refuse_attach;   /* nonzero: nobody attaches */
  const char* credentials; /* reserved: passed on, not checked yet */
  /* Nonzero: what becomes of readers of this process's buffers is kept for th_reader_reports. */
  int32_t keep_reader_reports;
} th_join_options;
#define TH_JOIN_OPTIONS_INIT TH_SIZED(th_join_options)

typedef struct th_tensor {
  size_t struct_size; /* the same in all tensors of an array: its stride */
  const char* name;
  const char* dtype;    /* safetensors' names: "BF16", "F8_E4M3"; NULL: opaque, `bytes` says all */
  const int64_t* shape; /* this shard's part; NULL with 0 dimensions: a scalar */
  size_t dimensions;
  uint64_t bytes;              /* 0: from dtype and shape */
  void* data;                  /* must outlive the buffer; never written while published */
  const int64_t* global_shape; /* NULL: `shape` */
  const int64_t* slice_begin;  /* NULL: zeros */
  const int64_t* strides;      /* in elements; NULL: contiguous. Others are refused */
  const char* alias_of; /* the tensor whose storage this one shares; NULL: found by address */
} th_tensor;

typedef struct th_register_options {
  size_t struct_size;
  const char* name;       /* NULL: "weights" */
  const char* form;       /* NULL: "hf" */
  uint64_t segment_bytes; /* 0: chosen from the shard's size */
  int32_t no_checksums;   /* nonzero: none are taken */
} th_register_options;
#define TH_REGISTER_OPTIONS_INIT TH_SIZED(th_register_options)

typedef struct th_publish_options {
  size_t struct_size;
  const char* attributes; /* a JSON object of strings, handed to readers; NULL: none */
  double timeout;         /* for all ranks to have published; 0: 60 */
  /* "#epoch.number": the version that the group holds in another buffer, or has received, and of
   * which this one holds a derived form (fused, quantised); the label is that version's. NULL: not
   * derived. */
  const char* derived_from;
  /* Nonzero: a copy is published, which th_publish makes before it returns, and the buffer may be
   * written again at once. RESOURCE_EXHAUSTED without room. Readers of this host may attach it. */
  int32_t snapshot;
  /* Nonzero: without room for the snapshot it is published in place; th_await_published says so. */
  int32_t snapshot_or_in_place;
  /* A CUevent of the tensors' GPU (torch: Event.cuda_event): th_publish returns once what it has
   * recorded has happened, within `timeout`. NULL: the caller has waited for the GPU itself. */
  void* after_cuda_event;
} th_publish_options;
#define TH_PUBLISH_OPTIONS_INIT TH_SIZED(th_publish_options)

typedef struct th_unpublish_options {
  size_t struct_size;
  double drain_timeout; /* 0: 5 */
  double timeout;       /* 0: 60 */
  /* Of the last replica of a retained version. 0: it is copied to host memory first, and without
   * room the call fails, the buffer still published. Nonzero: the version is lost. */
  int32_t drop_retained;
  double offload_timeout; /* of a copy, beside timeout; 0: 60 */
} th_unpublish_options;
#define TH_UNPUBLISH_OPTIONS_INIT TH_SIZED(th_unpublish_options)

enum { TH_SEEDING_WAIT = 0, TH_SEEDING_SKIP = 1, TH_SEEDING_COPY = 2 };

typedef struct th_update_options {
  size_t struct_size;
  double timeout;         /* 0: 600 */
  double drain_timeout;   /* 0: 5 */
  const char* floor;      /* "#epoch.number": nothing older; NULL: no floor */
  int32_t drop_retained;  /* as th_unpublish_options, of what was held before */
  double offload_timeout; /* 0: 60 */
  /* While the version is on its way into the group's site. TH_SEEDING_WAIT: receives it as it
   * comes. _SKIP: ends as not available; with nobody to bring it it does so itself. _COPY:
   * likewise, but brings it into host memory (offload_limit_bytes) and ends as not available too.
   */
  int32_t when_seeding;
  int32_t in_place; /* nonzero: straight into the buffer, even with staging_limit_bytes */
  const char* form; /* NULL: the buffer's own; another one is TH_UNIMPLEMENTED */
} th_update_options;
#define TH_UPDATE_OPTIONS_INIT TH_SIZED(th_update_options)

typedef struct th_stage_options {
  size_t struct_size;
  double timeout;       /* 0: 600 */
  const char* floor;    /* as th_update_options */
  int32_t when_seeding; /* likewise, but TH_SEEDING_COPY does what _SKIP does */
} th_stage_options;
#define TH_STAGE_OPTIONS_INIT \
  { sizeof(th_stage_options) }

typedef struct th_apply_options {
  size_t struct_size;
  double timeout;         /* for all ranks to come, and to copy; 0: 60 */
  double drain_timeout;   /* 0: 5 */
  int32_t drop_retained;  /* as th_unpublish_options, of what was held before */
  double offload_timeout; /* 0: 60 */
} th_apply_options;
#define TH_APPLY_OPTIONS_INIT \
  { sizeof(th_apply_options) }

typedef struct th_receive_options {
  size_t struct_size;
  const char* form; /* NULL: "hf" */
  /* Whose shard: by the digest of its layout, or that of rank `rank` of `group`; NULL both: the
   * only shard that there is. */
  const char* layout;
  const char* group;
  uint32_t rank;
  /* Names, or patterns with * ? [a-z]; tied names come each under its own name. 0: all. */
  const char* const* tensors;
  size_t tensors_count;
  /* Of host memory for what has arrived and is not taken yet; at least one segment. 0: 64 MiB. */
  uint64_t limit_bytes;
  double timeout; /* for all of it, the caller's own time included; 0: 600 */
} th_receive_options;
#define TH_RECEIVE_OPTIONS_INIT \
  { sizeof(th_receive_options) }

/* A tensor, or a part of one that does not lie in one segment. All pointers are good until the next
 * th_receive_next or th_receive_close of the receive, or the free of its client. */
typedef struct th_slice {
  size_t struct_size;
  const char* name;     /* NULL: there are no more */
  const char* dtype;    /* as th_tensor; "" for opaque bytes */
  const int64_t* shape; /* of the tensor in this shard */
  size_t dimensions;
  uint64_t tensor_bytes; /* of all of the tensor */
  uint64_t offset;       /* of `data` in the tensor */
  uint64_t bytes;        /* of `data`; offset + bytes == tensor_bytes: the tensor's last */
  const void* data;      /* as published: they match the publisher's sum */
  const int64_t* global_shape;
  const int64_t* slice_begin;
} th_slice;
#define TH_SLICE_INIT \
  { sizeof(th_slice) }

typedef struct th_progress {
  size_t struct_size;
  uint64_t bytes_received; /* and checked; what is unchanged counts */
  uint64_t bytes_total;    /* of this rank's shard; 0: nothing has come yet */
} th_progress;
#define TH_PROGRESS_INIT \
  { sizeof(th_progress) }

typedef struct th_attach_options {
  size_t struct_size;
  const char* form; /* NULL: "hf" */
  /* Whose shard: that of rank `rank` of `group`. NULL: the only shard that there is. */
  const char* group;
  uint32_t rank;
  /* The shard by the digest of its layout (th_attach's "layout"), in place of group and rank: the
   * server is asked one question less. NULL: not known. */
  const char* layout;
  int32_t verify; /* nonzero: as th_attached_verify, before th_attach returns */
  double timeout; /* of the attach, without the reading of `verify`; 0: 60 */
} th_attach_options;
#define TH_ATTACH_OPTIONS_INIT TH_SIZED(th_attach_options)

/* One tensor of an attached version. All pointers are good until th_attached_free. */
typedef struct th_attached_tensor {
  size_t struct_size;
  const char* name;
  const char* dtype;    /* as th_tensor; "" for opaque bytes */
  const int64_t* shape; /* this shard's part */
  size_t dimensions;
  uint64_t bytes;
  const void* data; /* to be read only: a write is a SIGSEGV; NULL for an empty tensor */
  const int64_t* global_shape;
  const int64_t* slice_begin;
} th_attached_tensor;
#define TH_ATTACHED_TENSOR_INIT TH_SIZED(th_attached_tensor)

/* TH_ABI_VERSION of the library that is loaded. */
TH_EXPORT uint32_t th_abi_version(void);
/* The text of the last error of this thread; "" when there was none. Until its next call. */
TH_EXPORT const char* th_last_error(void);
/* The same in parts, the strings until the thread's next call but this. */
TH_EXPORT th_status th_last_error_fields(th_error* error);
TH_EXPORT const char* th_status_name(th_status status);
TH_EXPORT void th_string_free(char* text);
/* *text: what this process's clients have done and do now, for Prometheus (text format 0.0.4):
 * calls by outcome, stalls by phase, bytes by transport, readers. docs/operations.md has the
 * metrics. */
TH_EXPORT th_status th_metrics(char** text);

/* Connects and joins. */
TH_EXPORT th_status th_join(const th_join_options* options, th_client** client);
TH_EXPORT th_status th_join_start(const th_join_options* options, th_operation** operation);
/* Tells the server, lets readers end the segment under way (half a second at most) and cuts the
 * others; buffers' calls return TH_CANCELLED from then on. Idempotent. */
TH_EXPORT th_status th_leave(th_client* client, double timeout);
TH_EXPORT th_status th_leave_start(th_client* client, double timeout, th_operation** operation);
/* Leaves if need be. NULL is ignored. */
TH_EXPORT void th_client_free(th_client* client);
/* TH_OK while the membership lives, else why it ended. */
TH_EXPORT th_status th_membership(th_client* client);
/* A notice, as of a spot machine that is taken back in so many seconds (a day at most): the server
 * moves readers to other sources where it can, and then the client leaves by itself. Verbs go on
 * until then; of several notices the earliest counts. */
TH_EXPORT th_status th_preempt(th_client* client, double seconds);
/* Until the membership has ended: th_membership says why. TH_DEADLINE_EXCEEDED: it lives. */
TH_EXPORT th_status th_await_ended(th_client* client, double timeout);
TH_EXPORT th_status th_await_ended_start(th_client* client, double timeout,
                                         th_operation** operation);
/* *info: {"connected", "data_endpoint", "control_bytes", "left_out"}: whether the server knows of
 * this membership now, where others reach this process over TCP, bytes to and from the server, and
 * what of this host the data plane does without, with reasons. */
TH_EXPORT th_status th_client_info(th_client* client, char** info);
/* What became of readers of this process's buffers since the last call, the oldest first, with
 * keep_reader_reports: {"dropped", "reports": [{"what", "event", "reader", "version", "bytes_sent",
 * "refusal", "why_ended"}]}. The newest 1,024 are kept; `dropped` counts those that were not. */
TH_EXPORT th_status th_reader_reports(th_client* client, char** reports);
/* Until `version` is published: *found as th_await_published. TH_DEADLINE_EXCEEDED says why it is
 * not there. */
TH_EXPORT th_status th_wait_for(th_client* client, const char* version, double timeout,
                                char** found);
TH_EXPORT th_status th_wait_for_start(th_client* client, const char* version, double timeout,
                                      th_operation** operation);
/* Until some group offers `version` in `form`, or this group is the one that is to make it: *make
 * is nonzero then, and th_publish with derived_from follows. Of the groups that wait the server
 * chooses one at a time, until it has published the form, has left, or half of its `timeout` is
 * over. With a timeout of 0 the group that was chosen gives the form back, as after a failure. So
 * engines that are told of a version at the same moment load it by name once. *result: {"make",
 * "version"}. */
TH_EXPORT th_status th_await_form(th_client* client, const char* version, const char* form,
                                  double timeout, int32_t* make, char** result);
TH_EXPORT th_status th_await_form_start(th_client* client, const char* version, const char* form,
                                        double timeout, th_operation** operation);
/* Withdraws every version after `to`. *version: what was gone back to. */
TH_EXPORT th_status th_roll_back(th_client* client, const char* to, const char* idempotency_key,
                                 char** version);
TH_EXPORT th_status th_roll_back_start(th_client* client, const char* to,
                                       const char* idempotency_key, th_operation** operation);

/* Registers tensors as one buffer; nothing is copied. Memory of the host that this process can read
 * is taken, and GPU memory where it has loaded the CUDA driver; TH_INVALID_ARGUMENT names a tensor
 * whose memory cannot be read. */
TH_EXPORT th_status th_register(th_client* client, const th_tensor* tensors, size_t count,
                                const th_register_options* options, th_buffer** buffer);
TH_EXPORT th_status th_register_start(th_client* client, const th_tensor* tensors, size_t count,
                                      const th_register_options* options, th_operation** operation);
/* Withdraws the buffer: readers end the segment under way, then are cut. NULL is ignored. */
TH_EXPORT void th_buffer_free(th_buffer* buffer);

/* Freezes the buffer and offers it; returns at once, with a snapshot once that is made. */
TH_EXPORT th_status th_publish(th_buffer* buffer, const char* label,
                               const th_publish_options* options);
TH_EXPORT th_status th_publish_start(th_buffer* buffer, const char* label,
                                     const th_publish_options* options, th_operation** operation);
/* Until all ranks have published. *version: {"sequence", "label", "lineage", "attributes"}, and
 * with a snapshot "snapshot_bytes" and "snapshot_seconds". */
TH_EXPORT th_status th_await_published(th_buffer* buffer, char** version);
TH_EXPORT th_status th_await_published_start(th_buffer* buffer, th_operation** operation);
/* Until the sums of the last publish are done and sent to the server. */
TH_EXPORT th_status th_await_sealed(th_buffer* buffer, double timeout);
TH_EXPORT th_status th_await_sealed_start(th_buffer* buffer, double timeout,
                                          th_operation** operation);
/* Takes the buffer back; TH_OK: it may be written. */
TH_EXPORT th_status th_unpublish(th_buffer* buffer, const th_unpublish_options* options);
TH_EXPORT th_status th_unpublish_start(th_buffer* buffer, const th_unpublish_options* options,
                                       th_operation** operation);
/* Moves the buffer, on all ranks of the group, to `version`: "latest", a label, or "#epoch.number".
 * *result: {"outcome", "reason", "version", "event", "seconds", "bytes_received",
 * "bytes_unchanged", "reroutes", "sources", ...}. */
TH_EXPORT th_status th_update(th_buffer* buffer, const char* version,
                              const th_update_options* options, th_outcome* outcome, char** result);
TH_EXPORT th_status th_update_start(th_buffer* buffer, const char* version,
                                    const th_update_options* options, th_operation** operation);
/* Receives a version into spare host memory, under staging_limit_bytes, while the buffer stays as
 * it is, in use and served: on all ranks of the group. TH_MOVED: it is staged, until it is applied,
 * discarded or staged anew. TH_ALREADY_THERE: the buffer holds it. *result as th_update. After an
 * error nothing is staged. */
TH_EXPORT th_status th_stage(th_buffer* buffer, const char* version,
                             const th_stage_options* options, th_outcome* outcome, char** result);
TH_EXPORT th_status th_stage_start(th_buffer* buffer, const char* version,
                                   const th_stage_options* options, th_operation** operation);
/* Moves what is staged into the buffer, on all ranks or on none. TH_FAILED_PRECONDITION: nothing is
 * staged; TH_ABORTED: it was withdrawn since. After an error see th_buffer_undefined; what is
 * staged stays then. *result as th_update. */
TH_EXPORT th_status th_apply(th_buffer* buffer, const th_apply_options* options, char** result);
TH_EXPORT th_status th_apply_start(th_buffer* buffer, const th_apply_options* options,
                                   th_operation** operation);
/* Ends a stage that is under way and frees what is staged, once its readers have let go. */
TH_EXPORT th_status th_discard_staged(th_buffer* buffer);
/* What is staged: as th_await_published, or null. */
TH_EXPORT th_status th_staged(th_buffer* buffer, char** version);

/* Other addresses for the same tensors. Only while writable, or asleep: then it wakes the buffer;
 * th_buffer_reset an undefined one first. TH_OK: the old memory may be freed.
 * TH_DEADLINE_EXCEEDED names a GPU that still uses it, and nothing has changed: call this again. */
TH_EXPORT th_status th_rebind(th_buffer* buffer, const th_tensor* tensors, size_t count);
TH_EXPORT th_status th_rebind_start(th_buffer* buffer, const th_tensor* tensors, size_t count,
                                    th_operation** operation);
/* For an engine that gives the tensors' memory back for a while. Takes the buffer back as
 * th_unpublish does, if it holds a version, and withdraws its memory from all transports. TH_OK:
 * the memory may be freed or unmapped; after an error it may not. TH_DEADLINE_EXCEEDED names the
 * GPU that still reads it: call this again. Until the buffer wakes th_publish, th_unpublish and
 * th_update are TH_FAILED_PRECONDITION. */
TH_EXPORT th_status th_buffer_sleep(th_buffer* buffer, const th_unpublish_options* options);
TH_EXPORT th_status th_buffer_sleep_start(th_buffer* buffer, const th_unpublish_options* options,
                                          th_operation** operation);
/* The memory is there again, at the same addresses (at others: th_rebind, which wakes it too). The
 * buffer is writable and holds no version. TH_FAILED_PRECONDITION: it is not asleep, or the text
 * names the tensor that was GPU memory and is none now. */
TH_EXPORT th_status th_buffer_wake(th_buffer* buffer);
TH_EXPORT th_status th_buffer_wake_start(th_buffer* buffer, th_operation** operation);
/* Nonzero from th_buffer_sleep until it wakes. */
TH_EXPORT int32_t th_buffer_asleep(th_buffer* buffer);

/* Nonzero: an update failed after its first write; do not serve. */
TH_EXPORT int32_t th_buffer_undefined(th_buffer* buffer);
/* Leaves undefined: the caller answers for the content. TH_DEADLINE_EXCEEDED names the GPU that has
 * not ended what it writes or reads: call this again; while one writes, the buffer stays undefined.
 */
TH_EXPORT th_status th_buffer_reset(th_buffer* buffer);
TH_EXPORT th_status th_buffer_reset_start(th_buffer* buffer, th_operation** operation);
/* What the buffer holds: as th_await_published, or null when it holds nothing. */
TH_EXPORT th_status th_buffer_version(th_buffer* buffer, char** version);
TH_EXPORT uint64_t th_buffer_bytes(th_buffer* buffer);
/* *info: {"bytes", "layout", "snapshot_bytes", "bytes_sent", "gpu_registrations"}: the digest of
 * names, shapes and types, by which shards are matched; host memory that it is published from; what
 * readers were sent; how GPU memory is registered with transports. */
TH_EXPORT th_status th_buffer_info(th_buffer* buffer, char** info);

/* Hands out tensors of one shard of `version` slice by slice, in the order of the shard, through no
 * more than limit_bytes of host memory: a slow caller slows the transfer. What is received is not
 * kept. A call of the group: every rank makes it, in the same order. Returns at once.
 *
 *   th_receive* receive = NULL;
 *   th_slice slice = TH_SLICE_INIT;
 *   if (th_receive_open(hub, "latest", NULL, &receive) != TH_OK) ...
 *   while (th_receive_next(receive, 60, &slice) == TH_OK && slice.name != NULL) load(&slice);
 *   if (th_receive_result(receive, &outcome, NULL) == TH_OK && outcome == TH_MOVED) ...
 *   th_receive_close(receive);
 */
TH_EXPORT th_status th_receive_open(th_client* client, const char* version,
                                    const th_receive_options* options, th_receive** receive);
/* The next slice; the one before is given back. TH_OK with a NULL name: all were taken, or the
 * version is not available. TH_DEADLINE_EXCEEDED: none came within `timeout` (0: it only looks);
 * call again, unless th_receive_result returns the same: then the receive's own time is over. Other
 * errors: the receive has failed, and the text says what was taken. One thread at a time. */
TH_EXPORT th_status th_receive_next(th_receive* receive, double timeout, th_slice* slice);
/* For poll, after th_receive_next has returned TH_DEADLINE_EXCEEDED (with timeout 0 it gives the
 * slice before back and returns at once): readable when the next slice is there, or the receive has
 * ended. Belongs to the receive: do not read or close it. -1 for NULL. */
TH_EXPORT int th_receive_fd(const th_receive* receive);
/* What it came to, once there are no more slices. *result: {"outcome", "reason", "version",
 * "tensors", "slices", "bytes", "bytes_received", "sources", ...}. TH_FAILED_PRECONDITION: it is
 * under way. */
TH_EXPORT th_status th_receive_result(th_receive* receive, th_outcome* outcome, char** result);
/* It ends TH_CANCELLED, within milliseconds. A slice that the caller has stays good. */
TH_EXPORT th_status th_receive_cancel(th_receive* receive);
/* Cancels it if it is under way, and waits for its end. NULL is ignored. */
TH_EXPORT void th_receive_close(th_receive* receive);

/* Maps `version` ("latest", a label, or "#epoch.number") as a holder on this host has it.
 * *attached: NULL where the version is not available, with TH_OK. *result: {"outcome", "reason",
 * "version", "layout", "source", "tensors", "bytes"}. TH_FAILED_PRECONDITION: no holder of it can
 * be attached, with the reason of each. TH_DATA_LOSS: `verify` has found other bytes. */
TH_EXPORT th_status th_attach(th_client* client, const char* version,
                              const th_attach_options* options, th_attached** attached,
                              char** result);
TH_EXPORT th_status th_attach_start(th_client* client, const char* version,
                                    const th_attach_options* options, th_operation** operation);
/* Unmaps it; after that the holder may use the pages again. NULL is ignored. It may outlive its
 * client, and the holder. */
TH_EXPORT void th_attached_free(th_attached* attached);
/* How many tensors it has; 0 for NULL. */
TH_EXPORT size_t th_attached_size(const th_attached* attached);
/* The tensor at `index` of th_attached_size, by name in ascending order. As much of *tensor is
 * written as its struct_size says. TH_OUT_OF_RANGE: there is none. */
TH_EXPORT th_status th_attached_at(const th_attached* attached, size_t index,
                                   th_attached_tensor* tensor);
/* The first tensor of that name; th_attached_at visits all where a shard has several boxes of one.
 * TH_NOT_FOUND: it has none. */
TH_EXPORT th_status th_attached_find(const th_attached* attached, const char* name,
                                     th_attached_tensor* tensor);
/* Reads all bytes and compares them with the publisher's sums; TH_DATA_LOSS. */
TH_EXPORT th_status th_attached_verify(const th_attached* attached);
TH_EXPORT th_status th_attached_verify_start(const th_attached* attached, th_operation** operation);

/* Operations: what _start functions give.
 *
 * Readable, in poll, once the operation has ended. Belongs to the operation: do not read or close
 * it. -1 for NULL. */
TH_EXPORT int th_operation_fd(const th_operation* operation);
/* TH_OK once it has ended, whatever it came to. TH_DEADLINE_EXCEEDED: not within `timeout`, in
 * seconds (0: it only looks). */
TH_EXPORT th_status th_operation_wait(const th_operation* operation, double timeout);
/* Asks it to end, and returns at once; above stands what calls leave behind that were cancelled.
 * One that has ended, or cannot be cancelled, goes on as if nobody had asked. */
TH_EXPORT th_status th_operation_cancel(th_operation* operation);
/* How far a th_update or th_stage is on this rank; of other operations zeros. As much of *progress
 * is written as its struct_size says. */
TH_EXPORT th_status th_operation_progress(const th_operation* operation, th_progress* progress);
/* What the function without _start would have returned and given. TH_FAILED_PRECONDITION: it is
 * under way. May be asked again. */
TH_EXPORT th_status th_operation_result(const th_operation* operation, th_outcome* outcome,
                                        char** result);
/* The parts of its error, with TH_OK where it has none; the strings until th_operation_free. */
TH_EXPORT th_status th_operation_error(const th_operation* operation, th_error* error);
/* The handle that it made, to be freed by the caller; once, then NULL. NULL also where it is under
 * way, has failed, or makes none. */
TH_EXPORT th_client* th_operation_take_client(th_operation* operation);
TH_EXPORT th_buffer* th_operation_take_buffer(th_operation* operation);
TH_EXPORT th_attached* th_operation_take_attached(th_operation* operation);
TH_EXPORT th_controller* th_operation_take_controller(th_operation* operation);
/* Cancels it if it is under way, and waits for its end. What it made and nobody took is freed. NULL
 * is ignored. */
TH_EXPORT void th_operation_free(th_operation* operation);

/* Connects a controller for one model of a run; both NULL: th_controller_list of all. timeout 0:
 * 10. */
TH_EXPORT th_status th_controller_connect(const char* server, const char* run, const char* model,
                                          double timeout, th_controller** controller);
TH_EXPORT th_status th_controller_connect_start(const char* server, const char* run,
                                                const char* model, double timeout,
                                                th_operation** operation);
/* NULL is ignored. */
TH_EXPORT void th_controller_free(th_controller* controller);
/* Models, versions and who holds them, as JSON. In this and the next four timeout 0 is 10. */
TH_EXPORT th_status th_controller_list(th_controller* controller, double timeout, char** catalog);
TH_EXPORT th_status th_controller_list_start(th_controller* controller, double timeout,
                                             th_operation** operation);
/* What happened of late, oldest first, as `th events` shows it: {"epoch", "last", "lost",
 * "events"}. Only what came after number `after` (0: all); `id` NULL: of all operations, else of
 * "7-1234". The server's own events have an empty "run" and "model", and come with those of every
 * run. Ask on with `after` = "last"; another epoch counts from 1 again. */
TH_EXPORT th_status th_events(th_controller* controller, uint64_t after, const char* id,
                              double timeout, char** events);
TH_EXPORT th_status th_events_start(th_controller* controller, uint64_t after, const char* id,
                                    double timeout, th_operation** operation);
/* Which version the name stands for now. */
TH_EXPORT th_status th_resolve(th_controller* controller, const char* version, double timeout,
                               char** found);
TH_EXPORT th_status th_resolve_start(th_controller* controller, const char* version, double timeout,
                                     th_operation** operation);
/* Which shard a streaming reader means: that of `rank` of `group`, or with NULL the only one of
 * `version`. form NULL: "hf". *shard: {"reason", "layout"}. */
TH_EXPORT th_status th_find_shard(th_controller* controller, const char* version, const char* form,
                                  const char* group, uint32_t rank, double timeout, char** shard);
TH_EXPORT th_status th_find_shard_start(th_controller* controller, const char* version,
                                        const char* form, const char* group, uint32_t rank,
                                        double timeout, th_operation** operation);
/* The tensors of a shard, by its digest. *tensors: {"layout", "bytes", "segment_bytes", "tensors":
 * [{"name", "dtype", "shape", "bytes", "global_shape", "slice_begin"}]}. */
TH_EXPORT th_status th_get_layout(th_controller* controller, const char* layout, double timeout,
                                  char** tensors);
TH_EXPORT th_status th_get_layout_start(th_controller* controller, const char* layout,
                                        double timeout, th_operation** operation);
/* As th_wait_for. */
TH_EXPORT th_status th_controller_wait_for(th_controller* controller, const char* version,
                                           double timeout, char** found);
TH_EXPORT th_status th_controller_wait_for_start(th_controller* controller, const char* version,
                                                 double timeout, th_operation** operation);
/* Until every one of `groups` holds `version` whole, on all its ranks, or `timeout` has passed:
 * *all is nonzero, or zero then. *result: {"all", "version", "applied": ["rollout-1"], "lacking":
 * [{"group", "why"}]}. */
TH_EXPORT th_status th_wait_applied(th_controller* controller, const char* version,
                                    const char* const* groups, size_t groups_count, double timeout,
                                    int32_t* all, char** result);
TH_EXPORT th_status th_wait_applied_start(th_controller* controller, const char* version,
                                          const char* const* groups, size_t groups_count,
                                          double timeout, th_operation** operation);
/* As th_roll_back. */
TH_EXPORT th_status th_controller_roll_back(th_controller* controller, const char* to,
                                            const char* idempotency_key, char** version);
TH_EXPORT th_status th_controller_roll_back_start(th_controller* controller, const char* to,
                                                  const char* idempotency_key,
                                                  th_operation** operation);
/* The `keep_latest` newest versions stay fetchable; 0: no policy. form NULL: every form. */
TH_EXPORT th_status th_retain(th_controller* controller, uint32_t keep_latest, const char* form);
TH_EXPORT th_status th_retain_start(th_controller* controller, uint32_t keep_latest,
                                    const char* form, th_operation** operation);
/* `version` stays fetchable until th_release, or for so many seconds; 0: until th_release. Each
 * owner's pin counts by itself. form NULL: every form. *pinned: the version. */
TH_EXPORT th_status th_pin(th_controller* controller, const char* version, const char* owner,
                           double expires_after, const char* form, char** pinned);
TH_EXPORT th_status th_pin_start(th_controller* controller, const char* version, const char* owner,
                                 double expires_after, const char* form, th_operation** operation);
TH_EXPORT th_status th_release(th_controller* controller, const char* version, const char* owner,
                               const char* form);
TH_EXPORT th_status th_release_start(th_controller* controller, const char* version,
                                     const char* owner, const char* form, th_operation** operation);
/* The server's record of the model goes: its versions, pins, policies and roll-backs.
 * TH_FAILED_PRECONDITION while it has groups; TH_NOT_FOUND where there is none. */
TH_EXPORT th_status th_forget(th_controller* controller);
TH_EXPORT th_status th_forget_start(th_controller* controller, th_operation** operation);

/* What the server knows: the models of `run` (NULL: all) named `model` (NULL: all), as JSON;
 * without a controller. */
TH_EXPORT th_status th_list(const char* server, const char* run, const char* model, double timeout,
                            char** catalog);
TH_EXPORT th_status th_list_start(const char* server, const char* run, const char* model,
                                  double timeout, th_operation** operation);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
}
#endif

#endif /* TH_C_INTERFACE_TENSORHUB_H_ */
