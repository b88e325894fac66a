#include "th/weights/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace th {
namespace {

constexpr size_t kShortHexDigits = 12;

absl::string_view AsText(const std::array<uint8_t, 32>& bytes) {
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// OpenSSL's calls fail for want of memory only, or in a build of it without SHA-256: nothing that a
// caller could mend, and no input brings it about.
void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

std::string Digest::ToHex() const { return absl::BytesToHexString(AsText(bytes)); }

std::string Digest::ShortHex() const { return ToHex().substr(0, kShortHexDigits); }

absl::StatusOr<Digest> Digest::FromHex(absl::string_view hex) {
  const bool digits = std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit);
  if (!digits || hex.size() != 2 * sizeof(Digest::bytes)) {
    return absl::InvalidArgumentError("a digest in text is 64 hexadecimal digits");
  }
  return FromBytes(absl::HexStringToBytes(hex));
}

absl::StatusOr<Digest> Digest::FromBytes(absl::string_view raw) {
  Digest digest;
  if (raw.size() != digest.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a digest has ", digest.bytes.size(), " bytes, not ", raw.size()));
  }
  std::copy(raw.begin(), raw.end(), digest.bytes.begin());
  return digest;
}

struct DigestBuilder::State {
  State() : context(EVP_MD_CTX_new()) {
    Require(context != nullptr);
    Require(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  EVP_MD_CTX* context;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) {}
DigestBuilder::~DigestBuilder() = default;

void DigestBuilder::Update(const void* data, size_t bytes) {
  Require(EVP_DigestUpdate(state_->context, data, bytes) == 1);
}

Digest DigestBuilder::Finish() {
  Digest digest;
  Require(EVP_DigestFinal_ex(state_->context, digest.bytes.data(), nullptr) == 1);
  return digest;
}

Digest Sha256(absl::string_view data) {
  DigestBuilder builder;
  builder.Update(data);
  return builder.Finish();
}

}  // namespace th
