// The limits of what a frame carries. A sender stays below these (it cuts text and coarsens
// progress), a receiver refuses what exceeds them.
#ifndef TH_WIRE_LIMITS_H_
#define TH_WIRE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace th {

// The limit of one gRPC message, both ways: a layout upload (kMaxLayoutBytes, 64 MiB) with its
// frame.
inline constexpr int kMaxMessageBytesOnWire = 80 << 20;
// The bytes that may be under way on one stream before its receiver has taken them, both ways: a
// large layout
// (64 MiB) crosses 30 ms in two seconds. Fixed, because gRPC's own estimate of the path (BDP) asks
// for a ping and its answer with every heartbeat that arrives.
inline constexpr int kHttp2WindowBytes = 1 << 20;
// Ranges of one SegmentSet: some 4 KiB. A fill has one range a source, plus one a re-route.
inline constexpr size_t kMaxRangesOnWire = 1024;
// Segments of one shard: 4 PiB in the smallest ones. Keeps sums of counts far from overflow.
inline constexpr uint64_t kMaxSegmentsOnWire = uint64_t{1} << 40;
// Buffers of one join; the registry's own limit is lower and has the better message.
inline constexpr size_t kMaxBuffersOnWire = 1024;
inline constexpr size_t kMaxEndpointsOnWire = 64;
inline constexpr size_t kMaxNicsOnWire = 64;
inline constexpr size_t kMaxSourcesOnWire = 1024;
inline constexpr size_t kMaxServerAddressOnWire = 256;  // "host:port"
inline constexpr size_t kMaxIdempotencyKeyOnWire = 128;
inline constexpr size_t kMaxCredentialsBytes = size_t{64} << 10;
// Text for people (status messages, software names, details) is cut here, never refused.
inline constexpr size_t kMaxProseBytesOnWire = size_t{8} << 10;
// gRPC carries a call's status message in its trailing metadata (8 KiB by default), three bytes for
// each that is not printable ASCII.
inline constexpr size_t kMaxGrpcStatusMessageBytes = size_t{2} << 10;
// Longer durations, the infinite one too, are sent as this.
inline constexpr absl::Duration kMaxDurationOnWire = absl::Hours(24 * 365 * 10);

}  // namespace th

#endif  // TH_WIRE_LIMITS_H_
