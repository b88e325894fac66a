#include "th/client/tensor_binding.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "th/memory/readable_memory.h"
#include "th/status/status_macros.h"
#include "th/text/utf8.h"

namespace th {
namespace {

// The boxes of each name, nearly always one.
using ByName = absl::flat_hash_map<absl::string_view, absl::InlinedVector<const Tensor*, 1>>;

uintptr_t AddressOf(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data); }

absl::Status CompleteAll(std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors) {
    TH_ASSIGN_OR_RETURN(static_cast<TensorSpec&>(tensor),
                        CompleteTensorSpec(std::move(static_cast<TensorSpec&>(tensor))));
  }
  return absl::OkStatus();
}

ByName IndexByName(const std::vector<Tensor>& tensors) {
  ByName by_name;
  by_name.reserve(tensors.size());
  for (const Tensor& tensor : tensors) by_name[tensor.name].push_back(&tensor);
  return by_name;
}

// The box of `name` at `slice_begin`, or its only box. Null where there is none, or several and
// none of them lies there.
const Tensor* Find(const ByName& by_name, absl::string_view name,
                   const std::vector<int64_t>& slice_begin) {
  const auto boxes = by_name.find(name);
  if (boxes == by_name.end()) return nullptr;
  if (boxes->second.size() == 1) return boxes->second.front();
  const auto box =
      std::find_if(boxes->second.begin(), boxes->second.end(),
                   [&](const Tensor* tensor) { return tensor->slice_begin == slice_begin; });
  return box == boxes->second.end() ? nullptr : *box;
}

// An alias may leave its address out; then it is its owner's.
absl::Status AddressAliases(const ByName& by_name, std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors) {
    if (tensor.alias_of.empty() || tensor.bytes == 0) continue;
    const Tensor* owner = Find(by_name, tensor.alias_of, tensor.slice_begin);
    if (owner == nullptr) continue;  // refused by the layout, with the better message
    if (tensor.data == nullptr) tensor.data = owner->data;
    if (tensor.data == owner->data) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), " is said to be an alias of ",
                     Quoted(tensor.alias_of), " but lies at another address"));
  }
  return absl::OkStatus();
}

absl::Status RefuseMissingAddresses(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes == 0) continue;
    if (tensor.data == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), " has ",
                                                     tensor.bytes, " bytes but no address (null)"));
    }
    if (AddressOf(tensor) + tensor.bytes < AddressOf(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), " of ",
                                                     tensor.bytes,
                                                     " bytes reaches past the end of memory"));
    }
  }
  return absl::OkStatus();
}

// Tensors [begin, end) share address and size: one of them becomes the owner of all others.
// INVALID_ARGUMENT: two of them have one name, and boxes of one tensor cannot lie in one place.
absl::Status TieGroup(std::vector<Tensor*>::iterator begin, std::vector<Tensor*>::iterator end) {
  if (end - begin < 2) return absl::OkStatus();
  const auto twice = std::adjacent_find(
      begin, end, [](const Tensor* a, const Tensor* b) { return a->name == b->name; });
  if (twice != end) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted((*twice)->name),
                     " is given twice with the same memory; each box of a tensor has its own"));
  }
  std::string owner;
  for (auto it = begin; it != end; ++it) {
    if (!(*it)->alias_of.empty() && (owner.empty() || (*it)->alias_of < owner)) {
      owner = (*it)->alias_of;
    }
  }
  if (owner.empty()) owner = (*begin)->name;
  for (auto it = begin; it != end; ++it) (*it)->alias_of = (*it)->name == owner ? "" : owner;
  return absl::OkStatus();
}

absl::Status Overlap(const Tensor& low, const Tensor& high) {
  return absl::InvalidArgumentError(absl::StrCat(
      "tensors ", Quoted(low.name), " and ", Quoted(high.name), " overlap: the first has ",
      low.bytes, " bytes, the second has ", high.bytes, " and starts ",
      AddressOf(high) - AddressOf(low), " bytes after it; only whole tensors can share memory"));
}

