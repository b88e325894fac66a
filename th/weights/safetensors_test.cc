#include "th/weights/safetensors.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Pair;
using ::testing::ResultOf;
using ::testing::SizeIs;
using ::th::testing::IsOk;
using ::th::testing::IsOkAndHolds;
using ::th::testing::StatusIs;

std::string Prefix(uint64_t header_bytes) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix.push_back(static_cast<char>(header_bytes >> (8 * i)));
  return prefix;
}

// A file with this header and so many bytes of data.
absl::StatusOr<SafetensorsHeader> Parse(const std::string& json, uint64_t data_bytes) {
  return ParseSafetensorsHeader(json, kSafetensorsPrefixBytes + json.size() + data_bytes);
}

TEST(SafetensorsPrefixTest, IsALittleEndianLength) {
  EXPECT_THAT(ParseSafetensorsPrefix(Prefix(0x1234), 0x1234 + 8), IsOkAndHolds(0x1234u));
  EXPECT_THAT(ParseSafetensorsPrefix(Prefix(2), 10), IsOkAndHolds(2u));
}

TEST(SafetensorsPrefixTest, RefusesLengthsThatCannotBe) {
  struct Case {
    std::string prefix;
    uint64_t file_bytes;
    std::string message;
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const Case cases[] = {
      {"", 0, "not a safetensors file: it has 0 bytes"},
      {"1234567", 7, "not a safetensors file: it has 7 bytes"},
      {Prefix(1), 7, "not a safetensors file: it has 7 bytes"},
      {Prefix(100), 107, "is cut off: it says that it has 100 bytes, the file has 107"},
      {Prefix(kMaxSafetensorsHeaderBytes + 1), kMax, "at most 100000000 are allowed"},
      {Prefix(kMax), kMax, "at most 100000000 are allowed"},
      {Prefix(kMax - 7), 100, "at most 100000000 are allowed"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ParseSafetensorsPrefix(c.prefix, c.file_bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(SafetensorsHeaderTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                           R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
                           R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}  )";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, Parse(json, 16));
  EXPECT_EQ(header.data_begin, 8 + json.size());
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
  ASSERT_THAT(header.tensors, SizeIs(3));
  EXPECT_EQ(header.tensors[0].spec.name, "a");
  EXPECT_EQ(header.tensors[0].file_offset, header.data_begin);
  EXPECT_EQ(header.tensors[1].spec.name, "empty");
  EXPECT_EQ(header.tensors[2].spec.name, "b");
  EXPECT_EQ(header.tensors[2].spec.dtype, DType::kBF16);
  EXPECT_THAT(header.tensors[2].spec.shape, ElementsAre(2, 3));
  EXPECT_EQ(header.tensors[2].spec.bytes, 12u);
  EXPECT_EQ(header.tensors[2].file_offset, header.data_begin + 4);
}

TEST(SafetensorsHeaderTest, BearsFilesWithoutTensors) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, Parse("{}", 0));
  EXPECT_THAT(header.tensors, IsEmpty());
  EXPECT_THAT(Parse(R"({"__metadata__":{}})", 0), IsOk());
}

TEST(SafetensorsHeaderTest, BearsEscapedAndForeignNames) {
  ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      Parse(
          "{\"a\\\"\\u00fc\xe4\xb8\xad\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
          1));
  EXPECT_EQ(header.tensors[0].spec.name, "a\"\xc3\xbc\xe4\xb8\xad");
}

std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

std::string U8(const std::string& name, uint64_t begin, uint64_t end) {
  return Tensor(name, "U8", absl::StrCat("[", end - begin, "]"),
                absl::StrCat("[", begin, ",", end, "]"));
}

struct HostileHeader {
  std::string json;
  uint64_t data_bytes;
  std::string message;
};

