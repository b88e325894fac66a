// gRPC's queue of callbacks, kept for the whole life of the process.
#ifndef TH_WIRE_GRPC_CALLBACK_QUEUE_H_
#define TH_WIRE_GRPC_CALLBACK_QUEUE_H_

namespace th {

// Call it before the first callback call or service of this process, on a thread whose signal mask
// gRPC's threads shall inherit. Thread-safe; only the first call does anything.
//
// gRPC ends this process-wide queue with its last user and makes it anew for the next. In 1.51 that
// end races with the thread that polls the queue: now and then the process dies of
// "ref_counted.h: assertion failed: prior > 0". With one user that stays there is no end.
void KeepGrpcCallbackQueue();

}  // namespace th

#endif  // TH_WIRE_GRPC_CALLBACK_QUEUE_H_
