// SPDX-License-Identifier: Apache-2.0
// The sides of a session: the source, and one target or a list of them.
#include <fmt/format.h>

#include "python/src/sessions/session.h"

namespace reshard::python {
namespace {

TensorBuffers* buffers_in(const nb::object& buffers) {
  return buffers.is_valid() ? &nb::cast<TensorBuffers&>(buffers) : nullptr;
}

std::shared_ptr<const Layout> layout_of(const std::string& side, const nb::object& given) {
  if (!nb::isinstance<Layout>(given))
    throw nb::type_error(
        fmt::format("{}must be a reshard.Layout, not {}", side, nb::type_name(given.type()).c_str())
            .c_str());
  return nb::cast<std::shared_ptr<const Layout>>(given);
}

bool is_list(const nb::object& argument) {
  return argument.is_valid() &&
         (nb::isinstance<nb::list>(argument) || nb::isinstance<nb::tuple>(argument));
}

/// An argument for each target: the entries of a list; for one target the argument itself.
/// One that is None, or not given, is so for all of them.
std::vector<nb::object> of_each(const nb::object& argument, std::size_t targets, const char* name) {
  if (is_list(argument)) {
    std::vector<nb::object> out;
    for (const nb::handle entry : argument) out.push_back(nb::borrow(entry));
    if (out.size() == targets) return out;
    throw nb::type_error(
        fmt::format("{} has {} entries, but there are {} targets", name, out.size(), targets)
            .c_str());
  }
  if (targets == 1 || !argument.is_valid() || argument.is_none())
    return std::vector<nb::object>(targets, argument);
  throw nb::type_error(
      fmt::format("{} must be a list of {}, one entry for each target", name, targets).c_str());
}

}  // namespace

std::string TensorSession::name_of_target(const Sides& sides, std::size_t i) {
  return sides.targets.size() == 1 ? "target " : fmt::format("target {} ", i + 1);
}

TensorSession::Side TensorSession::side_with(Side side, const std::string& name,
                                             const nb::object& layout,
                                             const nb::object& tensors) const {
  side.trouble = "";
  if (layout.is_valid()) side.layout = layout_of(name, layout);
  if (layout.is_valid() || tensors.is_valid())
    side.buffers = buffers_of(tensors, side.layout, group_->rank(), name.c_str(), stream_);
  if (tensors.is_valid()) side.fresh = !side.buffers.is(tensors);
  if (side.buffers.is_valid()) side.layout = buffers_in(side.buffers)->layout();
  return side;
}

void TensorSession::take_back(Side& target, const nb::object& tensors) const {
  if (tensors.is_valid()) {
    target.back = buffers_of(tensors, target.layout, group_->rank(), "back ", stream_);
    target.fresh_back = !target.back.is(tensors);
  }
  if (target.back.is_valid() && buffers_in(target.back)->layout() != target.layout)
    raise(Code::invalid_argument,
          "target_tensors and back_tensors are buffers of two Layout "
          "objects; make both with one");
}

TensorSession::Sides TensorSession::sides_of(const SessionArguments& arguments) const {
  Sides out = sides_;
  out.source = side_with(out.source, "source ", arguments.source, arguments.source_tensors);
  if (is_list(arguments.target)) {
    if (nb::len(arguments.target) == 0) raise(Code::invalid_argument, "target is an empty list");
    out.targets.resize(nb::len(arguments.target));
  } else if (arguments.target.is_valid()) {
    out.targets.resize(1);
  }
  const std::size_t n = out.targets.size();
  const auto layouts = of_each(arguments.target, n, "target"),
             tensors = of_each(arguments.target_tensors, n, "target_tensors"),
             backs = of_each(arguments.back_tensors, n, "back_tensors");
  for (std::size_t i = 0; i < n; ++i) {
    Side& target = out.targets[i];
    target = side_with(target, name_of_target(out, i), layouts[i], tensors[i]);
    take_back(target, backs[i]);
  }
  return out;
}

SessionSide TensorSession::side_of(const Side& side) const {
  SessionSide out;
  out.trouble = side.trouble;
  if (side.layout == nullptr) return out;
  if (side.layout->side.quantised != nullptr) {
    out.quantised = side.layout->side.quantised;
  } else {
    out.layout = side.layout->side.values;
  }
  if (const TensorBuffers* buffers = buffers_in(side.buffers)) out.buffers = &buffers->memory();
  if (const TensorBuffers* back = buffers_in(side.back)) out.back = &back->memory();
  return out;
}

std::vector<SessionSide> TensorSession::targets_of(const Sides& sides) const {
  std::vector<SessionSide> out;
  for (const Side& target : sides.targets) {
    out.push_back(side_of(target));
    if (published_ != nullptr) out.back().published = &published_->version();
  }
  // Where the arguments were wrong, the library must still be told of it.
  if (out.empty()) out.emplace_back();
  return out;
}

void TensorSession::look(Sides& sides, const nb::object& stream) {
  struct Looked {
    TensorBuffers* buffers;
    std::string name;
    bool& fresh;
    std::optional<TensorBuffers::Look> found = {};
    const RankBuffers* memory() const {
      if (found) return &found->memory();
      return buffers != nullptr ? &buffers->memory() : nullptr;
    }
  };
  std::vector<Looked> all;
  all.push_back({buffers_in(sides.source.buffers), "source ", sides.source.fresh});
  for (std::size_t i = 0; i < sides.targets.size(); ++i) {
    Side& target = sides.targets[i];
    all.push_back({buffers_in(target.buffers), name_of_target(sides, i), target.fresh});
    all.push_back({buffers_in(target.back), "back ", target.fresh_back});
  }
  for (Looked& side : all)
    if (side.buffers != nullptr && !side.fresh)
      side.found = side.buffers->look(side.name.c_str(), stream);
  std::vector<MemoryCheck::Written> more;
  for (std::size_t i = 3; i < all.size(); i += 2)
    more.push_back({all[i].memory(), all[i + 1].memory()});
  const bool has_target = all.size() > 1;
  expect_usable(check_, {all[0].memory(), has_target ? all[1].memory() : nullptr,
                         has_target ? all[2].memory() : nullptr, group_->rank(), more});
  for (Looked& side : all) {
    if (side.found) side.buffers->take(*std::move(side.found));
    side.fresh = false;
  }
}

}  // namespace reshard::python