const std::vector<HostileHeader>& HostileHeaders() {
  static const auto& headers = *new std::vector<HostileHeader>{
      // Not JSON.
      {"", 0, "is not JSON: it does not begin with '{'"},
      {" {}", 0, "is not JSON: it does not begin with '{'"},
      {"\xef\xbb\xbf{}", 0, "is not JSON: it does not begin with '{'"},
      {"[]", 0, "is not JSON: it does not begin with '{'"},
      {"{", 0, "is not JSON: error at byte 2"},
      {"{}}", 0, "is not JSON: error at byte 3"},
      {std::string("{}\0", 3), 0, "is not JSON: error at byte 3"},
      {"{\"a\":}", 0, "is not JSON: error at byte 6"},
      {"{\"a\xff\":{}}", 0, "is not UTF-8"},
      {"{\"\\ud800\":{}}", 0, "is not JSON"},
      {"{" + U8("a", 0, 1) + ",}", 1, "is not JSON"},
      {R"({"a":{"shape":[1e999]}})", 0, "is not JSON"},
      // Not of the format's form.
      {R"({"a":1})", 0, "malformed at 'a': a number instead of its description"},
      {R"({"a":null})", 0, "malformed at 'a': null instead of its description"},
      {R"({"a":[]})", 0, "malformed at 'a': an array instead of its description"},
      {R"({"a":{}})", 0, "malformed at 'a': it has no dtype"},
      {R"({"a":{"dtype":"U8"}})", 0, "malformed at 'a': it has no shape"},
      {R"({"a":{"dtype":"U8","shape":[]}})", 0, "malformed at 'a': it has no data_offsets"},
      {R"({"a":{"offset":1}})", 0, "malformed at 'a': the field 'offset' is unknown"},
      {R"({"a":{"dtype":8}})", 0, "malformed at 'a': a number does not belong in 'dtype'"},
      {R"({"a":{"dtype":["U8"]}})", 0, "malformed at 'a': an array does not belong in 'dtype'"},
      {R"({"a":{"shape":"1"}})", 0, "malformed at 'a': a string does not belong in 'shape'"},
      {R"({"a":{"shape":["1"]}})", 0, "malformed at 'a': a string does not belong in 'shape'"},
      {R"({"a":{"shape":[-1]}})", 0, "malformed at 'a': -1 does not belong in 'shape'"},
      {R"({"a":{"shape":[1.5]}})", 0, "malformed at 'a': 1.5 does not belong in 'shape'"},
      {R"({"a":{"shape":[18446744073709551616]}})", 0, "does not belong in 'shape'"},
      {R"({"a":{"shape":[9223372036854775808]}})", 0, "malformed at 'a': a dimension overflows"},
      {R"({"a":{"shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})", 0, "too many dimensions"},
      {R"({"a":{"data_offsets":[0,1,2]}})", 0, "malformed at 'a': too many data_offsets"},
      {"{" + Tensor("a", "U8", "[0]", "[0]") + "}", 0, "data_offsets have 1 numbers instead of 2"},
      {R"({"__metadata__":{"a":1}})", 0, "malformed at '__metadata__': a number does not belong"},
      {R"({"__metadata__":{"a":{}}})", 0, "malformed at '__metadata__': an object"},
      {R"({"__metadata__":"a"})", 0, "malformed at '__metadata__': a string instead of"},
      // Nested too deeply.
      {R"({"a":{"shape":[[1]]}})", 0, "malformed at 'a': it is nested too deeply"},
      {R"({"a":{"shape":)" + std::string(1'000'000, '['), 0, "it is nested too deeply"},
      {R"({"a":{"b":{}}})", 0, "the field 'b' is unknown"},
      // Twice.
      {"{" + U8("a", 0, 1) + "," + U8("b", 1, 2) + "," + U8("a", 2, 3) + "}", 3,
       "tensor 'a': two tensors have this name"},
      {R"({"a":{"dtype":"U8","dtype":"U8"}})", 0, "malformed at 'a': 'dtype' is there twice"},
      {R"({"a":{"shape":[],"shape":[]}})", 0, "malformed at 'a': 'shape' is there twice"},
      {R"({"a":{"data_offsets":[],"data_offsets":[]}})", 0, "'data_offsets' is there twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "has __metadata__ twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "'k' is there twice"},
      // A tensor cannot be one of these.
      {"{" + Tensor("a", "F33", "[1]", "[0,4]") + "}", 4, "malformed at 'a': unknown dtype 'F33'"},
      {"{" + Tensor("a", "OPAQUE", "[1]", "[0,4]") + "}", 4, "unknown dtype 'OPAQUE'"},
      {"{" + Tensor("", "U8", "[1]", "[0,1]") + "}", 1, "a tensor has an empty name"},
      {"{" + Tensor(std::string(2000, 'n'), "U8", "[1]", "[0,1]") + "}", 1, "at most 1024"},
      {"{" + Tensor("a", "F32", "[4611686018427387904,4]", "[0,0]") + "}", 0,
       "tensor 'a': shape [4611686018427387904,4] of F32 overflows"},
      {"{" + Tensor("a", "F4", "[3]", "[0,2]") + "}", 2, "tensor 'a': its last byte is not filled"},
      // Offsets.
      {"{" + Tensor("a", "F32", "[2]", "[0,4]") + "}", 4,
       "tensor 'a': data_offsets [0,4] do not span the 8 bytes of F32 [2]"},
      {"{" + Tensor("a", "U8", "[4]", "[4,0]") + "}", 4, "data_offsets [4,0] do not span"},
      {"{" + Tensor("a", "U8", "[1]", "[18446744073709551615,0]") + "}", 1, "do not span"},
      {"{" + U8("a", 0, 4) + "," + U8("b", 2, 6) + "}", 6,
       "tensor 'b': data_offsets [2,6] overlap those of tensor 'a'"},
      {"{" + U8("a", 0, 4) + "," + U8("b", 0, 4) + "}", 4, "overlap those of tensor 'a'"},
      {"{" + U8("a", 0, 4) + "," + U8("b", 2, 2) + "}", 4,
       "tensor 'b': data_offsets [2,2] overlap"},
      {"{" + U8("a", 0, 4) + "," + U8("b", 5, 6) + "}", 6,
       "tensor 'b': data_offsets [5,6] leave a gap of 1 bytes before it"},
      {"{" + U8("a", 1, 4) + "}", 4, "tensor 'a': data_offsets [1,4] leave a gap of 1 bytes"},
      {"{" + U8("a", 0, 5) + "}", 4,
       "tensor 'a': data_offsets [0,5] reach beyond the file, which has 4 bytes of data"},
      {"{" + U8("a", 0, 3) + "}", 4, "leaves the last 1 bytes of the file to no tensor"},
      {"{}", 1, "leaves the last 1 bytes of the file to no tensor"},
  };
  return headers;
}

