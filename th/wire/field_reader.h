// Reads the fields of one message and keeps the first error, named by the field's path.
//
//   FieldReader reader;
//   Endpoint out;
//   reader.Text("address", in.address(), out.address);
//   reader.Message("hello", in.has_hello(), FromProto(in.hello()), out.hello);
//   return reader.Finish(std::move(out));
//
// Errors are INVALID_ARGUMENT, "join.buffers[3].form: …"; UNIMPLEMENTED for what is reserved.
// Not thread-safe; one reader a message.
#ifndef TH_WIRE_FIELD_READER_H_
#define TH_WIRE_FIELD_READER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "th/identifiers/identifiers.h"
#include "th/proto/tensorhub.pb.h"
#include "th/text/clean_text.h"
#include "th/weights/digest.h"
#include "th/weights/version.h"

namespace th {

class FieldReader {
 public:
  // The first error so far, or OK.
  const absl::Status& status() const { return status_; }
  template <typename T>
  absl::StatusOr<T> Finish(T value) {
    if (!status_.ok()) return status_;
    return value;
  }

  // Records `reason` for `field` unless `good` or an earlier error stands.
  void Check(bool good, absl::string_view field, absl::string_view reason);
  void Check(absl::string_view field, const absl::Status& reason);
  // A field that a later version of the protocol gives a meaning to.
  void Reserved(absl::string_view field, bool is_set);

  // A name by ValidateName's rules.
  void Name(absl::string_view field, const std::string& in, std::string& out);
  // A name, or nothing.
  void OptionalName(absl::string_view field, const std::string& in, std::string& out);
  // Any text of at most `max_bytes`.
  void Text(absl::string_view field, const std::string& in, size_t max_bytes, std::string& out);
  // Text for people: cut at kMaxProseBytesOnWire, never an error.
  void Prose(const std::string& in, std::string& out);
  void Digest(absl::string_view field, const std::string& in, th::Digest& out);
  void Label(absl::string_view field, const std::string& in, VersionLabel& out);
  // Absent, infinite or negative ones are errors.
  void Duration(absl::string_view field, bool present, const ::tensorhub::v1::Duration& in,
                absl::Duration& out);
  // Absent is the infinite duration.
  void DurationOrInfinite(absl::string_view field, bool present,
                          const ::tensorhub::v1::Duration& in, absl::Duration& out);
  // `in` must lie in [0, last], and be nonzero when `required`.
  template <typename E>
  void Enum(absl::string_view field, int in, E last, bool required, E& out) {
    const bool known = in >= (required ? 1 : 0) && in <= static_cast<int>(last);
    Check(known, field, absl::StrCat("has the unknown value ", in));
    if (known) out = static_cast<E>(in);
  }
  template <size_t kBytes>
  void Bytes(absl::string_view field, const std::string& in, std::array<uint8_t, kBytes>& out) {
    Check(in.size() == kBytes, field, absl::StrCat("has ", in.size(), " bytes, not ", kBytes));
    if (in.size() == kBytes) std::copy(in.begin(), in.end(), out.begin());
  }

  // A nested message that must be there.
  template <typename T>
  void Message(absl::string_view field, bool present, absl::StatusOr<T> value, T& out) {
    if (!present) return Check(false, field, "is missing");
    Nested(field, std::move(value), out);
  }
  template <typename T>
  void Message(absl::string_view field, bool present, absl::StatusOr<T> value,
               std::optional<T>& out) {
    if (present) Nested(field, std::move(value), out.emplace());
  }
  // A nested message whose absence is its default value.
  template <typename T>
  void Nested(absl::string_view field, absl::StatusOr<T> value, T& out) {
    if (value.ok()) {
      out = *std::move(value);
    } else if (status_.ok()) {
      status_ =
          absl::Status(value.status().code(), absl::StrCat(field, ".", value.status().message()));
    }
  }
  // A value whose error already names the field.
  template <typename T>
  void Inline(absl::StatusOr<T> value, T& out) {
    if (value.ok()) {
      out = *std::move(value);
    } else if (status_.ok()) {
      status_ = value.status();
    }
  }
  // The entries of a repeated field.
  template <typename Repeated, typename T, typename Decode>
  void Each(absl::string_view field, const Repeated& in, size_t max_count, std::vector<T>& out,
            Decode decode) {
    const size_t count = static_cast<size_t>(in.size());
    if (count > max_count) {
      return Check(false, field, absl::StrCat("has ", count, " entries, at most ", max_count));
    }
    out.reserve(count);
    for (int i = 0; i < in.size() && status_.ok(); ++i) {
      Nested(absl::StrCat(field, "[", i, "]"), decode(in.Get(i)), out.emplace_back());
    }
  }

 private:
  absl::Status status_;
};

}  // namespace th

#endif  // TH_WIRE_FIELD_READER_H_
