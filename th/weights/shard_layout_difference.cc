#include <algorithm>

#include "absl/strings/str_cat.h"
#include "th/text/utf8.h"
#include "th/weights/shard_layout.h"

namespace th {
namespace {

std::string Describe(const TensorSpec& tensor) {
  std::string text = absl::StrCat(DTypeName(tensor.dtype), " ", ShapeToString(tensor.shape));
  if (tensor.global_shape != tensor.shape) {
    absl::StrAppend(&text, " at ", ShapeToString(tensor.slice_begin), " of ",
                    ShapeToString(tensor.global_shape));
  }
  if (tensor.dtype == DType::kOpaque) absl::StrAppend(&text, " of ", tensor.bytes, " bytes");
  if (!tensor.alias_of.empty()) absl::StrAppend(&text, " alias of ", Quoted(tensor.alias_of));
  return text;
}

std::string Only(const TensorSpec& tensor, absl::string_view side) {
  return absl::StrCat("tensor ", Quoted(tensor.name), " is only in the ", side, "'s shard");
}

std::string Differs(absl::string_view what, absl::string_view reader, absl::string_view holder) {
  return absl::StrCat(what, " is ", reader, " in the reader's shard, ", holder, " in the holder's");
}

// Empty: the tensors are the same.
std::string FirstTensorDifference(const std::vector<TensorSpec>& reader,
                                  const std::vector<TensorSpec>& holder) {
  const auto [of_reader, of_holder] =
      std::mismatch(reader.begin(), reader.end(), holder.begin(), holder.end());
  if (of_reader == reader.end() && of_holder == holder.end()) return "";
  if (of_holder == holder.end()) return Only(*of_reader, "reader");
  if (of_reader == reader.end()) return Only(*of_holder, "holder");
  if (of_reader->name < of_holder->name) return Only(*of_reader, "reader");
  if (of_holder->name < of_reader->name) return Only(*of_holder, "holder");
  return Differs(absl::StrCat("tensor ", Quoted(of_reader->name)), Describe(*of_reader),
                 Describe(*of_holder));
}

}  // namespace

std::string FirstDifference(const ShardLayout& reader, const ShardLayout& holder) {
  if (reader.digest() == holder.digest()) return "no difference";
  const std::string tensors = FirstTensorDifference(reader.tensors(), holder.tensors());
  if (!tensors.empty()) return tensors;
  if (reader.segment_bytes() != holder.segment_bytes()) {
    return Differs("the segment size", absl::StrCat(reader.segment_bytes(), " bytes"),
                   absl::StrCat(holder.segment_bytes(), " bytes"));
  }
  return Differs("the checksum algorithm", absl::StrCat(static_cast<int>(reader.checksum())),
                 absl::StrCat(static_cast<int>(holder.checksum())));
}

}  // namespace th