class HostileHeaderTest : public ::testing::TestWithParam<size_t> {};

TEST_P(HostileHeaderTest, IsRefusedSayingWhat) {
  const HostileHeader& hostile = HostileHeaders()[GetParam()];
  EXPECT_THAT(
      Parse(hostile.json, hostile.data_bytes),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr(hostile.message),
                     ResultOf([](const std::string& text) { return text.size(); }, Lt(2'000u)))));
}

INSTANTIATE_TEST_SUITE_P(All, HostileHeaderTest,
                         ::testing::Range(size_t{0}, HostileHeaders().size()));

TEST(SafetensorsHeaderTest, RefusesHeadersThatAreLongerThanTheFile) {
  EXPECT_THAT(ParseSafetensorsHeader("{}", 9),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("longer than the file")));
}

TEST(SafetensorsHeaderTest, MessagesStayShortWhateverTheInput) {
  const std::string digits(1'000'000, '9');
  const absl::Status status =
      Parse("{\"a\":{\"shape\":[" + digits.substr(0, 300) + "]}}", 0).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), SizeIs(Lt(500u)));
  const absl::Status key = Parse("{\"" + digits + "\":1}", 0).status();
  EXPECT_THAT(std::string(key.message()), SizeIs(Lt(500u)));
}

std::vector<TensorSpec> Model() {
  return {
      {.name = "norm", .dtype = DType::kF32, .shape = {3}},
      {.name = "head", .dtype = DType::kBF16, .shape = {2, 3}, .alias_of = "embed"},
      {.name = "embed", .dtype = DType::kBF16, .shape = {2, 3}},
      {.name = "gate", .dtype = DType::kF8E4M3, .shape = {5}},
      {.name = "step", .dtype = DType::kI64},
  };
}

