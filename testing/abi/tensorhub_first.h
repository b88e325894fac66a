/* The first header of ABI version 1, as programs may have been compiled with it: frozen. */
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
 * Errors. Every function that can fail returns a th_status; th_last_error() then has the text.
 * Nothing aborts, nothing is thrown. A NULL handle or a NULL out-parameter that is needed is
 * TH_INVALID_ARGUMENT.
 *
 * Strings are UTF-8 and NUL-terminated. Those returned through `char**` are JSON, the caller's to
 * free with th_string_free; where the parameter is NULL none is made. Times are in seconds.
 *
 * Threads. All functions may be called on any thread. Handles are not counted: a handle must not be
 * used during or after its free. Free buffers before their client, or after; calls on a buffer
 * whose client is gone return TH_CANCELLED. After a fork every call in the child returns
 * TH_FAILED_PRECONDITION. The functions block (releasing Python's GIL, as ctypes does, is enough).
 */
#ifndef TH_CLIENT_TENSORHUB_H_
#define TH_CLIENT_TENSORHUB_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "TensorHub runs on Linux"
#endif
#define TH_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define TH_ABI_VERSION 1

/* The canonical codes, as gRPC numbers them. */
typedef enum th_status {
  TH_OK = 0,
  TH_CANCELLED = 1, /* the client has left */
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

typedef struct th_client th_client; /* one rank's membership of a group of a model */
typedef struct th_buffer th_buffer; /* a registered set of tensors */

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
  /* The data plane, shared by all clients of the process: the first one decides. */
  const char* data_address;         /* NULL: the address that leads to the server */
  uint32_t data_threads;            /* 0: 2 */
  uint32_t connections_per_source;  /* 0: 2 */
  uint64_t uplink_bytes_per_second; /* 0: no cap */
} th_join_options;
#define TH_JOIN_OPTIONS_INIT \
  { sizeof(th_join_options) }

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
#define TH_REGISTER_OPTIONS_INIT \
  { sizeof(th_register_options) }

typedef struct th_publish_options {
  size_t struct_size;
  const char* attributes; /* a JSON object of strings, handed to readers; NULL: none */
  double timeout;         /* for all ranks to have published; 0: 60 */
} th_publish_options;
#define TH_PUBLISH_OPTIONS_INIT \
  { sizeof(th_publish_options) }

typedef struct th_unpublish_options {
  size_t struct_size;
  double drain_timeout; /* 0: 5 */
  double timeout;       /* 0: 60 */
} th_unpublish_options;
#define TH_UNPUBLISH_OPTIONS_INIT \
  { sizeof(th_unpublish_options) }

typedef struct th_update_options {
  size_t struct_size;
  double timeout;       /* 0: 600 */
  double drain_timeout; /* 0: 5 */
  const char* floor;    /* "#epoch.number": nothing older; NULL: no floor */
} th_update_options;
#define TH_UPDATE_OPTIONS_INIT \
  { sizeof(th_update_options) }

/* TH_ABI_VERSION of the library that is loaded. */
TH_EXPORT uint32_t th_abi_version(void);
/* The text of the last error of this thread; "" when there was none. Until its next call. */
TH_EXPORT const char* th_last_error(void);
TH_EXPORT const char* th_status_name(th_status status);
TH_EXPORT void th_string_free(char* text);

/* Connects and joins. */
TH_EXPORT th_status th_join(const th_join_options* options, th_client** client);
/* Tells the server and cuts readers; buffers' calls return TH_CANCELLED from then on. Idempotent.
 */
TH_EXPORT th_status th_leave(th_client* client, double timeout);
/* Leaves if need be. NULL is ignored. */
TH_EXPORT void th_client_free(th_client* client);
/* TH_OK while the membership lives, else why it ended. */
TH_EXPORT th_status th_membership(th_client* client);
/* Withdraws every version after `to`. *version: what was gone back to. */
TH_EXPORT th_status th_roll_back(th_client* client, const char* to, const char* idempotency_key,
                                 char** version);

/* Registers tensors as one buffer; nothing is copied. */
TH_EXPORT th_status th_register(th_client* client, const th_tensor* tensors, size_t count,
                                const th_register_options* options, th_buffer** buffer);
/* Withdraws the buffer: readers are cut. NULL is ignored. */
TH_EXPORT void th_buffer_free(th_buffer* buffer);

/* Freezes the buffer and offers it; returns at once. */
TH_EXPORT th_status th_publish(th_buffer* buffer, const char* label,
                               const th_publish_options* options);
/* Until all ranks have published. *version: {"sequence", "label", "lineage", "attributes"}. */
TH_EXPORT th_status th_await_published(th_buffer* buffer, char** version);
/* Until the sums of the last publish are done and sent to the server. */
TH_EXPORT th_status th_await_sealed(th_buffer* buffer, double timeout);
/* Takes the buffer back; TH_OK: it may be written. */
TH_EXPORT th_status th_unpublish(th_buffer* buffer, const th_unpublish_options* options);
/* Moves the buffer, on all ranks of the group, to `version`: "latest", a label, or "#epoch.number".
 * *result: {"outcome", "reason", "version", "seconds", "bytes_received", "reroutes", "sources",
 * ...}. */
TH_EXPORT th_status th_update(th_buffer* buffer, const char* version,
                              const th_update_options* options, th_outcome* outcome, char** result);

/* Other addresses for the same tensors. Only while writable or undefined. */
TH_EXPORT th_status th_rebind(th_buffer* buffer, const th_tensor* tensors, size_t count);
/* Nonzero: an update failed after its first write; do not serve. */
TH_EXPORT int32_t th_buffer_undefined(th_buffer* buffer);
/* Leaves "undefined": the caller answers for the content. */
TH_EXPORT th_status th_buffer_reset(th_buffer* buffer);
/* What the buffer holds: as th_await_published, or null when it holds nothing. */
TH_EXPORT th_status th_buffer_version(th_buffer* buffer, char** version);
TH_EXPORT uint64_t th_buffer_bytes(th_buffer* buffer);

/* What the server knows: the models of `run` (NULL: all) named `model` (NULL: all), as JSON. */
TH_EXPORT th_status th_list(const char* server, const char* run, const char* model, double timeout,
                            char** catalog);

#ifdef __cplusplus
}
#endif

#endif /* TH_CLIENT_TENSORHUB_H_ */
