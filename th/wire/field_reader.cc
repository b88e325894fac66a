#include "th/wire/field_reader.h"

#include "th/text/utf8.h"
#include "th/wire/limits.h"

namespace th {
namespace {

constexpr int32_t kNanosPerSecond = 1'000'000'000;

}  // namespace

void FieldReader::Check(bool good, absl::string_view field, absl::string_view reason) {
  if (good || !status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(field, ": ", reason));
}

void FieldReader::Check(absl::string_view field, const absl::Status& reason) {
  Check(reason.ok(), field, reason.message());
}

void FieldReader::Reserved(absl::string_view field, bool is_set) {
  if (!is_set || !status_.ok()) return;
  status_ = absl::UnimplementedError(
      absl::StrCat(field, ": is reserved for a later version and must not be set"));
}

void FieldReader::Name(absl::string_view field, const std::string& in, std::string& out) {
  Check(field, ValidateName(field, in));
  out = in;
}

void FieldReader::OptionalName(absl::string_view field, const std::string& in, std::string& out) {
  if (!in.empty()) Name(field, in, out);
}

void FieldReader::Text(absl::string_view field, const std::string& in, size_t max_bytes,
                       std::string& out) {
  const bool fits = in.size() <= max_bytes;
  Check(fits, field, absl::StrCat("has ", in.size(), " bytes, at most ", max_bytes));
  if (fits) out = in;
}

void FieldReader::Prose(const std::string& in, std::string& out) {
  out = CleanText(in, kMaxProseBytesOnWire);
}

void FieldReader::Digest(absl::string_view field, const std::string& in, th::Digest& out) {
  Bytes(field, in, out.bytes);
}

void FieldReader::Label(absl::string_view field, const std::string& in, VersionLabel& out) {
  if (in.empty()) return;
  absl::StatusOr<VersionLabel> label = VersionLabel::Parse(in);
  Check(field, label.status());
  if (label.ok()) out = *std::move(label);
}

void FieldReader::Duration(absl::string_view field, bool present,
                           const ::tensorhub::v1::Duration& in, absl::Duration& out) {
  if (!present) return Check(false, field, "is missing");
  const bool good = in.seconds() >= 0 && in.nanos() >= 0 && in.nanos() < kNanosPerSecond &&
                    absl::Seconds(in.seconds()) <= kMaxDurationOnWire;
  Check(good, field, "is negative, too long or no duration");
  if (good) out = absl::Seconds(in.seconds()) + absl::Nanoseconds(in.nanos());
}

void FieldReader::DurationOrInfinite(absl::string_view field, bool present,
                                     const ::tensorhub::v1::Duration& in, absl::Duration& out) {
  out = absl::InfiniteDuration();
  if (present) Duration(field, present, in, out);
}

}  // namespace th
