// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/checkpoint_source.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/plan_pair.h"
#include "cli/progress_bar.h"
#include "cli/test_stop.h"
#include "cli/text.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/io/make_layout.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kShown = 20;

/// One checkpoint and the fingerprints of its tensors.
struct Side {
  Model model;
  std::shared_ptr<const ModelSpec> tensors;  ///< as they are stored: data and scales.
  ModelFingerprints prints;
  std::vector<StoredForm> forms;  ///< in which values were fingerprinted.
  Index converted = 0;            ///< tensors that are stored in another form.
  std::string layout;
  std::vector<std::string> other_shapes;  ///< than the layout or the config has, a line each.
};

struct Difference {
  std::string name, a, b;
};

struct Comparison {
  std::vector<Difference> differing;
  std::vector<std::string> only_a, only_b;
  Index same = 0;
  std::vector<std::string> ignored = {};  ///< not compared: asked for, or none of the model's.
  Index left_out = 0;  ///< scales of inputs that one side's layout does not keep.
  std::vector<std::string> other_shapes = {};
  bool equal() const {
    return differing.empty() && only_a.empty() && only_b.empty() && other_shapes.empty();
  }
};

/// The forms of `like`'s tensors for those of `model` with the same names.
std::vector<StoredForm> forms_like(const ModelLayout& layout, const Side* like) {
  auto forms = forms_of(layout);
  if (like == nullptr) return forms;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const auto other = like->tensors->find(layout.model().tensors()[i].name);
    if (other && is_convertible(forms[i].dtype) &&
        is_convertible(like->forms[other->index()].dtype))
      forms[i] = like->forms[other->index()];
  }
  return forms;
}

/// Fingerprints a checkpoint's tensors, in the forms of another's where there is one.
Result<Side> fingerprint_side(const std::string& path, const VerifyArguments& a, const Side* like) {
  Side side;
  side.model =
      RESHARD_TRY(open_checkpoint(path, {.layers = {}, .exact = false, .ignore = a.ignore}));
  const LayoutSide own_files = RESHARD_TRY(own_side(side.model));
  const auto& layout = own_files.stored();
  side.tensors = layout->shared_model();
  const auto source = RESHARD_TRY(CheckpointSource::bind(side.model, own_files));
  side.other_shapes = source.other_shapes();
  if (!side.model.misshapen.empty()) side.other_shapes.push_back(side.model.misshapen);
  ProgressBar bar;
  side.forms = forms_like(*layout, like);
  const auto own = forms_of(*layout);
  for (std::size_t i = 0; i < own.size(); ++i) side.converted += own[i] == side.forms[i] ? 0 : 1;
  stop_for_test("start");
  auto prints = fingerprints(source.buffers(), num_threads(a.threads), bar.from(), side.forms);
  RESHARD_TRY(side.model.weights->unchanged());
  side.prints = RESHARD_TRY(std::move(prints));
  side.layout = layout->name();
  return side;
}

const ModelFingerprints::Tensor& print_of(const Side& side, TensorId id) {
  return side.prints.tensors[id.index()];
}

/// What a side has under a name, short enough for a table.
std::string described(const Side& side, TensorId id) {
  const CanonicalTensor& t = side.tensors->tensors()[id.index()];
  const auto& print = print_of(side, id);
  if (!print.agree) return print.disagreement;
  return fmt::format("{} {} {}", name(t.dtype), to_string(t.shape), to_string(print.print));
}

Comparison compare(const Side& a, const Side& b, const std::set<std::string>& ignore) {
  Comparison result;
  for (const Side* side : {&a, &b})
    for (const std::string& line : side->other_shapes)
      result.other_shapes.push_back(fmt::format("{}: {}", side->model.name, line));
  auto ignored = matching_names(*a.tensors, ignore);
  ignored.merge(matching_names(*b.tensors, ignore));
  for (const auto* side : {&a, &b})
    ignored.insert(side->model.left_out.begin(), side->model.left_out.end());
  result.ignored.assign(ignored.begin(), ignored.end());
  for (Index i = 0; i < a.tensors->size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    const CanonicalTensor& t = (*a.tensors)[id];
    const auto other = b.tensors->find(t.name);
    if (ignored.contains(t.name)) continue;
    if (!other) {
      is_input_scale(t.name) ? void(++result.left_out) : result.only_a.push_back(t.name);
      continue;
    }
    const auto &x = print_of(a, id), &y = print_of(b, *other);
    if (t == (*b.tensors)[*other] && x.print == y.print && x.agree && y.agree) {
      ++result.same;
    } else {
      result.differing.push_back({t.name, described(a, id), described(b, *other)});
    }
  }
  for (const CanonicalTensor& t : b.tensors->tensors())
    if (!a.tensors->find(t.name) && !ignored.contains(t.name))
      is_input_scale(t.name) ? void(++result.left_out) : result.only_b.push_back(t.name);
  return result;
}