TEST(SafetensorsPlanTest, IsReadBackAsItIs) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsPlan plan,
                       PlanSafetensorsFile(Model(), {{"format", "pt"}}));
  ASSERT_OK_AND_ASSIGN(const uint64_t header_bytes,
                       ParseSafetensorsPrefix(plan.bytes, plan.file_bytes));
  ASSERT_EQ(plan.bytes.size(), kSafetensorsPrefixBytes + header_bytes);
  ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      ParseSafetensorsHeader(absl::string_view(plan.bytes).substr(kSafetensorsPrefixBytes),
                             plan.file_bytes));
  EXPECT_EQ(header.data_begin, plan.header.data_begin);
  EXPECT_EQ(header.metadata, plan.header.metadata);
  ASSERT_EQ(header.tensors.size(), plan.header.tensors.size());
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    EXPECT_EQ(header.tensors[i].spec, plan.header.tensors[i].spec);
    EXPECT_EQ(header.tensors[i].file_offset, plan.header.tensors[i].file_offset);
  }
}

TEST(SafetensorsPlanTest, BytesStayAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsPlan plan,
                       PlanSafetensorsFile(Model(), {{"format", "pt"}}));
  EXPECT_EQ(plan.bytes.substr(kSafetensorsPrefixBytes),
            R"({"__metadata__":{"format":"pt","head":"embed"},)"
            R"("step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
            R"("norm":{"dtype":"F32","shape":[3],"data_offsets":[8,20]},)"
            R"("embed":{"dtype":"BF16","shape":[2,3],"data_offsets":[20,32]},)"
            R"("gate":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[32,37]}}     )");
  EXPECT_EQ(plan.header.data_begin % 8, 0u);
  EXPECT_EQ(plan.file_bytes, plan.header.data_begin + 37);
}

TEST(SafetensorsPlanTest, DoesNotDependOnTheOrderGiven) {
  std::vector<TensorSpec> reversed = Model();
  std::reverse(reversed.begin(), reversed.end());
  ASSERT_OK_AND_ASSIGN(const SafetensorsPlan plan, PlanSafetensorsFile(Model(), {}));
  ASSERT_OK_AND_ASSIGN(const SafetensorsPlan again, PlanSafetensorsFile(reversed, {}));
  EXPECT_EQ(plan.bytes, again.bytes);
}

TEST(SafetensorsPlanTest, DataIsAlignedWhateverTheHeadersLength) {
  for (size_t length = 1; length < 20; ++length) {
    ASSERT_OK_AND_ASSIGN(
        const SafetensorsPlan plan,
        PlanSafetensorsFile({{.name = std::string(length, 'n'), .dtype = DType::kF64}}, {}));
    EXPECT_EQ(plan.header.tensors[0].file_offset % 8, 0u) << length;
  }
}

TEST(SafetensorsPlanTest, WritesSlicesAsTensorsOfTheirOwnShape) {
  const TensorSpec slice{
      .name = "w", .dtype = DType::kU8, .shape = {4}, .global_shape = {16}, .slice_begin = {8}};
  ASSERT_OK_AND_ASSIGN(const SafetensorsPlan plan, PlanSafetensorsFile({slice}, {}));
  EXPECT_THAT(plan.header.tensors[0].spec.global_shape, ElementsAre(4));
  EXPECT_THAT(plan.header.tensors[0].spec.slice_begin, ElementsAre(0));
}

TEST(SafetensorsPlanTest, RefusesWhatTheFormatCannotHold) {
  struct Case {
    std::vector<TensorSpec> tensors;
    SafetensorsMetadata metadata;
    std::string message;
  };
  const TensorSpec a{.name = "a", .dtype = DType::kU8, .shape = {1}};
  const TensorSpec alias{.name = "b", .dtype = DType::kU8, .shape = {1}, .alias_of = "a"};
  const Case cases[] = {
      {{{.name = "o", .dtype = DType::kOpaque, .bytes = 4}}, {}, "'o': safetensors has no opaque"},
      {{{.name = "f", .dtype = DType::kF4, .shape = {3}}},
       {},
       "tensor 'f': its elements do not fill"},
      {{{.name = "s", .dtype = DType::kU8, .shape = {-1}}}, {}, "tensor 's': shape [-1]"},
      {{{.name = "__metadata__", .dtype = DType::kU8}}, {}, "the name is reserved"},
      {{a, a}, {}, "tensor 'a': two tensors have this name"},
      {{alias}, {}, "tensor 'b': alias of 'a', which is not a tensor with bytes"},
      {{a, alias}, {{"b", "x"}}, "tensor 'b': is an alias and a key of the metadata too"},
      {{a}, {{"k", "\xff"}}, "metadata 'k' is not UTF-8"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(PlanSafetensorsFile(c.tensors, c.metadata),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace th
