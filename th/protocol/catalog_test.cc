#include "th/protocol/catalog.h"

#include "gtest/gtest.h"

namespace th {
namespace {

TEST(CatalogTest, AModelIsFoundByItsRunAndItsName) {
  const Catalog catalog{
      .models = {{.key = {"r1", "policy"}}, {.key = {"r2", "policy"}}, {.key = {"r2", "critic"}}}};
  EXPECT_EQ(FindModel(catalog, {"r2", "policy"}), &catalog.models[1]);
  EXPECT_EQ(FindModel(catalog, {"r2", "critic"}), &catalog.models[2]);
  EXPECT_EQ(FindModel(catalog, {"r1", "critic"}), nullptr);
}

}  // namespace
}  // namespace th