Json side_json(const Side& side) {
  return Json(Json::Object{{"path", Json(side.model.name)},
                           {"layout", Json(side.layout)},
                           {"tensors", Json(side.tensors->size())},
                           {"bytes", Json(side.prints.bytes)},
                           {"seconds", json_number(side.prints.seconds)}});
}

Json names_json(const std::vector<std::string>& names) {
  Json::Array list;
  for (const std::string& name : names) list.emplace_back(name);
  return Json(std::move(list));
}

std::string as_json(const Side& a, const Side& b, const Comparison& c) {
  Json::Array differing;
  for (const Difference& d : c.differing)
    differing.emplace_back(
        Json::Object{{"tensor", Json(d.name)}, {"a", Json(d.a)}, {"b", Json(d.b)}});
  const double seconds = a.prints.seconds + b.prints.seconds;
  const Index bytes = a.prints.bytes + b.prints.bytes;
  return Json(Json::Object{
                  {"equal", Json(c.equal())},
                  {"same", Json(c.same)},
                  {"converted", Json(a.converted)},
                  {"left_out", Json(c.left_out)},
                  {"ignored", names_json(c.ignored)},
                  {"a", side_json(a)},
                  {"b", side_json(b)},
                  {"gb_per_s",
                   json_number(seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0)},
                  {"differing", Json(std::move(differing))},
                  {"only_a", names_json(c.only_a)},
                  {"only_b", names_json(c.only_b)},
                  {"other_shapes", names_json(c.other_shapes)}})
             .dump(true) +
         "\n";
}

void add_missing(Table& table, const std::vector<std::string>& names, bool in_a) {
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i)
    table.add({names[i], in_a ? "there" : "missing", in_a ? "missing" : "there"});
}

std::string as_text(const Side& a, const Side& b, const Comparison& c) {
  const Style style = Style::of_stdout();
  Table sides({{""},
               {"checkpoint"},
               {"layout"},
               {"tensors", Table::Align::right},
               {"bytes read", Table::Align::right},
               {"at", Table::Align::right}});
  for (const auto* side : {&a, &b})
    sides.add({side == &a ? "A" : "B", side->model.name, side->layout,
               grouped(side->tensors->size()), human_bytes(side->prints.bytes),
               rate(side->prints.bytes, side->prints.seconds)});
  std::string text = sides.text(style);
  if (a.converted > 0)
    text += style.quiet(fmt::format("{} of A were compared as B stores them, in another dtype or "
                                    "through a value map",
                                    plural(a.converted, "tensor"))) +
            "\n";
  if (!c.ignored.empty())
    text += style.quiet(fmt::format("{} not compared, such as '{}'",
                                    plural(static_cast<Index>(c.ignored.size()), "tensor"),
                                    c.ignored.front())) +
            "\n";
  if (c.left_out > 0)
    text += style.quiet(fmt::format("{} of one side alone: scales of inputs, which layouts of "
                                    "ranks leave out",
                                    plural(c.left_out, "tensor"))) +
            "\n";
  if (c.equal())
    return text +
           style.good(fmt::format("the same: {} agree in every bit", plural(c.same, "tensor"))) +
           "\n";
  Table table({{"tensor"}, {"A"}, {"B"}});
  for (std::size_t i = 0; i < c.differing.size() && i < kShown; ++i)
    table.add({c.differing[i].name, c.differing[i].a, c.differing[i].b});
  add_missing(table, c.only_a, true);
  add_missing(table, c.only_b, false);
  if (!table.empty()) text += table.text(style);
  for (std::size_t i = 0; i < c.other_shapes.size() && i < kShown; ++i)
    text += "  " + c.other_shapes[i] + "\n";
  const auto shapes = c.other_shapes.empty()
                          ? ""
                          : fmt::format(", {} stored in another shape", c.other_shapes.size());
  return text +
         style.bad(fmt::format("not the same: {} differ, {} only in A, {} only in B, {} agree{}",
                               c.differing.size(), c.only_a.size(), c.only_b.size(), c.same,
                               shapes)) +
         "\n";
}

}  // namespace

Result<int> execute(const VerifyArguments& a) {
  catch_interrupts();
  // What A stores in another form is compared as B stores it: as a refit from A to B would leave
  // it.
  const Side right = RESHARD_TRY(fingerprint_side(a.b, a, nullptr));
  const Side left = RESHARD_TRY(fingerprint_side(a.a, a, &right));
  RESHARD_TRY(check_ignored(left.model, &right.model));
  const Comparison c = compare(left, right, a.ignore);
  print(a.json ? as_json(left, right, c) : as_text(left, right, c));
  return c.equal() ? 0 : 1;
}

}  // namespace reshard::cli