// Finds aliases by address and size, and refuses partial overlaps.
absl::Status TieByAddress(std::vector<Tensor>& tensors) {
  std::vector<Tensor*> by_address;
  by_address.reserve(tensors.size());
  for (Tensor& tensor : tensors) {
    if (tensor.bytes > 0) by_address.push_back(&tensor);
  }
  std::sort(by_address.begin(), by_address.end(), [](const Tensor* a, const Tensor* b) {
    if (a->data != b->data) return AddressOf(*a) < AddressOf(*b);
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->name < b->name;
  });
  for (auto begin = by_address.begin(); begin != by_address.end();) {
    const auto end = std::find_if(begin, by_address.end(), [&](const Tensor* tensor) {
      return tensor->data != (*begin)->data || tensor->bytes != (*begin)->bytes;
    });
    TH_RETURN_IF_ERROR(TieGroup(begin, end));
    if (end != by_address.end() && AddressOf(**begin) + (*begin)->bytes > AddressOf(**end)) {
      return Overlap(**begin, **end);
    }
    begin = end;
  }
  return absl::OkStatus();
}

std::vector<void*> AddressesOf(const ShardLayout& layout, const ByName& by_name) {
  std::vector<void*> storages;
  storages.reserve(layout.storages().size());
  for (const ShardLayout::Storage& storage : layout.storages()) {
    const TensorSpec& spec = layout.tensors()[storage.tensor];
    const Tensor* tensor = Find(by_name, spec.name, spec.slice_begin);
    storages.push_back(storage.bytes > 0 ? tensor->data : nullptr);
  }
  return storages;
}

}  // namespace

absl::StatusOr<TensorBinding> BindTensors(std::vector<Tensor> tensors, BindingOptions options) {
  TH_RETURN_IF_ERROR(CompleteAll(tensors));
  const ByName by_name = IndexByName(tensors);
  TH_RETURN_IF_ERROR(AddressAliases(by_name, tensors));
  TH_RETURN_IF_ERROR(RefuseMissingAddresses(tensors));
  TH_RETURN_IF_ERROR(TieByAddress(tensors));
  ShardLayout::Spec spec;
  spec.segment_bytes = options.segment_bytes;
  spec.checksum = options.checksums ? ChecksumAlgorithm::kXxh3Leaves : ChecksumAlgorithm::kNone;
  spec.tensors.assign(tensors.begin(), tensors.end());
  TH_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Build(std::move(spec)));
  TensorBinding binding;
  binding.storages = AddressesOf(layout, by_name);
  binding.layout = std::make_shared<const ShardLayout>(std::move(layout));
  return binding;
}

absl::Status FindDeviceMemory(MemoryDevices* devices, TensorBinding* binding) {
  if (devices == nullptr) return absl::OkStatus();
  const ShardLayout& layout = *binding->layout;
  std::vector<MemoryRegion> regions;
  regions.reserve(binding->storages.size());
  bool any = false;
  for (size_t i = 0; i < binding->storages.size(); ++i) {
    const ShardLayout::Storage& storage = layout.storages()[i];
    const auto region = devices->Classify(binding->storages[i], storage.bytes);
    if (!region.ok()) {
      return absl::Status(region.status().code(),
                          absl::StrCat("tensor ", Quoted(layout.tensors()[storage.tensor].name),
                                       ": ", region.status().message()));
    }
    any |= region->kind == MemoryKind::kDevice;
    regions.push_back(*region);
  }
  if (!any) return absl::OkStatus();
  TH_ASSIGN_OR_RETURN(binding->device, devices->Register(regions));
  binding->regions = std::move(regions);
  return absl::OkStatus();
}

absl::Status CheckReadable(const TensorBinding& binding) {
  const ShardLayout& layout = *binding.layout;
  std::vector<MemoryRange> ranges;
  ranges.reserve(binding.storages.size());
  for (size_t i = 0; i < binding.storages.size(); ++i) {
    const bool of_device =
        !binding.regions.empty() && binding.regions[i].kind == MemoryKind::kDevice;
    ranges.push_back({binding.storages[i], of_device ? 0 : layout.storages()[i].bytes});
  }
  const std::optional<UnreadableRange> found = FindUnreadable(ranges);
  if (!found.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor ", Quoted(layout.tensors()[layout.storages()[found->index].tensor].name),
      " cannot be read: ", found->why,
      "; give memory of the host that this process can read, or of a GPU in a process that has "
      "loaded the CUDA driver"));
}

}  // namespace th
