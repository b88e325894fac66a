// SHA-256 digests: of layouts, of lists of segment sums, of files. The hash is OpenSSL's.
#ifndef TH_WEIGHTS_DIGEST_H_
#define TH_WEIGHTS_DIGEST_H_

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace th {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  bool empty() const { return *this == Digest{}; }
  std::string ToHex() const;     // 64 lower-case digits
  std::string ShortHex() const;  // the first 12, for messages
  static absl::StatusOr<Digest> FromHex(absl::string_view hex);
  static absl::StatusOr<Digest> FromBytes(absl::string_view raw);  // exactly 32 bytes
  friend auto operator<=>(const Digest&, const Digest&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.bytes);
  }
};

// SHA-256 of a stream of bytes. Not thread-safe.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;
  void Update(const void* data, size_t bytes);
  void Update(absl::string_view text) { Update(text.data(), text.size()); }
  Digest Finish();  // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest Sha256(absl::string_view data);

}  // namespace th

#endif  // TH_WEIGHTS_DIGEST_H_
